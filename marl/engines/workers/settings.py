"""Engines `verifiers` and `tools`, which answer requests by plug-ins in worker processes. Torch is not imported."""

from __future__ import annotations

import json
import time
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PositiveFloat
from pydantic_core import PydanticSerializationError

from marl.core.config import shorten
from marl.core.errors import UserNotice
from marl.core.plugins import PluginField
from marl.core.types import Completion, CompletionFailure, Request, Ticket, VerifierCase
from marl.engines.workers.faulty_verdicts import FaultyVerdictMonitor
from marl.engines.workers.jobs import PluginJob, PluginJobResult
from marl.engines.workers.pool import WorkerPool
from marl.engines.workers.process import VERIFIER_CASE_ADAPTER
from marl.engines.workers.worker import plugin_import_spec
from marl.host.untrusted_text import replace_surrogates
from marl.protocols import (
    Engine,
    EngineConfig,
    ModelSource,
    TaskConfig,
    ToolConfig,
    VerifierConfig,
    WorkerProcessEngine,
)
from marl.protocols.tasks import FAULTY, UNKNOWN, UNKNOWN_REASON, decode_verifier_case

_SLOW_S = 5.0
"""Duration of one job [s] after which a warning names the plug-in, which may hang."""


class WorkerEngineConfig(EngineConfig):
    """Settings of an engine whose plug-ins answer in worker processes."""

    is_rule_based: ClassVar[bool] = True
    plugins_field: ClassVar[str]
    """Name of the settings field with the plug-ins, for messages."""
    workers: int = Field(default=2, ge=1, le=1024)
    """Number of worker processes."""
    memory_gb: PositiveFloat = 4.0
    """Maximum address space of each worker process, in GiB."""

    @property
    @abstractmethod
    def plugins(self) -> Mapping[str, VerifierConfig | ToolConfig]:
        """Verifiers or tools that the worker processes run, by name."""

    @abstractmethod
    def question_json_by_plugin(self, request: Request) -> Mapping[str, str]:
        """Return plug-in name -> question to the plug-in, as JSON, for the answer or tool call in `request`.

        Raises:
            InvalidToolCallError: if the request is no valid call of a tool. The message of the error is the answer.
        """

    @abstractmethod
    def answer_text_of_results(self, results: Mapping[str, PluginJobResult]) -> str:
        """Return the text that answers a request, from plug-in name -> result of the plug-in's job."""

    def create_worker_pool(self) -> WorkerPool:
        """Return a pool of worker processes, which start with the first job."""
        return WorkerPool(self.plugins, self.workers, int(self.memory_gb * 2**30))

    def unmet_requirements(self) -> Iterable[str]:
        for name, plugin in self.plugins.items():
            try:
                plugin_import_spec(plugin)
            except ValueError as error:
                yield f"{self.plugins_field}.{name}: {error}"
            for problem in plugin.unmet_requirements():
                yield f"{self.plugins_field}.{name}.{problem}"

    def build(self, source: ModelSource | None) -> Engine:
        return WorkerPoolEngine(self)


class InvalidToolCallError(ValueError):
    """A model's call of a tool is invalid."""


class Verifiers(WorkerEngineConfig):
    """Checks an answer by verifiers and returns `{"scores": {check: score}, "why": {check: reason}}`.

    A check that raised, timed out or gave no number scores 0, and is listed under "faulty"; a check that could not
    decide scores 0, too, and is listed under "unknown". The run ends if over a tenth of a check's latest verdicts are
    faulty.
    """

    kind: str = "verifiers"
    example = "checks: {correct: numeric}"
    plugins_field: ClassVar[str] = "checks"
    checks: dict[str, Annotated[VerifierConfig, PluginField("verifiers", VerifierConfig)]] = Field(min_length=1)
    """Name of a check -> verifier that scores answers."""

    @property
    def plugins(self) -> Mapping[str, VerifierConfig]:
        return self.checks

    def question_json_by_plugin(self, request: Request) -> Mapping[str, str]:
        return dict.fromkeys(self.checks, verifier_case_to_json(decode_verifier_case(request)))

    def answer_text_of_results(self, results: Mapping[str, PluginJobResult]) -> str:
        scores: dict[str, float] = {}
        reasons: dict[str, str] = {}
        for name, result in results.items():
            scores[name], reasons[name] = (0.0, result.error) if result.error else result.value
        # The model must not see the prefix, which reveals something about the right answer; only a metric uses it.
        plain_reasons = {name: reason.removeprefix(UNKNOWN_REASON) for name, reason in reasons.items()}
        verdict: dict[str, Any] = {"scores": scores, "why": plain_reasons}
        if faulty := sorted(name for name, result in results.items() if result.error):
            verdict[FAULTY] = faulty
        if unknown := sorted(name for name, reason in reasons.items() if reason.startswith(UNKNOWN_REASON)):
            verdict[UNKNOWN] = unknown
        return json.dumps(verdict, sort_keys=True)


class Tools(WorkerEngineConfig):
    """Answers calls of tools; the answer to a failed call begins with `error: `."""

    kind: str = "tools"
    example = "tools: {calculate: calculator}"
    plugins_field: ClassVar[str] = "tools"
    tools: dict[str, Annotated[ToolConfig, PluginField("tools", ToolConfig)]] = Field(min_length=1)
    """Name by which roles call a tool -> the tool that answers the call."""

    @property
    def plugins(self) -> Mapping[str, ToolConfig]:
        return self.tools

    def with_task(self, task: TaskConfig) -> Self:
        return self.model_copy(update={"tools": {name: tool.with_task(task) for name, tool in self.tools.items()}})

    def question_json_by_plugin(self, request: Request) -> Mapping[str, str]:
        try:
            call = json.loads(request.state)
            name, arguments = call["name"], call["arguments"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidToolCallError("a call is written {'name': ..., 'arguments': {...}}") from error
        if not isinstance(name, str) or name not in self.tools:
            raise InvalidToolCallError(f"no tool {shorten(repr(name))}; choices: {', '.join(sorted(self.tools))}")
        if not isinstance(arguments, dict):
            raise InvalidToolCallError(f"the arguments of {name} must be an object")
        try:
            return {name: json.dumps(arguments, sort_keys=True)}
        except RecursionError as error:
            raise InvalidToolCallError(f"the arguments of {name} are lists within lists without end") from error

    def answer_text_of_results(self, results: Mapping[str, PluginJobResult]) -> str:
        (result,) = results.values()
        return f"error: {result.error_message}" if result.error else result.value


def verifier_case_to_json(case: VerifierCase) -> str:
    """Return a verifier's case, such as a problem with its answer, as JSON."""
    try:
        return VERIFIER_CASE_ADAPTER.dump_json(case).decode()
    except PydanticSerializationError:
        # A model may write half a surrogate pair, which is no character.
        return replace_surrogates(json.dumps(VERIFIER_CASE_ADAPTER.dump_python(case), ensure_ascii=False))


class WorkerPoolEngine(WorkerProcessEngine):
    """Engine of verifiers or tools, which sends questions to worker processes. Equal open questions share one job."""

    reason = "answers by rules: it has no weights to load"

    def __init__(self, rules: WorkerEngineConfig) -> None:
        self._rules = rules
        self._pool = rules.create_worker_pool()
        self._open: dict[Ticket, dict[str, PluginJobResult | None]] = {}
        """Ticket -> name of a plug-in -> its result, or None while its job is open."""
        self._jobs: dict[tuple[str, str], PluginJob] = {}
        """(name of a plug-in, question) -> open job."""
        self._waiting: dict[PluginJob, list[Ticket]] = {}
        """Open job -> tickets of the requests that wait for its result."""
        self._answers: list[tuple[Ticket, Completion | CompletionFailure]] = []
        self._reported: set[str] = set()
        """Plug-ins with a warning about their duration."""
        self._faults = FaultyVerdictMonitor(rules.plugins) if isinstance(rules, Verifiers) else None

    def submit(self, ticket: Ticket, request: Request) -> None:
        if request.forced is not None:
            # A recorded answer is returned as it is, because a rule-based engine has no tokens to score.
            self._add_answer(ticket, request.forced)
            return
        try:
            questions = self._rules.question_json_by_plugin(request)
        except InvalidToolCallError as error:
            self._add_answer(ticket, f"error: {error}")
            return
        self._open[ticket] = dict.fromkeys(questions)
        for name, question in questions.items():
            job = self._jobs.get((name, question))
            if job is None:
                job = self._jobs[name, question] = PluginJob(name, question, self._rules.plugins[name].timeout_s)
                self._waiting[job] = []
                self._pool.submit_job(job)
            self._waiting[job].append(ticket)

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        done = self._pool.take_finished_jobs(wait_s if self._open and not self._answers else 0)
        if not done and self._jobs:
            self._report_slow_plugins()
        for job, result in done:
            del self._jobs[job.plugin, job.question]
            for ticket in self._waiting.pop(job):
                results = self._open[ticket]
                results[job.plugin] = result
                finished = {name: result for name, result in results.items() if result is not None}
                if len(finished) < len(results):
                    continue
                del self._open[ticket]
                # A fault of the machine says nothing about the answer, so the answer gets no score.
                faults = [
                    f"{name} {result.error_message}" for name, result in finished.items() if result.blame == "machine"
                ]
                if faults:
                    self._answers.append((ticket, CompletionFailure("unjudged", "; ".join(faults))))
                else:
                    self._add_answer(ticket, self._rules.answer_text_of_results(finished))
        if self._faults:
            for job, result in done:
                if result.blame != "machine":
                    self._faults.add_verdict(job.plugin, result.error_message)
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
                del self._jobs[job.plugin, job.question], self._waiting[job]
                self._pool.cancel(job)

    def _report_slow_plugins(self) -> None:
        """Warn, once for each plug-in, about a plug-in that has worked on one question for `_SLOW_S` seconds."""
        now = time.monotonic()
        for job in self._jobs.values():
            if now - job.started > _SLOW_S and job.plugin not in self._reported:
                self._reported.add(job.plugin)
                warnings.warn(
                    f"{self._rules.plugins_field}.{job.plugin} has been at work on one question for {_SLOW_S:g} s: it "
                    f"gets {job.timeout_s:g} s of CPU time or of sleep (timeout_s), then the answer fails",
                    UserNotice,
                    stacklevel=2,
                )

    def _add_answer(self, ticket: Ticket, text: str) -> None:
        """Store `text` as the answer to the request of `ticket`, to be returned by the next `step`."""
        self._answers.append((ticket, Completion(text, (), (), (), "stop")))
