"""Units of measurement: enough to tell that 5 km is 5000 m, and that 5 kg is neither."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Unit:
    """`factor` of the base units, each to a power; a pure number has none."""

    factor: Fraction
    powers: tuple[tuple[str, int], ...]


_TABLE: dict[str, dict[str, str]] = {
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
    "": {"1": "unit units", "1/100": "% percent"},
}
_VOLUMES = {"1/1000": "l litre liter litres liters", "1/1000000": "ml millilitre milliliter millilitres milliliters"}


def _atoms() -> dict[str, Unit]:
    atoms = {}
    for base, sizes in _TABLE.items():
        for factor, names in sizes.items():
            powers = ((base, 1),) if base else ()
            atoms |= dict.fromkeys(names.split(), Unit(Fraction(factor), powers))
    for factor, names in _VOLUMES.items():
        atoms |= dict.fromkeys(names.split(), Unit(Fraction(factor), (("metre", 3),)))
    return atoms


_ATOMS = _atoms()
_WORDED = {"square": 2, "sq": 2, "cubic": 3}
_ATOM = re.compile(r"(.+?)(?:\^\{?\(?([123])\)?\}?)?")
_RATES = {"mph": "mi/h", "kmh": "km/h", "kph": "km/h"}
PURE = Unit(Fraction(1), ())


def read_unit(text: str) -> Unit | None:
    """The unit that `text` names, such as "km/h" or "square metres"; None if it is none that is known."""
    text = re.sub(r"\s+squared\b", "^2", re.sub(r"\s+cubed\b", "^3", text.lower()))
    text = re.sub(r"\s+per\s+", "/", " ".join(text.split()))
    above, slash, below = _RATES.get(text, text).partition("/")
    parts = [_product(above, 1), _product(below, -1) if slash else PURE]
    factor, powers = Fraction(1), Counter[str]()
    for part in parts:
        if part is None:
            return None
        factor *= part.factor
        powers.update(dict(part.powers))
    return Unit(factor, tuple(sorted((base, power) for base, power in powers.items() if power)))


def _product(text: str, sign: int) -> Unit | None:
    factor, powers, power = Fraction(1), Counter[str](), 1
    words = re.split(r"[\s*]+", text.strip())
    if len(words) > 4:
        return None
    for word in words:
        if word in _WORDED:
            power = _WORDED[word]
            continue
        atom = _ATOM.fullmatch(word)
        unit = _ATOMS.get(atom.group(1)) if atom else None
        if atom is None or unit is None:
            return None
        power *= sign * int(atom.group(2) or 1)
        factor *= unit.factor**power
        powers.update({base: exponent * power for base, exponent in unit.powers})
        power = 1
    return Unit(factor, tuple(powers.items()))
