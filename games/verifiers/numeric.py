"""Verifier of numbers in any notation, with or without a unit of measurement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from marl.core.types import Problem, Verdict
from marl.games.verifiers.answer_verifier import AnswerVerifier, quote, reject, unwrap
from marl.games.verifiers.approximations import split_exact_and_rounded
from marl.games.verifiers.closed_form import (
    asks_for_fraction_or_decimal,
    has_requested_form,
    is_decimal,
    is_fully_evaluated,
)
from marl.games.verifiers.formula_answers import compare_formulas, is_number
from marl.games.verifiers.locales import with_plain_number
from marl.games.verifiers.measurements import (
    Measurement,
    is_close,
    may_be_rounded,
    measure,
    stated_rounds_to_gold,
    unit_conversions,
)
from marl.games.verifiers.readings import readings_of_text
from marl.games.verifiers.surds import measure_irrational
from marl.games.verifiers.units import PERCENT

_STERLING = (("pound", 1),)


class NumericVerifier(AnswerVerifier):
    """Accepts the right number: decimals, fractions, percent, words, powers of ten, with or without its unit."""

    kind: str = "numeric"
    imports: ClassVar[tuple[str, ...]] = ("marl.games.verifiers.answer_comparison",)
    absolute: float = Field(default=0.0, ge=0)
    """Absolute tolerance, in the unit of the right number."""
    relative: float | None = Field(default=None, ge=0, lt=1)
    """Tolerance as a share of the right number (default: a millionth if either is a decimal, and integers must be
    exact)."""

    def alternative_answers(self, text: str, answers: Sequence[str], problem: Problem) -> Iterable[str]:
        return readings_of_text(text, answers, problem.question)

    def grade(self, answer: str, problem: Problem) -> Verdict:
        answer = with_plain_number(answer, problem.question, is_one_number=True)
        right, number = measure(problem.answer, problem), measure(answer, problem)
        if right is None:
            gold = unwrap(problem.answer)
            if not is_number(gold):
                return reject("the right answer is no number")
            # An irrational right answer, such as 12π, is compared by interval arithmetic.
            return compare_formulas(answer, gold, problem.question)
        if number is None:
            irrational = measure_irrational(answer, right, problem.question)
            if irrational and self.has_same_value(right, irrational, problem):
                return Verdict(1.0)
            for number_text in split_exact_and_rounded(answer, unwrap(problem.answer)):
                if self.grade(number_text, problem).score == 1:
                    return Verdict(1.0)
            return reject(f"{quote(answer)} is no single number")
        if not is_fully_evaluated(number.formula, right.formula, problem.question):
            return reject(f"{quote(answer)} is still to be worked out")
        is_percentage = number.unit == PERCENT != right.unit and asks_for_fraction_or_decimal(problem.question)
        if is_percentage or not has_requested_form(number.formula, right.formula, problem.question):
            return reject(f"{quote(answer)} has another form than the one that is asked for")
        return Verdict(1.0) if self.has_same_value(right, number, problem) else reject(f"{quote(answer)} is not right")

    def has_same_value(
        self, gold: Measurement, stated: Measurement, problem: Problem, *, rounds_fractions: bool = True
    ) -> bool:
        """Return True if two numbers are equal up to unit and tolerance: the answer is accepted.

        Args:
            rounds_fractions: True if a decimal within the tolerance is accepted for a fraction, as 0.333333 is for 1/3.
        """
        if gold.unit.powers == _STERLING and stated.unit_name.lower() in ("pound", "pounds"):
            stated = replace(stated, unit=gold.unit)  # the right answer is money, so "pounds" are no weight
        for scales in unit_conversions(gold.unit, stated.unit, stated.unit_name, problem.question):
            is_rounded = may_be_rounded(gold.formula, stated.formula, scales) or (
                rounds_fractions and gold.value.denominator > 1 and is_decimal(stated.formula)
            )
            if stated_rounds_to_gold(gold, stated, scales, problem) or is_close(
                gold.value, stated.value, scales, self.absolute, self.relative, is_rounded
            ):
                return True
        return False
