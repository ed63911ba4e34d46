"""Quotations of many answers in short texts are those that a search for each answer finds."""

from __future__ import annotations

import random

from marl.rollout.quotations import QuotationFinder

WORDS = ("a", "sum", "is", "4", "of two numbers", "\n", " ", "  \n", "plan: ")


def phrase(generator: random.Random, most: int) -> str:
    return "".join(generator.choices(WORDS, k=generator.randint(1, most)))


def test_an_index_of_many_answers_finds_what_a_search_for_each_of_them_finds() -> None:
    generator = random.Random(0)
    found = 0
    for _ in range(300):
        answers = list(dict.fromkeys(phrase(generator, 5).strip() for _ in range(80)))
        together: QuotationFinder[int] = QuotationFinder()
        for number, answer in enumerate(answers):
            together.add_answer(number, answer)
        text = phrase(generator, 8)
        expected: set[tuple[int, int]] = set()
        for answer in answers:
            alone: QuotationFinder[int] = QuotationFinder()
            alone.add_answer(0, answer)
            # The padding makes the text longer than the number of answers, so that each answer is searched for.
            expected |= {(quoted.begin, quoted.end) for quoted in alone.find_quotations([(0, text + "\n-" * 80)])}
        outer: set[tuple[int, int]] = set()
        for begin, end in expected:
            inside = any((b, e) != (begin, end) and b <= begin and end <= e for b, e in expected)
            if not inside:
                outer.add((begin, end))
        assert {(quoted.begin, quoted.end) for quoted in together.find_quotations([(0, text)])} == outer
        found += len(outer)
    assert found > 100
