"""Verifier of numbers in any notation, with or without a unit of measurement."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from marl.core.types import Problem, Verdict
from marl.games.verifiers.answer_verifier import AnswerVerifier, quote, reject, unwrap
from marl.games.verifiers.approximations import exact_and_rounded
from marl.games.verifiers.closed_form import is_worked_out
from marl.games.verifiers.formula_answers import compare_formulas, is_number
from marl.games.verifiers.measurements import Measurement, comparable_scales, is_close, measure
from marl.games.verifiers.surds import measure_irrational

_STERLING = (("pound", 1),)


class NumericVerifier(AnswerVerifier):
    """Accepts the right number: decimals, fractions, percent, words, powers of ten, with or without its unit."""

    kind: str = "numeric"
    imports: ClassVar[tuple[str, ...]] = ("marl.games.verifiers.answer_comparison",)
    absolute: float = Field(default=0.0, ge=0)
    """Absolute tolerance, in the unit of the right number."""
    relative: float | None = Field(default=None, ge=0, lt=1)
    """Tolerance as a share of the right number (None: a millionth, and integers must be exact)."""

    def grade(self, answer: str, problem: Problem) -> Verdict:
        right, number = measure(problem.answer, problem), measure(answer, problem)
        if right is None:
            gold = unwrap(problem.answer)  # an irrational number such as 12π, or no number
            if not is_number(gold):
                return reject("the right answer is no number")
            return compare_formulas(answer, gold, problem.question)
        if number is None:
            irrational = measure_irrational(answer, right, problem.question)
            if irrational and self.agree(right, irrational, problem):
                return Verdict(1.0)
            for number_text in exact_and_rounded(answer, unwrap(problem.answer)):
                if self.grade(number_text, problem).score == 1:
                    return Verdict(1.0)
            return reject(f"{quote(answer)} is no single number")
        if not is_worked_out(number.formula, right.formula, problem.question):
            return reject(f"{quote(answer)} is still to be worked out")
        return Verdict(1.0) if self.agree(right, number, problem) else reject(f"{quote(answer)} is not right")

    def agree(self, right: Measurement, number: Measurement, problem: Problem) -> bool:
        """Return True if two numbers are equal up to unit and tolerance: the answer is accepted."""
        if right.unit.powers == _STERLING and number.unit_name.lower() in ("pound", "pounds"):
            number = replace(number, unit=right.unit)  # money, no weight
        scales = comparable_scales(right.unit, number.unit, number.unit_name, problem.question)
        return any(is_close(right.value, number.value, pair, self.absolute, self.relative) for pair in scales)
