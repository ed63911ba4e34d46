"""Engines of seats that answer by rule: verifiers and tools, run in worker processes."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat
from pydantic_core import PydanticSerializationError

from marl.config import cut
from marl.engines.workers.jobs import Job, JobResult
from marl.engines.workers.pool import WorkerPool
from marl.engines.workers.process import CASE
from marl.engines.workers.worker import spec_of
from marl.parts import Part
from marl.protocols import Engine, EngineConfig, ModelSource, ToolConfig, VerifierConfig, WorkerEngine
from marl.protocols.tasks import case_of
from marl.text import well_formed
from marl.types import Case, Completion, Failure, Request, Ticket


class RuleConfig(EngineConfig):
    """Settings of an engine that answers by rules, in worker processes."""

    rule_bound: ClassVar[bool] = True
    parts_field: ClassVar[str]
    """Name of the field with the parts, for messages."""
    workers: int = Field(default=2, ge=1, le=1024)
    """Processes that work at once."""
    memory_gb: PositiveFloat = 4.0
    """Address space of each process, in GiB."""

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, VerifierConfig | ToolConfig]:
        """The parts that the workers run, by name."""

    @abstractmethod
    def questions(self, request: Request) -> Mapping[str, str]:
        """Return part -> its question, as JSON.

        Raises:
            BadCallError: if the request asks for nothing that can be done; its message is the answer.
        """

    @abstractmethod
    def text(self, results: Mapping[str, JobResult]) -> str:
        """Return the engine's answer, given the results of all parts that were asked."""

    def pool(self) -> WorkerPool:
        """Return workers for the parts, not started yet."""
        return WorkerPool(self.parts, self.workers, int(self.memory_gb * 2**30))

    def missing(self) -> Iterable[str]:
        for name, part in self.parts.items():
            try:
                spec_of(part)
            except ValueError as error:
                yield f"{self.parts_field}.{name}: {error}"
            yield from (f"{self.parts_field}.{name}.{problem}" for problem in part.missing())

    def build(self, source: ModelSource | None) -> Engine:
        return RuleEngine(self)


class BadCallError(ValueError):
    """A call that no tool can answer."""


class Verifiers(RuleConfig):
    """Checks an answer: `{"scores": {check: score}, "why": {check: reason}}`, a failed check scoring 0."""

    kind: str = "verifiers"
    example = "checks: {correct: numeric}"
    parts_field: ClassVar[str] = "checks"
    checks: dict[str, Annotated[VerifierConfig, Part("verifiers", VerifierConfig)]] = Field(min_length=1)
    """Name of a check -> the part that scores answers."""

    @property
    def parts(self) -> Mapping[str, VerifierConfig]:
        return self.checks

    def questions(self, request: Request) -> Mapping[str, str]:
        return dict.fromkeys(self.checks, encode_case(case_of(request)))

    def text(self, results: Mapping[str, JobResult]) -> str:
        verdicts = {name: (0.0, result.error) if result.error else result.value for name, result in results.items()}
        scores = {name: score for name, (score, _) in verdicts.items()}
        return json.dumps({"scores": scores, "why": {name: why for name, (_, why) in verdicts.items()}}, sort_keys=True)


class Tools(RuleConfig):
    """Answers calls of tools; one that fails says `error: ...`."""

    kind: str = "tools"
    example = "tools: {calculate: calculator}"
    parts_field: ClassVar[str] = "tools"
    tools: dict[str, Annotated[ToolConfig, Part("tools", ToolConfig)]] = Field(min_length=1)
    """Name of a tool, as roles call it -> the part that answers."""

    @property
    def parts(self) -> Mapping[str, ToolConfig]:
        return self.tools

    def questions(self, request: Request) -> Mapping[str, str]:
        try:
            call = json.loads(request.state)
            name, arguments = call["name"], call["arguments"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadCallError("a call is written {'name': ..., 'arguments': {...}}") from error
        if not isinstance(name, str) or name not in self.tools:
            raise BadCallError(f"no tool {cut(repr(name))}; choices: {', '.join(sorted(self.tools))}")
        if not isinstance(arguments, dict):
            raise BadCallError(f"the arguments of {name} must be an object")
        try:
            return {name: json.dumps(arguments, sort_keys=True)}
        except RecursionError as error:
            raise BadCallError(f"the arguments of {name} are lists within lists without end") from error

    def text(self, results: Mapping[str, JobResult]) -> str:
        (result,) = results.values()
        return f"error: {result.why}" if result.error else result.value


def encode_case(case: Case) -> str:
    """Return the question of a verifier, as JSON."""
    try:
        return CASE.dump_json(case).decode()
    except PydanticSerializationError:  # half a surrogate pair, which is no character
        return well_formed(json.dumps(CASE.dump_python(case), ensure_ascii=False))


class RuleEngine(WorkerEngine):
    """Engine that puts every question to a worker. Equal questions that are open at once are answered once."""

    reason = "answers by rules: it has no weights to load"

    def __init__(self, rules: RuleConfig) -> None:
        self._rules = rules
        self._pool = rules.pool()
        self._open: dict[Ticket, dict[str, JobResult | None]] = {}
        """Ticket -> part -> its result, None while there is none."""
        self._jobs: dict[tuple[str, str], Job] = {}
        """(part, question) -> its open job."""
        self._waiting: dict[Job, list[Ticket]] = {}
        self._answers: list[tuple[Ticket, Completion | Failure]] = []

    def submit(self, ticket: Ticket, request: Request) -> None:
        if request.forced is not None:
            # A recorded answer is to be scored, and has no tokens: nothing needs to be worked out again.
            self._answer(ticket, request.forced)
            return
        try:
            questions = self._rules.questions(request)
        except BadCallError as error:
            self._answer(ticket, f"error: {error}")
            return
        self._open[ticket] = dict.fromkeys(questions)
        for part, question in questions.items():
            self._waiting[self._job(part, question)].append(ticket)

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        for job, result in self._pool.take(wait_s if self._open and not self._answers else 0):
            for ticket in self._close(job):
                self._record(ticket, job.part, result)
        answers, self._answers = self._answers, []
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        cancelled = set(tickets)
        self._answers = [answer for answer in self._answers if answer[0] not in cancelled]
        for ticket in cancelled & self._open.keys():
            del self._open[ticket]
        for job, waiting in list(self._waiting.items()):
            waiting[:] = [ticket for ticket in waiting if ticket not in cancelled]
            if not waiting:
                self._close(job)
                self._pool.cancel(job)

    def _job(self, part: str, question: str) -> Job:
        job = self._jobs.get((part, question))
        if job is None:
            job = self._jobs[part, question] = Job(part, question, self._rules.parts[part].timeout_s)
            self._waiting[job] = []
            self._pool.put(job)
        return job

    def _close(self, job: Job) -> list[Ticket]:
        """Forget a job; return the tickets that were waiting for it."""
        del self._jobs[job.part, job.question]
        return self._waiting.pop(job)

    def _record(self, ticket: Ticket, part: str, result: JobResult) -> None:
        """Note the result of one part; with the last one, answer."""
        results = self._open[ticket]
        results[part] = result
        finished = {name: result for name, result in results.items() if result is not None}
        if len(finished) < len(results):
            return
        del self._open[ticket]
        unjudged = [f"{name} {result.why}" for name, result in finished.items() if result.blame == "machine"]
        if unjudged:
            self._answers.append((ticket, Failure("unjudged", "; ".join(unjudged))))
        else:
            self._answer(ticket, self._rules.text(finished))

    def _answer(self, ticket: Ticket, text: str) -> None:
        self._answers.append((ticket, Completion(text, (), (), (), "stop")))
