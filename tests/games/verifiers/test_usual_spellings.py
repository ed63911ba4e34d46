# ruff: noqa: RUF001 (signs that look like others are what this is about)
"""Usual spellings of right answers: concluded, in bold face, as a function value, in closed form, with unit vectors."""

from __future__ import annotations

import pytest
from grading import accepted, rejected, verdict

from marl.core.types import Problem, VerifierCase
from marl.games.verifiers.text_verifiers import ChoiceVerifier
from marl.protocols.tasks import overall_score

BOTH = pytest.mark.parametrize("kind", ["numeric", "math"])


@BOTH
def test_a_number_may_be_in_bold_face_or_a_formula_before_its_unit(kind: str) -> None:
    question = "A class of 24 has 8 girls. How many boys are there?"
    answers = ("Final answer: **16** boys", "**16** boys", "$16$ boys", "The answer is **16** boys.")
    assert not rejected(kind, [("16", each) for each in answers], question)
    assert not rejected(kind, [("5 km", each) for each in ("**5** km", "$5$ km", "**$5$** km", "**5** kilometres")])
    wrong = ("**16** girls or 5", "**16** or 17 boys", "**1**6 boys", "not **16** boys", "**16** wrong", "2**16**x")
    assert not accepted(kind, [("16", each) for each in wrong], question)
    assert not accepted(kind, [("5 km", each) for each in ("**5** kg", "**6** km", "**5**2 km", "about **5** km")])


def test_a_long_decimal_may_be_stated_as_a_single_irrational_number() -> None:
    pairs = [("31.41592653589793", "10\\pi"), ("8.660254037844386", "5\\sqrt{3}"), ("0.5235987755982988", "π/6")]
    pairs += [("5.43656365691809", "2e"), ("2.1213203435596424", "\\frac{3\\sqrt{2}}{2}"), ("7.38905609893065", "e^2")]
    pairs += [
        ("31.41592653589793", "C = 10\\pi"),
        ("31.41592653589793 cm", "10\\pi cm"),
        ("-3.14159265358979", "-\\pi"),
    ]
    assert not rejected("numeric", pairs)
    assert not rejected("numeric", [("3.4641016151377544", "2\\sqrt{3}")], "A side is $\\sqrt{3}$ long. Double it.")


def test_arithmetic_is_no_closed_form_of_a_decimal_or_an_integer() -> None:
    wrong = [
        ("2.5", each) for each in ("2+\\frac12", "\\frac{5\\pi}{2\\pi}", "\\frac{5e}{2e}", "\\sqrt{6.25}", "5*0.5")
    ]
    wrong += [("31.41592653589793", each) for each in ("9\\pi", "2\\cdot5\\pi", "31", "10\\pi+1-1", "10\\pi or 3")]
    wrong += [("3.5", "\\log_2 \\sqrt{128}"), ("0.5", "\\sin(\\pi/6)"), ("3.14", "\\pi"), ("355/113", "\\pi")]
    wrong += [("12", "\\sqrt{144}"), ("5", "2+3"), ("31", "10\\pi"), ("31.41592653589793 cm", "10\\pi kg")]
    wrong += [
        ("3.732050807568877", "2+\\sqrt{3}"),
        ("31.41592653589793", "10\\pi?"),
        ("1.5", "i"),
        ("1.5", "1.5\\pi^0"),
    ]
    assert not accepted("numeric", wrong)
    for question in ("Compute $5\\sqrt{3}$.", "Give $x$ to 10 decimal places.", "Find the square root of 75."):
        assert verdict("numeric", "8.660254037844386", "5\\sqrt{3}", question).score == 0
    assert verdict("math", "31.41592653589793", "10\\pi").score == 0


@BOTH
def test_a_function_value_may_be_stated_as_an_assignment(kind: str) -> None:
    right = (
        "P(A) = 0.6",
        "$P(A) = 0.6$",
        "P(A) = 3/5",
        "P(A \\mid B) = 0.6",
        "f(2) = 0.6",
        "f'(-2) = 0.6",
        "P(X > 3)=0.6",
    )
    assert not rejected(kind, [("0.6", each) for each in right])
    wrong = ("P(A) = 0.7", "P(A) = 0.6, P(B) = 0.5", "P(A) \\ne 0.6", "p(1-p) = 0.6", "x(x+1) = 0.6", "P(A) = 0.3+0.3")
    assert not accepted(kind, [("0.6", each) for each in (*wrong, "P(A) > 0.6", "P(0.6)", "P(A) = 0.6?")])


def test_values_of_a_function_at_two_places_are_two_things() -> None:
    assert not accepted("math", [("f(2) = 5", "f(3) = 5"), ("f(2) = 5", "g(2) = 5"), ("P(A) = 0.6", "P(B) = 0.6")])
    assert not rejected("math", [("f(2) = 5", "f(2)=5"), ("f(2) = 5", "f( 2 ) = 5.0"), ("f(2) = 5", "5")])


@BOTH
def test_a_last_sentence_may_conclude_with_just_a_formula(kind: str) -> None:
    right = ("Therefore $x = -3$.", "Then $2x = -6$. Thus $x = -3$.", "We halve it.\nHence, $x = -3$", "So $x=-3$.")
    assert not rejected(kind, [("-3", each) for each in right])
    assert not rejected(kind, [("12 cm^2", each) for each in ("Hence, $A = 12$ cm².", "Thus $A = 12\\text{ cm}^2$.")])
    wrong = (
        *("Therefore $x = -3$?", "Thus $x = -3$ or $x = 4$.", "Therefore $x = -3$ is wrong.", "Not so: $x = -3$."),
        *("Therefore $x = -3$. But I am not sure.", "Therefore $x = -3$. Then $y = 5$.", "Maybe therefore $x = -3$."),
        *(
            "I am not sure. Therefore $x = -3$.",
            "Therefore $x = -3$. Wait, no.",
            "Thus $x = -2-1$.",
            "Thus $x = -3$ maybe.",
        ),
    )
    assert not accepted(kind, [("-3", each) for each in wrong])


def test_no_solution_is_the_empty_set() -> None:
    names = ("\\text{no solution}", "\\emptyset", "\\varnothing", "\\{\\}", "∅", "No solutions", "no real solutions")
    names = (*names, "There are no real solutions.", "There is no solution", "$\\emptyset$", "x \\in \\emptyset")
    assert not rejected("math", [(gold, answer) for gold in names for answer in names])
    wrong = (
        "0",
        "\\{0\\}",
        "\\{\\emptyset\\}",
        "one solution",
        "no positive solutions",
        "x = 0",
        "no",
        "\\emptyset or 0",
    )
    assert not accepted("math", [pair for each in wrong for pair in (("\\emptyset", each), (each, "no solution"))])


def test_antiderivatives_may_differ_by_a_constant() -> None:
    question = "Find $\\int 2\\sin x\\cos x\\,dx$."
    for asked in (question, "Integrate it.", ""):
        pairs = [("\\sin^2 x + C", each) for each in ("-\\cos^2 x + C", "-\\frac12\\cos 2x + C", "\\sin^2 x + C")]
        assert not rejected("math", [*pairs, ("\\ln x + C", "\\ln(2x) + C"), ("y = x^2+C", "y = x^2+1+C")], asked)
    assert not rejected("math", [("\\sin^2 x + C", "-\\cos^2 x + c"), ("\\sin^2 x + C", "K-\\cos^2 x")], question)
    wrong = ("\\cos^2 x + C", "-\\cos^2 x", "-\\cos^2 x + 2C", "\\sin^2 x + x + C", "-\\cos^2 y + C", "C", "1 + C")
    assert not accepted("math", [("\\sin^2 x + C", each) for each in wrong], question)
    others = [("\\sin^2 x", "-\\cos^2 x"), ("n + k", "n + k + 1"), ("y = x + C", "z = x + 1 + C"), ("C + 1", "C + 2")]
    assert not accepted("math", others)
    assert verdict("math", "x + C", "x + C + 1", "What does the shop charge for x apples?").score == 0


def test_the_base_of_a_numeral_may_stand_in_braces() -> None:
    assert not rejected(
        "math", [("1101_2", each) for each in ("1101_{2}", "1101_{ 2 }", "$1101_2$", "1101₂", "1101_ 2")]
    )
    assert not rejected("math", [("1101_{2}", "1101_2"), ("2F_{16}", "2F_16")])
    wrong = ("1101_{3}", "1101", "11012", "1101 2", "1101_{20}", "1101^2", "1100_2", "13")
    assert not accepted("math", [("1101_2", each) for each in wrong])


def test_an_option_may_be_named_in_another_notation() -> None:
    choices = ["10^-4 eV", "10^-11 eV", "2 × 10^-8 eV", "x^{2n}", "x_1 + 1"]
    named = {
        "$10^{-4}$ eV": "A",
        "10^{-11}\\,\\text{eV}": "B",
        "$2 \\times 10^{-8}\\ \\mathrm{eV}$": "C",
        "$x_{1}+1$": "E",
    }
    for answer, label in named.items():
        verdicts = {right: _choose(answer, right, choices) for right in "ABCDE"}
        assert [right for right, score in verdicts.items() if score == 1] == [label]
    for answer in ("$10^{4}$ eV", "10^{-4}", "$10^{-4}$ eV or $10^{-11}$ eV", "x^2n", "$10^{-1}1$ eV"):
        assert not any(_choose(answer, right, choices) for right in "ABCDE")
    assert _choose("10^{-4}", "A", ["10^{-4}", "$10^-4$"]) == 0
    assert _choose("a \\times b", "A", ["a \\times b", "a \\cdot b"]) == 1


def _choose(answer: str, right: str, choices: list[str]) -> float:
    verdict = ChoiceVerifier()(VerifierCase(Problem("p", "", right, facts={"choices": choices}), answer, answer))
    return overall_score(verdict.score)


def test_unit_vectors_may_have_hats_and_no_dots() -> None:
    gold = "3\\mathbf{i}-2\\mathbf{j}+\\mathbf{k}"
    right = ("3\\hat{\\imath}-2\\hat{\\jmath}+\\hat{k}", "3\\hat i-2\\hat j+\\hat k", "3\\vec{i}-2\\vec{j}+\\vec{k}")
    assert not rejected("math", [(gold, each) for each in (*right, "3\\hat\\imath-2\\hat\\jmath+\\hat k")])
    wrong = ("3\\hat{\\imath}+2\\hat{\\jmath}+\\hat{k}", "3\\hat{\\jmath}-2\\hat{\\imath}+\\hat{k}", "3\\hat{\\imath}")
    assert not accepted("math", [(gold, each) for each in wrong])
