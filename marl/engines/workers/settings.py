"""Engines `verifiers` and `tools`, which answer requests by plug-ins in worker processes. Torch is not imported."""

from __future__ import annotations

import json
import re
import time
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import AfterValidator, Field, PositiveFloat
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
    Tool,
    ToolConfig,
    VerifierConfig,
    WorkerProcessEngine,
)
from marl.protocols.tasks import FAULTY, UNKNOWN, UNKNOWN_REASON, decode_verifier_case
from marl.text.json_text import parse_strict_json

_SLOW_S = 5.0
"""Duration of one job [s] after which a warning names the plug-in, which may hang."""


class PluginQuestion(NamedTuple):
    """Question to one plug-in."""

    plugin: str
    """Name of the plug-in in its engine."""
    text: str
    """Question as JSON."""
    call_count: int = 1
    """Number of calls that the answer may take: more than one if a tool repeats earlier calls."""


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
    def questions(self, request: Request) -> Sequence[PluginQuestion | PluginJobResult]:
        """Return the questions to plug-ins for the answer or the tool calls in `request`.

        An invalid tool call has a result, an error, in place of a question.
        """

    @abstractmethod
    def answer_text_of_results(self, results: Sequence[PluginJobResult]) -> str:
        """Return the text that answers a request, from the results of its questions in the same order."""

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


class Verifiers(WorkerEngineConfig):
    """Checks an answer by verifiers and returns `{"scores": {check: score}, "why": {check: reason}}`.

    A check that raised, timed out or gave no number scores 0, and is listed under "faulty"; a check that could not
    decide scores 0, too, and is listed under "unknown". A check may give a list: one score for each segment of the
    answer. The run ends if over a tenth of a check's latest verdicts are faulty.
    """

    kind: str = "verifiers"
    example = "checks: {correct: numeric}"
    plugins_field: ClassVar[str] = "checks"
    checks: dict[str, Annotated[VerifierConfig, PluginField("verifiers", VerifierConfig)]] = Field(min_length=1)
    """Name of a check -> verifier that scores answers."""

    @property
    def plugins(self) -> Mapping[str, VerifierConfig]:
        return self.checks

    def questions(self, request: Request) -> Sequence[PluginQuestion]:
        case = verifier_case_to_json(decode_verifier_case(request))
        return [PluginQuestion(name, case) for name in self.checks]

    def answer_text_of_results(self, results: Sequence[PluginJobResult]) -> str:
        scores: dict[str, float | list[float]] = {}
        reasons: dict[str, str] = {}
        faulty: list[str] = []
        for name, result in zip(self.checks, results, strict=True):
            if result.error:
                faulty.append(name)
            scores[name], reasons[name] = (0.0, result.error) if result.error else result.value
        # The model must not see the prefix, which reveals something about the right answer; only a metric uses it.
        plain_reasons = {name: reason.removeprefix(UNKNOWN_REASON) for name, reason in reasons.items()}
        verdict: dict[str, Any] = {"scores": scores, "why": plain_reasons}
        if faulty:
            verdict[FAULTY] = sorted(faulty)
        if unknown := sorted(name for name, reason in reasons.items() if reason.startswith(UNKNOWN_REASON)):
            verdict[UNKNOWN] = unknown
        return json.dumps(verdict, sort_keys=True)


_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of functions in OpenAI's and Anthropic's interfaces."""


def _check_tool_name(name: str) -> str:
    """Return `name`, or raise ValueError if models or servers may not take it as the name of a tool."""
    if not _TOOL_NAME.fullmatch(name):
        raise ValueError(f"name of a tool: {shorten(repr(name))}; choices: 1 to 64 of A-Z, a-z, 0-9, _ and -")
    return name


class Tools(WorkerEngineConfig):
    """Answers calls of tools; the result of a failed call begins with `error: `.

    The calls of one request run at the same time. The answer to several calls is a JSON list of the results' texts, in
    the order of the calls; the answer to a single call is its result.
    """

    kind: str = "tools"
    example = "tools: {calculate: calculator}"
    plugins_field: ClassVar[str] = "tools"
    tools: dict[
        Annotated[str, AfterValidator(_check_tool_name)], Annotated[ToolConfig, PluginField("tools", ToolConfig)]
    ] = Field(min_length=1)
    """Name by which roles call a tool -> the tool that answers the call."""

    @property
    def plugins(self) -> Mapping[str, ToolConfig]:
        return self.tools

    def with_task(self, task: TaskConfig) -> Self:
        return self.model_copy(update={"tools": {name: tool.with_task(task) for name, tool in self.tools.items()}})

    def describe_tools(self) -> tuple[Tool, ...]:
        return tuple([tool.describe(name) for name, tool in self.tools.items()])

    @property
    def needs_earlier_calls(self) -> bool:
        return any(tool.episode_state for tool in self.tools.values())

    def questions(self, request: Request) -> Sequence[PluginQuestion | PluginJobResult]:
        earlier = list(self._earlier_calls(request))
        questions: list[PluginQuestion | PluginJobResult] = []
        for call in _read_calls(request.state) or [None]:
            question = self._question_of_call(call, earlier)
            questions.append(question)
            if isinstance(question, PluginQuestion):
                earlier.append((call["name"], call["arguments"]))
        return questions

    def _earlier_calls(self, request: Request) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (name, arguments) of the earlier calls in the messages of `request`, whose results follow them.

        Calls with an error as result are left out: they count as calls that changed nothing.
        """
        for calls_message, results_message in zip(request.messages[:-1:2], request.messages[1::2], strict=True):
            calls, text = _read_calls(calls_message.content), results_message.content
            results = [text] if len(calls) == 1 else _read_calls(text)
            for call_and_result in zip(calls, results, strict=False):
                match call_and_result:
                    case ({"name": str(name), "arguments": dict(arguments)}, str(result)) if name in self.tools:
                        if not result.startswith("error: "):
                            yield name, arguments
                    case _:
                        pass

    def _question_of_call(
        self, call: Any, earlier: Sequence[tuple[str, dict[str, Any]]]
    ) -> PluginQuestion | PluginJobResult:
        """Return the question to the tool that `call` names, or an error if `call` is no call of one of the tools.

        `earlier` are (name, arguments) of the calls before it in the episode.
        """
        match call:
            case {"name": name, "arguments": arguments}:
                pass
            case _:
                return PluginJobResult(error="a call is written {'name': ..., 'arguments': {...}}")
        if not isinstance(name, str) or name not in self.tools:
            return PluginJobResult(error=f"no tool {shorten(repr(name))}; choices: {', '.join(sorted(self.tools))}")
        if not isinstance(arguments, dict):
            return PluginJobResult(error=f"the arguments of {name} must be an object")
        state = self.tools[name].episode_state
        if not state:
            return PluginQuestion(name, json.dumps(arguments, sort_keys=True))
        same_state = [
            (self.tools[other], given) for other, given in earlier if self.tools[other].episode_state == state
        ]
        records = [tool.call_record(given) for tool, given in same_state]
        text = json.dumps({"earlier": records, "arguments": arguments}, sort_keys=True)
        return PluginQuestion(name, text, 1 + len(records))

    def answer_text_of_results(self, results: Sequence[PluginJobResult]) -> str:
        texts = [f"error: {result.error_message}" if result.error else result.value for result in results]
        return texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)


def _read_calls(state: str) -> list[Any]:
    """Return the calls in the JSON text `state`, or an empty list if it is no JSON."""
    try:
        calls = parse_strict_json(state)
    except ValueError:
        return []
    return calls if isinstance(calls, list) else [calls]


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
        self._open: dict[Ticket, list[PluginJobResult | None]] = {}
        """Ticket -> results of its questions, in their order; None while a job is open."""
        self._jobs: dict[tuple[str, str], PluginJob] = {}
        """(plug-in, question) -> open job."""
        self._waiting: dict[PluginJob, list[tuple[Ticket, int]]] = {}
        """Open job -> (ticket, index of the question) of the requests that wait for its result."""
        self._answers: list[tuple[Ticket, Completion | CompletionFailure]] = []
        self._reported: set[str] = set()
        """Plug-ins with a warning about their duration."""
        self._faults = FaultyVerdictMonitor(rules.plugins) if isinstance(rules, Verifiers) else None

    def submit(self, ticket: Ticket, request: Request) -> None:
        if request.forced is not None:
            # A recorded answer is returned as it is, because a rule-based engine has no tokens to score.
            self._add_answer(ticket, request.forced)
            return
        results: list[PluginJobResult | None] = []
        for index, question in enumerate(self._rules.questions(request)):
            if isinstance(question, PluginJobResult):
                results.append(question)
                continue
            results.append(None)
            job = self._jobs.get((question.plugin, question.text))
            if job is None:
                timeout_s = question.call_count * self._rules.plugins[question.plugin].timeout_s
                job = PluginJob(question.plugin, question.text, timeout_s)
                self._jobs[question.plugin, question.text] = job
                self._waiting[job] = []
                self._pool.submit_job(job)
            self._waiting[job].append((ticket, index))
        self._open[ticket] = results
        self._answer_if_complete(ticket)

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        done = self._pool.take_finished_jobs(wait_s if self._open and not self._answers else 0)
        if not done and self._jobs:
            self._report_slow_plugins()
        for job, result in done:
            del self._jobs[job.plugin, job.question]
            for ticket, index in self._waiting.pop(job):
                # The error of a machine names its plug-in, because a request may have asked several plug-ins.
                is_fault = result.blame == "machine"
                named = result._replace(error=f"{job.plugin} {result.error}") if is_fault else result
                self._open[ticket][index] = named
                self._answer_if_complete(ticket)
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
            waiting[:] = [entry for entry in waiting if entry[0] not in cancelled]
            if not waiting:
                del self._jobs[job.plugin, job.question], self._waiting[job]
                self._pool.cancel(job)

    def _answer_if_complete(self, ticket: Ticket) -> None:
        """Store the answer to the request of `ticket` if all its questions have results."""
        results = [result for result in self._open[ticket] if result is not None]
        if len(results) < len(self._open[ticket]):
            return
        del self._open[ticket]
        # A fault of the machine says nothing about the answer, so the answer gets no score.
        faults = [result.error_message for result in results if result.blame == "machine"]
        if faults:
            self._answers.append((ticket, CompletionFailure("unjudged", "; ".join(faults))))
        else:
            self._add_answer(ticket, self._rules.answer_text_of_results(results))

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
