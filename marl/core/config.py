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

from marl.host.paths import current_resolver

_COMPARED_CHARACTERS = 200
"""Number of leading characters of a name that are compared with the choices (difflib is quadratic)."""


def shorten(text: str, length: int = 80) -> str:
    """Return `text`, cut off with `...` after `length` characters."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def similar(name: str, choices: Iterable[str]) -> str:
    """Return 'did you mean ...? ' with up to three choices similar to `name`, or "" if none is similar."""
    close = difflib.get_close_matches(name[:_COMPARED_CHARACTERS], sorted(choices), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, close))}? " if close else ""


def choices_hint(name: str, choices: Iterable[str]) -> str:
    """Return 'did you mean ...?' and all choices, for error messages."""
    names = sorted(choices)
    return f"{similar(name, names)}choices: {', '.join(names) or 'none'}"


def _is_number_only(annotation: Any) -> bool:
    """Return True if a field of this type takes numbers but no booleans."""
    inner = get_args(annotation)
    return annotation in (int, float) or (bool not in inner and any(map(_is_number_only, inner)))


def field_errors(problems: Mapping[str, str]) -> PydanticCustomError:
    """Return a validation error for several fields at once. `problems` maps a field to its message."""
    return PydanticCustomError("wrong", "{message}", {"message": "; ".join(problems.values()), "below": dict(problems)})


class Config(BaseModel):
    """Frozen, closed-world settings: a typo in a scenario is an error, never a silent default."""

    # Not `use_attribute_docstrings`, which reads every source at import (0.3 s); see `field_descriptions`.
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    example: ClassVar[str] = ""
    """Example of the settings after `kind`, in YAML (`path: answers.jsonl, seed: 1`), with all required ones."""

    @model_validator(mode="before")
    @classmethod
    def _no_typos(cls, data: Any) -> Any:
        problems: dict[str, str] = {}
        for key, value in data.items() if isinstance(data, Mapping) else ():
            if key not in cls.model_fields:
                problems[shorten(str(key))] = (
                    f"unknown field {shorten(repr(key))}; {choices_hint(str(key), cls.model_fields)}"
                )
            elif isinstance(value, bool) and _is_number_only(cls.model_fields[key].annotation):
                # Pydantic would take `warm_up: true` for 1.
                problems[key] = f"must be a number (got {value})"
        if problems:
            raise field_errors(problems)
        return data

    @model_validator(mode="before")
    @classmethod
    def _make_paths_absolute(cls, data: Any) -> Any:
        resolver = current_resolver()
        if resolver is None or not isinstance(data, Mapping):
            return data
        absolute = dict(data)
        for name in cls.model_fields.keys() & data.keys():
            try:
                absolute[name] = resolver.resolve_field(name, cls.model_fields[name].annotation, data[name])
            except ValueError as error:
                raise field_errors({name: str(error)}) from error
        return absolute

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, description in field_descriptions(cls).items():
            if name in properties:
                properties[name].setdefault("description", description)
        return schema


def field_descriptions(settings: type[Config]) -> dict[str, str]:
    """Return field -> description: the text below the field in the source of the class or of its nearest base class.

    The source is read only on demand, so that commands without descriptions start fast.
    """
    texts: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        texts |= _descriptions_in(base.__module__).get(base.__qualname__, {})
    return {name: text for name, text in texts.items() if name in settings.model_fields}


@cache
def _descriptions_in(module: str) -> dict[str, dict[str, str]]:
    """Return class -> field -> description for the classes of a module; {} for a module without source."""
    with suppress(KeyError, OSError, SyntaxError, TypeError):
        return dict(_documented_classes(ast.parse(inspect.getsource(sys.modules[module])), ""))
    return {}


def _documented_classes(scope: ast.AST, prefix: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (qualified name, field -> description) for each class in `scope`."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.ClassDef):
            texts = {}
            for field, text in pairwise(node.body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(description))):
                        # A scenario writes None as null.
                        texts[name] = " ".join(description.split()).replace("None:", "Null:")
            yield f"{prefix}{node.name}", texts
            yield from _documented_classes(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _documented_classes(node, f"{prefix}{node.name}.<locals>.")


class PluginConfig(Config):
    """Settings of a plug-in, which a scenario names by `kind` (see `marl.core.plugins`)."""

    kind: str
    """Name of the plug-in, or its import path `package.module:Name`."""
    group: ClassVar[str] = ""
    """Group of the plug-in; the entry point group is `marl.<group>`."""

    def unmet_requirements(self) -> Iterable[str]:
        """Yield a message for each missing requirement outside the settings, such as a file or a package."""
        return ()


class Sampling(Config):
    """Settings for sampling tokens from logits."""

    temperature: float = Field(default=1.0, ge=0, le=100)
    """Divisor of logits: 1 samples from the model's own distribution, 0 takes the most likely token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample among the most likely tokens that together have this probability; 1 keeps every token."""
    top_k: int = Field(default=0, ge=0)
    """Sample among this many of the most likely tokens; 0 keeps every token."""
    max_tokens: int = Field(default=256, ge=1)
    """Maximum number of tokens of a completion, which is then cut off."""
    thinking_tokens: int | None = Field(default=None, ge=0)
    """Maximum number of tokens between `<think>` and `</think>`; they count in `max_tokens`. At the limit `</think>` is
    inserted, and is not learned from. None: no limit of its own."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion, besides the model's own end tokens."""
    structured: Literal["json", "legal_moves"] | None = None
    """Constraint on the completion. `json`: a JSON object, matching the role's `json_schema` if it has one.
    `legal_moves`: the text of a legal move. Log-probabilities are then those of the constrained distribution, which no
    learner can compute: for turns that are not learned from, with engine `vllm`."""

    @model_validator(mode="after")
    def _thinks_or_is_limited(self) -> Self:
        if self.structured and self.thinking_tokens is not None:
            raise ValueError(f"structured: {self.structured!r} leaves no room for thoughts; remove thinking_tokens")
        return self

    @property
    def truncated(self) -> bool:
        """Return True if `top_p` or `top_k` gives some tokens probability 0."""
        return self.top_p < 1 or self.top_k > 0
