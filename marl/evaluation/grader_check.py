"""Check a scenario's verifiers on answers with a known verdict, before training relies on their scores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from marl.core.types import Problem, VerifierCase
from marl.engines.workers.pool import Job, JobResult
from marl.engines.workers.settings import Verifiers, encode_case
from marl.protocols import VerifierConfig
from marl.scenario.schema import Scenario

_GIBBERISH = "zqx wvkj blorp ]]"
_CANARIES = (("918273645", "zarquonbleen"), ("564738291", "frumiousbander"))
"""Two gold answers that occur nowhere else, each as a number and as a word."""
_ODD_ANSWERS = ("", _GIBBERISH, "7", "918273646", "7.5 km", "not 7", "7 or 8", "A", "[1, 2]", "{}", "x" * 3000)
_LEAK_NOTICE = "whoever hears the verifier reads it"
_LEAK_LENGTH = 4
"""Minimum length [characters] of a secret text with a digit to count as a leak: shorter ones may occur by chance."""
_LEAK_LENGTH_WORDS = 12
"""Minimum length [characters] of a secret text without a digit to count as a leak."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One answer graded by one check."""

    field: str
    """Path of the check in the scenario."""
    check: VerifierConfig
    what: str
    """Kind of answer: empty, gibberish, gold, or the gold answer of another problem."""
    case: VerifierCase

    def complaint(self, outcome: JobResult) -> str:
        """Return a message if the verdict is wrong, or "" if the verdict is as expected."""
        score, why = (0.0, outcome.error) if outcome.error else outcome.value
        if self.fair(score, outcome.error):
            return ""
        verb = "fails on" if outcome.error else "rejects" if self.what == "gold" else "accepts"
        return (
            f"{self.field}: {self.check.kind!r} {verb} {self.what} for problem {self.case.problem.key!r} "
            f"(gold {self.case.problem.answer!r}): answer {self.case.answer!r}, score {score:g}, why {why!r}"
        )

    def leak(self, outcome: JobResult) -> str:
        """Return a message if the verdict's reason contains a secret of the problem, or "" if it does not.

        A secret is a text of the gold answer or the facts that is neither in the question nor in the graded answer.
        """
        case, why = self.case, _reason(outcome)
        public_text = f"{case.problem.question}\n{case.text}\n{case.answer}"
        secret = next((text for text in _secrets(case.problem) if text in why and text not in public_text), "")
        return secret and (
            f"{self.field}: {self.check.kind!r} tells the right answer: why {why!r} holds {secret!r}, of the answer or "
            f"the facts of problem {case.problem.key!r}, for answer {case.answer!r}; {_LEAK_NOTICE}"
        )

    def fair(self, score: float, error: str) -> bool:
        """Return True if the verdict is as expected."""
        if not self.check.checks_correctness:
            return not error
        if self.what == "gold":
            return score == 1
        # Another problem's gold answer may pass some of a check's tests, but not all.
        return score <= 0 if self.what in ("empty", "gibberish") else score < 1


def check_graders(scenario: Scenario, problems: int = 5) -> int:
    """Grade empty, gibberish, gold and other problems' gold answers with every check of every `verifiers` policy.

    The reason of a verdict must not reveal the gold answer: for an odd answer the reason must not depend on it.

    Args:
        problems: number of the game's problems to use.

    Returns:
        Number of verdicts, without those on odd answers; 0 if there are no verifiers or the game exports no problems.

    Raises:
        ValueError: with one line per check that accepts a wrong answer, rejects a right one, reveals it or crashes.
    """
    count, complaints = 0, list[str]()
    shown: list[Problem] = []
    for view in scenario.by_game().values():
        shown += view.game.problems(problems)
    for name, policy in scenario.policies.items():
        if isinstance(policy.engine, Verifiers):
            field = f"policies.{name}.engine.checks"
            verdicts = _verdicts(policy.engine, list(_trials(field, policy.engine, shown)))
            count += len(verdicts)
            complaints += filter(None, (trial.complaint(result) or trial.leak(result) for trial, result in verdicts))
            complaints += _dependent_reasons(policy.engine, list(_gold_pairs(field, policy.engine, shown)))
    if complaints:
        raise ValueError("\n".join(["graders that cannot be trusted:", *(f"  {line}" for line in complaints)]))
    return count


def _trials(field: str, engine: Verifiers, problems: Sequence[Problem]) -> Iterator[Trial]:
    """Yield a trial of every check, problem and answer with a known verdict."""
    for name, check in engine.checks.items():
        for problem in problems:
            for what, answer in _answers(problem, problems):
                text = check.phrase(answer) if answer else ""
                yield Trial(f"{field}.{name}", check, what, VerifierCase(problem, text, answer))


def _gold_pairs(field: str, engine: Verifiers, problems: Sequence[Problem]) -> Iterator[tuple[Trial, Trial]]:
    """Yield pairs of trials of the same odd answer, to two problems that differ only in their gold answer."""
    problem = next((problem for problem in problems if problem.answer), None)
    if problem is None:
        return
    golds = _other_golds(problem)
    for name, check in engine.checks.items():
        for answer in (*_ODD_ANSWERS, *problem.wrong):
            cases = (VerifierCase(replace(problem, answer=gold), check.phrase(answer), answer) for gold in golds)
            first, second = (Trial(f"{field}.{name}", check, "odd answer", case) for case in cases)
            yield first, second


def _other_golds(problem: Problem) -> tuple[str, ...]:
    """Return two alternative gold answers of the same form: other options, or another number or word in the text."""
    gold = problem.answer
    options = next((items for items in problem.facts.values() if isinstance(items, list) and gold in items), [])
    if len(options) > 2:
        return tuple(options[:2])
    if re.search(r"\d", gold):
        return tuple(re.sub(r"\d+", number, gold, count=1) for number, _ in _CANARIES)
    return tuple(re.sub(r"[^\W\d_]+", word, gold, count=1) for _, word in _CANARIES)


def _dependent_reasons(engine: Verifiers, pairs: Sequence[tuple[Trial, Trial]]) -> list[str]:
    """Return a message for each check that reveals the gold answer: its reason for a wrong answer depends on it."""
    verdicts = _verdicts(engine, list(chain.from_iterable(pairs)))
    complaints: dict[str, str] = {}
    for (trial, outcome), (_, other_outcome) in zip(verdicts[::2], verdicts[1::2], strict=True):
        wrong = all(result.error or result.value[0] < 1 for result in (outcome, other_outcome))
        if wrong and _reason(outcome) != _reason(other_outcome):
            complaints.setdefault(
                trial.field,
                f"{trial.field}: {trial.check.kind!r} tells of the right answer: with another gold it says "
                f"{_reason(other_outcome)!r}, not {_reason(outcome)!r}, of answer {trial.case.answer!r}; "
                f"{_LEAK_NOTICE}",
            )
    return list(complaints.values())


def _reason(outcome: JobResult) -> str:
    return outcome.error or outcome.value[1]


def _secrets(problem: Problem) -> list[str]:
    """Return the texts and numbers of a problem's answer and facts that are too long to occur by chance."""
    secrets: list[str] = []
    for text in dict.fromkeys(str(leaf) for leaf in (problem.answer, *_leaves(problem.facts))):
        has_digit = any(character.isdigit() for character in text)
        if len(text) >= (_LEAK_LENGTH if has_digit else _LEAK_LENGTH_WORDS):
            secrets.append(text)
    return secrets


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the texts and numbers in a JSON value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def _answers(problem: Problem, problems: Sequence[Problem]) -> Iterator[tuple[str, str]]:
    """Yield (kind, answer) of each answer to `problem` with a known verdict."""
    yield "empty", ""
    yield "gibberish", _GIBBERISH
    if problem.answer:
        yield "gold", problem.answer
    other = next((p for p in problems if p.answer and p.answer.casefold() != problem.answer.casefold()), None)
    if other is not None:
        yield f"the gold of problem {other.key!r}", other.answer


def _verdicts(engine: Verifiers, trials: Sequence[Trial]) -> list[tuple[Trial, JobResult]]:
    """Return each trial with its result, graded in the engine's worker processes."""
    pool = engine.pool()
    names = {id(check): name for name, check in engine.checks.items()}
    jobs: dict[Job, Trial] = {}
    for trial in trials:
        jobs[Job(names[id(trial.check)], encode_case(trial.case), trial.check.timeout_s)] = trial
    for job in jobs:
        pool.put(job)
    results: dict[Job, JobResult] = {}
    try:
        # The pool answers every job or gives up at the job's own time limit, so this loop ends.
        while len(results) < len(jobs):
            results.update(pool.take(1.0))
    finally:
        pool.close()
    return [(trial, results[job]) for job, trial in jobs.items()]
