"""Verifiers look at what was said, each in a process that can be killed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from marl.cases import case_of
from marl.engines.workers.pool import Job, Outcome
from marl.engines.workers.settings import Verifiers, question
from marl.protocols import Evidence
from marl.types import Case, Problem, Turn, TurnId


class Verdicts:
    """Puts turns to every check of its settings; the processes stay up between steps."""

    def __init__(self, settings: Verifiers) -> None:
        self._checks, self._pool = settings.checks, settings.pool()
        self.failed = 0
        """Checks that raised or were late in the last call."""

    def __call__(self, turns: Iterable[Turn], evidence: Evidence) -> dict[str, dict[TurnId, float]]:
        """Check -> turn -> score. A check that fails scores 0, and so does one that grades a turn whose problem is not
        known.

        Raises:
            ValueError: if a check grades answers, and no problem of this step is known.
        """
        turns, problems = list(turns), _problems(evidence)
        self._refuse_blind(problems)
        asked: dict[tuple[str, str], Job] = {}
        jobs: dict[str, dict[TurnId, Job]] = {}
        for name, check in self._checks.items():
            seen = [turn for turn in turns if turn.problem in problems] if check.grades else turns
            questions = {turn.id: question(_case(turn, problems)) for turn in seen}
            put = {q: asked.setdefault((name, q), Job(name, q, check.timeout_s)) for q in questions.values()}
            jobs[name] = {turn: put[q] for turn, q in questions.items()}
        said = self._answers(asked.values())
        self.failed = sum(bool(outcome.error) for outcome in said.values())
        return {name: {turn: _score(said[job]) for turn, job in of.items()} for name, of in jobs.items()}

    def _answers(self, jobs: Iterable[Job]) -> dict[Job, Outcome]:
        waiting, said = set(jobs), dict[Job, Outcome]()
        for job in jobs:
            self._pool.put(job)
        # Each job is answered or given up when its own time is over, so this ends.
        while waiting:
            said.update((job, outcome) for job, outcome in self._pool.take(1.0) if job in waiting)
            waiting -= said.keys()
        return said

    def _refuse_blind(self, problems: Mapping[str, Problem]) -> None:
        for name, check in self._checks.items():
            if check.grades and not problems:
                raise ValueError(
                    f"credit.assign.verifiers.checks.{name}: {check.kind!r} compares with a right answer, but no "
                    "verifier at the table was asked about a problem; use checks of form, or rewards that the game pays"
                )


def _problems(evidence: Evidence) -> dict[str, Problem]:
    """The step's problems by key, as seats that verify were told them: turns carry the key alone."""
    found: dict[str, Problem] = {}
    for trajectory in evidence.trajectories:
        for turn in trajectory.turns:
            if turn.role in evidence.rules and turn.problem not in found:
                try:
                    problem = case_of(turn.request).problem
                except ValueError:
                    continue  # a seat with tools
                found[problem.key] = problem
    return found


def _case(turn: Turn, problems: Mapping[str, Problem]) -> Case:
    problem = problems.get(turn.problem) or Problem(turn.problem, "")
    return Case(problem, turn.completion.text, turn.action)


def _score(outcome: Outcome) -> float:
    return 0.0 if outcome.error else float(outcome.value[0])
