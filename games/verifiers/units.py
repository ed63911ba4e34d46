"""Units of measurement: parsing in any spelling, and the units that a question asks for or names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from marl.games.verifiers.latex_notation import normalize_notation, without_text_commands


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of measurement: a factor times a product of base units, each to a power."""

    factor: Fraction
    """Size of the unit in base units: 1000 for a kilometre."""
    powers: tuple[tuple[str, int], ...]
    """Base units with their exponents, sorted by name; empty for a pure number."""

    def times(self, other: Unit, exponent: int) -> Unit:
        """Return the product of this unit and `other` to the power `exponent`."""
        powers = Counter(dict(self.powers))
        for base, power in other.powers:
            powers[base] += power * exponent
        nonzero = [(base, power) for base, power in powers.items() if power]
        return Unit(self.factor * other.factor**exponent, tuple(sorted(nonzero)))


PURE = Unit(Fraction(1), ())
"""Unit of a number without a unit."""
PERCENT = Unit(Fraction(1, 100), ())
_SI = """
    m       metre,meter                     1
    g       gram,gramme                     1
    s       second,sec                      1
    A       ampere,amp                      1
    K       kelvin                          1
    mol     mole                            1
    L,l     litre,liter                     1/1000          m^3
    N       newton                          1000            g m s^-2
    J       joule                           1000            g m^2 s^-2
    W       watt                            1000            g m^2 s^-3
    Pa      pascal                          1000            g m^-1 s^-2
    bar     bar                             100000000       g m^-1 s^-2
    atm     atmosphere                      101325000       g m^-1 s^-2
    Hz      hertz                           1               s^-1
    C       coulomb                         1               A s
    V       volt                            1000            g m^2 s^-3 A^-1
    Ω,ohm   ohm                             1000            g m^2 s^-3 A^-2
    F       farad                           1/1000          g^-1 m^-2 s^4 A^2
    T       tesla                           1000            g s^-2 A^-1
    Wh      watthour                        3600000         g m^2 s^-2
    eV      electronvolt                    1.602176634e-16 g m^2 s^-2
    cal     calorie                         4184            g m^2 s^-2
"""
"""Units that take SI prefixes. Columns: symbols, words, factor, base units (empty for a base unit)."""
_PREFIXES = """
    f femto 1e-15   p pico 1e-12   n nano 1e-9   µ micro 1e-6   u micro 1e-6   m milli 1e-3
    c centi 1e-2    d deci 1e-1    h hecto 1e2   k kilo 1e3     M mega 1e6     G giga 1e9     T tera 1e12
"""
_NAMED = """
    m        1000               kms 公里 千米
    m        1                  米
    m        1/100              厘米
    m        1/1000             毫米
    m        0.0254             in inch inches
    m        0.3048             ft foot feet
    m        0.9144             yd yard yards
    m        1609.344           mi mile miles
    m        1e-10              Å angstrom angstroms
    m^2      10000              ha hectare hectares
    m^2      4046.8564224       acre acres
    m^2      1                  平方米
    m^2      1/10000            平方厘米
    m^3      1                  立方米
    m^3      1/1000             升
    m^3      1/1000000          毫升 立方厘米 cc
    m^3      0.003785411784     gal gallon gallons
    g        1000               kilo kilos kgs 千克 公斤
    g        1                  gs 克
    g        1000000            t ton tons tonne tonnes 吨
    g        453.59237          lb lbs pound pounds
    g        28.349523125       oz ounce ounces
    s        1                  sec secs 秒
    s        60                 min mins minute minutes 分钟
    s        3600               h hr hrs hour hours 小时
    s        86400              d day days 天
    s        604800             wk week weeks 周
    s        31557600           yr yrs year years 年
    month    1                  month months 月
    bit      1                  bit bits
    bit      8                  byte bytes
    bit      8000               kB KB kilobyte kilobytes
    bit      8000000            MB megabyte megabytes
    bit      8000000000         GB gigabyte gigabytes
    bit      8000000000000      TB terabyte terabytes
    bit      1000               kb Kb kbit kilobit kilobits
    bit      1000000            Mb Mbit megabit megabits
    bit      1000000000         Gb Gbit gigabit gigabits
    bit      8192               KiB kibibyte kibibytes
    bit      8388608            MiB mebibyte mebibytes
    bit      8589934592         GiB gibibyte gibibytes
    dollar   1                  $ us$ dollar dollars usd buck bucks
    dollar   1/100              ¢ cent cents
    euro     1                  € euro euros eur
    pound    1                  £ gbp
    yuan     1                  ¥ yuan rmb 元
    rupee    1                  ₹ rupee rupees rs
    degree   1                  ° deg degree degrees 度
    degree   1/60               arcminute arcminutes
    radian   1                  rad rads radian radians
    celsius  1                  °c ℃ celsius
    fahrenheit 1                °f fahrenheit
"""
"""Units without prefixes. Columns: base units, factor, names."""
_REWRITES = tuple(
    (re.compile(pattern, re.I), replacement)
    for pattern, replacement in (
        (r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2"),
        (r"\\min\b\s*", "min"),
        (r"\\mu\s*", "u"),
        (r"\\Omega\s*", "Ω"),
        (r"\b(?:kmph|kph|kmh)\b", "km/h"),
        (r"\bmph\b", "mi/h"),
        (r"\bmps\b", "m/s"),
        (r"\brpm\b", "1/min"),
        (r"\b(?:per cent|percentage|pct)\b", "percent"),
        (r"\bdegrees?\s+(celsius|fahrenheit)\b", r"\1"),
        (r"\s+(?:per|an?)\s+", "/"),
        (r"\b(?:square|sq\.?)[\s-]+([a-z]+)", r"\1^2"),
        (r"\bQuadrat([a-z]+)", r"\1^2"),
        (r"\bKubik([a-z]+)", r"\1^3"),
        (r"\b([a-z]+?)s? (?:carrés?|cuadrados?|quadrados?)\b", r"\1^2"),
        (r"\b(?:cubic|cu\.?)[\s-]+([a-z]+)", r"\1^3"),
        (r"\s+squared\b", "^2"),
        (r"\s+cubed\b", "^3"),
        (r"(?<=[a-z])-(?=[a-z])", " "),
    )
)
_NAME = r"(?:°\s?[CF]\b|US\$|[^\W\d_]+|[°℃%$€£¥₹¢])"
_FACTOR = re.compile(rf"({_NAME})(?:\s*\^\s*[{{(]?\s*(-?[1-9])\s*[)}}]?(?![0-9])|(-?[1-9])(?![0-9]))?")
_MAX_LENGTH = 80


@lru_cache(4096)
def read_unit(text: str) -> Unit | None:
    """Return the unit named by `text`, such as "km/h", "J/(kg K)" or "square metres", or None if it is unknown.

    All units after a slash are in the denominator.
    """
    if not text.strip() or len(text) > _MAX_LENGTH or text.count("(") != text.count(")"):
        return None
    numerator, *denominators = _normalized_unit_text(text).split("/")
    unit = PURE if denominators and numerator.strip() == "1" else _product_of_units(numerator, 1)
    for denominator in denominators:
        inverse = _product_of_units(denominator, -1)
        unit = unit and inverse and unit.times(inverse, 1)
    return unit


def single_units(text: str) -> Iterator[Unit]:
    """Yield the units within the name of a unit, each to its first power: metre and second for "m/s^2"."""
    for name, *_ in _FACTOR.findall(_normalized_unit_text(text)):
        if unit := _find_unit(name):
            yield unit


def _normalized_unit_text(text: str) -> str:
    """Return `text` with a slash for "per" and exponents for "square" and "cubic": "m/s^2"."""
    text = without_text_commands(normalize_notation(text))
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text.strip(" .")


def _product_of_units(text: str, sign: int) -> Unit | None:
    """Return the product of the units in `text` to the power of `sign` (1 or -1), or None if one is unknown."""
    unit, factors, seen = PURE, _FACTOR.findall(text), set[object]()
    if not factors or _FACTOR.sub("", text).strip(" *.()"):
        return None
    for name, exponent, digit in factors:
        named = _find_unit(name)
        if named is None or named.powers in seen:
            return None  # a repeated unit, as in "cents cents", is a slip and no square
        if named == PERCENT and (len(factors) > 1 or exponent or digit):
            return None  # 56%7 is an operation on numbers, so 7 is no exponent of the unit "%"
        seen.add(named.powers)
        unit = unit.times(named, sign * int(exponent or digit or 1))
    return unit


def _unit_of_bases(factor: str, bases: Sequence[str]) -> Unit:
    """Return the unit in a table's row: `factor` times base units such as ["g", "m^2", "s^-3"]."""
    powers = list[tuple[str, int]]()
    for base in bases:
        name, _, power = base.partition("^")
        powers.append((name, int(power or 1)))
    return Unit(Fraction(factor), tuple(sorted(powers)))


def _units_by_name() -> dict[str, Unit]:
    """Return the unit of each name in the tables, with and without prefixes."""
    units = dict[str, Unit]()
    cells = _PREFIXES.split()
    prefixes = [("", "", "1"), *zip(cells[::3], cells[1::3], cells[2::3], strict=True)]
    for line in _SI.strip().splitlines():
        symbols, words, factor, *bases = line.split()
        unit = _unit_of_bases(factor, bases or [symbols])
        for short, long, scale in prefixes:
            scaled = Unit(unit.factor * Fraction(scale), unit.powers)
            units |= dict.fromkeys([short + symbol for symbol in symbols.split(",")], scaled)
            for word in words.split(","):
                units[long + word] = units[long + word + "s"] = scaled
    for line in _NAMED.strip().splitlines():
        base, factor, *names = line.split()
        units |= dict.fromkeys(names, _unit_of_bases(factor, [base]))
    return units | {"%": PERCENT, "percent": PERCENT, "unit": PURE, "units": PURE, "hertz": units["Hz"]}


def _units_in_any_case() -> dict[str, Unit]:
    """Return the units whose names need no case, by name in lower case: MB and Mb, or MW and mW, need it."""
    by_name = dict[str, set[Unit]]()
    for name, unit in _UNITS.items():
        if len(name) > 1:
            by_name.setdefault(name.lower(), set()).add(unit)
    return {name: units.pop() for name, units in by_name.items() if len(units) == 1}


_UNITS = _units_by_name()
DEGREE = _UNITS["degree"]
_IN_ANY_CASE = _units_in_any_case()


def _find_unit(name: str) -> Unit | None:
    """Return the unit `name`, or None if it is unknown. Case distinguishes mPa from MPa; other names have any case."""
    name = name.replace(" ", "")
    return _UNITS.get(name) or _IN_ANY_CASE.get(name.lower())


_ASKS = re.compile(
    r"\b(?:in|how many|number of|what|which|nearest|measured in|units? of)\s+(?=(\S+(?:\s+\S+){0,4}))", re.I
)
_ASKS_IN_CHINESE = re.compile(r"(?:多少|几)\s*([^\W\d_a-zA-Z]{1,4})")
_MONEY = re.compile(r"\\\$|US\$|(?<![\w}])\$[0-9][0-9,.]*(?=[\s,.?!;]|$)")
_SYMBOL_BEFORE = re.compile(r"(?:[0-9}]\s*|/\s*|\(|\bin\s|\bper\s)$")
_NO_UNITS = frozenset(["in", "second", "pm", "am", "as", "us"])
"""Words that are not read as units in a question: "second" is mostly an ordinal there, and only "seconds" a unit."""


@lru_cache(256)
def units_asked(question: str) -> frozenset[Unit]:
    """Return the units that a question asks for: "how many hours", "in km/h"."""
    text = without_text_commands(normalize_notation(question))
    units = set[Unit]()
    for pattern in (_ASKS, _ASKS_IN_CHINESE):
        for match in pattern.finditer(text):
            # The longest phrase that is a unit wins. Chinese texts have no spaces, so they are split into characters.
            words, space = (match[1].split(), " ") if pattern is _ASKS else (list(match[1]), "")
            for count in range(len(words), 0, -1):
                if unit := read_unit(space.join(words[:count]).rstrip("?!.,;:)")):
                    units.add(unit)
                    break
    return frozenset(units)


@lru_cache(256)
def units_named(question: str) -> frozenset[Unit]:
    """Return the units named in a question, each to its first power."""
    text = _normalized_unit_text(question)
    units = {_UNITS["$"]} if _MONEY.search(question) else set[Unit]()
    for match in re.finditer(_NAME, text):
        before = text[max(0, match.start() - 8) : match.start()]
        # A short word such as "a" or "m" is a unit after a number or a slash only.
        is_symbol = len(match[0]) < 3 and match[0][0].isalpha()
        if match[0].lower() not in _NO_UNITS and (not is_symbol or _SYMBOL_BEFORE.search(before)):
            units.update(filter(None, [_find_unit(match[0])]))
    if re.search(r"\bangle", text, re.I):
        units.add(_UNITS["°"])
    return frozenset(units)
