"""pass@k, best@k and maj@k of n answers to one problem, as exact expectations over all subsets of k answers.

The estimates are unbiased, as every subset of k independent answers is a sample of k answers. No subset is drawn at
random, so the estimate adds no noise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import comb
from statistics import fmean

_Choices = dict[tuple[int, int], int]
"""(number of answers chosen so far, number of rivals as common as the winner) -> number of such subsets."""


def pass_at_k(n: int, solved: int, k: int) -> float:
    """Return pass@k: the probability of a right answer among k drawn from n answers, of which `solved` are right.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021, 2107.03374).

    Raises:
        ValueError: if not 1 <= k <= n.
    """
    _check(n, k)
    return 1 - comb(n - solved, k) / comb(n, k)


def best_at_k(scores: Sequence[float], ratings: Sequence[float], k: int) -> float:
    """Return the expected score of the answer with the highest rating among k answers; ties are broken uniformly.

    With the scores as `ratings` this is the expected maximum score.

    Raises:
        ValueError: if not 1 <= k <= n.
    """
    _check(len(scores), k)
    scores_by_rating: dict[float, list[float]] = defaultdict(list)
    for score, rating in zip(scores, ratings, strict=True):
        scores_by_rating[rating].append(score)
    expected, below = 0.0, 0
    for rating in sorted(scores_by_rating):
        up_to = below + len(scores_by_rating[rating])
        # `rating` is the highest of k answers if no answer has a higher one and not all have lower ones.
        expected += fmean(scores_by_rating[rating]) * (comb(up_to, k) - comb(below, k))
        below = up_to
    return expected / comb(len(scores), k)


def majority_at_k(answers: Sequence[str | None], scores: Sequence[float], k: int) -> float:
    """Return the expected score of the most common of k answers (Wang et al. 2022, 2203.11171).

    Ties are broken uniformly. An unreadable answer (None) has no vote; without any vote the score is 0. Equal answers
    count with the mean of their scores.

    Raises:
        ValueError: if not 1 <= k <= n.
    """
    _check(len(answers), k)
    scores_by_answer: dict[str, list[float]] = defaultdict(list)
    for answer, score in zip(answers, scores, strict=True):
        if answer is not None:
            scores_by_answer[answer].append(score)
    votes = {answer: len(answer_scores) for answer, answer_scores in scores_by_answer.items()}
    chances = _winning_probabilities(tuple(sorted(votes.values())), len(answers) - sum(votes.values()), k)
    return sum(chances[votes[answer]] * fmean(answer_scores) for answer, answer_scores in scores_by_answer.items())


@lru_cache(maxsize=4096)
def _winning_probabilities(votes: tuple[int, ...], unread: int, k: int) -> Mapping[int, float]:
    """Return number of votes -> probability that an answer with this many votes is the most common of k.

    `votes` are the numbers of votes of all different answers, and `unread` is the number of answers without a vote.
    """
    total = comb(sum(votes) + unread, k)
    chances: dict[int, float] = {}
    for count in set(votes):
        rivals = Counter(votes) - Counter([count])
        wins = Fraction()
        for chosen in range(1, min(count, k) + 1):
            wins += _winning_subsets(count, chosen, rivals, unread, k)
        chances[count] = float(wins / total)
    return chances


def _winning_subsets(votes: int, winner: int, rivals: Counter[int], unread: int, k: int) -> Fraction:
    """Return the number of subsets of k with `winner` of an answer's `votes` and no rival with more than `winner`.

    A subset in which t answers are equally common counts 1 / t, as ties are broken uniformly.
    """
    choices: _Choices = {(winner, 0): comb(votes, winner)}
    for rival_votes in rivals.elements():
        extended: _Choices = defaultdict(int)
        for (chosen, tied), number in choices.items():
            for count in range(min(rival_votes, winner, k - chosen) + 1):
                extended[chosen + count, tied + (count == winner)] += number * comb(rival_votes, count)
        choices = extended
    # Fractions keep the sum exact, so the order of the rivals does not matter.
    subsets = Fraction()
    for (chosen, tied), number in choices.items():
        subsets += Fraction(number * comb(unread, k - chosen), tied + 1)
    return subsets


def _check(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k: {k} of {n} answers; choices: 1 to {n}")
