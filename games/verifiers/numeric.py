"""Verifier of numbers, however they are written, with or without a unit of measurement."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from pydantic import Field

from games.verifiers.quantities import Quantity, read_quantity
from games.verifiers.reading import HEDGES, AnswerVerifier, is_copied, reject, unwrap
from marl.types import Case, Problem, Verdict

_ROUNDING = Fraction(1, 10**6)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of measurement: `factor` of the base units, each to a power; a pure number has none."""

    factor: Fraction
    powers: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A number with its unit."""

    quantity: Quantity
    unit: Unit


class NumericVerifier(AnswerVerifier):
    """Accepts the right number: decimals, fractions, percent, words, powers of ten, with or without its unit."""

    kind: str = "numeric"
    absolute: float = Field(default=0.0, ge=0)
    """Absolute tolerance."""
    relative: float | None = Field(default=None, ge=0, lt=1)
    """Tolerance as a share of the right number; None: a millionth, and integers must be exact."""

    def __call__(self, case: Case) -> Verdict:
        answer, gold = self.answer(case), case.problem.answer
        right, number = measure(gold, case.problem), measure(answer, case.problem)
        if right is None:
            return reject(f"the right answer {gold!r} is no number")
        if number is None or number.quantity.unevaluated:
            return reject(f"{answer[:80]!r} is no single number")
        if is_copied(answer, case.problem.question, gold):
            return reject("copied from the question")
        return Verdict(1.0) if self.agree(right, number) else reject(f"{answer[:80]!r} is not {gold}")

    def agree(self, right: Measurement, number: Measurement) -> bool:
        """Return True if two numbers are the same up to unit and tolerance."""
        gold, value = right.quantity.value, number.quantity.value
        same_dimension = right.unit.powers == number.unit.powers
        if same_dimension and self._close(gold * right.unit.factor, value * number.unit.factor):
            return True
        # An answer without the unit, or with the unit that the question meant, is right too; 5 % is not 5, though.
        unitless = number.unit == PURE or (right.unit == PURE and bool(number.unit.powers))
        return unitless and self._close(gold, value)

    def _close(self, right: Fraction, number: Fraction) -> bool:
        relative = _ROUNDING if self.relative is None else Fraction(self.relative)
        if self.relative is None and right.denominator == number.denominator == 1:
            relative = Fraction(0)
        return abs(right - number) <= max(Fraction(self.absolute), relative * abs(right))


def measure(text: str, problem: Problem) -> Measurement | None:
    """Return the number that `text` states; None if it states more, less or something else."""
    quantity = read_quantity(unwrap(text))
    if quantity is None:
        return None
    unit = _unit(quantity, problem)
    return unit and Measurement(quantity, unit)


def _unit(quantity: Quantity, problem: Problem) -> Unit | None:
    """Return the unit after a number. Words of the question, such as the things that are counted, are no unit."""
    if not quantity.rest:
        return PURE
    words = set(re.findall(r"[^\W\d_]+", quantity.rest.lower()))
    if words and re.fullmatch(r"[^\W\d_]+(?:[\s-]+[^\W\d_]+){0,3}", quantity.rest) and not words & HEDGES:
        known = set(re.findall(r"[^\W\d_]+", f"{problem.question} {problem.answer}".lower()))
        if words <= known and not read_unit(quantity.rest):
            return PURE
    return read_unit(quantity.rest)


# --- units of measurement --------------------------------------------------------------------------------------------

_UNITS: dict[str, dict[str, str]] = {
    "metre": {
        "1": "m metre meter metres meters",
        "1000": "km kilometre kilometer kilometres kilometers",
        "1/100": "cm centimetre centimeter centimetres centimeters",
        "1/1000": "mm millimetre millimeter millimetres millimeters",
        "0.0254": "in inch inches",
        "0.3048": "ft foot feet",
        "0.9144": "yd yard yards",
        "1609.344": "mi mile miles",
    },
    "gram": {
        "1": "g gram grams",
        "1000": "kg kilogram kilograms kilo kilos",
        "1/1000": "mg milligram milligrams",
        "1000000": "t tonne tonnes",
        "453.59237": "lb lbs",
        "28.349523125": "oz ounce ounces",
    },
    "second": {
        "1": "s sec secs second seconds",
        "1/1000": "ms millisecond milliseconds",
        "60": "min mins minute minutes",
        "3600": "h hr hrs hour hours",
        "86400": "d day days",
        "604800": "week weeks",
    },
    "dollar": {"1": "$ dollar dollars usd", "1/100": "¢ cent cents"},
    "euro": {"1": "€ euro euros eur"},
    "pound sterling": {"1": "£ gbp"},
    "degree": {"1": "° deg degree degrees"},
    "radian": {"1": "rad radian radians"},
    "celsius": {"1": "°c celsius"},
    "fahrenheit": {"1": "°f fahrenheit"},
    "joule": {"1": "j joule joules", "1000": "kj kilojoule kilojoules"},
    "newton": {"1": "n newton newtons"},
    "watt": {"1": "w watt watts", "1000": "kw kilowatt kilowatts"},
    "metre^3": {
        "1/1000": "l litre liter litres liters",
        "1/1000000": "ml millilitre milliliter millilitres milliliters",
    },
    "": {"1": "unit units", "1/100": "% percent"},
}
"""Base unit -> factor -> names."""
_NAMED_UNITS = {
    name: Unit(Fraction(factor), ((base.removesuffix("^3"), 3 if "^" in base else 1),) if base else ())
    for base, factors in _UNITS.items()
    for factor, names in factors.items()
    for name in names.split()
}
_POWER_WORDS = {"square": 2, "sq": 2, "cubic": 3}
_UNIT_WITH_POWER = re.compile(r"(.+?)(?:\^\{?\(?([123])\)?\}?)?")
_RATES = {"mph": "mi/h", "kmh": "km/h", "kph": "km/h"}
PURE = Unit(Fraction(1), ())


def read_unit(text: str) -> Unit | None:
    """Return the unit that `text` names, such as "km/h" or "square metres"; None if it is unknown."""
    text = re.sub(r"\s+squared\b", "^2", re.sub(r"\s+cubed\b", "^3", text.lower()))
    text = re.sub(r"\s+per\s+", "/", " ".join(text.split()))
    numerator, slash, denominator = _RATES.get(text, text).partition("/")
    above, below = _read_product(numerator, 1), _read_product(denominator, -1) if slash else PURE
    if above is None or below is None:
        return None
    powers = Counter(dict(above.powers))
    powers.update(dict(below.powers))
    return Unit(above.factor * below.factor, tuple(sorted((base, power) for base, power in powers.items() if power)))


def _read_product(text: str, sign: int) -> Unit | None:
    """Return the product of the units in `text`, each to the power of `sign`."""
    factor, powers, power = Fraction(1), Counter[str](), 1
    words = re.split(r"[\s*]+", text.strip())
    if len(words) > 4:
        return None
    for word in words:
        if word in _POWER_WORDS:
            power = _POWER_WORDS[word]
            continue
        match = _UNIT_WITH_POWER.fullmatch(word)
        unit = _NAMED_UNITS.get(match.group(1)) if match else None
        if match is None or unit is None:
            return None
        power *= sign * int(match.group(2) or 1)
        factor *= unit.factor**power
        powers.update({base: exponent * power for base, exponent in unit.powers})
        power = 1
    return Unit(factor, tuple(powers.items()))
