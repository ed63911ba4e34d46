"""Protocols of tasks, verifiers and tools."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Literal, Protocol

from pydantic import PositiveFloat

from marl.core.config import PluginConfig
from marl.core.types import Problem, Request, Verdict, VerifierCase

Split = Literal["train", "held_out"]


class Tasks(Protocol):
    """Source of problems, in ascending order of difficulty. The two splits have no problem in common."""

    def size(self, split: Split) -> int: ...
    def problem(self, split: Split, index: int) -> Problem:
        """Return the problem with this index; the same problem in every call."""
        ...

    def parse_posed_problem(self, text: str) -> Problem | None:
        """Return the problem posed in `text`, with its answer, or None if `text` poses no problem or a held-out one."""
        ...


class TaskConfig(PluginConfig):
    """Settings of a source of problems."""

    group: ClassVar[str] = "tasks"

    @property
    def secret_facts(self) -> frozenset[str]:
        """Names of the facts that reveal the answer. Verifiers, rewards and examples use them, prompts must not."""
        return frozenset()

    @property
    def posing_instructions(self) -> str:
        """Return the instructions for a challenger who writes problems for `Tasks.parse_posed_problem`; "" if none."""
        return ""

    @abstractmethod
    def build(self) -> Tasks: ...


class InconclusiveError(Exception):
    """A verifier or tool failed for a cause outside the answer, such as a busy machine.

    The call is repeated once. If it fails again, the episode is dropped and counted; the answer does not fail.
    """


class VerifierConfig(PluginConfig):
    """Settings of a verifier, a pure function that scores an answer in a process that is killed after `timeout_s`.

    An exception or a timeout fails the answer. An `InconclusiveError`, or a worker process that was killed or starved
    by something else on the machine, does not.
    """

    group: ClassVar[str] = "verifiers"
    checks_correctness: ClassVar[bool] = True
    """True if the score depends on correctness; False if it depends on form or length alone."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules with long import times, imported once per worker process before the time limit starts."""
    timeout_s: PositiveFloat = 10.0
    """CPU seconds that a verdict may take, child processes included. The limit in wall time is ten times as long."""

    @abstractmethod
    def __call__(self, case: VerifierCase) -> Verdict: ...

    def phrase(self, answer: str) -> str:
        """Return a text in which this verifier finds `answer`."""
        return answer


class ToolConfig(PluginConfig):
    """Settings of a tool, a pure function that a role may call. It runs in a process that can be killed."""

    group: ClassVar[str] = "tools"
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules with long import times, imported once per worker process before the time limit starts."""
    timeout_s: PositiveFloat = 10.0
    """CPU seconds that a call may take, child processes included. The limit in wall time is ten times as long."""

    @abstractmethod
    def __call__(self, arguments: Mapping[str, Any]) -> str:
        """Return the result of a call.

        Raises:
            ValueError: if the arguments are wrong. The caller reads the message as the result.
        """


_PROBLEM_FIELDS = [field.name for field in fields(Problem)]


def encode_verifier_state(problem: Problem, answer: str | None) -> str:
    """Return the information state of a verifier's seat as JSON: the problem, and the `answer` to verify.

    `Request.state` carries the problem with its reference answer, because no language model reads that field. The full
    text to verify is the last message of the request.
    """
    # Not `dataclasses.asdict`, which would copy all facts, unit tests included, for every answer.
    problem_data = {field: getattr(problem, field) for field in _PROBLEM_FIELDS}
    return json.dumps({"problem": problem_data, "answer": answer}, sort_keys=True)


def decode_verifier_case(request: Request) -> VerifierCase:
    """Return the problem and answer in `request`, for a verifier.

    Raises:
        ValueError: if the request's state was not made by `encode_verifier_state`.
    """
    try:
        state = json.loads(request.state)
        problem = Problem(**state["problem"] | {"wrong": tuple(state["problem"]["wrong"])})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"policy {request.policy!r} verifies, but was asked about no problem: {error!r}") from error
    return VerifierCase(problem, request.messages[-1].content if request.messages else "", state["answer"])
