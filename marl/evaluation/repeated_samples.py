"""Figures of several answers to one problem: what k of them would reach, by exact expectation over all choices of k.

Each is unbiased: its mean over sets of n answers is the figure of k fresh ones, as every k of n independent answers are
k fresh ones. No choice is drawn, so there is no further noise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import comb
from statistics import fmean

_Choices = dict[tuple[int, int], int]
"""(answers chosen so far, different ones among them as common as the winner) -> number of such choices."""


def pass_at_k(n: int, solved: int, k: int) -> float:
    """Return the probability that of k answers, drawn from n of which `solved` are right, at least one is right.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021, 2107.03374).

    Raises:
        ValueError: if not 1 <= k <= n.
    """
    _check(n, k)
    return 1 - comb(n - solved, k) / comb(n, k)


def best_at_k(scores: Sequence[float], ratings: Sequence[float], k: int) -> float:
    """Return the expected score of the best rated of k answers; of equally rated ones, each is as likely.

    With the scores as `ratings` it is the expected maximum.

    Raises:
        ValueError: if not 1 <= k <= n.
    """
    _check(len(scores), k)
    alike: dict[float, list[float]] = defaultdict(list)
    for score, rating in zip(scores, ratings, strict=True):
        alike[rating].append(score)
    expected, below = 0.0, 0
    for rating in sorted(alike):
        up_to = below + len(alike[rating])
        # The best rating of k answers is this one if none is better and not all are worse.
        expected += fmean(alike[rating]) * (comb(up_to, k) - comb(below, k))
        below = up_to
    return expected / comb(len(scores), k)


def majority_at_k(answers: Sequence[str | None], scores: Sequence[float], k: int) -> float:
    """Return the expected score of the most common of k answers (2203.11171).

    Of equally common ones, each is as likely. An unreadable answer (None) has no vote; without any vote the score is 0.
    The score of an answer that was given several times is the mean of theirs.

    Raises:
        ValueError: if not 1 <= k <= n.
    """
    _check(len(answers), k)
    scores_of: dict[str, list[float]] = defaultdict(list)
    for answer, score in zip(answers, scores, strict=True):
        if answer is not None:
            scores_of[answer].append(score)
    votes = {answer: len(its) for answer, its in scores_of.items()}
    chances = _chances(tuple(sorted(votes.values())), len(answers) - sum(votes.values()), k)
    return sum(chances[votes[answer]] * fmean(its) for answer, its in scores_of.items())


@lru_cache(maxsize=4096)
def _chances(votes: tuple[int, ...], unread: int, k: int) -> Mapping[int, float]:
    """Return number of votes -> probability that one answer that has so many is the most common of k.

    `votes`: of each answer. `unread`: answers without a vote.
    """
    total = comb(sum(votes) + unread, k)
    chances: dict[int, float] = {}
    for count in set(votes):
        rivals = Counter(votes) - Counter([count])
        won = sum((_won(count, most, rivals, unread, k) for most in range(1, min(count, k) + 1)), Fraction())
        chances[count] = float(won / total)
    return chances


def _won(votes: int, most: int, rivals: Counter[int], unread: int, k: int) -> Fraction:
    """Return the number of choices of k that hold `most` of an answer's `votes`, and more than of any other answer.

    A choice in which it is as common as t - 1 others counts 1 / t.
    """
    choices: _Choices = {(most, 0): comb(votes, most)}
    for count in rivals.elements():
        choices = _with_rival(choices, count, most, k)
    return sum(
        (Fraction(number * comb(unread, k - chosen), tied + 1) for (chosen, tied), number in choices.items()),
        Fraction(),
    )


def _with_rival(choices: _Choices, votes: int, most: int, k: int) -> _Choices:
    """Return the choices with up to `most` of the `votes` of one more answer."""
    result: _Choices = defaultdict(int)
    for (chosen, tied), number in choices.items():
        for taken in range(min(votes, most, k - chosen) + 1):
            result[chosen + taken, tied + (taken == most)] += number * comb(votes, taken)
    return result


def _check(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k: {k} of {n} answers; choices: 1 to {n}")
