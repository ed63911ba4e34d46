"""A gateway whose calls are answered by a function of their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest

from marl.core.types import Completion, CompletionFailure
from marl.gateway.server import Gateway, generate_session_keys
from marl.gateway.sessions import AnsweringAgent, ProgramSession
from marl.protocols import ProgramModelCall

Result = TypeVar("Result")
Say = Callable[[ProgramModelCall], str | CompletionFailure | None]


class AnsweredGateway:
    """Gateway with one open session; `say` answers its calls, or leaves them open by None."""

    def __init__(self) -> None:
        self.calls: list[ProgramModelCall] = []
        self.say: Say = lambda call: f"{call.agent} read {call.messages[-1].content!r}"
        self.gateway = Gateway(self._answer)
        self.key = next(generate_session_keys())
        self.session: ProgramSession = self.begin(planner={}, solver={})

    def run(self, function: Callable[[], Result]) -> Result:
        """Return the result of `function`, called in the server's thread."""
        result: Future[Result] = Future()
        self.gateway.call_soon(lambda: result.set_result(function()))
        return result.result(timeout=30)

    def end(self, key: str = "", *, is_timed_out: bool = False) -> list[int]:
        """End the session of `key` (default: the open one) and return the ids of its undelivered calls."""
        return self.run(
            lambda: self.gateway.end_session_and_list_undelivered_calls(key or self.key, is_timed_out=is_timed_out)
        )

    def begin(self, **match: dict[str, str]) -> ProgramSession:
        callers = {name: AnsweringAgent(name, patterns) for name, patterns in match.items()}
        self.session = self.run(lambda: self.gateway.begin_session(self.key, 7, callers))
        return self.session

    def _answer(self, call: ProgramModelCall) -> None:
        self.calls.append(call)
        answer = self.say(call)
        if answer is None:
            return
        if isinstance(answer, str):
            ids = tuple(range(len(answer.split())))
            answer = Completion(answer, (1, 2, 3), ids, tuple([-0.5] * len(ids)), "stop")
        self.gateway.answer_call(self.session, call.id, answer)

    def give(self, index: int, text: str) -> None:
        """Answer a call that was left open."""
        self.gateway.answer_call(self.session, self.calls[index].id, Completion(text, (1,), (2,), (-0.5,), "stop"))

    def clients(self, library: Any, **options: Any) -> Any:
        return library(base_url=f"{self.gateway.address}/v1", api_key=self.key, max_retries=0, **options)


@pytest.fixture
def served() -> Iterator[AnsweredGateway]:
    answered = AnsweredGateway()
    yield answered
    answered.gateway.close()
