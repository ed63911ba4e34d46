"""Accepts the right number, however it is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from pydantic import Field

from games.verifiers.quantities import Quantity, read_quantity
from games.verifiers.reading import HEDGES, Read, answer_of, copied, phrased, plain, refused
from games.verifiers.units import PURE, Unit, read_unit
from marl.protocols import VerifierConfig
from marl.types import Case, Problem, Verdict

_ROUNDING = Fraction(1, 10**6)


class Numeric(VerifierConfig):
    """Accepts the right number: decimals, fractions, percent, words, powers of ten, with or without its unit."""

    kind: str = "numeric"
    read: Read = "answer"
    absolute: float = Field(default=0.0, ge=0)
    """How far off an answer may be."""
    relative: float | None = Field(default=None, ge=0, lt=1)
    """How far off as a share of the right number; None: a millionth, and integers must be met exactly."""

    def __call__(self, case: Case) -> Verdict:
        said = answer_of(case, self.read)
        gold, number = measured(case.problem.answer, case.problem), measured(said, case.problem)
        if gold is None:
            return refused(f"the right answer {case.problem.answer!r} is no number")
        if number is None or number.undone:
            return refused(f"{said[:80]!r} is no single number")
        if copied(said, case.problem.question, case.problem.answer):
            return refused("copied from the question")
        return Verdict(1.0) if self.agree(gold, number) else refused(f"{said[:80]!r} is not {case.problem.answer}")

    def phrase(self, answer: str) -> str:
        return phrased(answer, self.read)

    def agree(self, gold: Measured, said: Measured) -> bool:
        """Whether two numbers are the same up to unit and tolerance."""
        if gold.unit.powers == said.unit.powers and self._close(gold.base, said.base):
            return True
        # Whoever leaves out the unit, or says which the question meant, is right all the same; 5 % is not 5, though.
        silent = said.unit == PURE or (gold.unit == PURE and bool(said.unit.powers))
        return silent and self._close(gold.value, said.value)

    def _close(self, gold: Fraction, said: Fraction) -> bool:
        relative = _ROUNDING if self.relative is None else Fraction(self.relative)
        if self.relative is None and gold.denominator == said.denominator == 1:
            relative = Fraction(0)
        return abs(gold - said) <= max(Fraction(self.absolute), relative * abs(gold))


@dataclass(frozen=True, slots=True)
class Measured:
    """A number with its unit."""

    value: Fraction
    unit: Unit
    undone: bool
    decimal: bool

    @property
    def base(self) -> Fraction:
        """In base units."""
        return self.value * self.unit.factor


def measured(text: str, problem: Problem) -> Measured | None:
    """The number that `text` is; None if it is more, less or something else."""
    quantity = read_quantity(plain(text))
    if quantity is None:
        return None
    unit = _unit(quantity, problem)
    return unit and Measured(quantity.value, unit, quantity.undone, quantity.decimal)


def _unit(quantity: Quantity, problem: Problem) -> Unit | None:
    """The unit after a number. Words of the question, such as what is counted, are units as good as none."""
    if not quantity.rest:
        return PURE
    words = set(re.findall(r"[^\W\d_]+", quantity.rest.lower()))
    if words and re.fullmatch(r"[^\W\d_]+(?:[\s-]+[^\W\d_]+){0,3}", quantity.rest) and not words & HEDGES:
        asked = set(re.findall(r"[^\W\d_]+", f"{problem.question} {problem.answer}".lower()))
        counted = words <= asked and not read_unit(quantity.rest)
        if counted:
            return PURE
    return read_unit(quantity.rest)
