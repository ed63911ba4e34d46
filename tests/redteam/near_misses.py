r"""Rules that make golds with right rewritings and wrong neighbours: fractions, tails, orders of factors and others.

`tests/bench/redteam.py` runs them beside those of `near_miss_structures` and `near_miss_programs`.
"""

from __future__ import annotations

import random
from fractions import Fraction

from neighbourhoods import Neighbourhood, Rule

from marl.games.verifiers.text_verifiers import ChoiceVerifier


def _latex(value: Fraction) -> str:
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def fractions(rng: random.Random) -> Neighbourhood:
    """Neighbouring fractions with large denominators, alone and inside of points, sets, intervals and matrices."""
    n = rng.choice((rng.randint(20, 2000), 2 ** rng.randint(8, 30)))
    gold, neighbour = Fraction(n, n + 1), Fraction(n - 1, n)
    frame = rng.choice(
        ("%s", "(1, %s)", r"\{2, %s\}", "(0, %s]", r"\begin{pmatrix} 1 & %s \end{pmatrix}", "x = %s", "%s < x")
    )
    wrong = (frame % _latex(neighbour), frame % _latex(1 / gold), frame % "1", frame % f"{n - 1}/{n}")
    return Neighbourhood("Find it.", frame % _latex(gold), (frame % f"{n}/{n + 1}",), wrong, changes_digits=True)


def tails(rng: random.Random) -> Neighbourhood:
    """Numbers and formulas with a term that is too small, or too large, for floating point."""
    base, power = rng.randint(2, 9), rng.randint(60, 900)
    body = rng.choice(("1", r"\sqrt{2}", r"\frac{1}{3}", r"\pi", "x^2", r"e^{2}"))
    tail = rng.choice((f"{base}^{{-{power}}}", f"e^{{-{power}}}", rf"\frac{{1}}{{{base}^{{{power}}}}}"))
    right = (f"{tail}+{body}",) if rng.random() < 0.5 else (f"{body} + {tail}",)
    return Neighbourhood("", f"{body}+{tail}", right, (body, f"{body}-{tail}", f"{body}+2{tail}"), changes_digits=True)


def huge_integers(rng: random.Random) -> Neighbourhood:
    """Integers of hundreds of digits, which differ by one."""
    n = rng.randint(50, 300)
    core = rng.choice((f"{n}!", f"2^{{{n}}}", f"3^{{{n}}}"))
    return Neighbourhood("", f"{core}+1", (f"1+{core}",), (core, f"{core}-1", f"{core}+2"), changes_digits=True)


def surds(rng: random.Random) -> Neighbourhood:
    """Nested roots, whose equality needs a proof, and decimals that agree with them to many digits."""
    a, b = rng.sample((2, 3, 5, 6, 7, 10, 11, 13), 2)
    nested = rf"\sqrt{{{a + b}+2\sqrt{{{a * b}}}}}"
    digits = f"{(a**0.5 + b**0.5):.14f}"
    right = (nested, rf"\sqrt{{{b}}}+\sqrt{{{a}}}")
    other = rf"\sqrt{{{a + b}-2\sqrt{{{a * b}}}}}"
    wrong = (other, digits, rf"\sqrt{{{a}}}-\sqrt{{{b}}}", rf"\sqrt{{{a}}}+\sqrt{{{b}}}+10^{{-50}}")
    return Neighbourhood("", rf"\sqrt{{{a}}}+\sqrt{{{b}}}", right, wrong, changes_digits=True)


def propositions(rng: random.Random) -> Neighbourhood:
    """Formulas of logic: commuted, and with another connective, order or negation."""
    p, q = rng.sample("abpqrst", 2)
    left, right = rng.choice((p, rf"\neg {p}")), rng.choice((q, rf"\neg {q}"))
    sign, other = rng.sample((r"\land", r"\lor"), 2)
    flipped = left.removeprefix(r"\neg ") if left.startswith(r"\neg") else rf"\neg {left}"
    wrong = [f"{left} {other} {right}", f"{flipped} {sign} {right}", left, right, rf"{left} \to {right}"]
    wrong += [rf"\neg ({left} {sign} {right})", rf"{left} \leftrightarrow {right}", rf"{left} \oplus {right}"]
    wrong += [
        rf"{right} \to {left}",
        f"{left} {sign} {left}",
        rf"{flipped} {other} {right}",
        rf"({left} {sign} {right}) {sign} z",
    ]
    return Neighbourhood(
        "", f"{left} {sign} {right}", (f"{right} {sign} {left}", f"({left}) {sign} {right}"), tuple(wrong)
    )


def conditions(rng: random.Random) -> Neighbourhood:
    """Inequalities joined by "and" or "or"."""
    low = rng.randint(-9, 5)
    high = low + rng.randint(1, 9)
    if rng.random() < 0.5:
        inner = (f"{low} < x < {high}", f"({low}, {high})", rf"x < {high} \text{{ and }} x > {low}")
        wrong = (rf"x > {low} \text{{ or }} x < {high}", f"x > {low}", rf"x < {low} \text{{ or }} x > {high}")
        return Neighbourhood("", rf"x > {low} \text{{ and }} x < {high}", inner, wrong, changes_digits=True)
    outer = (rf"x > {high} \text{{ or }} x < {low}", rf"(-\infty, {low}) \cup ({high}, \infty)")
    wrong = (rf"x < {low} \text{{ and }} x > {high}", f"x < {low}", f"{low} < x < {high}")
    return Neighbourhood("", rf"x < {low} \text{{ or }} x > {high}", outer, wrong, changes_digits=True)


def matrix_products(rng: random.Random) -> Neighbourhood:
    """Products of matrices in order, and with exchanged factors."""
    a, b, c = rng.sample("ABCDMNPQ", 3)
    question = f"Let ${a}$, ${b}$ and ${c}$ be invertible matrices. Simplify."
    gold = f"{a}^{{-1}}{b}{c}^2 + {b}{a}"
    right = (f"{b}{a} + {a}^{{-1}}{b}{c}{c}", rf"{a}^{{-1}} \cdot {b} \cdot {c}^2 + {b}{a}")
    wrong = (f"{b}{a}^{{-1}}{c}^2 + {b}{a}", f"{a}^{{-1}}{b}{c}^2 + {a}{b}", f"{a}^{{-1}}{c}^2{b} + {b}{a}")
    return Neighbourhood(question, gold, right, (*wrong, f"{a}^{{-1}}{b}{c} + {b}{a}"), changes_digits=True)


def vector_products(rng: random.Random) -> Neighbourhood:
    r"""Cross products, whose sign depends on the order, and dot products."""
    a, b = rng.sample("abuvwn", 2)
    left, right = rf"\vec{{{a}}}", rf"\vec{{{b}}}"
    wrong = [rf"{right} \times {left}", rf"{left} \cdot {right}", rf"{left} \times {left}", rf"{right} \times {right}"]
    wrong += [
        rf"-{left} \times {right}",
        rf"2{left} \times {right}",
        left,
        right,
        f"{left} + {right}",
        f"{left} - {right}",
    ]
    return Neighbourhood(
        "", rf"{left} \times {right}", (rf"-{right} \times {left}", rf"{left}\times{right}"), tuple(wrong)
    )


def functions(rng: random.Random) -> Neighbourhood:
    """Values of unknown functions: compositions, differences, recurrences."""
    f, g = rng.sample("fgh", 2)
    k = rng.randint(2, 9)
    kind = rng.choice(("composition", "difference", "recurrence"))
    if kind == "composition":
        wrong = (f"{g}({f}(x))", f"{f}(x){g}(x)", f"{f}(x)({g}(x))", f"{f}({g}(x+1))", f"{f}({g})x")
        return Neighbourhood(f"Compose ${f}$ and ${g}$.", f"{f}({g}(x))", (f"{f}\\left({g}(x)\\right)",), wrong)
    if kind == "difference":
        wrong = ("F(b-a)", "F(a)-F(b)", "Fb-Fa", f"F(b)-F({k}a)")
        return Neighbourhood("Let F be an antiderivative of f.", "F(b)-F(a)", ("-F(a)+F(b)",), wrong)
    wrong = (f"T(n)={k}T(n)+n", f"T(n)=T(n/2)+{k}n", f"T(n)={k + 1}T(n/2)+n", f"T(n)={k}T(n)/2+n")
    return Neighbourhood(
        "Give the recurrence.", f"T(n)={k}T(n/2)+n", (f"T(n)=n+{k}T(\\frac{{n}}{{2}})",), wrong, changes_digits=True
    )


def letters(rng: random.Random) -> Neighbourhood:
    """Words of letters, and their anagrams."""
    word = "".join(rng.choice("HT") for _ in range(rng.randint(3, 5))) + "HT"
    other = "".join(rng.sample(word, len(word)))
    swapped = {word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)}
    longer = {word + "H", word + "T", word[:-1], word[1:], *(word[:i] + word[i + 1 :] for i in range(len(word)))}
    wrong = tuple(({other, word[::-1]} | swapped | longer) - {word})
    return Neighbourhood("Which pattern of flips comes first?", word, (rf"\text{{{word}}}", word.lower()), wrong)


def dates_and_scores(rng: random.Random) -> Neighbourhood:
    """Dates, scores and ranges, whose differences are equal to those of others."""
    if rng.random() < 0.5:
        year, month, day = rng.randint(1900, 2030), rng.randint(1, 12), rng.randint(13, 28)
        other = f"{year}-{month % 12 + 1:02}-{day - 1:02}"
        return Neighbourhood(
            "On which date?", f"{year}-{month:02}-{day:02}", (), (other, str(year - month - day)), changes_digits=True
        )
    low, high = rng.randint(3, 60), rng.randint(61, 99)
    wrong = (f"{low - 1}-{high - 1}", str(low - high), f"{high}-{low}", str(high - low))
    return Neighbourhood("", f"{low}-{high}", (f"{low}–{high}", rf"\text{{{low}-{high}}}"), wrong, changes_digits=True)  # noqa: RUF001


def units(rng: random.Random) -> Neighbourhood:
    """Units whose names differ in case, and per cent."""
    n = rng.randint(2, 900)
    right, wrong = rng.choice((("MB", "Mb"), ("MW", "mW"), ("Gb", "GB"), ("MHz", "mHz"), ("kB", "kb")))
    return Neighbourhood(
        "How much is it?",
        rf"{n}\text{{ {right}}}",
        (f"{n} {right}",),
        (f"{n} {wrong}", rf"{n}\%7"),
        changes_digits=True,
    )


def shared_period(rng: random.Random) -> Neighbourhood:
    """General solutions with another start, and with another period."""
    start, period = Fraction(rng.randint(1, 5), rng.randint(2, 6)), rng.randint(1, 3)
    shift = rng.randint(-3, 3)

    def solution(first: Fraction, step: int, name: str) -> str:
        return rf"x = {_latex(first)}\pi + {step}{name}\pi, {name} \in \mathbb{{Z}}"

    right = (solution(start + shift * period, period, "n"), solution(start, period, "m"))
    wrong = (solution(start, period + 1, "n"), solution(start + Fraction(1, 7), period, "n"))
    return Neighbourhood("Solve it.", solution(start, period, "k"), right, (*wrong, rf"x = {_latex(start)}\pi"))


def languages(rng: random.Random) -> Neighbourhood:
    """Statements in other languages, and denials."""
    n = rng.randint(10, 99)
    leads = ("Die Antwort ist", "La réponse est", "La respuesta final es", "A resposta é", "Ответ:", "答えは")
    denials = ("Die Antwort ist nicht", "La réponse n'est pas", "La respuesta no es", "A resposta não é", "Ответ: не")
    right = tuple(f"{lead} {n}." for lead in leads)
    wrong = (*(f"{denial} {n}." for denial in denials), f"{rng.choice(leads)} {n + 1}.", f"Antwort: {n} oder {n + 1}")
    return Neighbourhood("", str(n), right, wrong)


def remarks(rng: random.Random) -> Neighbourhood:
    """Choices with a remark, and hedged ones."""
    label, other = rng.sample("ABCD", 2)
    right = (f"The answer is {label}. Note that {other} is a common distractor.", f"Antwort: {label}")
    wrong = (f"The answer is {other}. Note that {label} is a common distractor.", f"The answer is {label} or {other}.")
    return Neighbourhood("Which one?", label, right, wrong, ChoiceVerifier(), {"choices": list("wxyz")})


RULES: tuple[Rule, ...] = (
    *(fractions, tails, huge_integers, surds, propositions, conditions, matrix_products, vector_products),
    *(functions, letters, dates_and_scores, units, shared_period, languages, remarks),
)
