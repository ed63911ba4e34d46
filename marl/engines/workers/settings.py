"""Engines for seats that answer by rule: verifiers and tools in worker processes. Light: no torch."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat
from pydantic_core import PydanticSerializationError

from marl.core.config import shorten
from marl.core.plugins import PluginField
from marl.core.types import Completion, Failure, Request, Ticket, VerifierCase
from marl.engines.workers.jobs import Job, JobResult
from marl.engines.workers.pool import WorkerPool
from marl.engines.workers.process import CASE
from marl.engines.workers.worker import plugin_spec
from marl.host.outside import replace_surrogates
from marl.protocols import Engine, EngineConfig, ModelSource, ToolConfig, VerifierConfig, WorkerEngine
from marl.protocols.tasks import decode_verifier_case


class WorkerEngineConfig(EngineConfig):
    """Settings of an engine whose plug-ins answer in worker processes."""

    is_rule_based: ClassVar[bool] = True
    plugins_field: ClassVar[str]
    """Name of the field with the plug-ins, for messages."""
    workers: int = Field(default=2, ge=1, le=1024)
    """Number of worker processes."""
    memory_gb: PositiveFloat = 4.0
    """Address space of each process, in GiB."""

    @property
    @abstractmethod
    def plugins(self) -> Mapping[str, VerifierConfig | ToolConfig]:
        """Plug-ins of the workers, by name."""

    @abstractmethod
    def questions(self, request: Request) -> Mapping[str, str]:
        """Return the question to each plug-in, as JSON.

        Raises:
            BadCallError: if the request is no valid call; the message is the answer.
        """

    @abstractmethod
    def answer_text(self, results: Mapping[str, JobResult]) -> str:
        """Return the engine's answer, given the results of all questions."""

    def pool(self) -> WorkerPool:
        """Return a pool of workers. Processes start with the first job."""
        return WorkerPool(self.plugins, self.workers, int(self.memory_gb * 2**30))

    def unmet_requirements(self) -> Iterable[str]:
        for name, plugin in self.plugins.items():
            try:
                plugin_spec(plugin)
            except ValueError as error:
                yield f"{self.plugins_field}.{name}: {error}"
            for problem in plugin.unmet_requirements():
                yield f"{self.plugins_field}.{name}.{problem}"

    def build(self, source: ModelSource | None) -> Engine:
        return WorkerPoolEngine(self)


class BadCallError(ValueError):
    """An invalid call of a tool."""


class Verifiers(WorkerEngineConfig):
    """Checks an answer: `{"scores": {check: score}, "why": {check: reason}}`, a failed check scoring 0."""

    kind: str = "verifiers"
    example = "checks: {correct: numeric}"
    plugins_field: ClassVar[str] = "checks"
    checks: dict[str, Annotated[VerifierConfig, PluginField("verifiers", VerifierConfig)]] = Field(min_length=1)
    """Name of a check -> verifier that scores answers."""

    @property
    def plugins(self) -> Mapping[str, VerifierConfig]:
        return self.checks

    def questions(self, request: Request) -> Mapping[str, str]:
        return dict.fromkeys(self.checks, encode_case(decode_verifier_case(request)))

    def answer_text(self, results: Mapping[str, JobResult]) -> str:
        scores: dict[str, float] = {}
        reasons: dict[str, str] = {}
        for name, result in results.items():
            scores[name], reasons[name] = (0.0, result.error) if result.error else result.value
        return json.dumps({"scores": scores, "why": reasons}, sort_keys=True)


class Tools(WorkerEngineConfig):
    """Answers calls of tools; the answer to a failed call begins with `error: `."""

    kind: str = "tools"
    example = "tools: {calculate: calculator}"
    plugins_field: ClassVar[str] = "tools"
    tools: dict[str, Annotated[ToolConfig, PluginField("tools", ToolConfig)]] = Field(min_length=1)
    """Name of a tool in calls of roles -> tool that answers."""

    @property
    def plugins(self) -> Mapping[str, ToolConfig]:
        return self.tools

    def questions(self, request: Request) -> Mapping[str, str]:
        try:
            call = json.loads(request.state)
            name, arguments = call["name"], call["arguments"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadCallError("a call is written {'name': ..., 'arguments': {...}}") from error
        if not isinstance(name, str) or name not in self.tools:
            raise BadCallError(f"no tool {shorten(repr(name))}; choices: {', '.join(sorted(self.tools))}")
        if not isinstance(arguments, dict):
            raise BadCallError(f"the arguments of {name} must be an object")
        try:
            return {name: json.dumps(arguments, sort_keys=True)}
        except RecursionError as error:
            raise BadCallError(f"the arguments of {name} are lists within lists without end") from error

    def answer_text(self, results: Mapping[str, JobResult]) -> str:
        (result,) = results.values()
        return f"error: {result.message}" if result.error else result.value


def encode_case(case: VerifierCase) -> str:
    """Return the question to a verifier, as JSON."""
    try:
        return CASE.dump_json(case).decode()
    except PydanticSerializationError:  # half a surrogate pair, which is no character
        return replace_surrogates(json.dumps(CASE.dump_python(case), ensure_ascii=False))


class WorkerPoolEngine(WorkerEngine):
    """Engine that sends every question to a worker. Equal open questions share one job."""

    reason = "answers by rules: it has no weights to load"

    def __init__(self, rules: WorkerEngineConfig) -> None:
        self._rules = rules
        self._pool = rules.pool()
        self._open: dict[Ticket, dict[str, JobResult | None]] = {}
        """Ticket -> plug-in -> result, or None while the job is open."""
        self._jobs: dict[tuple[str, str], Job] = {}
        """(plug-in, question) -> open job."""
        self._waiting: dict[Job, list[Ticket]] = {}
        """Open job -> tickets that wait for its result."""
        self._answers: list[tuple[Ticket, Completion | Failure]] = []

    def submit(self, ticket: Ticket, request: Request) -> None:
        if request.forced is not None:
            # A recorded answer needs no second computation: it has no tokens to score.
            self._answer(ticket, request.forced)
            return
        try:
            questions = self._rules.questions(request)
        except BadCallError as error:
            self._answer(ticket, f"error: {error}")
            return
        self._open[ticket] = dict.fromkeys(questions)
        for name, question in questions.items():
            job = self._jobs.get((name, question))
            if job is None:
                job = self._jobs[name, question] = Job(name, question, self._rules.plugins[name].timeout_s)
                self._waiting[job] = []
                self._pool.put(job)
            self._waiting[job].append(ticket)

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        for job, result in self._pool.take(wait_s if self._open and not self._answers else 0):
            for ticket in self._close(job):
                self._record(ticket, job.plugin, result)
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

    def _close(self, job: Job) -> list[Ticket]:
        """Remove a job; return the tickets that waited for its result."""
        del self._jobs[job.plugin, job.question]
        return self._waiting.pop(job)

    def _record(self, ticket: Ticket, name: str, result: JobResult) -> None:
        """Store the result of plug-in `name`; answer the request after the last result."""
        results = self._open[ticket]
        results[name] = result
        finished = {name: result for name, result in results.items() if result is not None}
        if len(finished) < len(results):
            return
        del self._open[ticket]
        # A fault of the machine says nothing about the answer, so nothing is scored.
        faults = [f"{name} {result.message}" for name, result in finished.items() if result.blame == "machine"]
        if faults:
            self._answers.append((ticket, Failure("unjudged", "; ".join(faults))))
        else:
            self._answer(ticket, self._rules.answer_text(finished))

    def _answer(self, ticket: Ticket, text: str) -> None:
        self._answers.append((ticket, Completion(text, (), (), (), "stop")))
