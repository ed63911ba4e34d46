"""Asking the OpenAI engine, as a run does, about servers that misbehave."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from marl.core.config import Sampling
from marl.core.types import Completion, CompletionFailure, Message, Request
from marl.engines.openai.engine import OpenAIEngine
from marl.engines.openai.settings import OpenAI
from tests.support.misbehaving_servers import Act, Server, serving

DEADLINE_S = 10.0
Serve = Callable[..., Server]


@pytest.fixture
def start_server() -> Iterator[Serve]:
    open_: list[Any] = []

    def start(*acts: Act) -> Server:
        open_.append(serving(*acts))
        return open_[-1].__enter__()

    yield start
    for context in open_:
        context.__exit__(None, None, None)


def endpoint_settings(server: Server, **more: Any) -> OpenAI:
    quick = {"timeout_s": 0.35, "retries": 2, "backoff_s": 0.01, "key_env": None, "model": "mate-1"}
    return OpenAI.model_validate({"base_url": server.url, **quick, **more})


def build_endpoint(server: Server, **more: Any) -> OpenAIEngine:
    built = endpoint_settings(server, **more).build(None)
    assert isinstance(built, OpenAIEngine)
    return built


def make_request(text: str = "what now?", seed: int = 1, **more: Any) -> Request:
    return Request("mate", (Message("user", text),), more.pop("sampling", Sampling(max_tokens=9)), seed=seed, **more)


def collect_answers(mate: OpenAIEngine, *requests: Request) -> list[Completion | CompletionFailure]:
    """Return the answers to all requests, in order."""
    for ticket, request in enumerate(requests):
        mate.submit(ticket, request)
    answered: dict[int, Completion | CompletionFailure] = {}
    until = time.monotonic() + DEADLINE_S
    while len(answered) < len(requests):
        assert time.monotonic() < until, "an answer is overdue"
        answered.update(mate.step(0.1))
    return [answered[ticket] for ticket in range(len(requests))]
