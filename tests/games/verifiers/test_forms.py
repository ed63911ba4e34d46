# ruff: noqa: RUF001 (signs that look like others are what this is about)
"""Forms in which the same answer is written: rounded, renamed, rearranged, as a vector, a matrix or a complement."""

from __future__ import annotations

from time import process_time

import pytest
from grading import accepted, rejected, verdict

BOTH = pytest.mark.parametrize("kind", ["numeric", "math"])


@BOTH
def test_a_quotient_or_a_power_that_is_left_to_do_is_no_rational_number(kind: str) -> None:
    left = r"\frac{2027^2}{2027} \frac{-2027}{-1} -\frac{-2027}{1} \left(\frac{1}{2027}\right)^{-1} 2027/1 1\cdot2027"
    assert not accepted(kind, [("2027", each) for each in left.split()], "Find the positive x with x^2 = 2027^2")
    pairs = [("128", r"\frac{2^{10}}{2^3}"), ("1/8", r"\frac{1}{2^3}"), ("5", r"(\sqrt{5})^2"), ("512", "2^{3^2}")]
    assert not accepted(kind, pairs)
    assert not rejected(kind, [("3/4", r"\frac{6}{8}"), ("-3/4", r"\frac{-3}{4}"), ("1/8", "2^{-3}"), ("-8", "(-2)^3")])


@BOTH
def test_an_irrational_number_is_judged_as_a_formula(kind: str) -> None:
    pairs = [("3\\sqrt{2}", "\\sqrt{18}"), ("12\\pi", "12π"), ("e^2", "e^{2}"), (r"\frac{\sqrt3}{2}", r"\frac12\sqrt3")]
    assert not rejected(kind, pairs)
    wrong = (
        "37.699",
        "13\\pi",
        "3\\cdot 4\\pi",
        "about 12\\pi",
        "\\frac{24\\pi}{2}",
        "\\frac{12^2\\pi}{12}",
        "12\\pi+1-1",
    )
    assert not accepted(kind, [("12\\pi", each) for each in wrong])


@BOTH
def test_a_unit_is_named_once(kind: str) -> None:
    for question in ("", "How many kilograms is it?"):
        twice = ("638 kg kg", "638 kg kilograms", "638 kilograms kg", "\\fbox{638 kg kg}")
        assert not accepted(kind, [("638 kg", each) for each in twice], question)
    question = "How many dollars do the apples cost?"
    wrong = ("606 dollars dollars", "$606 dollars dollars", "606 apples apples")
    assert not accepted(kind, [("606", each) for each in wrong], question)
    assert not rejected(kind, [("606", "606 dollars"), ("606", "$606")], question)


@BOTH
def test_pounds_are_money_only_where_the_right_answer_is(kind: str) -> None:
    assert not rejected(kind, [("£3.20", "3.20 pounds"), ("£3.20", "£3.20"), ("3 lb", "3 pounds")])
    assert not accepted(kind, [("3 lb", "£3"), ("£3", "3 kg"), ("£3", "6 pounds"), ("3 kg", "3 pounds")])


@BOTH
def test_a_number_may_be_followed_by_its_rounded_value(kind: str) -> None:
    chain = "\\sqrt{7} \\approx 2.65"
    pairs = [("2.65", chain), ("\\sqrt{7}", chain), ("2.65", "x = \\sqrt{7} ≈ 2.65"), ("12\\pi", "12\\pi ≈ 37.70")]
    assert not rejected(kind, pairs)
    wrong = [
        ("2.65", "\\sqrt{8} \\approx 2.65"),
        ("\\sqrt{7}", "\\sqrt{7} \\approx 2.66"),
        ("2.6", chain),
        ("3", chain),
    ]
    wrong += [("5", "2+3 \\approx 5"), ("12", "\\sqrt{144} \\approx 12"), ("12\\pi", "24\\pi \\approx 37.70")]
    assert not accepted(kind, wrong)


@BOTH
def test_a_minus_before_a_word_is_not_overlooked(kind: str) -> None:
    assert not accepted(kind, [("3", "-three"), ("one solution", "-one solution")])


def test_words_are_compared_as_a_whole() -> None:
    question = "Does the system have one solution, no solution or infinitely many solutions?"
    wrong = (
        "one solution-infinitely many solutions",
        "one solution − no solution",
        "-one solution",
        "one solution or no",
    )
    assert not accepted("math", [("\\text{one solution}", each) for each in wrong], question)
    assert verdict("math", "\\text{one solution}", "One solution", question).score == 1


def test_sets_in_a_set_are_no_solutions() -> None:
    wrong = ("\\{\\{-3\\},\\{15\\}\\}", "\\{15\\}, \\{-3\\}")
    assert not accepted("math", [("x = 15 or x = -3", each) for each in wrong])


def test_an_index_or_a_power_belongs_to_the_last_letter() -> None:
    question = "Differentiate $e^{x^2}$."
    answers = ("e^{x^2}\\cdot 2x", "2x\\exp(x^2)", "2xe^{x^2}", "2 x e^{x^2}")
    assert not rejected("math", [("2xe^{x^2}", each) for each in answers], question)
    assert not rejected("math", [("xy^2", "y^2x"), ("y = Ce^{x}", "y = Ce^x")])
    assert not accepted("math", [("xy^2", "(xy)^2"), ("(ab)^2", "ab^2")])
    assert verdict("math", "2xe^{x^2}", "e^{x^2}", question).score == 0


def test_a_distance_is_the_interval_that_it_describes() -> None:
    pairs = [("(-2,2)", "|x| < 2"), ("[-2,4]", "|x-1| \\le 3"), ("(-\\infty,-2)\\cup(2,\\infty)", "|x| > 2")]
    pairs += [("(-\\infty,-3]\\cup[1,\\infty)", "2 \\le |x+1|")]
    assert not rejected("math", [*pairs, *((answer, gold) for gold, answer in pairs)])
    wrong = ("|x| \\le 2", "|x| < 3", "|x-1| < 2", "|x| > 2", "|x| < -2")
    assert not accepted("math", [("(-2,2)", each) for each in wrong])
    assert not accepted("math", [("(-2,2)", "|x| < 2"), ("(-2,2)", "2 > |x|")], "Solve $|2x| < 4$.")


def test_exceptions_are_a_complement() -> None:
    for gold in ("\\mathbb{R}\\setminus\\{2\\}", "x \\ne 2", "all real numbers except 2"):
        answers = ("all real numbers except 2", "\\text{All real numbers except } $x = 2$", "x \\neq 2", "x<2 or x>2")
        assert not rejected("math", [(gold, each) for each in answers])
        assert not accepted("math", [(gold, each) for each in ("all real numbers", "x \\ne \\pm 2")])
    two = ("x \\ne \\pm 1", "all real numbers except 1 and -1", "all reals except \\pm 1", "x \\ne -1 and x \\ne 1")
    assert not rejected("math", [("(-\\infty,-1)\\cup(-1,1)\\cup(1,\\infty)", each) for each in two])
    line = ("(-\\infty,\\infty)", "\\mathbb{R}", "all reals", "All real numbers")
    assert not rejected("math", [("\\text{all real numbers}", each) for each in line])


def test_a_matrix_may_be_a_list_of_rows() -> None:
    gold = "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"
    assert not rejected("math", [(gold, "[[1,2],[3,4]]"), (gold, "[1,2;3,4]"), (gold, "[1, 2; 3, 4]")])
    wrong = ("[[1,3],[2,4]]", "[1,2,3,4]", "[1,3;2,4]", "\\{[1,2],[3,4]\\}", "((1,2),(3,4))")
    assert not accepted("math", [(gold, each) for each in wrong])


def test_a_column_is_a_vector() -> None:
    column = "\\begin{pmatrix}2\\\\-1\\\\4\\end{pmatrix}"
    answers = (
        "(2,-1,4)",
        "[2,-1,4]",
        "\\langle 2,-1,4\\rangle",
        "2\\vec i-\\vec j+4\\vec k",
        "2\\hat{i}-\\hat{j}+4\\hat{k}",
    )
    assert not rejected("math", [(column, each) for each in answers])
    units = ("2\\mathbf{i}-\\mathbf{j}+4\\mathbf{k}", "2\\hat{i}-\\hat{j}+4\\hat{k}")
    assert not rejected("math", [(column, each) for each in units])
    assert not rejected("math", [("2\\mathbf{i}+3\\mathbf{j}", "(2,3)"), ("(2,0,4)", "2\\mathbf{i}+4\\mathbf{k}")])
    wrong = ("\\{2,-1,4\\}", "2, -1, 4", "2\\mathbf{i}+\\mathbf{j}+4\\mathbf{k}", "(2,-1)", "(2,4,-1)")
    assert not accepted("math", [(column, each) for each in wrong])
    others = [("(2,3)", "2+3i"), ("2+3i", "(2,3)"), ("(2,3)", "2i+3j+k"), ("(2,3)", "[2,3]"), ("(2,3)", "2i+3i+j")]
    assert not accepted("math", others)


def test_the_integer_of_a_general_solution_may_have_any_name() -> None:
    gold = "x = \\frac{\\pi}{4}+k\\pi,\\ k\\in\\mathbb{Z}"
    right = "x = \\frac{\\pi}{4}+n\\pi,\\ n\\in\\mathbb{Z}", "x = n\\pi + \\frac{\\pi}{4} \\quad (n ∈ ℤ)"
    assert not rejected("math", [(gold, each) for each in right])
    wrong = ("x = \\frac{\\pi}{4}+2n\\pi, n\\in\\mathbb{Z}", "x = \\frac{\\pi}{4}+n\\pi, n\\in\\mathbb{R}")
    assert not accepted("math", [(gold, each) for each in (*wrong, "x = \\frac{\\pi}{4}+n\\pi, k\\in\\mathbb{Z}")])


def test_the_constant_of_integration_may_have_any_usual_name() -> None:
    gold = "\\frac{x^2}{2}+C"
    assert not rejected("math", [(gold, each) for each in ("\\frac{x^2}{2}+c", "K+\\frac{x^2}{2}")])
    assert not rejected("math", [("\\ln\\left|x\\right|+C", "\\ln|x|+c"), (f"y = {gold}", "y = \\frac{x^2}{2}+c")])
    wrong = ("\\frac{x^2}{2}", "\\frac{x^2}{2}+x", "\\frac{x^2}{2}+2c", "\\frac{x^2}{2}-c", "\\frac{x^2}{2}+q")
    assert not accepted("math", [(gold, each) for each in wrong] + [("a+c", "a+b")])
    assert verdict("math", "a+c", "a+k", "The sides are $a$ and $c$.").score == 0


def test_the_equation_of_a_line_may_be_rearranged() -> None:
    question = "Give the equation of the vertical asymptote."
    assert not rejected("math", [("x = -4", "x+4=0"), ("x+4=0", "x = -4")], question)
    assert not accepted("math", [("x = -4", each) for each in ("x-4=0", "2x+8=0", "y+4=0", "x+2=-2")], question)
    assert verdict("math", "x = -4", "x+4=0", "Solve $3(x+4)=0$.").score == 0


def test_congruences_are_equal_up_to_the_modulus() -> None:
    answers = ("x ≡ 3 (mod 7)", "x\\equiv 3\\mod 7", "x \\equiv 10 \\pmod{7}", "x \\equiv -4 \\pmod 7", "x≡3\\bmod7")
    assert not rejected("math", [("x \\equiv 3 \\pmod{7}", each) for each in answers])
    wrong = ("x \\equiv 4 \\pmod 7", "x \\equiv 3 \\pmod{14}", "x \\equiv 3", "x = 3", "y \\equiv 3 \\pmod 7")
    assert not accepted("math", [("x \\equiv 3 \\pmod{7}", each) for each in wrong])


def test_brackets_that_are_no_matrix_are_read_in_no_time() -> None:
    for hostile in ("[" + ";" + "," * 900, "[" + "," * 300 + ";" * 300 + "," * 300, "[" + ",;" * 450):
        started = process_time()
        assert verdict("math", "[1,2;3,4]", hostile).score == 0
        assert process_time() - started < 0.5
