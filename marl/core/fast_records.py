"""Construction and pickling of records of which every turn makes several and a step sends thousands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from operator import attrgetter
from typing import Any, TypeVar

_Record = TypeVar("_Record")


def fast_record(record_class: type[_Record]) -> type[_Record]:
    """Give a frozen dataclass with slots and at least two fields a faster constructor and faster pickling.

    Nothing else changes. Python's own constructor of such a class searches for the slot of each field by name
    (`object.__setattr__`); this one calls the slots' setters directly and takes 60 % of the time. Python's own pickling
    looks up the fields again for each instance; here a record is pickled as the arguments of its class.
    """
    names: dict[str, Any] = {"missing": MISSING}
    parameters: list[str] = []
    lines: list[str] = []
    for field in fields(record_class):  # type: ignore[arg-type]
        name, value, default = field.name, field.name, ""
        names[f"set_{name}"] = record_class.__dict__[name].__set__
        if field.default_factory is not MISSING:
            names[f"make_{name}"] = field.default_factory
            value, default = f"make_{name}() if {name} is missing else {name}", " = missing"
        elif field.default is not MISSING:
            names[f"default_{name}"], default = field.default, f" = default_{name}"
        parameters.append(name + default)
        lines.append(f"    set_{name}(self, {value})\n")
    # As in `dataclasses`, the constructor is compiled from a text, so that it has a line for each field and no loop.
    exec(f"def __init__(self, {', '.join(parameters)}):\n{''.join(lines)}", names)
    arguments: Callable[[Any], tuple[Any, ...]] = attrgetter(*[field.name for field in fields(record_class)])  # type: ignore[arg-type]

    def reduce_to_arguments(self: _Record) -> tuple[object, ...]:
        return record_class, arguments(self)

    record_class.__init__ = names["__init__"]
    record_class.__reduce__ = reduce_to_arguments  # type: ignore[method-assign, assignment]
    return record_class
