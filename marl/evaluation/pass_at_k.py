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


def pass_at_k(sample_count: int, solved_count: int, k: int) -> float:
    """Return pass@k: the probability of a right answer among k of n answers, of which c are right.

    1 - C(n - c, k) / C(n, k), with n = `sample_count` and c = `solved_count` (Chen et al. 2021, 2107.03374).

    Raises:
        ValueError: if not 1 <= k <= n.
    """
    _check_k(sample_count, k)
    return 1 - comb(sample_count - solved_count, k) / comb(sample_count, k)


def best_at_k(scores: Sequence[float], ratings: Sequence[float], k: int) -> float:
    """Return the expected score of the answer with the highest rating among k answers; ties are broken uniformly.

    With the scores as `ratings` this is the expected maximum score.

    Raises:
        ValueError: if not 1 <= k <= n.
    """
    _check_k(len(scores), k)
    scores_by_rating: dict[float, list[float]] = defaultdict(list)
    for score, rating in zip(scores, ratings, strict=True):
        scores_by_rating[rating].append(score)
    expected, below = 0.0, 0
    for rating in sorted(scores_by_rating):
        up_to = below + len(scores_by_rating[rating])
        # A rating is the highest of k answers in all subsets up to it, minus the subsets of lower ratings only.
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
    _check_k(len(answers), k)
    scores_by_answer: dict[str, list[float]] = defaultdict(list)
    for answer, score in zip(answers, scores, strict=True):
        if answer is not None:
            scores_by_answer[answer].append(score)
    votes = sorted(map(len, scores_by_answer.values()))
    chances = _majority_probability_by_votes(tuple(votes), len(answers) - sum(votes), k)
    return sum(chances[len(answer_scores)] * fmean(answer_scores) for answer_scores in scores_by_answer.values())


@lru_cache(maxsize=4096)
def _majority_probability_by_votes(vote_counts: tuple[int, ...], unreadable_count: int, k: int) -> Mapping[int, float]:
    """Return number of votes -> probability that an answer with this number of votes is the most common of k.

    `vote_counts` are the numbers of votes of all different answers, and `unreadable_count` is the number of answers
    without a vote.
    """
    total = comb(sum(vote_counts) + unreadable_count, k)
    chances: dict[int, float] = {}
    for count in set(vote_counts):
        rivals = Counter(vote_counts) - Counter([count])
        wins = Fraction()
        for chosen in range(1, min(count, k) + 1):
            wins += _count_majority_subsets(count, chosen, rivals, unreadable_count, k)
        chances[count] = float(wins / total)
    return chances


def _count_majority_subsets(
    votes: int, drawn_votes: int, rival_vote_counts: Counter[int], unreadable_count: int, k: int
) -> Fraction:
    """Return the number of subsets of k answers that an answer with `votes` copies wins by `drawn_votes` copies.

    A subset in which t answers are equally common counts 1 / t, as ties are broken uniformly.
    """
    choices: _Choices = {(drawn_votes, 0): comb(votes, drawn_votes)}
    for rival_votes in rival_vote_counts.elements():
        extended: _Choices = defaultdict(int)
        for (chosen, tied), number in choices.items():
            for count in range(min(rival_votes, drawn_votes, k - chosen) + 1):
                extended[chosen + count, tied + (count == drawn_votes)] += number * comb(rival_votes, count)
        choices = extended
    # Exact fractions make the sum independent of the rivals' order.
    subsets = Fraction()
    for (chosen, tied), number in choices.items():
        subsets += Fraction(number * comb(unreadable_count, k - chosen), tied + 1)
    return subsets


def _check_k(n: int, k: int) -> None:
    """Raise ValueError unless 1 <= k <= n."""
    if not 1 <= k <= n:
        raise ValueError(f"k: {k} of {n} answers; choices: 1 to {n}")
