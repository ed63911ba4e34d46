"""Figures of k answers, against counting all choices of k, drawn by `itertools`."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from marl.evaluation.pass_at_k import best_at_k, majority_at_k, pass_at_k


def drawn(rng: random.Random, n: int) -> tuple[list[str | None], list[float], list[float]]:
    """Answers, scores that follow from them, and ratings with ties that do not."""
    answers = [rng.choice(["a", "b", "c", "d", None]) for _ in range(n)]
    scores = [{"a": 1.0, "b": 0.25, "c": 0.5}.get(answer or "", 0.0) for answer in answers]
    return answers, scores, [float(rng.randrange(3)) for _ in range(n)]


def winners(answers: tuple[str | None, ...]) -> list[str]:
    """The most common answers."""
    votes = [answer for answer in answers if answer is not None]
    most = max(map(votes.count, votes), default=0)
    return sorted({answer for answer in votes if votes.count(answer) == most})


def test_pass_at_k_is_the_share_of_all_choices_that_hold_a_right_answer() -> None:
    for n, solved in itertools.product(range(1, 8), range(8)):
        for k in range(1, n + 1):
            choices = list(itertools.combinations([i < solved for i in range(n)], k))
            if solved <= n:
                assert pass_at_k(n, solved, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-15)
    assert pass_at_k(4, 1, 2) == 0.5  # worked out by hand: 3 of the 6 pairs hold the one right answer


def test_best_at_k_is_the_mean_score_over_all_choices_of_the_best_rated() -> None:
    rng = random.Random(0)
    for n in (1, 2, 5, 7):
        _, scores, ratings = drawn(rng, n)
        for k in range(1, n + 1):
            expected = Fraction()
            for chosen in itertools.combinations(range(n), k):
                best = [i for i in chosen if ratings[i] == max(ratings[j] for j in chosen)]
                expected += Fraction(sum(Fraction(scores[i]) for i in best), len(best))
            count = len(list(itertools.combinations(range(n), k)))
            assert best_at_k(scores, ratings, k) == pytest.approx(float(expected / count), abs=1e-12)
            greatest = [max(each) for each in itertools.combinations(scores, k)]
            assert best_at_k(scores, scores, k) == pytest.approx(sum(greatest) / count, abs=1e-12)


def test_maj_at_k_is_the_mean_score_over_all_choices_of_the_most_common_answer() -> None:
    rng = random.Random(1)
    for n in (1, 2, 3, 6, 8, 9):
        answers, scores, _ = drawn(rng, n)
        score_of = dict(zip(answers, scores, strict=True))
        for k in range(1, n + 1):
            choices = list(itertools.combinations(answers, k))
            means = [[score_of[answer] for answer in winners(chosen)] for chosen in choices]
            expected = sum(sum(each) / len(each) for each in means if each) / len(choices)
            assert majority_at_k(answers, scores, k) == pytest.approx(expected, abs=1e-12)
    assert majority_at_k([None, None], [0.0, 0.0], 2) == 0.0


def test_many_answers_are_counted_in_no_time_and_more_than_there_are_is_an_error() -> None:
    answers = [str(i % 24) for i in range(64)]
    scores = [float(answer == "0") for answer in answers]
    assert 0 < majority_at_k(answers, scores, 32) < 1
    for figure in (lambda k: pass_at_k(3, 1, k), lambda k: best_at_k([1.0], [1.0], k)):
        with pytest.raises(ValueError, match=r"k: 0 of \d answers; choices: 1 to \d"):
            figure(0)
