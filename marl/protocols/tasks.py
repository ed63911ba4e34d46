"""Protocols of tasks, verifiers and tools."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any, ClassVar, Literal, Protocol, Self

from pydantic import Field, PositiveFloat

from marl.core.config import Config, PluginConfig
from marl.core.types import Problem, Request, Verdict, VerifierCase

Split = Literal["train", "held_out"]
"""Part of a task's problems: for training, or held out for evaluation."""
FAULTY = "faulty"
"""Key in the answer of a verifiers' engine: names of the checks whose code raised, hung, exited or gave no number."""


UNKNOWN = "unknown"
"""Key in the answer of a verifiers' engine: names of the checks that could neither accept nor refute the answer."""
UNKNOWN_REASON = f"{UNKNOWN}: "
"""Prefix of the reason of a verdict whose check could neither accept nor refute the answer. Such verdicts are
counted."""


class TaskProblems(Protocol):
    """Source of problems, in ascending order of difficulty. The splits have no problem in common."""

    def problem_count(self, split: Split) -> int: ...
    def problem(self, split: Split, index: int) -> Problem:
        """Return problem number `index` of a split, which is the same problem in every call."""
        ...

    def parse_posed_problem(self, text: str) -> Problem | None:
        """Return the problem, with its answer, that an agent posed in `text`.

        The result is None if `text` poses no problem or a held-out problem.
        """
        ...


@dataclass(frozen=True, slots=True)
class Document:
    """Document of a corpus, which the tools `search` and `expand` return."""

    id: str
    text: str
    """Text that is searched and shown, such as the title of a paper."""
    references: tuple[str, ...] = ()
    """Ids of the documents that it cites."""


class TaskConfig(PluginConfig):
    """Base class of the settings of a task, a source of problems."""

    group: ClassVar[str] = "tasks"

    @property
    def secret_fact_names(self) -> frozenset[str]:
        """Return the names of the facts that reveal the answer, for verifiers and rewards but never for prompts."""
        return frozenset()

    @property
    def problem_posing_instructions(self) -> str:
        """Return the instructions for a challenger who writes problems for `TaskProblems.parse_posed_problem`; "" if
        none."""
        return ""

    def documents(self) -> Sequence[Document]:
        """Return the corpus in which the answers are found, or () for a task without documents."""
        return ()

    @abstractmethod
    def build(self) -> TaskProblems: ...


class InfrastructureError(Exception):
    """A verifier or tool failed for a cause outside the answer, such as a busy machine.

    The call is repeated once. After a second failure the episode is dropped and counted, and the answer gets no score.
    """


class VerifierConfig(PluginConfig):
    """Base class of a verifier, a pure function that scores answers in a process that is killed after `timeout_s`.

    An exception or a timeout fails the answer. The answer gets no score after an `InfrastructureError`, or if something
    else on the machine killed or starved the worker process.
    """

    group: ClassVar[str] = "verifiers"
    checks_correctness: ClassVar[bool] = True
    """True if the score depends on correctness; False if it depends on form or length alone."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Slowly importing modules of the verifier. Each worker process imports them once, before the time limit starts."""
    timeout_s: PositiveFloat = 10.0
    """Time limit of one verdict in CPU seconds, child processes included. The limit of wall time is ten times as
    long."""

    @abstractmethod
    def __call__(self, case: VerifierCase) -> Verdict: ...

    def phrase(self, answer: str) -> str:
        """Return a text in which the verifier finds `answer`."""
        return answer

    def notes_for_author(self, problem: Problem) -> Iterable[str]:
        """Return remarks on the reference answer of `problem` for the scenario's author, such as another reading."""
        return ()


class Tool(Config):
    """Description of a tool that a role may call, for the model's chat template."""

    name: str
    """Name by which the model calls the tool."""
    description: str = ""
    """Purpose of the tool, in words for the model."""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the tool's arguments (default: no arguments)."""

    def to_function_schema(self) -> str:
        """Return the description as JSON text, in the form of OpenAI's chat completions."""
        return json.dumps({"type": "function", "function": self.model_dump(mode="json")})


class ToolConfig(PluginConfig):
    """Base class of a tool, a pure function that a role may call. It runs in a process that can be killed."""

    group: ClassVar[str] = "tools"
    imports: ClassVar[tuple[str, ...]] = ()
    """Slowly importing modules of the tool. Each worker process imports them once, before the time limit starts."""
    description: ClassVar[str] = ""
    """Purpose of the tool, in words for the model, for roles with `tools: auto`."""
    parameters: ClassVar[Mapping[str, Any]] = {"type": "object"}
    """JSON schema of the arguments, for roles with `tools: auto`."""
    timeout_s: PositiveFloat = 10.0
    """Time limit of one call in CPU seconds, child processes included. The limit of wall time is ten times as long."""

    @abstractmethod
    def __call__(self, arguments: Mapping[str, Any]) -> str:
        """Return the result of a tool call with these arguments.

        Raises:
            ValueError: if the arguments are wrong. The caller gets the message as the result.
        """

    @property
    def episode_state(self) -> str:
        """Name of the state that calls within an episode change, or "" for a tool without such a state.

        Tools of an engine with equal names share one state.
        """
        return ""

    def call_record(self, arguments: Mapping[str, Any]) -> Any:
        """Return all that a tool with the same `episode_state` needs to repeat this call, as JSON."""
        return dict(arguments)

    def call_after(self, earlier: Sequence[Any], arguments: Mapping[str, Any]) -> str:
        """Return the result of a call of a tool with `episode_state`, and raise as `__call__` does.

        `earlier` are the records of the calls that led to the present state of the episode, in their order.
        """
        return self(arguments)

    def with_task(self, task: TaskConfig) -> Self:
        """Return these settings, completed by the task of the game in which the tool is called."""
        return self

    def prepare(self) -> None:
        """Load the data of the tool. A worker process calls this method once, before any time limit starts."""

    def describe(self, name: str) -> Tool:
        """Return the description of this tool for models that call it `name`."""
        return Tool(name=name, description=self.description, parameters=dict(self.parameters))


def overall_score(score: float | Sequence[float]) -> float:
    """Return a score as one number: the mean of a list with one score for each segment, 0 for an empty list."""
    return (fmean(score) if score else 0.0) if isinstance(score, Sequence) else score


_PROBLEM_FIELDS = [field.name for field in fields(Problem)]


def encode_verifier_state(
    problem: Problem, answer: str | None, earlier: Sequence[str] = (), text: str | None = None
) -> str:
    """Return the information state of a verifier's seat as JSON: the problem, and the `answer` to verify.

    `earlier` are earlier results of tools in the same turn, if a result is verified. `text` is the full text to verify
    (default: the last message of the request).

    `Request.state` may carry the reference answer of the problem, because no language model reads this field.
    """
    # `dataclasses.asdict` would copy all facts, such as unit tests, for every answer.
    problem_data = {field: getattr(problem, field) for field in _PROBLEM_FIELDS}
    state: dict[str, Any] = {"problem": problem_data, "answer": answer}
    if earlier:
        state["earlier"] = [*earlier]
    if text is not None:
        state["text"] = text
    return json.dumps(state, sort_keys=True)


def decode_verifier_case(request: Request) -> VerifierCase:
    """Return the problem and the answer that a verifier scores, decoded from its `request`.

    Raises:
        ValueError: if the request's state was not made by `encode_verifier_state`.
    """
    try:
        state = json.loads(request.state)
        problem = Problem(**state["problem"] | {"wrong": tuple(state["problem"]["wrong"])})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"policy {request.policy!r} verifies, but was asked about no problem: {error!r}") from error
    text = request.messages[-1].content if request.messages else ""
    # The results of tool calls are no completion, so they have no segments.
    ends = () if "text" in state else request.segment_offsets
    segments = tuple([text[begin:end] for begin, end in zip((0, *ends), ends, strict=False)])
    return VerifierCase(problem, state.get("text", text), state["answer"], tuple(state.get("earlier", ())), segments)
