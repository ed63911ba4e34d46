"""Settings of policies behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from marl.engines.openai.chat_format import Price
from marl.protocols import Engine, EngineConfig, ModelSource

_HEADER_VALUE = re.compile(r"[!-~]+")
"""Visible ASCII characters."""


def endpoint_url(url: str) -> str:
    """Return `url` without trailing slashes.

    Raises:
        ValueError: if no path can be appended to `url`, or `url` holds a password, which would be written to disk.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no URL of an endpoint, such as http://127.0.0.1:8000/v1")
    if "@" in parts.netloc:
        raise ValueError("holds a user or password, which would be written to disk; name a key with key_env")
    if parts.query or parts.fragment:
        raise ValueError("ends in a query (?...) or fragment (#...), behind which /chat/completions has no place")
    return url.rstrip("/")


def key_problems(variable: str | None) -> Iterable[str]:
    """Yield a message for each problem of the key in the environment variable `variable` (None: no key)."""
    if variable is None:
        return
    if not os.environ.get(variable):
        yield f"key_env: the environment variable {variable!r} is not set (null, if the endpoint needs no key)"
    elif not _HEADER_VALUE.fullmatch(key_in(variable)):
        yield f"key_env: the environment variable {variable!r} holds signs that a header of HTTP cannot have"


def key_in(variable: str | None) -> str:
    """Return the key in the environment variable `variable`, or "" if `variable` is None."""
    return os.environ[variable].strip() if variable else ""


class OpenAI(EngineConfig):
    """A model behind an OpenAI-compatible endpoint: a frozen teammate or judge.

    Turns of the policy are recorded in the trajectory and never trained on. Requests carry a seed, but no endpoint
    promises equal answers: the steps of a resumed run may differ from the steps lost after the checkpoint.
    """

    kind: str = "openai"
    example = 'base_url: "http://127.0.0.1:8000/v1", model: judge, key_env: null'
    token_level: ClassVar[bool] = False
    base_url: str
    """URL up to and without `/chat/completions`."""
    model: str = Field(min_length=1)
    """Name of the model at the endpoint."""
    key_env: str | None = "OPENAI_API_KEY"
    """Name of the environment variable with the key; null sends no key."""
    timeout_s: PositiveFloat = 60.0
    """Maximum time of one attempt, from connecting to the last byte, in seconds."""
    retries: int = Field(4, ge=0, le=30)
    """Further attempts after failed connections, late or broken answers, and HTTP 408, 409, 425, 429 and 5xx."""
    backoff_s: PositiveFloat = 0.5
    """Pause before the first retry, in seconds. It doubles before each further retry, less up to a half at random.
    `Retry-After` may lengthen the pause, up to `timeout_s`."""
    concurrency: PositiveInt = 16
    """Requests in flight at once."""
    price: Price | None = None
    """Price of a million tokens, in the currency of `budget`. None: costs are not counted."""
    budget: PositiveFloat | None = None
    """Maximum cost of a run, in the currency of `price`; the run ends before a request could exceed the budget."""
    on_failure: Literal["stop", "skip"] = "stop"
    """Consequence of a request without an answer: end the run with a checkpoint (`stop`), or treat the turn as
    unreadable (`skip`)."""
    max_failures: PositiveInt = 100
    """Maximum number of requests without an answer under `on_failure: skip`; one more ends the run."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Fields to add to the body of each request, or to replace; null leaves a field out."""

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        return endpoint_url(url)

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

    def unmet_requirements(self) -> Iterable[str]:
        return key_problems(self.key_env)

    def key(self) -> str:
        """Return the key, or "" without one."""
        return key_in(self.key_env)

    @property
    def max_wait_s(self) -> float:
        # A server may ask for a pause as long as an attempt.
        return self.timeout_s * (2 * self.retries + 1)

    def build(self, source: ModelSource | None) -> Engine:
        from marl.engines.openai.engine import OpenAIEngine

        for problem in self.unmet_requirements():
            raise ValueError(problem)
        return OpenAIEngine(self)
