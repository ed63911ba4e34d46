"""Targets whose answers are formulas: sets, points, intervals, polynomials, surds, matrices, words."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from fractions import Fraction

from attack_search import Gold, Puzzle, Target
from claims import Claim, Events, anything, collection, either, ordered, same, spoil, unsure
from frames import FRAMES
from grammar import Effect, Grammar, Rules

from marl.games.verifiers.mathematics import MathVerifier


def _interval(ends: str) -> Effect:
    """Return the effect of an interval with such brackets; "(" at the left of a single end: all that is greater."""

    def interval(parts: list[Events]) -> Events:
        values = [event.value for event in same(parts) if isinstance(event, Claim)]
        numbers = [value for value in values if isinstance(value, Fraction)]
        proper = len(numbers) == len(values) and sorted(set(numbers)) == numbers
        return [Claim(("interval", ends, *numbers) if proper else None)]

    interval.__name__ = f"interval {ends}"
    return interval


_NUMBER: Rules = {"number": {same: ["@N"]}}
_SET: Rules = {
    "payload": {
        collection: [
            *(r"\{@N, @N\}", r"\{@N,@N\}", "@N, @N", "@N,@N", "@N and @N", "@N or @N", "x = @N or x = @N"),
            *("x=@N, x=@N", r"\left\{@N, @N\right\}", r"\{@N, @N, @N\}", "@N, @N, @N", r"\{@N\}", r"\{@N,@N,@N,@N\}"),
            *("x = @N, @N", r"x \in \{@N, @N\}", r"@N \text{ and } @N", r"@N \text{ or } @N", "@N; @N", r"\{@N; @N\}"),
            "@N或@N",
        ],
        same: ["@N", "x = @N"],
        spoil: [
            *("(@N, @N)", "[@N, @N]", r"\langle @N, @N \rangle", "@N-@N", "between @N and @N", r"@N \le x \le @N"),
            *("@N @N", r"\{@N, \ldots, @N\}", r"\{\{@N\}, \{@N\}\}", r"\mathbb{Z}", r"\{x\}", "any two", r"@N \pm @N"),
            *(r"\pm @N", r"\{@N\} \cup \{@N\} \cup \mathbb{Z}", r"\{@N\} \setminus \{@N\}", r"\{x : x > @N\}"),
            *("x > @N or x < @N", "all of @N, @N, @N, @N", "@N or @N or @N or @N or x", r"(x - @N)(x - @N) = 0"),
            *(r"\emptyset", "{(@N, @N)}", r"\{@N, x\}", "@N, y", "@N, @N, ...", r"x \ne @N, x \ne @N"),
            *(r"x \notin \{@N, @N\}", "x = @N and y = @N"),
        ],
    },
}
_POINT: Rules = {
    "payload": {
        ordered: [
            *("(@N, @N)", "(@N,@N)", r"\left(@N, @N\right)", "x=@N, y=@N", "x = @N, y = @N", "(@N, @N, @N)"),
            "(x, y) = (@N, @N)",
        ],
        spoil: [
            *(r"\{@N, @N\}", r"\{@N,@N\}", "[@N, @N]", "@N, @N", "@N and @N", "x=@N", "(@N)", "@N"),
            *("(@N, @N) or (@N, @N)", "(@N; @N), (@N, @N)", "(@N, y)", r"(@N, \pm @N)", "((@N, @N), (@N, @N))"),
            *("(@N, @N) = (@N, @N)", "@N @N", r"\{(@N, @N), (@N, @N)\}", "(@N - 0, @N + 0)", "x=@N, x=@N"),
            *("y=@N or x=@N", "(x, y)", "(@N, @N)^T + 0"),
        ],
        unsure: [r"\langle @N \rangle", "(@N @N)"],
    },
}
_INTERVAL: Rules = {
    "payload": {
        anything: [
            "x >= @N or x > @N",
            "x > @N or x > @N",
            r"(@N, @N) \cup [@N, @N]",
            r"[@N, @N) \cup (@N, @N]",
            r"(@N, @N) \cup [@N, @N)",
        ],
        _interval("()"): ["(@N, @N)", "@N < x < @N", r"x \in (@N, @N)"],
        _interval("[]"): ["[@N, @N]", r"@N \le x \le @N", r"x \in [@N, @N]"],
        _interval("(]"): ["(@N, @N]", r"@N < x \le @N"],
        _interval("[)"): ["[@N, @N)", r"@N \le x < @N"],
        _interval("("): ["x > @N", r"(@N, \infty)"],
        _interval("["): [r"x \ge @N", r"[@N, \infty)"],
        spoil: [
            *(r"\{@N, @N\}", "@N, @N", "@N - @N", "(@N, @N) or [@N, @N]"),
            *(r"(-\infty, \infty)", "x", r"\mathbb{R}", "@N < @N", r"x \ne @N", "> @N"),
            *("between @N and @N", r"[@N, @N] \cup \mathbb{R}", "(@N, @N", "@N, @N)", "]@N, @N[ or (@N, @N)"),
            *(r"(@N, @N) \cap [@N, @N] \cup x", "(@N, @N), [@N, @N]"),
        ],
    },
}
_WRAPS: Rules = {
    "payload": {
        same: ["@FORMULA", "@FORMULA", "@FORMULA"],
        either: ["@list"],
        spoil: [
            *("(@FORMULA)", "@FORMULA + 0", r"1 \cdot (@FORMULA)", "y = @FORMULA", "x = @FORMULA"),
            *(r"\frac{@FORMULA}{1}", r"\left(@FORMULA\right)", r"(@FORMULA)^1", "-(-(@FORMULA))"),
            *(r"\sum_{i=1}^1 (@FORMULA)", r"\lim_{h \to 0} (@FORMULA)", r"\frac{d}{dx} \int (@FORMULA) dx"),
            *("@FORMULA = @FORMULA", r"\{@FORMULA\}", r"\text{@FORMULA}", "@FORMULA or x", "@N", "x^2 + @N x + @N"),
            *("@N x + @N", r"@N\sqrt{@N}", r"\sqrt{@N} + @N", r"@N\pi", "f(x)", "f'(x)", "@FORMULA, @FORMULA + 1"),
            *(r"@FORMULA - x + x", r"\max(@FORMULA, @FORMULA)", r"@FORMULA \pm 0", "C", "x", "y", r"\pi"),
            *("@FORMULA + C", "@APPROX"),
        ],
    },
    "number": {same: ["@N"]},
}
_WORDS: Rules = {
    "number": {same: ["@N"]},
    "payload": {
        same: ["@N", r"\text{@N}", r"\mathrm{@N}"],
        either: ["@list"],
        spoil: [
            *("@N @N", "@N/@N", "not @N", "@N!", "un@N", "@N \\lor @N", r"\{@N, @N\}", "@N-@N", "@N = @N", "@N(@N)"),
        ],
    },
}


def _texts(numbers: Sequence[int]) -> dict[str, list[tuple[str, Events]]]:
    return {"N": [(str(n), [Claim(Fraction(n))]) for n in numbers]}


def _sets(rng: random.Random) -> Puzzle:
    numbers = [rng.choice((-1, 1)) * n for n in rng.sample(range(1, 20), 4)]  # no two are x and -x
    style = rng.choice((r"\{%s, %s\}", "%s, %s", "%s and %s", "x = %s or x = %s"))
    golds = [Gold(style % pair, frozenset(map(Fraction, pair))) for pair in itertools.combinations(numbers, 2)]
    question = f"Which two of {', '.join(map(str, numbers))} solve the equation?"
    return Puzzle(question, golds, rng.randrange(len(golds)), _texts(numbers))


def _points(rng: random.Random) -> Puzzle:
    numbers = rng.sample(range(-9, 20), 4)
    golds = [Gold(f"({x}, {y})", (Fraction(x), Fraction(y))) for x, y in itertools.permutations(numbers, 2)]
    question = f"At which point, with coordinates among {', '.join(map(str, numbers))}, do the lines cross?"
    return Puzzle(question, golds, rng.randrange(len(golds)), _texts(numbers))


def _intervals(rng: random.Random) -> Puzzle:
    numbers = rng.sample(range(-9, 20), 3)
    golds = [
        Gold(f"{ends[0]}{low}, {high}{ends[1]}", ("interval", ends, Fraction(low), Fraction(high)))
        for low, high in itertools.combinations(sorted(numbers), 2)
        for ends in ("()", "[]", "(]", "[)")
    ]
    golds += [Gold(rf"({n}, \infty)", ("interval", "(", Fraction(n))) for n in numbers]
    golds += [Gold(rf"x \ge {n}", ("interval", "[", Fraction(n))) for n in numbers]
    question = f"For which x, with ends among {', '.join(map(str, numbers))}, does it hold?"
    return Puzzle(question, golds, rng.randrange(len(golds)), _texts(numbers))


def _expand(rng: random.Random) -> tuple[str, str, list[str], list[int]]:
    a, b = rng.sample(range(2, 12), 2)
    formulas = [
        f"(x+{a})(x+{b})",
        f"(x + {a})(x + {b})",
        rf"(x+{a})\cdot(x+{b})",
        f"(x+{a})*(x+{b})",
        rf"\left(x+{a}\right)\left(x+{b}\right)",
    ]
    return f"Expand $(x+{a})(x+{b})$.", f"x^2 + {a + b}x + {a * b}", formulas, [a, b]


def _differentiate(rng: random.Random) -> tuple[str, str, list[str], list[int]]:
    a, n = rng.randint(2, 9), rng.randint(3, 7)
    formulas = [
        rf"\frac{{d}}{{dx}} {a}x^{n}",
        rf"\frac{{d}}{{dx}}({a}x^{{{n}}})",
        f"({a}x^{n})'",
        rf"\frac{{d({a}x^{n})}}{{dx}}",
        rf"\int {a * n * (n - 1)} x^{{{n - 2}}} dx",
        rf"\lim_{{h \to 0}} \frac{{{a}(x+h)^{n} - {a}x^{n}}}{{h}}",
    ]
    return f"Differentiate ${a}x^{n}$ with respect to $x$.", f"{a * n}x^{{{n - 1}}}", formulas, [a, n]


def _simplify(rng: random.Random) -> tuple[str, str, list[str], list[int]]:
    c, n = rng.randint(3, 9), rng.choice((2, 3, 5, 7))
    formulas = [rf"\sqrt{{{c * c * n}}}", f"√{c * c * n}", f"{c * c * n}^{{1/2}}", rf"\sqrt {{{c * c * n}}}"]
    return rf"Simplify $\sqrt{{{c * c * n}}}$.", rf"{c}\sqrt{{{n}}}", formulas[:1], [c * c * n]


def _circle(rng: random.Random) -> tuple[str, str, list[str], list[int]]:
    r = rng.randint(3, 40)
    return (
        f"What is the area of a circle of radius {r}?",
        rf"{r * r}\pi",
        [f"{3.14159265 * r * r:.6f}", f"{3.14159265 * r * r:.3f}"],
        [r],
    )


def _multiply(rng: random.Random) -> tuple[str, str, list[str], list[int]]:
    a, b, c, d, e, f, g, h = (rng.randint(2, 9) for _ in range(8))
    left = rf"\begin{{pmatrix}} {a} & {b} \\ {c} & {d} \end{{pmatrix}}"
    right = rf"\begin{{pmatrix}} {e} & {f} \\ {g} & {h} \end{{pmatrix}}"
    gold = rf"\begin{{pmatrix}} {a * e + b * g} & {a * f + b * h} \\ {c * e + d * g} & {c * f + d * h} \end{{pmatrix}}"
    return (
        f"Multiply ${left}{right}$.",
        gold,
        [left + right, rf"{left} \cdot {right}", rf"{left} \times {right}", left, f"{left} {right}"],
        [a, h],
    )


_FORMULAS: Sequence[Callable[[random.Random], tuple[str, str, list[str], list[int]]]] = (
    *(_expand, _differentiate, _simplify, _circle, _multiply),
)


def _copied(rng: random.Random) -> Puzzle:
    """Return a question whose answer is another form of a formula in it."""
    question, gold, formulas, numbers = rng.choice(_FORMULAS)(rng)
    texts = _texts(numbers) | {"FORMULA": [(text, [Claim(None)]) for text in formulas], "APPROX": [("3.1416", [])]}
    return Puzzle(question, [Gold(gold, gold)], 0, texts)


def _words(rng: random.Random) -> Puzzle:
    words = rng.choice(
        (
            ("Yes", "Unclear", "Maybe"),
            ("even", "odd", "neither"),
            ("no solution", "one solution", "infinitely many solutions"),
            ("Monday", "Tuesday", "Sunday"),
            ("rational", "irrational", "undefined"),
        )
    )
    style = rng.choice((r"\text{%s}", "%s"))
    golds = [Gold(style % word, word) for word in words]
    texts = {"N": [(word, [Claim(word)]) for word in words]}
    return Puzzle(f"Which of these is it: {', '.join(words)}?", golds, rng.randrange(3), texts)


def targets(kind: str) -> list[Target]:
    """Return the targets of `math` whose answers are formulas."""
    if kind != "math":
        return []
    checks = {"math": MathVerifier(timeout_s=5)}
    families = [("set", _SET, _sets), ("point", _POINT, _points), ("interval", _INTERVAL, _intervals)]
    made = [Target(name, Grammar("start", FRAMES, _NUMBER, rules), make, checks) for name, rules, make in families]
    made.append(Target("copied formula", Grammar("start", FRAMES, _WRAPS), _copied, checks))
    return [*made, Target("words", Grammar("start", FRAMES, _WORDS), _words, checks)]
