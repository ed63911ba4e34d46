"""Try a scenario's verifiers on answers whose verdict is known, before anything is trained on their scores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from marl.engines.workers.pool import Job, JobResult
from marl.engines.workers.settings import Verifiers, encode_case
from marl.types import Case, Problem

if TYPE_CHECKING:
    from marl.protocols import VerifierConfig
    from marl.scenario.schema import Scenario

_GIBBERISH = "zqx wvkj blorp ]]"
_CANARIES = (("918273645", "zarquonbleen"), ("564738291", "frumiousbander"))
"""Two golds that stand nowhere else, each as a number and as a word."""
_ODD_ANSWERS = ("", _GIBBERISH, "7", "918273646", "7.5 km", "not 7", "7 or 8", "A", "[1, 2]", "{}", "x" * 3000)
_HEARD = "whoever hears the verifier reads it"
_TELLING = 4
"""Fewest characters of a hidden text, of which one is a digit, that no verdict holds by chance ..."""
_TELLING_WORDS = 12
"""... and without a digit."""


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

    def leak(self, outcome: JobResult) -> str:
        """Return a complaint if the reason of a verdict holds what the answer's author did not know; "" if not."""
        case, why = self.case, _reason(outcome)
        known = f"{case.problem.question}\n{case.text}\n{case.answer}"
        hidden = next((text for text in _hidden(case.problem) if text in why and text not in known), "")
        return hidden and (
            f"{self.field}: {self.check.kind!r} tells the right answer: why {why!r} holds {hidden!r}, of the answer or "
            f"the facts of problem {case.problem.key!r}, for answer {case.answer!r}; {_HEARD}"
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

    Besides, no reason may tell of the right answer: of an odd answer it must be the same whatever the gold is.

    Args:
        problems: number of the game's problems that are tried.

    Returns:
        The number of verdicts but those on odd answers; 0 if there are no verifiers or the game shows no problems.

    Raises:
        ValueError: a line for each check that accepts what is wrong, rejects what is right, tells it or does not run.
    """
    count, complaints = 0, list[str]()
    shown = [problem for view in scenario.by_game().values() for problem in view.game.problems(problems)]
    for name, policy in scenario.policies.items():
        if isinstance(policy.engine, Verifiers):
            field = f"policies.{name}.engine.checks"
            verdicts = _verdicts(policy.engine, list(_trials(field, policy.engine, shown)))
            count += len(verdicts)
            complaints += filter(None, (trial.complaint(result) or trial.leak(result) for trial, result in verdicts))
            complaints += _differences(policy.engine, list(_twins(field, policy.engine, shown)))
    if complaints:
        raise ValueError("\n".join(["graders that cannot be trusted:", *(f"  {line}" for line in complaints)]))
    return count


def _trials(field: str, engine: Verifiers, problems: Sequence[Problem]) -> Iterator[Trial]:
    for name, check in engine.checks.items():
        for problem in problems:
            for what, answer in _answers(problem, problems):
                text = check.phrase(answer) if answer else ""
                yield Trial(f"{field}.{name}", check, what, Case(problem, text, answer))


def _twins(field: str, engine: Verifiers, problems: Sequence[Problem]) -> Iterator[tuple[Trial, Trial]]:
    """Yield trials of the same odd answer to two problems that differ in their gold alone."""
    problem = next((problem for problem in problems if problem.answer), None)
    if problem is None:
        return
    golds = _other_golds(problem)
    for name, check in engine.checks.items():
        for answer in (*_ODD_ANSWERS, *problem.wrong):
            cases = (Case(replace(problem, answer=gold), check.phrase(answer), answer) for gold in golds)
            first, second = (Trial(f"{field}.{name}", check, "odd answer", case) for case in cases)
            yield first, second


def _other_golds(problem: Problem) -> tuple[str, ...]:
    """Return two golds of the same form: other options where there are options, else with another number or word."""
    gold = problem.answer
    options = next((items for items in problem.facts.values() if isinstance(items, list) and gold in items), [])
    if len(options) > 2:
        return tuple(options[:2])
    return tuple(
        re.sub(r"\d+", number, gold, count=1) if re.search(r"\d", gold) else re.sub(r"[^\W\d_]+", word, gold, count=1)
        for number, word in _CANARIES
    )


def _differences(engine: Verifiers, twins: Sequence[tuple[Trial, Trial]]) -> list[str]:
    """Return a complaint for each check whose reason for a wrong answer depends on the right one: it tells of it."""
    verdicts = _verdicts(engine, [trial for pair in twins for trial in pair])
    complaints: dict[str, str] = {}
    for (first, one), (_, other) in zip(verdicts[::2], verdicts[1::2], strict=True):
        wrong = all(result.error or result.value[0] < 1 for result in (one, other))
        if wrong and _reason(one) != _reason(other):
            complaints.setdefault(
                first.field,
                f"{first.field}: {first.check.kind!r} tells of the right answer: with another gold it says "
                f"{_reason(other)!r}, not {_reason(one)!r}, of answer {first.case.answer!r}; {_HEARD}",
            )
    return list(complaints.values())


def _reason(outcome: JobResult) -> str:
    return outcome.error or outcome.value[1]


def _hidden(problem: Problem) -> list[str]:
    """Return the texts and numbers of a problem's answer and facts that a verdict does not hold by chance."""
    texts = dict.fromkeys(str(leaf) for leaf in (problem.answer, *_leaves(problem.facts)))
    return [
        text
        for text in texts
        if len(text) >= _TELLING_WORDS or (len(text) >= _TELLING and any(sign.isdigit() for sign in text))
    ]


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the texts and numbers in plain JSON."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


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
