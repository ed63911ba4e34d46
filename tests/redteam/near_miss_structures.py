r"""Rules that make sets, points, systems, intervals, matrices, polynomials, measurements and other golds.

Each gold comes with right rewritings and wrong neighbours.
"""

from __future__ import annotations

import json
import random
from itertools import permutations

from neighbourhoods import Neighbourhood, Rule

from marl.games.verifiers.json_answers import JsonVerifier
from marl.games.verifiers.numeric import NumericVerifier


def _distinct(rng: random.Random, count: int) -> list[int]:
    """Return `count` integers that differ in absolute value."""
    return [rng.choice((-1, 1)) * n for n in rng.sample(range(2, 60), count)]


def _orders(items: list[int]) -> list[tuple[int, ...]]:
    """Return all orders of `items` but their own."""
    return [order for order in permutations(items) if order != tuple(items)]


def _listed(numbers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def sets(rng: random.Random) -> Neighbourhood:
    """Finite sets: the order is free, and no member may be missing, added or changed."""
    members = _distinct(rng, rng.randint(3, 4))
    gold = rf"\{{{_listed(members)}\}}"
    right = tuple(rf"\{{{_listed(order)}\}}" for order in rng.sample(_orders(members), 2))
    wrong = [rf"\{{{_listed(members[:i] + members[i + 1 :])}\}}" for i in range(len(members))]
    wrong += [rf"\{{{_listed([*members, 99])}\}}", f"({_listed(members)})", f"[{_listed(members)}]", str(sum(members))]
    return Neighbourhood("Which numbers solve it?", gold, right, tuple(wrong), changes_digits=True)


def points(rng: random.Random) -> Neighbourhood:
    """Points: the order counts, and so do the brackets."""
    numbers = _distinct(rng, 3)
    x, y, z = numbers
    right = (rf"\left({x}, {y}, {z}\right)", f"x = {x}, y = {y}, z = {z}", f"(x,y,z) = ({x},{y},{z})")
    wrong = [f"({_listed(order)})" for order in _orders(numbers)]
    wrong += [rf"\{{{_listed(numbers)}\}}", f"[{_listed(numbers)}]", f"({x}, {y})", f"({-x}, {y}, {z})"]
    return Neighbourhood("At which point?", f"({_listed(numbers)})", right, tuple(wrong), changes_digits=True)


def systems(rng: random.Random) -> Neighbourhood:
    """Solutions of systems: every unknown keeps its value."""
    a, b = _distinct(rng, 2)
    right = (
        *(f"y = {b}, x = {a}", f"({a}, {b})", rf"x = {a} \text{{ and }} y = {b}"),
        rf"\begin{{cases}} x = {a} \\ y = {b} \end{{cases}}",
    )
    wrong = (
        *(f"x = {b}, y = {a}", f"({b}, {a})", f"x = {a}", f"y = {b}", f"x = {a}, x = {b}", f"y = {a}, x = {b}"),
        *(f"x = {-a}, y = {b}", f"x = {a}, z = {b}", f"x + y = {a + b}", f"{a}", rf"\{{{a}, {b}\}}"),
    )
    return Neighbourhood("Solve the system for x and y.", f"x = {a}, y = {b}", right, wrong, changes_digits=True)


def intervals(rng: random.Random) -> Neighbourhood:
    """Intervals: each bracket says whether its end belongs to the interval."""
    low = rng.randint(-40, 30)
    high = low + rng.randint(2, 40)
    kinds = {"()": ("<", "<"), "[]": (r"\le", r"\le"), "(]": ("<", r"\le"), "[)": (r"\le", "<")}
    own = rng.choice(list(kinds))
    below, above = kinds[own]
    spelled = [f"{brackets[0]}{low}, {high}{brackets[1]}" for brackets in kinds if brackets != own]
    right = (rf"{low} {below} x {above} {high}", rf"x \in {own[0]}{low},{high}{own[1]}")
    wrong = (
        *(*spelled, rf"\{{{low}, {high}\}}", f"{own[0]}{high}, {low}{own[1]}", f"x > {low}", f"x < {high}"),
        *(rf"x < {low} \text{{ or }} x > {high}", rf"{own[0]}{low}, \infty)", f"{low}, {high}", r"\mathbb{R}"),
    )
    return Neighbourhood("For which x?", f"{own[0]}{low}, {high}{own[1]}", right, wrong, changes_digits=True)


def matrices(rng: random.Random) -> Neighbourhood:
    """Matrices of numbers: every entry keeps its place."""
    a, b, c, d = _distinct(rng, 4)

    def matrix(entries: tuple[int, int, int, int], kind: str = "pmatrix") -> str:
        first, second, third, fourth = entries
        return rf"\begin{{{kind}}} {first} & {second} \\ {third} & {fourth} \end{{{kind}}}"

    right = (matrix((a, b, c, d), "bmatrix"), f"[[{a}, {b}], [{c}, {d}]]", rf"-{matrix((-a, -b, -c, -d))}")
    others = [matrix((w, x, y, z)) for w, x, y, z in rng.sample(_orders([a, b, c, d]), 6)]
    wrong = (*others, matrix((a, b, c, -d)), str(a * d - b * c), f"({a}, {b}, {c}, {d})", rf"2{matrix((a, b, c, d))}")
    return Neighbourhood("Find the matrix.", matrix((a, b, c, d)), right, wrong, changes_digits=True)


def polynomials(rng: random.Random) -> Neighbourhood:
    """Polynomials: terms may change their order, and neither signs nor exponents nor the variable."""
    a, b, c = (rng.randint(2, 30) for _ in range(3))
    n = rng.randint(3, 7)
    gold = f"{a}x^{n} + {b}x - {c}"
    right = (f"{b}x - {c} + {a}x^{n}", f"-{c}+{a}x^{{{n}}}+{b}x", f"x({a}x^{{{n - 1}}}+{b}) - {c}")
    wrong = (
        *(f"{a}x^{n} - {b}x - {c}", f"{a}x^{n} + {b}x + {c}", f"-{a}x^{n} + {b}x - {c}", f"{a}y^{n} + {b}y - {c}"),
        *(f"{a}x^{n} + {b} - {c}", f"{a}x^{n} + {b}x", f"{b}x - {c}", gold + "+10^{-40}", f"{a}x{n} + {b}x - {c}"),
        *(f"2({gold})", f"{gold} = 0", f"{gold} + x^{{-300}}", f"|{gold}|"),
    )
    return Neighbourhood("", gold, right, wrong, changes_digits=True)


def lines(rng: random.Random) -> Neighbourhood:
    """Equations of lines: terms may change sides."""
    m, b = rng.randint(2, 40), rng.randint(2, 40)
    right = (f"y - {m}x = {b}", f"{m}x - y + {b} = 0", f"y = {b} + {m}x")
    wrong = (
        *(f"y = -{m}x + {b}", f"y = {m}x - {b}", f"x = {m}y + {b}", f"y > {m}x + {b}", f"y = {m}x", f"y = {m}"),
        *(f"{m}x + y + {b} = 0", f"y = {m}x + {b} + 10^{{-30}}", f"z = {m}x + {b}"),
    )
    return Neighbourhood("Find an equation of the line.", f"y = {m}x + {b}", right, wrong, changes_digits=True)


def decimals(rng: random.Random) -> Neighbourhood:
    """Written decimals of a few digits, compared to a millionth of their value."""
    whole, rest = rng.randint(2, 98), rng.choice((125, 375, 461, 837, 229))
    gold = f"{whole}.{rest}"
    right = (gold + "0", f"+{gold}", rf"{whole / 10:g}{rest}\times 10^{{1}}" if whole % 10 and whole > 10 else gold)
    wrong = (f"-{gold}", f"{whole},{rest}", f"{whole}{rest}", rf"{gold}\%", f"{whole}", f"{gold} or {whole}")
    verifier = rng.choice((NumericVerifier(), Neighbourhood("", "", (), ()).verifier))
    return Neighbourhood("What is it?", gold, right, wrong, verifier, changes_digits=True)


def percentages(rng: random.Random) -> Neighbourhood:
    """Per cent, as a number and as a fraction."""
    n = rng.choice([n for n in range(11, 99) if n % 10])
    right = (f"{n}%", f"0.{n}", rf"{n}\text{{ percent}}")
    wrong = (rf"0.{n}\%", f"{n * 10}%", f"{n / 10:g}%", f"-{n}%", rf"{n}^\circ", f"{n} m", f"1.{n}")
    return Neighbourhood("What share is it?", rf"{n}\%", right, wrong, changes_digits=True)


def conversions(rng: random.Random) -> Neighbourhood:
    """Measurements in other units of the same dimension."""
    n = rng.randint(2, 90)
    large, small, factor, foreign = rng.choice(
        (("km", "m", 1000, "kg"), ("kg", "g", 1000, "km"), ("h", "min", 60, "m"), ("m", "cm", 100, "s"))
    )
    right = (f"{n * factor} {small}", rf"{n}\ \text{{{large}}}")
    wrong = (
        *(f"{n} {small}", f"{n * factor} {large}", f"{n} {foreign}", f"{n} {large}^2", f"{n} {large}/s"),
        *(f"{n * factor + 1} {small}", f"-{n} {large}", f"{n * factor}"),
    )
    return Neighbourhood("How much is it?", rf"{n}\text{{ {large}}}", right, wrong, changes_digits=True)


def congruences(rng: random.Random) -> Neighbourhood:
    """Residue classes, with another representative and as a general solution."""
    m = rng.randint(5, 30)
    r = rng.randint(1, m - 2)
    gold = rf"x \equiv {r} \pmod{{{m}}}"
    right = (rf"x \equiv {r + m} \pmod{{{m}}}", rf"x = {m}k + {r}, k \in \mathbb{{Z}}", rf"x \equiv {r - m} \pmod {m}")
    wrong = (
        *(
            rf"x \equiv {r + 1} \pmod{{{m}}}",
            rf"x \equiv {r} \pmod{{{m + 1}}}",
            rf"x \equiv {-r + m + m} \pmod{{{2 * m}}}",
        ),
        *(str(r), f"x = {r}", f"x = {m}", rf"x \equiv {m} \pmod{{{r + m}}}", rf"y \equiv {r} \pmod{{{m}}}"),
        *(
            f"x = {m}k + {r + 1}, k \\in \\mathbb{{Z}}",
            f"x = {m + 1}k + {r}, k \\in \\mathbb{{Z}}",
            f"{r} \\pmod{{{m + 1}}}",
        ),
    )
    return Neighbourhood("Solve the congruence.", gold, right, wrong)


def logarithms(rng: random.Random) -> Neighbourhood:
    """Logarithms and powers of e, whose equality is shown by their laws and not by many digits."""
    a, b = rng.sample((2, 3, 5, 7, 11, 13, 17, 19), 2)
    n = rng.randint(3, 9)
    gold, right = rng.choice(
        (
            (rf"\ln {a * b}", (rf"\ln {a} + \ln {b}", rf"\ln {b} + \ln {a}")),
            (rf"\log_{{{a}}} {b}", (rf"\frac{{\ln {b}}}{{\ln {a}}}", rf"\frac{{\log {b}}}{{\log {a}}}")),
            (rf"{n}\ln {a}", (rf"\ln {a**n}", rf"\ln {a} \cdot {n}")),
            (rf"{n}e^{{{a}}} + {b}", (rf"{b} + {n}e^{{{a}}}",)),
        )
    )
    wrong = (
        *(rf"\ln {a + b}", rf"\ln {a} - \ln {b}", rf"\ln {a} \ln {b}", rf"\log_{{{b}}} {a}", rf"{n}\ln {a + b + n}"),
        *(rf"{gold} + 10^{{-300}}", rf"{gold} + e^{{-700}}", rf"{gold}\tanh 900", rf"{n}e^{{{a}}}", rf"2({gold})"),
    )
    return Neighbourhood("", gold, right, wrong)


def identities(rng: random.Random) -> Neighbourhood:
    """Functions of a variable, with identities of sines, cosines and powers."""
    n = rng.randint(2, 9)
    gold, right = rng.choice(
        (
            (rf"{n}\sin 2x", (rf"{2 * n}\sin x\cos x", rf"\sin(2x) \cdot {n}")),
            (rf"{n}\cos 2x", (rf"{n} - {2 * n}\sin^2 x", rf"{n}\cos^2 x - {n}\sin^2 x")),
            (rf"e^{{{n}x}}", (rf"(e^x)^{n}", rf"\exp({n}x)")),
            (rf"x^{n} + \tan x", (rf"\frac{{\sin x}}{{\cos x}} + x^{n}",)),
        )
    )
    wrong = (
        *(
            rf"{n}\sin x",
            rf"{n}\cos x",
            rf"e^{{{n}}}x",
            rf"{n}e^x",
            rf"x^{n} + \cot x",
            rf"-({gold})",
            rf"{gold} + e^{{-900}}",
        ),
        *(rf"{gold} + 10^{{-200}}x", rf"({gold})\tanh(5000x^2+5000)", rf"{gold} + \sin(10^{{-90}}x)", rf"2({gold})"),
    )
    return Neighbourhood("", gold, right, wrong)


def complex_numbers(rng: random.Random) -> Neighbourhood:
    """Complex numbers: real and imaginary part are not exchanged."""
    a, b = rng.sample(range(2, 50), 2)
    wrong = (f"{a} - {b}i", f"{b} + {a}i", f"-{a} + {b}i", f"({a}, {b})", f"{a}", f"{b}i", f"{a + b}", f"{a} + {b}j")
    right = (f"{b}i + {a}", rf"{a} + i\cdot {b}")
    return Neighbourhood("", f"{a} + {b}i", right, (*wrong, f"{a} + {b}", f"{a}i + {b}i"), changes_digits=True)


def json_values(rng: random.Random) -> Neighbourhood:
    """JSON: objects have no order, and no value changes its type."""
    a, b, c = _distinct(rng, 3)
    value = {"n": abs(a), "items": [b, c], "ok": True}
    changed = (
        *({**value, "n": str(abs(a))}, {**value, "n": abs(a) + 1}, {**value, "ok": 1}, {**value, "items": [c, b]}),
        *({**value, "items": [b]}, {**value, "more": 0}, {**value, "ok": "true"}, {**value, "ok": False}, [value]),
        *({"n": abs(a)}, {**value, "items": {"0": b, "1": c}}, {**value, "n": -abs(a)}),
    )
    right = (
        json.dumps(dict(reversed(value.items()))),
        json.dumps(value, indent=2),
        json.dumps({**value, "n": float(abs(a))}),
    )
    return Neighbourhood("", json.dumps(value), right, tuple(map(json.dumps, changed)), JsonVerifier())


STRUCTURES: tuple[Rule, ...] = (
    *(sets, points, systems, intervals, matrices, polynomials, lines, decimals, percentages, conversions),
    *(congruences, logarithms, identities, complex_numbers, json_values),
)
