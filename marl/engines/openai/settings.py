"""Settings of policies behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, field_validator, model_validator

from marl.engines.openai.api_key import api_key_from_environment
from marl.engines.openai.chat_format import TokenPrices
from marl.protocols import Engine, EngineConfig, ModelSource

_HEADER_VALUE = re.compile(r"[!-~]+")
"""Visible ASCII characters."""


def normalized_endpoint_url(url: str) -> str:
    """Return `url`, the URL of an endpoint, without trailing slashes.

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


def api_key_errors(variable_name: str | None) -> Iterable[str]:
    """Yield an error message if the environment variable `variable_name` holds no usable key. None: no key."""
    if variable_name is None:
        return
    if not os.environ.get(variable_name):
        yield f"key_env: the environment variable {variable_name!r} is not set (null, if the endpoint needs no key)"
    elif not _HEADER_VALUE.fullmatch(api_key_from_environment(variable_name)):
        yield f"key_env: the environment variable {variable_name!r} holds signs that a header of HTTP cannot have"


class OpenAI(EngineConfig):
    """A model behind an OpenAI-compatible endpoint: a frozen teammate or judge.

    Turns of the policy are recorded in the trajectory and never trained on. Requests carry a seed, but no endpoint
    promises equal answers: the steps of a resumed run may differ from the steps lost after the checkpoint.
    """

    kind: str = "openai"
    example = 'base_url: "http://127.0.0.1:8000/v1", model: judge, key_env: null'
    token_level: ClassVar[bool] = False
    base_url: Annotated[str, AfterValidator(normalized_endpoint_url)]
    """URL up to and without `/chat/completions`."""
    model: str = Field(min_length=1)
    """Name of the model at the endpoint."""
    key_env: str | None = "OPENAI_API_KEY"
    """Name of the environment variable with the key; null sends no key."""
    timeout_s: PositiveFloat = 60.0
    """Maximum time of one attempt, from connecting to the last byte, in seconds."""
    retries: int = Field(default=4, ge=0, le=30)
    """Further attempts after failed connections, late or broken answers, and HTTP 408, 409, 425, 429 and 5xx."""
    backoff_s: PositiveFloat = 0.5
    """Pause before the first retry, in seconds. The pause doubles before each further retry, less up to a half at
    random. `Retry-After` may lengthen the pause, up to `timeout_s`."""
    concurrency: PositiveInt = 16
    """Maximum number of requests in flight at once."""
    price: TokenPrices | None = None
    """Price of a million tokens, in the currency of `budget`. Default: costs are not counted."""
    budget: PositiveFloat | None = None
    """Maximum cost of a run, in the currency of `price`; the run ends before a request could exceed the budget."""
    on_failure: Literal["stop", "skip"] = "stop"
    """Consequence of a request without an answer: end the run with a checkpoint (`stop`), or treat the turn as
    unreadable (`skip`)."""
    max_failures: PositiveInt = 100
    """Maximum number of requests without an answer under `on_failure: skip`; one more ends the run."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Fields to add to the body of each request, or to replace; null leaves a field out."""

    @field_validator("extra")
    @classmethod
    def _check_extra_fields(cls, extra: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(extra, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{extra!r} cannot be sent as JSON: {error}") from error
        return extra

    @model_validator(mode="after")
    def _check_budget(self) -> Self:
        if self.budget is not None and self.price is None:
            raise ValueError("budget: needs `price` (prompt and completion, per million tokens) to count against")
        return self

    def unmet_requirements(self) -> Iterable[str]:
        return api_key_errors(self.key_env)

    @property
    def counts_cost(self) -> bool:
        return self.price is not None

    @property
    def request_time_limit_s(self) -> float:
        # Each attempt may be followed by a pause of up to `timeout_s`, if the server asks for one.
        return self.timeout_s * (2 * self.retries + 1)

    def build(self, source: ModelSource | None) -> Engine:
        from marl.engines.openai.engine import OpenAIEngine

        for problem in self.unmet_requirements():
            raise ValueError(problem)
        return OpenAIEngine(self)
