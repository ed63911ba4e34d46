"""Try a scenario's verifiers on answers whose verdict is known, before anything is trained on their scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marl.engines.workers.pool import Job, JobResult
from marl.engines.workers.settings import Verifiers, encode_case
from marl.types import Case, Problem

if TYPE_CHECKING:
    from marl.protocols import VerifierConfig
    from marl.scenario.schema import Scenario

_GIBBERISH = "zqx wvkj blorp ]]"


@dataclass(frozen=True, slots=True)
class Trial:
    """One answer that is put to one check."""

    field: str
    """Place of the check in the scenario."""
    check: VerifierConfig
    what: str
    """empty, gibberish, gold, or the gold answer of another problem."""
    case: Case

    def complaint(self, outcome: JobResult) -> str:
        """Return the problem with a verdict; "" if there is none."""
        score, why = (0.0, outcome.error) if outcome.error else outcome.value
        if self.fair(score, outcome.error):
            return ""
        verb = "fails on" if outcome.error else "rejects" if self.what == "gold" else "accepts"
        return (
            f"{self.field}: {self.check.kind!r} {verb} {self.what} for problem {self.case.problem.key!r} "
            f"(gold {self.case.problem.answer!r}): answer {self.case.answer!r}, score {score:g}, why {why!r}"
        )

    def fair(self, score: float, error: str) -> bool:
        """Return True if the verdict is as expected. Another problem's gold may pass some tests, but not all."""
        if not self.check.grades:
            return not error
        if self.what == "gold":
            return score == 1
        return score <= 0 if self.what in ("empty", "gibberish") else score < 1


def check_graders(scenario: Scenario, problems: int = 5) -> int:
    """Put empty, gibberish, gold and other problems' gold answers to every check of every `verifiers` policy.

    Args:
        problems: number of the game's problems that are tried.

    Returns:
        The number of verdicts; 0 if there are no verifiers or the game shows no problems.

    Raises:
        ValueError: a line for each check that accepts what is wrong, rejects what is right or does not run.
    """
    count, complaints = 0, list[str]()
    shown = scenario.game.problems(problems)
    for name, policy in scenario.policies.items():
        if isinstance(policy.engine, Verifiers):
            trials = list(_trials(f"policies.{name}.engine.checks", policy.engine, shown))
            count += len(trials)
            verdicts = _verdicts(policy.engine, trials)
            complaints += [complaint for trial, result in verdicts if (complaint := trial.complaint(result))]
    if complaints:
        raise ValueError("\n".join(["graders that cannot be trusted:", *(f"  {line}" for line in complaints)]))
    return count


def _trials(field: str, engine: Verifiers, problems: Sequence[Problem]) -> Iterator[Trial]:
    for name, check in engine.checks.items():
        for problem in problems:
            for what, answer in _answers(problem, problems):
                text = check.phrase(answer) if answer else ""
                yield Trial(f"{field}.{name}", check, what, Case(problem, text, answer))


def _answers(problem: Problem, problems: Sequence[Problem]) -> Iterator[tuple[str, str]]:
    yield "empty", ""
    yield "gibberish", _GIBBERISH
    if problem.answer:
        yield "gold", problem.answer
    other = next((p for p in problems if p.answer and p.answer.casefold() != problem.answer.casefold()), None)
    if other is not None:
        yield f"the gold of problem {other.key!r}", other.answer


def _verdicts(engine: Verifiers, trials: Sequence[Trial]) -> list[tuple[Trial, JobResult]]:
    pool = engine.pool()
    names = {id(check): name for name, check in engine.checks.items()}
    jobs = {Job(names[id(t.check)], encode_case(t.case), t.check.timeout_s): t for t in trials}
    for job in jobs:
        pool.put(job)
    results: dict[Job, JobResult] = {}
    try:
        # Each job is answered or given up when its own time is over, so this ends.
        while len(results) < len(jobs):
            results.update(pool.take(1.0))
    finally:
        pool.close()
    return [(trial, results[job]) for job, trial in jobs.items()]
