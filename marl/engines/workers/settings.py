"""Seats whose answers follow from the question: verifiers and tools, run in processes that can be killed."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt

from marl.cases import case_of
from marl.engines.workers.pool import Job, Outcome, WorkerPool, place_of
from marl.parts import Part
from marl.protocols import Engine, EngineConfig, Source, ToolConfig, VerifierConfig
from marl.types import Case, Completion, Failure, Request, Ticket

if TYPE_CHECKING:
    from marl.protocols import Weights


class RuleConfig(EngineConfig):
    """Settings of a seat that answers by rules, in worker processes."""

    rule_bound: ClassVar[bool] = True
    holds: ClassVar[str]
    """The field with its parts."""
    workers: PositiveInt = 2
    """Processes that work at once."""
    memory_gb: PositiveFloat = 4.0
    """Address space of each; what needs more fails."""

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, VerifierConfig | ToolConfig]:
        """What the workers run."""

    @abstractmethod
    def questions(self, request: Request) -> Mapping[str, str]:
        """Part -> what it is asked, as JSON.

        Raises:
            BadCall: if the request asks for nothing that can be done, and the speaker is to be told.
        """

    @abstractmethod
    def text(self, outcomes: Mapping[str, Outcome]) -> str:
        """What the seat says when all its parts have answered."""

    def pool(self) -> WorkerPool:
        """Workers for the parts, not started yet."""
        return WorkerPool(self.parts, self.workers, int(self.memory_gb * 2**30))

    def missing(self) -> Iterable[str]:
        for name, part in self.parts.items():
            try:
                place_of(part)
            except ValueError as error:
                yield f"{self.holds}.{name}: {error}"
            yield from (f"{self.holds}.{name}.{problem}" for problem in part.missing())

    def build(self, source: Source | None) -> Engine:
        return RuleEngine(self)


class BadCall(ValueError):  # noqa: N818 (says what happened)
    """A call that no tool can answer."""


class Verifiers(RuleConfig):
    """Checks an answer: `{"scores": {check: score}, "why": {check: reason}}`, a failed check scoring 0."""

    kind: str = "verifiers"
    holds: ClassVar[str] = "checks"
    checks: dict[str, Annotated[VerifierConfig, Part("verifiers", VerifierConfig)]] = Field(min_length=1)

    @property
    def parts(self) -> Mapping[str, VerifierConfig]:
        return self.checks

    def questions(self, request: Request) -> Mapping[str, str]:
        return dict.fromkeys(self.checks, question(case_of(request)))

    def text(self, outcomes: Mapping[str, Outcome]) -> str:
        verdicts = {name: (0.0, said.error) if said.error else said.value for name, said in outcomes.items()}
        scores = {name: score for name, (score, _) in verdicts.items()}
        return json.dumps({"scores": scores, "why": {name: why for name, (_, why) in verdicts.items()}}, sort_keys=True)


class Tools(RuleConfig):
    """Answers calls of tools; one that fails says `error: ...`."""

    kind: str = "tools"
    holds: ClassVar[str] = "tools"
    tools: dict[str, Annotated[ToolConfig, Part("tools", ToolConfig)]] = Field(min_length=1)

    @property
    def parts(self) -> Mapping[str, ToolConfig]:
        return self.tools

    def questions(self, request: Request) -> Mapping[str, str]:
        try:
            call = json.loads(request.state)
            name, arguments = call["name"], call["arguments"]
        except (ValueError, TypeError, KeyError) as error:
            raise BadCall("a call is written {'name': ..., 'arguments': {...}}") from error
        if not isinstance(name, str) or name not in self.tools:
            raise BadCall(f"no tool {name!r}; choices: {', '.join(sorted(self.tools))}")
        if not isinstance(arguments, dict):
            raise BadCall(f"the arguments of {name} must be an object")
        return {name: json.dumps(arguments, sort_keys=True)}

    def text(self, outcomes: Mapping[str, Outcome]) -> str:
        (said,) = outcomes.values()
        return f"error: {said.error}" if said.error else said.value


def question(case: Case) -> str:
    """What a verifier in a worker process is asked, as JSON."""
    from marl.engines.workers.process import CASE

    return CASE.dump_json(case).decode()


class RuleEngine:
    """Puts every question to a worker. Equal questions that are open at once are answered once."""

    def __init__(self, rules: RuleConfig) -> None:
        self._rules = rules
        self._pool = rules.pool()
        self._open: dict[Ticket, dict[str, Outcome | None]] = {}
        """Ticket -> part -> its answer, None while there is none."""
        self._jobs: dict[tuple[str, str], Job] = {}
        self._asked: dict[Job, list[Ticket]] = {}
        self._said: list[tuple[Ticket, Completion | Failure]] = []

    def submit(self, ticket: Ticket, request: Request) -> None:
        try:
            questions = self._rules.questions(request)
        except BadCall as error:
            self._said.append((ticket, _say(f"error: {error}")))
            return
        self._open[ticket] = dict.fromkeys(questions)
        for name, asked in questions.items():
            self._asked[self._job(name, asked)].append(ticket)

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        for job, outcome in self._pool.take(wait_s if self._open and not self._said else 0):
            for ticket in self._close(job):
                self._tell(ticket, job.part, outcome)
        said, self._said = self._said, []
        return said

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        gone = set(tickets)
        self._said = [answer for answer in self._said if answer[0] not in gone]
        for ticket in gone & self._open.keys():
            del self._open[ticket]
        for job, asking in list(self._asked.items()):
            asking[:] = [ticket for ticket in asking if ticket not in gone]
            if not asking:
                self._close(job)
                self._pool.cancel(job)

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        raise ValueError(f"policy {policy!r} answers by rules: it has no weights to load")

    def _job(self, part: str, asked: str) -> Job:
        job = self._jobs.get((part, asked))
        if job is None:
            job = self._jobs[part, asked] = Job(part, asked, self._rules.parts[part].timeout_s)
            self._asked[job] = []
            self._pool.put(job)
        return job

    def _close(self, job: Job) -> list[Ticket]:
        del self._jobs[job.part, job.question]
        return self._asked.pop(job)

    def _tell(self, ticket: Ticket, part: str, outcome: Outcome) -> None:
        outcomes = self._open[ticket]
        outcomes[part] = outcome
        heard = {name: said for name, said in outcomes.items() if said is not None}
        if len(heard) == len(outcomes):
            del self._open[ticket]
            self._said.append((ticket, _say(self._rules.text(heard))))


def _say(text: str) -> Completion:
    return Completion(text, (), (), (), "stop")
