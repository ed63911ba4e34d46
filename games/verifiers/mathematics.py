"""Verifier of numbers, formulas, sets, points, intervals, matrices and equations, in LaTeX or plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

from marl.core.types import Problem, Verdict
from marl.games.verifiers.answer_verifier import AnswerVerifier, quote, reject, unwrap
from marl.games.verifiers.bound_variables import with_standard_bound_variable
from marl.games.verifiers.chemistry import is_letter_case_significant
from marl.games.verifiers.closed_form import asks_for_fraction_or_decimal, has_requested_form, is_fully_evaluated
from marl.games.verifiers.formula_answers import compare_formulas, has_unit
from marl.games.verifiers.latex_notation import GROUP_COMMAND, normalize_notation, without_text_commands
from marl.games.verifiers.literal_answers import matches_literally, note_on_misreading
from marl.games.verifiers.locales import with_plain_number
from marl.games.verifiers.measurements import measure
from marl.games.verifiers.numeric import NumericVerifier
from marl.games.verifiers.permutations import read_permutation
from marl.games.verifiers.python_values import matches_python_value
from marl.games.verifiers.quantities import FUNCTION_VALUE
from marl.games.verifiers.readings import readings_of_text
from marl.games.verifiers.scores import with_fraction_for_chance
from marl.games.verifiers.units import DEGREE, PERCENT, PURE
from marl.games.verifiers.vector_signs import mark_vector_operations

_NUMERIC = NumericVerifier()
_NAME = re.compile(rf"({FUNCTION_VALUE}|[A-Za-z]\w*)\s*=")
_INDEX = re.compile(r"(?<=[0-9A-F])_\s*\{\s*([0-9]+)\s*\}")
"""Base of a numeral, such as the 2 in 1101_{2}."""
_GENOTYPE = re.compile(r"(?:([A-Za-z])(?i:\1))+")
"""Pairs of one letter, whose case counts: Aa is not AA."""
_WORDS = re.compile(r"[^\W\d_]+(?:[\s'-]+[^\W\d_]+)*")


class MathVerifier(AnswerVerifier):
    """Accepts a number (as `numeric` does), formula, set, point, interval or equation equal to the right answer.

    Sets and the like are compared part by part, single formulas by their values at random points. A number must be
    worked out: 2+3 is not accepted for 5.
    """

    kind: str = "math"
    imports: ClassVar[tuple[str, ...]] = ("marl.games.verifiers.answer_comparison",)

    def notes_for_author(self, problem: Problem) -> Iterable[str]:
        if reading := note_on_misreading(unwrap(problem.answer)):
            yield f"the right answer {problem.answer[:80]!r} of problem {problem.key!r} {reading}"

    def alternative_answers(self, text: str, answers: Sequence[str], problem: Problem) -> Iterable[str]:
        return readings_of_text(text, answers, problem.question)

    def grade(self, answer: str, problem: Problem) -> Verdict:
        gold = unwrap(problem.answer)
        if not answer or not gold:
            return reject("no answer" if gold else "the problem has no answer to compare with")
        if "," in gold:
            gold = with_plain_number(gold, problem.question)
        context = f"{problem.question} {gold} {answer}"
        gold, answer = mark_vector_operations(gold, context), mark_vector_operations(answer, context)
        if _normalized_spelling(answer) == _normalized_spelling(gold) and not _differs_in_case_or_spaces(
            gold, answer, problem.question
        ):
            return Verdict(1.0)
        if (bound := with_standard_bound_variable(gold)) != gold and bound == with_standard_bound_variable(answer):
            return Verdict(1.0)
        is_one_number = not re.search(r"[,;{\[(]", gold)
        answer = with_plain_number(answer, problem.question, is_one_number=is_one_number)
        answer = with_fraction_for_chance(answer, problem.question)
        is_alike = matches_literally(gold, answer, problem.question)
        if is_alike is not None:
            return Verdict(1.0) if is_alike else reject(f"{quote(answer)} is not right")
        if "permutation" in problem.question.lower() or "cycle" in problem.question.lower():
            permutation = read_permutation(gold)
            if permutation is not None:
                is_alike = permutation == read_permutation(answer)
                return Verdict(1.0) if is_alike else reject(f"{quote(answer)} is not right")
        right, number = measure(gold, problem), measure(answer, problem)
        if right and right.unit == PURE and right.unit_name and _WORDS.fullmatch(without_text_commands(gold).strip()):
            right = None  # a right answer such as "one solution" is compared as text, not as the number 1
        # Equal numbers do not suffice if the names differ, as in x = 5 and y = 5.
        names = {re.sub(r"\s", "", name[1]) for name in map(_NAME.match, (gold, answer)) if name}
        if not (right and number) or len(names) > 1:
            if right and right.unit.powers and right.unit != DEGREE and has_unit(answer):
                return reject(f"{quote(answer)} is no number with a single unit")
            return compare_formulas(answer, gold, problem.question)
        if not is_fully_evaluated(number.formula, right.formula, problem.question):
            return reject(f"{quote(answer)} is still to be worked out")
        is_percentage = number.unit == PERCENT != right.unit and asks_for_fraction_or_decimal(problem.question)
        if is_percentage or not has_requested_form(number.formula, right.formula, problem.question):
            return reject(f"{quote(answer)} has another form than the one that is asked for")
        is_right = _NUMERIC.has_same_value(right, number, problem, rounds_fractions=False)
        return Verdict(1.0) if is_right else reject(f"{quote(answer)} is not right")


def _differs_in_case_or_spaces(gold: str, answer: str, question: str) -> bool:
    """Return True if a symbol or a printed line differs in capital letters or spaces, which count there."""
    if is_letter_case_significant(gold, question):
        return without_text_commands(normalize_notation(answer)).strip() != gold
    return matches_python_value(gold, answer, question) is False


def _normalized_spelling(text: str) -> str:
    r"""Return the normal form of `text`: equal for \text{no solution} and "No solution", but not for "1 1" and "11"."""
    text = without_text_commands(normalize_notation(text))
    words = " ".join(text.split())
    if _GENOTYPE.fullmatch(words):
        return words
    if len(words) > 1 and _WORDS.fullmatch(words):
        words = re.sub(r"^(?:an?|the) ", "", words.casefold())
        return "does not exist" if words in ("dne", "doesn't exist") else words
    text = _INDEX.sub(r"_\1", GROUP_COMMAND.sub(" ", text))
    return re.sub(r"\s", "", re.sub(r"(?<=[0-9])\s+(?=[0-9])", "~", text))
