"""Base classes of all settings in a scenario."""

import ast
import difflib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from marl.places import current

_LONGEST_COMPARED = 200
"""Characters of a name that are looked at for similar ones."""


def cut(text: str, length: int = 80) -> str:
    """Return `text`, or its beginning and `...` if it has more than `length` characters."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def similar(name: str, choices: Iterable[str]) -> str:
    """Return 'did you mean ...? ' with up to three choices, for error messages; "" if none is like `name`."""
    close = difflib.get_close_matches(name[:_LONGEST_COMPARED], sorted(choices), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, close))}? " if close else ""


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return 'did you mean ...?' and the choices, for error messages."""
    known = sorted(choices)
    return f"{similar(name, known)}choices: {', '.join(known) or 'none'}"


def _number(annotation: Any) -> bool:
    """Return True if a field takes a number and no truth value."""
    inner = get_args(annotation)
    return annotation in (int, float) or (bool not in inner and any(map(_number, inner)))


def wrong(problems: Mapping[str, str]) -> PydanticCustomError:
    """Return an error about fields below the one that is validated; `problems`: field -> message."""
    return PydanticCustomError("wrong", "{message}", {"message": "; ".join(problems.values()), "below": dict(problems)})


class Config(BaseModel):
    """Frozen, closed-world settings: a typo in a scenario is an error, never a silent default."""

    # Not `use_attribute_docstrings`: it reads the source at import, 0.3 s for all parts; see `meanings`.
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    example: ClassVar[str] = ""
    """Settings as one might write them after `kind`, in YAML (`path: answers.jsonl, seed: 1`): at least those that must
    be given."""

    @model_validator(mode="before")
    @classmethod
    def _no_typos(cls, data: Any) -> Any:
        problems: dict[str, str] = {}
        for key, value in data.items() if isinstance(data, Mapping) else ():
            if key not in cls.model_fields:
                problems[cut(str(key))] = f"unknown field {cut(repr(key))}; {nearest(str(key), cls.model_fields)}"
            elif isinstance(value, bool) and _number(cls.model_fields[key].annotation):
                # Pydantic would take `warm_up: true` for 1.
                problems[key] = f"must be a number (got {value})"
        if problems:
            raise wrong(problems)
        return data

    @model_validator(mode="before")
    @classmethod
    def _make_paths_absolute(cls, data: Any) -> Any:
        places = current()
        if places is None or not isinstance(data, Mapping):
            return data
        absolute = dict(data)
        for name in cls.model_fields.keys() & data.keys():
            try:
                absolute[name] = places.in_field(name, cls.model_fields[name].annotation, data[name])
            except ValueError as error:
                raise wrong({name: str(error)}) from error
        return absolute

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, meaning in meanings(cls).items():
            if name in properties:
                properties[name].setdefault("description", meaning)
        return schema


def meanings(settings: type[Config]) -> dict[str, str]:
    """Return field -> its meaning, on one line: the text below it in the source, or a base class's where it has none.

    The source is read when it is asked for, so that commands that need no meanings start fast.
    """
    texts: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        texts |= _meanings_in(base.__module__).get(base.__qualname__, {})
    return {name: text for name, text in texts.items() if name in settings.model_fields}


@cache
def _meanings_in(module: str) -> dict[str, dict[str, str]]:
    """Return class -> field -> meaning, for the classes of a module; {} if it has no source."""
    with suppress(KeyError, OSError, SyntaxError, TypeError):
        return dict(_documented(ast.parse(inspect.getsource(sys.modules[module])), ""))
    return {}


def _documented(scope: ast.AST, prefix: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (qualified name, field -> meaning) for each class in `scope`."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.ClassDef):
            yield f"{prefix}{node.name}", dict(_field_texts(node.body))
            yield from _documented(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _documented(node, f"{prefix}{node.name}.<locals>.")


def _field_texts(body: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                # A scenario writes None as null.
                yield name, " ".join(meaning.split()).replace("None:", "Null:")


class Component(Config):
    """Settings that name a part by `kind`. Found by name, see `marl.parts`."""

    kind: str
    """Name of the part, or its import path `package.module:Name`."""
    group: ClassVar[str] = ""
    """Family of parts; its entry point group is `marl.<group>`."""

    def missing(self) -> Iterable[str]:
        """Yield a message for each thing outside the settings that it needs and lacks, such as a file."""
        return ()


class Sampling(Config):
    """Settings of the sampling of tokens from logits."""

    temperature: float = Field(default=1.0, ge=0, le=100)
    """Divisor of logits: 1 samples from the model's own distribution, 0 takes the most likely token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample among the most likely tokens that together have this probability; 1 keeps every token."""
    top_k: int = Field(default=0, ge=0)
    """Sample among this many of the most likely tokens; 0 keeps every token."""
    max_tokens: int = Field(default=256, ge=1)
    """Most tokens of a completion, after which it is cut off."""
    thinking_tokens: int | None = Field(default=None, ge=0)
    """Most tokens between `<think>` and `</think>`, after which the end is written for the model, and not learned
    from; they count in `max_tokens`. None: no limit of their own."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion, as the model's own end tokens do."""
    structured: Literal["json", "legal_moves"] | None = None
    """`json`: sample only what can become a JSON object, of the role's `json_schema` if it has one. `legal_moves`: only
    the texts of legal moves. Log-probabilities are those of what was left to choose from, which no learner knows: for
    turns that are not learned from, on the engine `vllm`."""

    @model_validator(mode="after")
    def _thinks_or_is_limited(self) -> Self:
        if self.structured and self.thinking_tokens is not None:
            raise ValueError(f"structured: {self.structured!r} leaves no room for thoughts; remove thinking_tokens")
        return self

    @property
    def truncated(self) -> bool:
        """Return True if some tokens can never be sampled."""
        return self.top_p < 1 or self.top_k > 0
