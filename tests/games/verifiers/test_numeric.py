# ruff: noqa: RUF001 (signs that look like others are what this is about)
"""Numbers with and without units: every notation of the same quantity counts, other quantities do not."""

from __future__ import annotations

import pytest
from grading import accepted, rejected, verdict

BOTH = pytest.mark.parametrize("kind", ["numeric", "math"])


@BOTH
def test_a_repeating_decimal_is_the_fraction_that_it_equals(kind: str) -> None:
    third = (
        "0.\\overline{3}",
        "0.(3)",
        "0.333...",
        "0.333…",
        "0.\\bar{3}",
        "0.\\dot{3}",
        ".\\overline{3}",
        "33.\\overline{3}\\%",
    )
    pairs = [
        *(("1/3", answer) for answer in third),
        ("5/6", "0.8\\overline{3}"),
        ("23/99", "0.232323..."),
        ("1/7", "0.\\dot{1}4285\\dot{7}"),
        ("2.1\\overline{6}", "13/6"),
        ("1", "0.\\overline{9}"),
    ]
    assert not rejected(kind, pairs)
    wrong = [
        ("1/3", "0.33"),
        ("1/3", "0.\\overline{33"),
        ("5/6", "0.\\overline{83}"),
        ("3.14159", "3.14159..."),
        ("1/3", "0.3..."),
    ]
    assert not accepted(kind, wrong)


@BOTH
def test_grouping_is_read_in_every_country(kind: str) -> None:
    written = """
        1,234,567 1_234_567 1'234'567 1{,}234{,}567 1\\,234\\,567 1,\\!234,\\!567 1~234~567 12,34,567 １２３４５６７
    """
    thin = ("1 234 567", "1\u2009234\u2009567", "1\u00a0234\u00a0567", "12{,}34{,}567")
    assert not rejected(kind, [("1234567", answer) for answer in (*written.split(), *thin)])
    wrong = ("1,234,56", "1,23,4567", "12,345,67", "(1,234,567)", "1,234 567", "1.234.567")
    assert not accepted(kind, [("1234567", answer) for answer in wrong])


@BOTH
def test_scientific_notation_is_read(kind: str) -> None:
    written = (
        "1.2e4",
        "1.2E+4",
        "1.2 × 10^4",
        "1.2\\times10^{4}",
        "1.2 \\cdot 10^4",
        "1.2*10**4",
        "12 \\times 10^3",
        "1.2·10⁴",
    )
    assert not rejected(kind, [("12000", answer) for answer in written] + [("10^{-3}", "0.001"), ("0.001", "10^{-3}")])
    assert not accepted(
        kind, [("12000", "1.2 \\times 10^3"), ("12000", "1.2^4"), ("12000", "1.2e"), ("10^{-3}", "-1000")]
    )


@BOTH
def test_chinese_numerals_and_full_width_digits_are_numbers(kind: str) -> None:
    pairs = [
        *(("42", answer) for answer in ("四十二", "４２", "肆拾贰", "42.0")),
        *(("1/3", answer) for answer in ("三分之一", "１/３")),
        *(("0.5", answer) for answer in ("百分之五十", "零点五", "二分之一", "０．５")),
        *(("305", answer) for answer in ("三百零五", "三零五")),
        *(("-3", answer) for answer in ("负三", "－３")),
        ("20000", "两万"),
        ("120000000", "1.2亿"),
        ("7/3", "二又三分之一"),
        ("2024", "二\u3007二四"),
    ]
    assert not rejected(kind, pairs)
    wrong = [
        ("42", "二十四"),
        ("42", "四十"),
        ("1/3", "一分之三"),
        ("42", "四十二或二十四"),
        ("42", "十四二"),
        ("6", "٥"),
    ]
    assert not accepted(kind, wrong)


@BOTH
def test_about_as_a_sign_is_read_and_as_a_word_is_not(kind: str) -> None:
    assert not rejected(
        kind, [("3.14", "≈ 3.14"), ("3.14", "\\approx 3.14"), ("3.14", "x \\approx 3.14"), ("3.14", "x ≈ 3.14")]
    )
    assert not accepted(kind, [("3.14", "about 3.14"), ("3.14", "~3.14"), ("5", "~5 or so"), ("3.14", "\\sim 3.14")])


def test_numeric_accepts_a_decimal_for_a_fraction_to_a_millionth_and_math_wants_the_fraction() -> None:
    rounded = [("1/3", "0.333333"), ("2/3", "0.66666667"), ("2 1/3", "2.3333333")]
    assert not rejected("numeric", rounded)
    assert not accepted("math", rounded)


@BOTH
def test_a_millionth_is_tolerated_for_a_decimal_alone(kind: str) -> None:
    assert not rejected(kind, [("0.3333333", "1/3"), ("0.25", "1/4"), ("3.14159265", "3.14159266")])
    assert not accepted(kind, [("2018/2019", "2017/2018"), ("1048575/1048576", "1"), ("1/1000003", "1/1000004")])


@BOTH
def test_integers_are_exact(kind: str) -> None:
    assert not accepted(kind, [("1/3", "0.3333"), ("1000000", "1000000.5"), ("1000000", "999999.9"), ("7", "7.000001")])


# --- units -----------------------------------------------------------------------------------------------------------

METRES = "How long is the fence in metres?"


@BOTH
def test_a_number_without_unit_takes_the_unit_that_is_asked_for(kind: str) -> None:
    right = ("12 m", "12 metres", "12\\text{ m}", "1200 cm", "0.012 km", "12")
    assert not rejected(kind, [("12", answer) for answer in right], METRES)
    wrong = (
        "12 km",
        "12 cm",
        "$12",
        "12%",
        "12 kg",
        "12 m^2",
        "12°",
        "12 €",
        "12 cents cents",
        "12 m m",
        "12 metres metres",
        "12 fences or so",
    )
    assert not accepted(kind, [("12", answer) for answer in wrong], METRES)


@BOTH
def test_a_number_without_unit_takes_a_unit_that_the_question_names(kind: str) -> None:
    assert verdict(kind, "18", "$18", "An egg costs $2. How much do 9 cost?").score == 1
    assert verdict(kind, "30", "30 km/h", "A car drives 60 km in 2 hours. How fast is it?").score == 1
    assert verdict(kind, "25", "25 square metres", "The garden is 5 metres long and wide. How large is it?").score == 1
    assert verdict(kind, "40", "40%", "What percent of 5 is 2?").score == 1
    assert verdict(kind, "60", "60^\\circ", "How large is the angle ABC?").score == 1
    assert (
        verdict(kind, "5", "5米", "绳子长多少米？").score == verdict(kind, "5", "500厘米", "绳子长多少米？").score == 1
    )


@BOTH
def test_a_unit_that_the_question_does_not_name_is_wrong(kind: str) -> None:
    question = "Which of the numbers 298, 453 is on the card?"
    for answer in ("298°", "298€", "298 s", "$298 m", "298%", "298 points", "298k", "298 x"):
        assert verdict(kind, "298", answer, question).score == 0


@BOTH
def test_a_variable_or_an_operation_of_the_question_is_no_counted_thing(kind: str) -> None:
    assert verdict(kind, "1/2", "½x", "Find $x$.").score == 0
    assert verdict(kind, "5", "5 squared", "What is the square root of 5 squared squared?").score == 0
    assert verdict(kind, "8", "8 red apples", "Anna has 3 red apples and 5 more. How many?").score == 1


@BOTH
def test_without_a_question_plain_units_are_let_pass(kind: str) -> None:
    assert not rejected(kind, [("5", answer) for answer in ("5 km", "$5", "5 points", "5 units")])
    assert not accepted(
        kind, [("5", answer) for answer in ("5%", "5k", "5 million", "5 squared", "5i", "5 apples or so", "5 *")]
    )


@BOTH
def test_units_are_converted(kind: str) -> None:
    pairs = [
        *(("4184 J/(kg K)", answer) for answer in ("4.184 kJ/(kg K)", "4184 J kg^{-1} K^{-1}", "4.184 J/(g·K)")),
        *(("15 N", answer) for answer in ("15 kg·m/s^2", "15 kg m s^{-2}", "0.015 kN", "15\\text{ N}")),
        *(("54 km/h", answer) for answer in ("15 m/s", "54 km h^{-1}", "54 kilometers per hour", "54 kmph")),
        ("3.2 MPa", "32 bar"),
        ("2 kWh", "7.2 MJ"),
        ("9.8 m/s^2", "9.8 \\frac{m}{s^2}"),
    ]
    assert not rejected(kind, pairs)
    wrong = [
        ("4184 J/(kg K)", "4184 J/kg"),
        ("54 km/h", "54 h/km"),
        ("3.2 MPa", "3.2 mPa"),
        ("15 N", "15 N·m"),
        ("15 N", "15 J"),
    ]
    assert not accepted(kind, wrong)


@BOTH
def test_smaller_and_smaller_units_add_up(kind: str) -> None:
    pairs = [
        *(("63 inches", answer) for answer in ("5 ft 3 in", "5 feet, 3 inches", "5 feet and 3 inches")),
        *(("90 min", answer) for answer in ("1 h 30 min", "1 hour and 30 minutes", "1小时30分钟")),
        ("3 lb 8 oz", "3.5 lb"),
        ("5 ft 3 in", "63 in"),
    ]
    assert not rejected(kind, pairs)
    wrong = [
        ("63 inches", "5 ft 15 in"),
        ("63 inches", "5.3 ft"),
        ("90 min", "1 h 30 km"),
        ("90 min", "30 min 1 h"),
        ("8", "3 and 5"),
    ]
    assert not accepted(kind, wrong)
