"""Protocols of tasks, verifiers and tools."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Literal, Protocol

from pydantic import PositiveFloat

from marl.config import Component
from marl.types import Case, Problem, Request, Verdict

Split = Literal["train", "held_out"]


class Tasks(Protocol):
    """Problems by number, the easiest first; the two splits share none."""

    def size(self, split: Split) -> int: ...
    def problem(self, split: Split, index: int) -> Problem:
        """Return problem number `index`, always the same one."""
        ...

    def posed(self, text: str) -> Problem | None:
        """Return the problem that `text` poses, with its answer; None if there is none, or a held-out one."""
        ...


class TaskConfig(Component):
    """Settings of a source of problems."""

    group: ClassVar[str] = "tasks"

    @property
    def secret_facts(self) -> frozenset[str]:
        """Names of the facts that give the answer away: for verifiers, rewards and examples, never for a prompt."""
        return frozenset()

    @property
    def posing(self) -> str:
        """Return what a challenger must write so that `Tasks.posed` reads a problem; "" if none can be posed."""
        return ""

    @abstractmethod
    def build(self) -> Tasks: ...


class UnjudgedError(Exception):
    """Raised by a verifier or tool that cannot tell, for a cause that is not the answer's: it is asked once more, and
    then the episode is left out and counted instead of failed."""


class VerifierConfig(Component):
    """Settings of a verifier, which scores an answer. Pure: it runs in a process that is killed after `timeout_s`.

    An exception or a timeout fails the answer; it is never a neutral score. An `UnjudgedError`, or a process that
    something outside ended or kept from working, does not.
    """

    group: ClassVar[str] = "verifiers"
    grades: ClassVar[bool] = True
    """True if it tells right from wrong; False if it looks at form or length alone."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that take long to import: loaded once, before any clock starts."""
    timeout_s: PositiveFloat = 10.0
    """Processor seconds that a verdict may take, with all that it starts; on the clock, up to ten times as many."""

    @abstractmethod
    def __call__(self, case: Case) -> Verdict: ...

    def phrase(self, answer: str) -> str:
        """Return a text that holds `answer` where this verifier looks for it."""
        return answer


class ToolConfig(Component):
    """Settings of a tool that a role may call. Pure, and run like a verifier: in a process that can be killed."""

    group: ClassVar[str] = "tools"
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that take long to import: loaded once, before any clock starts."""
    timeout_s: PositiveFloat = 10.0
    """Processor seconds that a call may take, with all that it starts; on the clock, up to ten times as many."""

    @abstractmethod
    def __call__(self, arguments: Mapping[str, Any]) -> str:
        """Return the result of a call.

        Raises:
            ValueError: if the arguments are wrong; its message is the result that the caller reads.
        """


_PROBLEM_FIELDS = [field.name for field in fields(Problem)]


def state_of(problem: Problem, answer: str | None) -> str:
    """Return the information state of a seat that verifies `answer`, as JSON.

    The problem, right answer included, travels in `Request.state`, which no language model is shown; the text to be
    verified is the request's last message.
    """
    # Not `asdict`: it would copy all facts, unit tests included, for every answer.
    problem_data = {field: getattr(problem, field) for field in _PROBLEM_FIELDS}
    return json.dumps({"problem": problem_data, "answer": answer}, sort_keys=True)


def case_of(request: Request) -> Case:
    """Return the case that `request` asks a verifier about.

    Raises:
        ValueError: if the request's state was not made by `state_of`.
    """
    try:
        state = json.loads(request.state)
        problem = Problem(**state["problem"] | {"wrong": tuple(state["problem"]["wrong"])})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"policy {request.policy!r} verifies, but was asked about no problem: {error!r}") from error
    return Case(problem, request.messages[-1].content if request.messages else "", state["answer"])
