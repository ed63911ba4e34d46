"""Settings of a policy that speaks through an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator

from marl.config import Config
from marl.protocols import Engine, EngineConfig, ModelSource

_HEADER_VALUE = re.compile(r"[!-~]+")
"""Visible characters of ASCII."""


class Price(Config):
    """Price of a million tokens, in any currency."""

    example = "prompt: 0.5, completion: 1.5"
    prompt: NonNegativeFloat
    """Price of a million tokens of prompts."""
    completion: NonNegativeFloat
    """Price of a million tokens of completions."""


class OpenAI(EngineConfig):
    """A model behind an OpenAI-compatible endpoint: a frozen teammate or judge.

    Its turns are recorded in the trajectory and never trained on. Seeds are sent, but no endpoint promises the same
    answer twice: a run that is resumed plays the steps after its checkpoint again, and they may differ.
    """

    kind: str = "openai"
    example = 'base_url: "http://127.0.0.1:8000/v1", model: judge, key_env: null'
    token_level: ClassVar[bool] = False
    base_url: str
    """URL up to and without `/chat/completions`."""
    model: str = Field(min_length=1)
    """Name of the model, as the endpoint knows it."""
    key_env: str | None = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key; null sends none."""
    timeout_s: PositiveFloat = 60.0
    """Longest time of one attempt, from connecting to the last byte, in seconds."""
    retries: int = Field(4, ge=0, le=30)
    """Further attempts after failed connections, late or broken answers, and HTTP 408, 409, 425, 429 and 5xx."""
    backoff_s: PositiveFloat = 0.5
    """Pause before the first retry, in seconds, doubled before each further one, less up to a half at random; longer
    where `Retry-After` asks for it, but never longer than `timeout_s`."""
    concurrency: PositiveInt = 16
    """Requests in flight at once."""
    price: Price | None = None
    """Price of a million tokens, which `budget` is counted by. None: costs are not counted."""
    budget: PositiveFloat | None = None
    """Highest cost of a run, in the currency of `price`; the run ends before it is exceeded."""
    on_failure: Literal["stop", "skip"] = "stop"
    """Consequence of a request that was given up: end the run with a checkpoint (`stop`), or take the turn as
    unreadable (`skip`)."""
    max_failures: PositiveInt = 100
    """Requests given up, with `on_failure: skip`, after which the run ends."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Fields of each request's body, added or replaced; null leaves a field out."""

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no URL of an endpoint, such as http://127.0.0.1:8000/v1")
        if "@" in parts.netloc:
            raise ValueError("holds a user or password, which would be written to disk; name a key with key_env")
        if parts.query or parts.fragment:
            raise ValueError("ends in a query (?...) or fragment (#...), behind which /chat/completions has no place")
        return url.rstrip("/")

    @field_validator("extra")
    @classmethod
    def _is_json(cls, extra: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(extra, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{extra!r} cannot be sent as JSON: {error}") from error
        return extra

    @model_validator(mode="after")
    def _has_price_for_budget(self) -> Self:
        if self.budget is not None and self.price is None:
            raise ValueError("budget: needs `price` (prompt and completion, per million tokens) to count against")
        return self

    def missing(self) -> Iterable[str]:
        if self.key_env is None:
            return
        if not os.environ.get(self.key_env):
            yield f"key_env: the environment variable {self.key_env!r} is not set (null, if the endpoint needs no key)"
        elif not _HEADER_VALUE.fullmatch(self.key()):
            yield f"key_env: the environment variable {self.key_env!r} holds signs that a header of HTTP cannot have"

    def key(self) -> str:
        """Return the key, or "" if there is none."""
        return os.environ[self.key_env].strip() if self.key_env else ""

    @property
    def max_wait_s(self) -> float:
        # The pause before a retry may be as long as an attempt.
        return self.timeout_s * (2 * self.retries + 1)

    def build(self, source: ModelSource | None) -> Engine:
        from marl.engines.openai.endpoint import Endpoint

        for problem in self.missing():
            raise ValueError(problem)
        return Endpoint(self)
