"""Units of measurement: parsing in any spelling, and the units that a question asks for or names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from marl.games.verifiers.latex_notation import normalize_notation, without_text_commands


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of measurement as `factor` times a product of base units, each to a power; none for a pure number."""

    factor: Fraction
    powers: tuple[tuple[str, int], ...]

    def raised(self, power: int) -> Unit:
        """Return the unit to the power `power`."""
        return Unit(self.factor**power, tuple((base, exponent * power) for base, exponent in self.powers))

    def times(self, other: Unit) -> Unit:
        """Return the product of this unit and `other`."""
        powers = Counter(dict(self.powers))
        powers.update(dict(other.powers))
        return Unit(self.factor * other.factor, tuple(sorted((base, n) for base, n in powers.items() if n)))


PURE = Unit(Fraction(1), ())
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
"""Units with SI prefixes: symbols, words, factor, base units (empty for a base unit)."""
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
"""Units without prefixes: base units, factor, names in lower case."""
_REWRITES = tuple(
    (re.compile(pattern, re.I), replacement)
    for pattern, replacement in (
        (r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2"),
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
    numerator, *denominators = _normalized(text).split("/")
    unit = PURE if denominators and numerator.strip() == "1" else _product(numerator, 1)
    for denominator in denominators:
        factor = _product(denominator, -1)
        unit = unit and factor and unit.times(factor)
    return unit


def single_units(text: str) -> Iterator[Unit]:
    """Yield the units within `text`, each to its first power: metre and second for "m/s^2"."""
    for name in _FACTOR.findall(_normalized(text)):
        if unit := _unit_named(name[0]):
            yield unit


def _normalized(text: str) -> str:
    """Return `text` with a slash for "per" and powers for "square" and "cubic"."""
    text = without_text_commands(normalize_notation(text))
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text.strip(" .")


def _product(text: str, sign: int) -> Unit | None:
    """Return the product of the units in `text`, each to the power of `sign`, or None if one is unknown."""
    unit, factors, seen = PURE, _FACTOR.findall(text), set[object]()
    if not factors or _FACTOR.sub("", text).strip(" *.()"):
        return None
    for name, exponent, digit in factors:
        named = _unit_named(name)
        if named is None or named.powers in seen or (named == PERCENT and len(factors) > 1):
            return None  # "cents cents"
        seen.add(named.powers)
        unit = unit.times(named.raised(sign * int(exponent or digit or 1)))
    return unit


# --- the table of names ----------------------------------------------------------------------------------------------


def _powers(text: str) -> tuple[tuple[str, int], ...]:
    """Return the sorted (base unit, power) pairs of a table's cell such as "g m^2 s^-3"."""
    pairs = (base.partition("^") for base in text.split())
    return tuple(sorted((base, int(power or 1)) for base, _, power in pairs))


def _si_units() -> Iterator[tuple[str, Unit]]:
    """Yield (name, unit) for all symbols and words of `_SI`, with and without prefixes."""
    cells = _PREFIXES.split()
    prefixes = [("", "", "1"), *zip(cells[::3], cells[1::3], cells[2::3], strict=True)]
    for line in _SI.strip().splitlines():
        symbols, words, factor, *bases = line.split()
        base = Unit(Fraction(factor), _powers(" ".join(bases) or symbols))
        for short, long, scale in prefixes:
            unit = Unit(base.factor * Fraction(scale), base.powers)
            for symbol in symbols.split(","):
                yield short + symbol, unit
            for word in words.split(","):
                yield long + word, unit
                yield long + word + "s", unit


_UNITS = dict(_si_units())
for _line in _NAMED.strip().splitlines():
    _base, _scale, *_names = _line.split()
    _UNITS |= dict.fromkeys(_names, Unit(Fraction(_scale), _powers(_base)))
_UNITS |= {"%": PERCENT, "percent": PERCENT, "unit": PURE, "units": PURE, "hertz": _UNITS["Hz"]}
# Reversed, so that of names that differ in case alone the first one in the tables is read.
_IN_ANY_CASE = {name.lower(): unit for name, unit in reversed(_UNITS.items()) if len(name) > 1}


def _unit_named(name: str) -> Unit | None:
    """Return the unit `name`, or None. Case distinguishes mPa from MPa; other names are found in any case."""
    name = name.replace(" ", "")
    return _UNITS.get(name) or _IN_ANY_CASE.get(name.lower())


# --- units in a question ---------------------------------------------------------------------------------------------

_ASKS = re.compile(
    r"\b(?:in|how many|number of|what|which|nearest|measured in|units? of)\s+(?=(\S+(?:\s+\S+){0,4}))", re.I
)
_ASKS_IN_CHINESE = re.compile(r"(?:多少|几)\s*([^\W\d_a-zA-Z]{1,4})")
_MONEY = re.compile(r"\\\$|US\$|(?<![\w}])\$[0-9][0-9,.]*(?=[\s,.?!;]|$)")
_SYMBOL_BEFORE = re.compile(r"(?:[0-9}]\s*|/\s*|\(|\bin\s|\bper\s)$")
_NO_UNITS = frozenset(["in", "second", "pm", "am", "as", "us"])
"""Common words that are rarely units in a question: "second" is an ordinal, only "seconds" is a unit."""


@lru_cache(256)
def units_asked(question: str) -> frozenset[Unit]:
    """Return the units that a question asks for: "how many hours", "in km/h"."""
    text = without_text_commands(normalize_notation(question))
    phrases = [_longest_unit(match[1].split()) for match in _ASKS.finditer(text)]
    chinese = [_longest_unit(list(match[1]), "") for match in _ASKS_IN_CHINESE.finditer(text)]
    return frozenset(unit for unit in phrases + chinese if unit)


def _longest_unit(words: list[str], space: str = " ") -> Unit | None:
    """Return the unit named by the longest prefix of `words`, or None without a unit."""
    for count in range(len(words), 0, -1):
        if unit := read_unit(space.join(words[:count]).rstrip("?!.,;:)")):
            return unit
    return None


@lru_cache(256)
def units_named(question: str) -> frozenset[Unit]:
    """Return all units named in a question, each to its first power."""
    text = _normalized(question)
    units = {_UNITS["$"]} if _MONEY.search(question) else set[Unit]()
    for match in re.finditer(_NAME, text):
        before = text[max(0, match.start() - 8) : match.start()]
        # A short word such as "a" or "m" is a unit after a number or a slash only.
        is_symbol = len(match[0]) < 3 and match[0][0].isalpha()
        if match[0].lower() not in _NO_UNITS and (not is_symbol or _SYMBOL_BEFORE.search(before)):
            units.update(filter(None, [_unit_named(match[0])]))
    if re.search(r"\bangle", text, re.I):
        units.add(_UNITS["°"])
    return frozenset(units)
