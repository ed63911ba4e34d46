"""Indicators of collapsing answers: pure functions of one role's turns in one step.

Only turns of language models count. Two turns have different questions if their problems differ or, in games without
problems, if their information states differ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from marl.core.types import Metrics, Turn

_FEW_TURNS = 16
"""Minimum number of turns per step for a kind of decision to count, in roles with several kinds of decisions."""


def collapse_metrics(turns: Sequence[Turn]) -> Metrics:
    """Return `entropy`, `constant`, `repeated` and `distinct2` of the turns of one role, without undefined ones."""
    answered = [turn for turn in turns if _by_model(turn)]
    free = [turn for turn in answered if turn.request.options is None]
    figures = {
        "entropy": entropy(answered),
        "constant": _most_constant(answered)[1],
        # A list of moves limits the texts: there, `constant` is the indicator.
        "repeated": repeat_probability(free),
        "distinct2": distinct([turn.completion.token_ids for turn in free]),
    }
    return {name: value for name, value in figures.items() if value is not None}


def most_common_move(turns: Iterable[Turn]) -> str:
    """Return the move behind the figure `constant`, or else the most common move, or "" without moves."""
    turns = list(turns)
    decision, _ = _most_constant([turn for turn in turns if _by_model(turn)])
    moves = Counter([turn.action for turn in decision or turns if turn.action is not None])
    return moves.most_common(1)[0][0] if moves else ""


def group_by_decision(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Return the turns grouped by kind of decision, without turns that have a single option.

    Free-text answers are one kind. Choices from lists of moves are one kind if the lists share a move, directly or
    through other lists. A role that chooses whom to hear and then answers has two kinds, of which one may collapse.
    """
    listed = [turn for turn in turns if turn.request.options is not None and len(turn.request.options) > 1]
    lists: list[frozenset[str]] = []
    for moves in dict.fromkeys(frozenset(turn.request.options or ()) for turn in listed):
        shared = [other for other in lists if other & moves]
        lists = [*(other for other in lists if other not in shared), moves.union(*shared)]
    choices = [[turn for turn in listed if moves.issuperset(turn.request.options or ())] for moves in lists]
    answers = [turn for turn in turns if turn.request.options is None]
    return [kind for kind in (answers, *choices) if kind]


def _most_constant(turns: Sequence[Turn]) -> tuple[list[Turn], float | None]:
    """Return the turns of the kind of decision with the highest majority share, and this share, or ([], None).

    Among several kinds, those with few turns are ignored.
    """
    kinds = group_by_decision(turns)
    shares = [(kind, majority_share(kind)) for kind in kinds if len(kind) >= _FEW_TURNS or len(kinds) == 1]
    defined = [(kind, share) for kind, share in shares if share is not None]
    return max(defined, key=lambda kind_share: kind_share[1]) if defined else ([], None)


def entropy(turns: Sequence[Turn]) -> float | None:
    """Return the mean negative log-probability of sampled tokens [nats] under the sampling distribution.

    Greedy turns are ignored. Return None without sampled tokens.
    """
    completions = [turn.completion for turn in turns if turn.request.sampling.temperature > 0]
    tokens = sum([len(completion.logprobs) for completion in completions])
    return -sum([sum(completion.logprobs) for completion in completions]) / tokens if tokens else None


def majority_share(turns: Sequence[Turn]) -> float | None:
    """Return the share of the most common move among the readable moves of one kind of decision.

    Return None if all turns have the same question.
    """
    readable = [turn for turn in turns if turn.action is not None]
    if all(_question(turn) == _question(readable[0]) for turn in readable):
        return None
    return max(Counter([turn.action for turn in readable]).values()) / len(readable)


def repeat_probability(turns: Sequence[Turn]) -> float | None:
    """Return the probability that two answers to different questions are equal texts (Simpson 1949).

    Return None if there are no two different questions.
    """
    questions = [_question(turn) for turn in turns]
    texts = [turn.completion.text for turn in turns]
    pairs = len(turns) ** 2 - _equal_pairs(questions)
    same = _equal_pairs(texts) - _equal_pairs(list(zip(questions, texts, strict=True)))
    return same / pairs if pairs else None


def distinct(completions: Sequence[tuple[int, ...]]) -> float | None:
    """Return distinct-2 (Li et al. 2016, arXiv 1510.03055): different bigrams / bigrams, or None without bigrams."""
    total = sum([max(0, len(ids) - 1) for ids in completions])
    different = {pair for ids in set(completions) for pair in pairwise(ids)}
    return len(different) / total if total else None


def standard_deviation(values: Sequence[float]) -> float:
    """Return the population standard deviation (ddof = 0)."""
    mean = sum(values) / len(values)
    return math.sqrt(sum([(value - mean) ** 2 for value in values]) / len(values))


def _by_model(turn: Turn) -> bool:
    """Return True if a language model answered the turn; answers of remote models have a cost but no tokens."""
    completion = turn.completion
    sampled = completion.finish not in ("overflow", "aborted")
    return sampled and (bool(completion.prompt_ids) or completion.usage is not None)


def _question(turn: Turn) -> str:
    return turn.problem or turn.request.state


def _equal_pairs(items: Sequence[object]) -> int:
    """Return the number of ordered pairs of equal items, including the pairs of an item with itself."""
    return sum([count * count for count in Counter(items).values()])
