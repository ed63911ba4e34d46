"""Verifier of numbers, however they are written, with or without a unit of measurement."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from games.verifiers.approximations import approximated
from games.verifiers.closed_form import is_worked_out
from games.verifiers.formula_answers import compare_formulas, is_number
from games.verifiers.irrational import measure_irrational
from games.verifiers.measurements import Measurement, close, comparable_scales, measure
from games.verifiers.reading import AnswerVerifier, quote, reject, unwrap
from marl.types import Problem, Verdict

_STERLING = (("pound", 1),)


class NumericVerifier(AnswerVerifier):
    """Accepts the right number: decimals, fractions, percent, words, powers of ten, with or without its unit."""

    kind: str = "numeric"
    imports: ClassVar[tuple[str, ...]] = ("games.verifiers.solutions",)
    absolute: float = Field(default=0.0, ge=0)
    """Absolute tolerance."""
    relative: float | None = Field(default=None, ge=0, lt=1)
    """Tolerance as a share of the right number; None: a millionth, and integers must be exact."""

    def grade(self, answer: str, problem: Problem) -> Verdict:
        right, number = measure(problem.answer, problem), measure(answer, problem)
        if right is None:
            return self._grade_formula(answer, problem)
        if number is None:
            irrational = measure_irrational(answer, right, problem.question)
            if irrational and self.agree(right, irrational, problem):
                return Verdict(1.0)
            parts = approximated(answer, unwrap(problem.answer))
            if any(self.grade(part, problem).score == 1 for part in parts):
                return Verdict(1.0)
            return reject(f"{quote(answer)} is no single number")
        if not is_worked_out(number.formula, right.formula, problem.question):
            return reject(f"{quote(answer)} is still to be worked out")
        return Verdict(1.0) if self.agree(right, number, problem) else reject(f"{quote(answer)} is not right")

    def _grade_formula(self, answer: str, problem: Problem) -> Verdict:
        """Return the verdict where the right answer is an irrational number, such as 12π."""
        gold = unwrap(problem.answer)
        if not is_number(gold):
            return reject("the right answer is no number")
        return compare_formulas(answer, gold, problem.question)

    def agree(self, right: Measurement, number: Measurement, problem: Problem) -> bool:
        """Return True if two numbers are the same up to unit and tolerance."""
        if right.unit.powers == _STERLING and number.unit_name.lower() in ("pound", "pounds"):
            number = replace(number, unit=right.unit)  # money, no weight
        scales = comparable_scales(right.unit, number.unit, number.unit_name, problem.question)
        return any(close(right.value, number.value, pair, self.absolute, self.relative) for pair in scales)
