"""Frozen records with the constructor and the pickling of `fast_record`: they behave as those of `dataclasses`."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest
from pydantic import TypeAdapter

from marl.core.fast_records import fast_record


@dataclass(frozen=True, slots=True)
class Plain:
    name: str
    size: int = 3
    parts: dict[str, int] = field(default_factory=dict)
    note: str | None = field(default=None, compare=False)


@fast_record
@dataclass(frozen=True, slots=True)
class Fast:
    name: str
    size: int = 3
    parts: dict[str, int] = field(default_factory=dict)
    note: str | None = field(default=None, compare=False)


@pytest.mark.parametrize(
    "arguments", [{"name": "a"}, {"name": "a", "size": 0, "parts": {"b": 1}, "note": "c"}, {"name": "", "note": ""}]
)
def test_a_fast_record_is_made_like_a_dataclass(arguments: dict[str, object]) -> None:
    plain, fast = Plain(**arguments), Fast(**arguments)  # type: ignore[arg-type]
    assert [getattr(fast, one.name) for one in fields(fast)] == [getattr(plain, one.name) for one in fields(plain)]
    assert repr(fast) == repr(plain).replace("Plain", "Fast")
    assert list(inspect.signature(Fast).parameters) == list(inspect.signature(Plain).parameters)


def test_positions_and_missing_or_unknown_arguments_are_those_of_a_dataclass() -> None:
    assert Fast("a", 1, {"b": 2}, "c") == Fast(name="a", size=1, parts={"b": 2})
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        Fast()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'sise'"):
        Fast("a", sise=1)  # type: ignore[call-arg]


def test_each_record_gets_a_default_of_its_own_and_none_can_be_changed() -> None:
    assert Fast("a").parts is not Fast("a").parts
    with pytest.raises(FrozenInstanceError):
        Fast("a").size = 1  # type: ignore[misc]


def test_a_made_record_is_of_its_class_and_has_no_attributes_of_its_own() -> None:
    assert type(Fast("a")) is Fast
    with pytest.raises(TypeError, match="__dict__"):
        vars(Fast("a"))


def test_a_fast_record_may_have_subclasses() -> None:
    @fast_record
    @dataclass(frozen=True, slots=True)
    class Base:
        name: str
        size: int = 3
        parts: tuple[int, ...] = ()
        note: str | None = None

    class WithAttributes(Base):
        """Has attributes besides the fields."""

    class WithoutAttributes(Base):
        __slots__ = ()

    for subclass in (WithAttributes, WithoutAttributes, Base):
        record = subclass("a", note="kept")
        assert type(record) is subclass
        assert (record.name, record.size, record.parts, record.note) == ("a", 3, (), "kept")


def test_a_fast_record_is_replaced_pickled_and_read_from_json() -> None:
    record = replace(Fast("a", note="kept"), size=5)
    assert (record.name, record.size, record.note) == ("a", 5, "kept")
    back = pickle.loads(pickle.dumps(record))
    assert (back, back.note) == (record, "kept")
    adapter = TypeAdapter(Fast)
    assert adapter.validate_json(adapter.dump_json(record)) == record
