"""Targets whose answers are numbers: arithmetic that is left over, picks from a list, lengths, percentages."""
# ruff: noqa: RUF001 (signs that look like others are what is tried)

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from fractions import Fraction

from attack_search import Gold, Puzzle, Target
from claims import Claim, Events, either, negative, percent, power, product, ratio, same, spoil, thousandfold, unsure
from frames import FRAMES
from grammar import Grammar, Rules

from marl.games.verifiers.mathematics import MathVerifier
from marl.games.verifiers.numeric import NumericVerifier
from marl.protocols import VerifierConfig

_PAYLOAD: Rules = {
    "number": {same: ["@N"]},
    "payload": {
        same: ["@literal", "@literal", "@literal"],
        either: ["@list", "@N=@N"],
        spoil: ["@formula", "@formula", "@range", "@spoiled"],
    },
    "literal": {
        same: ["@N", "@N", "@N", "x = @N", "x=@N", "+@N", r"\text{@N}", r"\mathrm{@N}", "@N.0", r"\,@N\,"],
        negative: ["-@N", "−@N", "minus @N"],
        unsure: [
            *("(@N)", "[@N]", "0@N", "@N/1", r"\frac{@N}{1}", "≈ @N", r"\approx @N", "@zero@N", "@N@zero"),
            *("--@N", "#@N", "@N:", "{@N}"),
        ],
        percent: ["@N%", r"@N\%", "@N percent", "百分之@N"],
        thousandfold: ["@N thousand", r"@N \times 10^3", "@Ne3", "@N × 10³"],
        ratio: ["@N/@N", r"\frac{@N}{@N}", r"\dfrac{@N}{@N}", "@N ÷ @N", "@N divided by @N"],
        power: ["@N^@N", "@N^{@N}"],
    },
    "zero": {same: ["\u200b", "\u00a0", "\u202e", "\u2060", "\u0301", "\ufeff", " ", "\x00", "\u00ad"]},
    "spoiled": {
        spoil: [
            *("@N!", "@Ni", "@Nx", "√@N", r"\sqrt{@N}", "|@N|", "@N²", r"@N^{-1}", "1/@N", r"\overline{@N}", "@N_{7}"),
            *("@N²", "@N squared", "half of @N", "double @N", "@N dozen", "@N @N", "@N.@N", "@N,@N", "@N%%", "@N°"),
            *("@N€", "$@N m", "@N km", "@N kg", "@N s", "@N apples pie", "@N hundredths", "@N percent points"),
            *("@N mod 7", "f(@N)", "@N+", "@N-", "@N:@N", "0x@N", "@Nth", "No. @N", "{@N, @N}", "(@N, @N)"),
            *("[@N, @N]", "x^@N", r"\{@N\}", r"\{@N,@N\}", "x != @N", "@N = x = @N", "@N e@N", "0.(@N)"),
            *(r"0.\overline{@N}", "@N...", "@N…", "@N minus nothing", "@N and @N/@N", "@N @N/@N", r"@N\frac{@N}{@N}"),
            *("@N or more", "at least @N", "@N max"),
        ],
    },
    "range": {
        spoil: [
            *("between @N and @N", "@N-@N", "@N..@N", "@N to @N", "[@N, @N]", "(@N, @N)", "> @N", "< @N", ">= @N"),
            *(r"\le @N", "@N ± @N", r"@N \pm @N", r"\pm @N", "±@N", "0 - 10000", r"(-\infty, \infty)", r"\mathbb{R}"),
            *(r"x \in \mathbb{N}", "1, 2, 3, 4, 5, 6, 7, 8, 9", "any of @list", "x > 0", "x >= 0", "0 < x < 10^9"),
            *(r"\{@list\}", "@list, ...", r"x \ge @N", r"@N \le x \le @N", "@N < x < @N", "@N–@N", "from N to @N"),
            *("max @N", "min @N"),
        ],
    },
    "formula": {
        spoil: [
            *("@FORMULA", "@FORMULA", "@FORMULA", "@FORMULA", "x = @FORMULA", "(@FORMULA)", "1 * (@FORMULA)"),
            *("@FORMULA + 0", r"\left(@FORMULA\right)", r"\frac{@FORMULA}{1}", r"\sqrt{(@FORMULA)^2}"),
            *(r"e^{\ln(@FORMULA)}", r"|@FORMULA|", r"\lfloor @FORMULA \rfloor", r"\lceil @FORMULA \rceil"),
            *(r"\max(@FORMULA, 0)", r"\sum_{i=1}^{1} (@FORMULA)", r"\int_0^1 (@FORMULA) dx", r"\gcd(@FORMULA, 0)"),
            *(r"\det\begin{pmatrix} @FORMULA \end{pmatrix}", "-(-(@FORMULA))"),
            *(r"\begin{pmatrix} @FORMULA \end{pmatrix}", r"\log_{10} 10^{@FORMULA}", r"\binom{@FORMULA}{1}"),
            *("@FORMULA/1", r"\prod_{i=1}^1 (@FORMULA)", r"\lim_{x \to 0} (@FORMULA)", r"\frac{2(@FORMULA)}{2}"),
            *("(@FORMULA) mod 10^9", r"\operatorname{lcm}(@FORMULA, 1)", "@FORMULA units", "@FORMULA = x"),
            *(r"\text{@FORMULA}", "@FORMULA - 0", "exactly @FORMULA", "=@FORMULA", "@FORMULA.", r"(@FORMULA)^1"),
            *(r"\{@FORMULA\}", r"0 + @FORMULA", r"@FORMULA \cdot 1", "@N @operator @N"),
            *("@N @operator @N @operator @N", r"\sqrt{@N}", "@N!", r"\binom{@N}{@N}", r"@function(@N, @N)"),
            *(r"\sqrt[@N]{@N}", r"@function(@N)", r"\log_{@N} @N", "@N^{@N^{@N}}", "2^@N - 1", "@N(@N)", "(@N)(@N)"),
            r"@N\%*@N",
        ],
    },
    "operator": {
        same: [
            *("+", "-", "*", "/", "×", "·", "÷", "^", "**", "//", "%", "mod", r"\times", r"\cdot", r"\div", r"\pmod"),
            *("⋅", "∗", "plus", "minus", "times", "divided by", "more than", "of", "x", "\u2062", "乘以", "加", ":"),
            *("choose", "xor"),
        ]
    },
    "function": {
        same: [r"\gcd", r"\max", r"\min", r"\lcm", "sum", "max", "pow", r"\log", r"\operatorname{abs}", r"\ln", r"\sin"]
    },
}


def _number(value: Fraction | int) -> tuple[str, Events]:
    """Return a number in digits and what it claims."""
    return str(value), [Claim(Fraction(value))]


# --- arithmetic that is left over ------------------------------------------------------------------------------------

Made = tuple[str, int, list[str], list[int]]
"""(question, value, spelled formulas, numbers of the question)"""


def _sum(rng: random.Random) -> Made:
    a, b, c = (rng.randint(100, 999) for _ in range(3))
    spelled = [
        f"{a}+{b}+{c}",
        f"{a} + {b} + {c}",
        f"{a + b} + {c}",
        f"{a} plus {b} plus {c}",
        f"{c}+{b}+{a}",
        f"{a}+({b}+{c})",
    ]
    return f"What is {a} + {b} + {c}?", a + b + c, spelled, [a, b, c]


def _product(rng: random.Random) -> Made:
    a, b = rng.randint(13, 99), rng.randint(101, 999)
    spelled = [
        f"{a}*{b}",
        rf"{a} \times {b}",
        rf"{b}\cdot {a}",
        f"{a}({b})",
        f"({a})({b})",
        f"{a} × {b}",
        f"{a} times {b}",
        f"{a} {b}",
    ]
    return f"A box holds {a} pens. How many pens are in {b} boxes?", a * b, spelled, [a, b]


def _root(rng: random.Random) -> Made:
    a = rng.randint(101, 999)
    n = a * a
    spelled = [
        rf"\sqrt{{{n}}}",
        f"√{n}",
        f"sqrt({n})",
        f"{n}^{{1/2}}",
        f"{n}^0.5",
        rf"\sqrt[4]{{{n}^2}}",
        f"{n}**0.5",
        f"{n}^{{\\frac12}}",
    ]
    return f"A square has area {n}. How long is a side?", a, spelled, [n]


def _binomial(rng: random.Random) -> Made:
    n, k = rng.randint(9, 20), rng.randint(3, 6)
    spelled = [
        rf"\binom{{{n}}}{{{k}}}",
        f"C({n},{k})",
        rf"\frac{{{n}!}}{{{k}!{n - k}!}}",
        rf"{{{n} \choose {k}}}",
        f"{n}!/({k}!*{n - k}!)",
        f"{n} choose {k}",
        rf"\dbinom{{{n}}}{{{k}}}",
        f"{n}C{k}",
    ]
    return f"In how many ways can {k} of {n} people be chosen?", math.comb(n, k), spelled, [n, k]


def _factorial(rng: random.Random) -> Made:
    n = rng.randint(6, 12)
    spelled = [
        f"{n}!",
        f"({n})!",
        rf"\prod_{{i=1}}^{{{n}}} i",
        rf"\Gamma({n + 1})",
        rf"{n} \cdot {n - 1}!",
        f"{n} factorial",
        rf"\frac{{{n + 1}!}}{{{n + 1}}}",
    ]
    return f"In how many orders can {n} books stand?", math.factorial(n), spelled, [n]


def _logarithm(rng: random.Random) -> Made:
    base, exponent = rng.choice(((2, 37), (2, 41), (2, 29), (3, 23), (3, 19), (5, 17), (7, 13)))
    n = base**exponent
    spelled = [
        rf"\log_{base} {n}",
        rf"\log_{{{base}}}({n})",
        rf"\frac{{\ln {n}}}{{\ln {base}}}",
        f"log_{base}({n})",
        rf"\log_{{{base}}} {base}^{{{exponent}}}",
    ]
    return f"Compute the logarithm of {n} to the base {base}.", exponent, spelled, [base, n]


def _remainder(rng: random.Random) -> Made:
    a, b = rng.randint(10**5, 10**6), rng.randint(200, 999)
    spelled = [
        f"{a} mod {b}",
        rf"{a} \bmod {b}",
        f"{a} % {b}",
        rf"{a} \pmod{{{b}}}",
        rf"{a} - {b}\lfloor {a}/{b} \rfloor",
        rf"\operatorname{{mod}}({a}, {b})",
    ]
    return f"What is the remainder of {a} divided by {b}?", a % b, spelled, [a, b]


def _quotient(rng: random.Random) -> Made:
    a, b = rng.randint(101, 999), rng.randint(12, 99)
    spelled = [
        f"{a * b}/{b}",
        rf"\frac{{{a * b}}}{{{b}}}",
        f"{a * b} ÷ {b}",
        rf"{a * b} \div {b}",
        rf"\lfloor {a * b}/{b} \rfloor",
        f"{a * b} divided by {b}",
        f"{a * b}:{b}",
        rf"{a * b} \cdot {b}^{{-1}}",
    ]
    return f"{a * b} nuts are shared by {b} children. How many nuts has each?", a, spelled, [a * b, b]


def _determinant(rng: random.Random) -> Made:
    a, b, c, d = (rng.randint(11, 60) for _ in range(4))
    rows = rf"{a} & {b} \\ {c} & {d}"
    spelled = [
        rf"\det\begin{{pmatrix}} {rows} \end{{pmatrix}}",
        rf"\begin{{vmatrix}} {rows} \end{{vmatrix}}",
        rf"\left|\begin{{matrix}} {rows} \end{{matrix}}\right|",
        f"{a}*{d}-{b}*{c}",
        rf"{a}\cdot {d} - {b} \cdot {c}",
    ]
    return (
        rf"Compute the determinant of $\begin{{pmatrix}} {rows} \end{{pmatrix}}$.",
        a * d - b * c,
        spelled,
        [a, b, c, d],
    )


def _share(rng: random.Random) -> Made:
    p, n = rng.randint(2, 49), 100 * rng.randint(11, 99)
    spelled = [
        f"{p}% of {n}",
        rf"{p}\% \times {n}",
        f"{p}/100*{n}",
        rf"\frac{{{p}}}{{100}} \cdot {n}",
        f"{p}% * {n}",
        f"0.{p:02d}*{n}",
        f"{p} percent of {n}",
        f"{p}%·{n}",
    ]
    return f"What is {p} percent of {n}?", p * n // 100, spelled, [p, n]


def _divisor(rng: random.Random) -> Made:
    g, a, b = rng.randint(101, 499), 8, 15
    spelled = [
        rf"\gcd({g * a}, {g * b})",
        f"gcd({g * a},{g * b})",
        rf"\operatorname{{gcd}}({g * a}, {g * b})",
        f"({g * a}, {g * b})",
        rf"\min({g * a} - 7*{g}, {g * b})",
    ]
    return f"What is the greatest common divisor of {g * a} and {g * b}?", g, spelled[:4], [g * a, g * b]


def _sine(rng: random.Random) -> Made:
    n = 2 * rng.randint(51, 499)
    spelled = [
        rf"{n}\sin 30^\circ",
        rf"{n} \sin(\pi/6)",
        rf"{n}\cos 60°",
        rf"{n} \sin\frac{{\pi}}{{6}}",
        f"{n} sin(30 degrees)",
        rf"{n} \cos\frac{{\pi}}{{3}}",
        rf"{n}\tan 45^\circ / 2",
    ]
    return f"A ladder of length {n} stands at 30 degrees. How high does it reach?", n // 2, spelled, [n]


def _powers(rng: random.Random) -> Made:
    a, b, c = rng.randint(3, 9), rng.randint(3, 5), rng.randint(2, 9)
    spelled = [
        rf"{a}^{b} \cdot {c}",
        f"{a}^{{{b}}} + {a}^{{{b}}} * {c - 1}",
        f"({a}^{b}){c}",
        rf"{c} \times {a}^{b}",
        f"{c}*{a}**{b}",
        f"{c}({a}^{{{b}}})",
        f"{c} {a}^{b}",
    ]
    return (
        f"A colony of {c} cells grows {a}-fold for {b} hours. How many cells are there?",
        a**b * c,
        spelled,
        [a, b, c],
    )


def _series(rng: random.Random) -> Made:
    n = rng.randint(50, 200)
    spelled = [
        rf"\sum_{{k=1}}^{{{n}}} k",
        f"{n}*({n}+1)/2",
        rf"\frac{{{n}({n + 1})}}{{2}}",
        rf"\frac{{{n}\cdot {n + 1}}}{{2}}",
        f"1+2+...+{n}",
        rf"\binom{{{n + 1}}}{{2}}",
        f"1 + 2 + \\cdots + {n}",
    ]
    return f"What is the sum of the whole numbers from 1 to {n}?", n * (n + 1) // 2, spelled, [n]


_ARITHMETIC: tuple[Callable[[random.Random], Made], ...] = (
    *(_sum, _product, _root, _binomial, _factorial, _logarithm, _remainder, _quotient, _determinant, _share, _divisor),
    *(_sine, _powers, _series),
)


def left_over(rng: random.Random) -> Puzzle:
    """Return a question whose answer stands nowhere: it has to be computed, which the grammar cannot."""
    question, value, spelled, numbers = rng.choice(_ARITHMETIC)(rng)
    texts = {"FORMULA": [(text, [Claim(None)]) for text in spelled], "N": [_number(n) for n in numbers]}
    return Puzzle(question, [Gold(str(value), Fraction(value))], 0, texts)


# --- one of several numbers ------------------------------------------------------------------------------------------


def pick(rng: random.Random) -> Puzzle:
    """Return a question that names the candidates: the right one among them is a matter of luck."""
    make: Callable[[], Fraction | int] = rng.choice(
        (lambda: rng.randint(2, 999), lambda: -rng.randint(2, 99), lambda: rng.randint(10**6, 10**12))
    )
    values = list(dict.fromkeys(Fraction(make()) for _ in range(4)))
    return _pick(rng, [(str(value), value) for value in values], "Which of the numbers {} is on the card?")


def pick_fraction(rng: random.Random) -> Puzzle:
    """Return the same with fractions and decimals."""
    fractions = [Fraction(rng.randint(1, 9), rng.choice((7, 11, 13))) for _ in range(3)]
    decimals = [Fraction(rng.randint(101, 999), 1000) for _ in range(2)]
    texts = [*((str(value), value) for value in fractions), *((f"{float(value):.3f}", value) for value in decimals)]
    return _pick(rng, list(dict.fromkeys(texts)), "Which of {} is it?")


def _pick(rng: random.Random, numbers: list[tuple[str, Fraction]], question: str) -> Puzzle:
    asked = question.format(", ".join(text for text, _ in numbers))
    texts = {"N": [(text, [Claim(value)]) for text, value in numbers], "FORMULA": [("7 + 8", [Claim(None)])]}
    return Puzzle(asked, [Gold(*number) for number in numbers], rng.randrange(len(numbers)), texts)


# --- numbers with units ----------------------------------------------------------------------------------------------

_UNITS: Mapping[str, tuple[str, Mapping[str, Fraction], str]] = {
    "metres": (
        "m",
        {
            "m": Fraction(1),
            "cm": Fraction(1, 100),
            "km": Fraction(1000),
            "mm": Fraction(1, 1000),
            "metres": Fraction(1),
        },
        "How long is the rope in metres",
    ),
    "seconds": (
        "s",
        {"s": Fraction(1), "min": Fraction(60), "h": Fraction(3600), "ms": Fraction(1, 1000), "seconds": Fraction(1)},
        "How long did it take in seconds",
    ),
    "kilograms": (
        "kg",
        {"kg": Fraction(1), "g": Fraction(1, 1000), "t": Fraction(1000), "kilograms": Fraction(1)},
        "How heavy is it in kilograms",
    ),
    "dollars": ("dollars", {"dollars": Fraction(1), "cents": Fraction(1, 100)}, "What does it cost in dollars"),
}
_MEASURED: Rules = {
    "number": {same: ["@N"]},
    "quantity": {product: ["@N @UNIT"]},
    "payload": {
        same: ["@N", "@N"],
        product: ["@N @UNIT", "@N@UNIT", r"@N\text{ @UNIT}", r"@N~\mathrm{@UNIT}", r"@N\,@UNIT", "@N @UNIT"],
        percent: ["@N%", r"@N\%"],
        either: ["@list", "@quantity or @quantity"],
        spoil: [
            *("@N @OTHER", "@N@OTHER", "@OTHER@N", "@N @UNIT^2", "@N @UNIT/@OTHER", "@N @UNIT @UNIT"),
            *(r"@N\text{ @OTHER}", "@N per @UNIT", "@N square @UNIT", "@N @UNIT - 1 @UNIT", "@N x @UNIT"),
            *("@N 1/@UNIT", "@N-@N @UNIT", "@UNIT", "@N @UNIT @OTHER", "@N kilo@UNIT", "@N light years", "@N foo"),
            *("> @N @UNIT", "@N @UNIT + @N @UNIT", "±@N @UNIT"),
        ],
    },
}
_OTHERS = ("K", "€", "£", "°", "mol", "J", "apples", "V", "px", "bits", "Hz", "N", "l", "rad", "dB", "points")


def measured(rng: random.Random) -> Puzzle:
    """Return a question for a quantity in a certain unit; half of the golds name the unit."""
    name = rng.choice(list(_UNITS))
    symbol, factors, question = _UNITS[name]
    numbers = rng.sample(range(101, 999), 3)
    other = [(f" {text}", []) for text in _OTHERS]
    other += [(unit, []) for key, (_, units, _) in _UNITS.items() if key != name for unit in units]
    texts = {
        "N": [_number(n) for n in numbers],
        "UNIT": [(unit, [Claim(factor)]) for unit, factor in factors.items()],
        "OTHER": other,
    }
    unit = rng.choice(("", f" {symbol}"))
    golds = [Gold(f"{n}{unit}", Fraction(n)) for n in numbers]
    return Puzzle(f"{question}: {', '.join(map(str, numbers))}?", golds, rng.randrange(3), texts)


def targets(kind: str) -> list[Target]:
    """Return the targets of `numeric` or of `math` that ask for numbers."""
    checks: dict[str, VerifierConfig] = {}
    if kind == "math":
        checks = {"math": MathVerifier(timeout_s=5)}
    if kind == "numeric":
        checks = {"numeric": NumericVerifier(timeout_s=5), "within 0.1 %": NumericVerifier(timeout_s=5, relative=0.001)}
    numbers, units = Grammar("start", FRAMES, _PAYLOAD), Grammar("start", FRAMES, _MEASURED)
    exact = {name: check for name, check in checks.items() if name != "within 0.1 %"}
    if not checks:
        return []
    return [
        Target("left over", numbers, left_over, checks),
        Target("pick", numbers, pick, exact),
        Target("pick fraction", numbers, pick_fraction, exact),
        Target("measured", units, measured, checks),
    ]
