"""Check a scenario's verifiers on answers with a known verdict, before training relies on their scores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marl.core.types import Problem, VerifierCase
from marl.engines.workers.pool import PluginJob, PluginJobResult
from marl.engines.workers.settings import Verifiers, verifier_case_to_json
from marl.protocols import VerifierConfig
from marl.protocols.tasks import UNKNOWN_REASON, overall_score
from marl.scenario.schema import Scenario

_GIBBERISH = "zqx wvkj blorp ]]"
_CANARY_NUMBERS = ("918273645", "564738291")
"""Two gold answers with a number that occurs nowhere else."""
_CANARY_WORDS = ("zarquonbleen", "frumiousbander")
"""Two gold answers with a word that occurs nowhere else."""
_ODD_ANSWERS = ("", _GIBBERISH, "7", "918273646", "7.5 km", "not 7", "7 or 8", "A", "[1, 2]", "{}", "x" * 3000)
_LEAK_NOTICE = "whoever hears the verifier reads it"
_MAX_NOTES = 3
"""Maximum number of displayed remarks by one check."""
_MIN_LEAK_LENGTH = 4
"""Minimum length [characters] of a secret text with a digit to count as a leak; a shorter text may occur by chance."""
_MIN_LEAK_LENGTH_WITHOUT_DIGIT = 12
"""Minimum length [characters] of a secret text without a digit to count as a leak, because words recur by chance."""


@dataclass(frozen=True, slots=True)
class GraderTrial:
    """One answer graded by one check."""

    field: str
    """Dotted path of the check in the scenario."""
    check: VerifierConfig
    answer_kind: str
    """Kind of answer: empty, gibberish, gold, or the gold answer of another problem."""
    case: VerifierCase
    """Problem and answer to be graded."""

    def wrong_verdict_error(self, verdict_result: PluginJobResult) -> str:
        """Return an error if the verdict in `verdict_result` is wrong, or "" if it is as expected."""
        score, why = (0.0, verdict_result.error) if verdict_result.error else verdict_result.value
        score = overall_score(score)
        if not self.check.checks_correctness:
            expected = not verdict_result.error
        elif self.answer_kind == "gold":
            expected = score == 1
        elif self.answer_kind in ("empty", "gibberish"):
            expected = score <= 0
        else:
            # The gold answer of another problem must not get the full score, but may pass some tests.
            expected = score < 1
        if expected:
            return ""
        verb = "fails on" if verdict_result.error else "rejects" if self.answer_kind == "gold" else "accepts"
        return (
            f"{self.field}: {self.check.kind!r} {verb} {self.answer_kind} for problem {self.case.problem.key!r} "
            f"(gold {self.case.problem.answer!r}): answer {self.case.answer!r}, score {score:g}, why {why!r}"
        )

    def leaked_secret_error(self, verdict_result: PluginJobResult) -> str:
        """Return an error if the reason in `verdict_result` contains a secret of the problem, or else "".

        A secret is a text of the gold answer or the facts that is neither in the question nor in the graded answer.
        """
        case, why = self.case, _verdict_reason_or_error(verdict_result)
        public_text = f"{case.problem.question}\n{case.text}\n{case.answer}"
        for text in map(str, (case.problem.answer, *_leaf_texts_and_numbers(case.problem.facts))):
            minimum_length = _MIN_LEAK_LENGTH if any(map(str.isdigit, text)) else _MIN_LEAK_LENGTH_WITHOUT_DIGIT
            if len(text) >= minimum_length and text in why and text not in public_text:
                return (
                    f"{self.field}: {self.check.kind!r} tells the right answer: why {why!r} holds {text!r}, of the "
                    f"answer or the facts of problem {case.problem.key!r}, for answer {case.answer!r}; {_LEAK_NOTICE}"
                )
        return ""


def check_graders_and_count_verdicts(scenario: Scenario, problems_per_game: int = 5) -> int:
    """Grade empty, gibberish, gold and other problems' gold answers with every check of every `verifiers` policy.

    The reason of a verdict must not reveal the gold answer: for an odd answer the reason must not depend on it.

    Args:
        scenario: scenario with the verifiers.
        problems_per_game: number of problems used from each game.

    Returns:
        Number of verdicts, without those on odd answers; 0 if there are no verifiers or the game exports no problems.

    Raises:
        ValueError: with one line per check that accepts a wrong answer, rejects a right one, reveals it or crashes.
    """
    count, errors = 0, list[str]()
    game_problems: list[Problem] = []
    for view in scenario.scenario_by_game().values():
        game_problems += view.game.problems(problems_per_game)
    for name, policy in scenario.policies.items():
        if isinstance(policy.engine, Verifiers):
            field = f"policies.{name}.engine.checks"
            trials = list(_trials_with_known_verdict(field, policy.engine, game_problems))
            for trial, result in _grade_trials(policy.engine, trials):
                count += 1
                if error := trial.wrong_verdict_error(result) or trial.leaked_secret_error(result):
                    errors.append(error)
            errors += _gold_dependent_reason_errors(field, policy.engine, game_problems)
    if errors:
        raise ValueError("\n  ".join(["graders that cannot be trusted:", *errors]))
    return count


def verdict_remarks_on_gold_answers(scenario: Scenario, problems_per_game: int = 200) -> list[str]:
    """Return the remarks of all checks on the right answers of the first `problems_per_game` problems of each game.

    At most three remarks of a check are returned, with the number of the others.
    """
    game_problems = [
        problem for view in scenario.scenario_by_game().values() for problem in view.game.problems(problems_per_game)
    ]
    lines = list[str]()
    for name, policy in scenario.policies.items():
        checks = policy.engine.checks if isinstance(policy.engine, Verifiers) else {}
        for check_name, check in checks.items():
            notes = [note for problem in game_problems for note in check.notes_for_author(problem)]
            others = len(notes) - _MAX_NOTES
            field = f"policies.{name}.engine.checks.{check_name}"
            lines += [f"{field}: {note}" for note in notes[:_MAX_NOTES]]
            lines += [f"{field}: {others} more of such answers"] if others > 0 else []
    return lines


def _trials_with_known_verdict(
    setting_path: str, engine: Verifiers, problems: Sequence[Problem]
) -> Iterator[GraderTrial]:
    """Yield a trial of every check, problem and answer with a known verdict."""
    for name, check in engine.checks.items():
        for problem in problems:
            answers = {"empty": "", "gibberish": _GIBBERISH}
            if problem.answer:
                answers["gold"] = problem.answer
            for other in problems:
                if other.answer and other.answer.casefold() != problem.answer.casefold():
                    answers[f"the gold of problem {other.key!r}"] = other.answer
                    break
            for answer_kind, answer in answers.items():
                text = check.phrase(answer) if answer else ""
                yield GraderTrial(f"{setting_path}.{name}", check, answer_kind, VerifierCase(problem, text, answer))


def _alternative_gold_answers(problem: Problem) -> tuple[str, ...]:
    """Return two alternative gold answers of the same form: other options, or another number or word in the text."""
    gold = problem.answer
    options = next((items for items in problem.facts.values() if isinstance(items, list) and gold in items), [])
    if len(options) > 2:
        return tuple(options[:2])
    pattern, canaries = r"[^\W\d_]+", _CANARY_WORDS
    if re.search(r"\d", gold):
        pattern, canaries = r"\d+", _CANARY_NUMBERS
    return tuple([re.sub(pattern, canary, gold, count=1) for canary in canaries])


def _gold_dependent_reason_errors(setting_path: str, engine: Verifiers, problems: Sequence[Problem]) -> list[str]:
    """Return an error for each check that reveals the gold answer: its reason for a wrong answer depends on it.

    The same odd answer is graded for two problems that differ only in their gold answer.
    """
    problem = next((problem for problem in problems if problem.answer), None)
    if problem is None:
        return []
    trials: list[GraderTrial] = []
    for name, check in engine.checks.items():
        for answer in (*_ODD_ANSWERS, *problem.wrong):
            for gold in _alternative_gold_answers(problem):
                case = VerifierCase(replace(problem, answer=gold), check.phrase(answer), answer)
                trials.append(GraderTrial(f"{setting_path}.{name}", check, "odd answer", case))
    verdicts = _grade_trials(engine, trials)
    errors: dict[str, str] = {}
    for (trial, outcome), (_, other_outcome) in zip(verdicts[::2], verdicts[1::2], strict=True):
        wrong = all(result.error or overall_score(result.value[0]) < 1 for result in (outcome, other_outcome))
        if wrong and _verdict_reason_or_error(outcome) != _verdict_reason_or_error(other_outcome):
            errors.setdefault(
                trial.field,
                f"{trial.field}: {trial.check.kind!r} tells of the right answer: with another gold it says "
                f"{_verdict_reason_or_error(other_outcome)!r}, not {_verdict_reason_or_error(outcome)!r}, "
                f"of answer {trial.case.answer!r}; {_LEAK_NOTICE}",
            )
    return list(errors.values())


def _verdict_reason_or_error(verdict_result: PluginJobResult) -> str:
    """Return the reason of a verdict, or the error of a check that raised."""
    return verdict_result.error or verdict_result.value[1].removeprefix(UNKNOWN_REASON)


def _leaf_texts_and_numbers(value: Any) -> Iterator[Any]:
    """Yield the texts and numbers in a JSON value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaf_texts_and_numbers(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def _grade_trials(engine: Verifiers, trials: Sequence[GraderTrial]) -> list[tuple[GraderTrial, PluginJobResult]]:
    """Return each trial with its result, graded in the engine's worker processes."""
    pool = engine.create_worker_pool()
    names = {id(check): name for name, check in engine.checks.items()}
    jobs: dict[PluginJob, GraderTrial] = {}
    for trial in trials:
        jobs[PluginJob(names[id(trial.check)], verifier_case_to_json(trial.case), trial.check.timeout_s)] = trial
    for job in jobs:
        pool.submit_job(job)
    results: dict[PluginJob, PluginJobResult] = {}
    try:
        # The pool finishes every job, if need be by the job's time limit, so this loop ends.
        while len(results) < len(jobs):
            results.update(pool.take_finished_jobs(1.0))
    finally:
        pool.close()
    return [(trial, results[job]) for job, trial in jobs.items()]
