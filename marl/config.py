"""Base classes of all settings in a scenario."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

_LONGEST_COMPARED = 200
"""Characters of a name that are looked at for similar ones."""


def cut(text: str, length: int = 80) -> str:
    """Return `text`, or its beginning and `...` if it has more than `length` characters."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return 'did you mean ...?' and the choices, for error messages."""
    known = sorted(choices)
    close = difflib.get_close_matches(name[:_LONGEST_COMPARED], known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"{hint}choices: {', '.join(known) or 'none'}"


def _number(annotation: Any) -> bool:
    """Return True if a field takes a number and no truth value."""
    inner = get_args(annotation)
    return annotation in (int, float) or (bool not in inner and any(map(_number, inner)))


def wrong(problems: Mapping[str, str]) -> PydanticCustomError:
    """Return an error about fields below the one that is validated; `problems`: field -> message."""
    return PydanticCustomError("wrong", "{message}", {"message": "; ".join(problems.values()), "below": dict(problems)})


class Config(BaseModel):
    """Frozen, closed-world settings: a typo in a scenario is an error, never a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

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


class Component(Config):
    """Settings that name a part by `kind`. Found by name, see `marl.parts`."""

    kind: str
    group: ClassVar[str] = ""
    """Family of parts; its entry point group is `marl.<group>`."""

    def missing(self) -> Iterable[str]:
        """Yield a message for each thing outside the settings that it needs and lacks, such as a file."""
        return ()


class Sampling(Config):
    """Settings of the sampling of tokens from logits."""

    temperature: float = Field(default=1.0, ge=0, le=100)
    """0 takes the most likely token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 keeps every token."""
    max_tokens: int = Field(default=256, ge=1)
    stop: tuple[str, ...] = ()
    """Texts that end a completion, as the model's own end tokens do."""

    @property
    def truncated(self) -> bool:
        """Return True if some tokens can never be sampled."""
        return self.top_p < 1 or self.top_k > 0
