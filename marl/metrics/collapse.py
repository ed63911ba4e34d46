"""Indicators that a role's answers are collapsing: pure functions of its turns in one step.

Computed over turns that a language model answered. Two turns have different questions if their problems differ, or, in
games without problems, the agents' information states.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from marl.types import Metrics, Turn

_FEW_TURNS = 16
"""A kind of decision with fewer turns in a step says nothing of a role that also decides something else."""


def collapse_figures(turns: Sequence[Turn]) -> Metrics:
    """Return those of `entropy`, `constant`, `repeated` and `distinct2` that these turns of one role have."""
    answered = [turn for turn in turns if _by_model(turn)]
    free = [turn for turn in answered if turn.request.options is None]
    figures = {
        "entropy": entropy(answered),
        "constant": _most_constant(answered)[1],
        # A list of moves limits the texts: there, `constant` is the indicator.
        "repeated": repeated(free),
        "distinct2": distinct([turn.completion.token_ids for turn in free]),
    }
    return {name: value for name, value in figures.items() if value is not None}


def most_common_move(turns: Iterable[Turn]) -> str:
    """Return the move that accounts for `constant`, or else the one made most often; "" if there is none."""
    made = list(turns)
    decision, _ = _most_constant([turn for turn in made if _by_model(turn)])
    moves = Counter([turn.action for turn in decision or made if turn.action is not None])
    return moves.most_common(1)[0][0] if moves else ""


def kinds_of_decision(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Return the turns by kind of decision, those without a choice left out.

    Answers in any words are one kind. Choices from lists of moves are one kind if the lists share a move, directly or
    through others. Whoever chooses whom to hear and then answers may be constant in the one and not in the other.
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
    """Return the kind of decision with the greatest `constant`, and that; ([], None) if no kind has one.

    Of several kinds, those of few turns are left out.
    """
    kinds = kinds_of_decision(turns)
    shares = [(kind, constant(kind)) for kind in kinds if len(kind) >= _FEW_TURNS or len(kinds) == 1]
    known = [(kind, share) for kind, share in shares if share is not None]
    return max(known, key=lambda kind_share: kind_share[1]) if known else ([], None)


def entropy(turns: Sequence[Turn]) -> float | None:
    """Return the mean surprise of sampled tokens, in nats, under the sampling distribution. Greedy turns are left out.

    None without such tokens.
    """
    completions = [turn.completion for turn in turns if turn.request.sampling.temperature > 0]
    tokens = sum([len(completion.logprobs) for completion in completions])
    return -sum([sum(completion.logprobs) for completion in completions]) / tokens if tokens else None


def constant(turns: Sequence[Turn]) -> float | None:
    """Return the share of the most common move among readable ones of one kind of decision.

    None if all had the same question.
    """
    readable = [turn for turn in turns if turn.action is not None]
    if all(_question(turn) == _question(readable[0]) for turn in readable):
        return None
    return max(Counter([turn.action for turn in readable]).values()) / len(readable)


def repeated(turns: Sequence[Turn]) -> float | None:
    """Return the probability that two answers to different questions are the same text (Simpson 1949).

    None without two questions.
    """
    questions = [_question(turn) for turn in turns]
    texts = [turn.completion.text for turn in turns]
    pairs = len(turns) ** 2 - _equal_pairs(questions)
    same = _equal_pairs(texts) - _equal_pairs(list(zip(questions, texts, strict=True)))
    return same / pairs if pairs else None


def distinct(completions: Sequence[tuple[int, ...]]) -> float | None:
    """Return distinct-2: different bigrams of tokens / bigrams (Li et al. 2016, arXiv 1510.03055); None without any."""
    total = sum([max(0, len(ids) - 1) for ids in completions])
    different = {pair for ids in set(completions) for pair in pairwise(ids)}
    return len(different) / total if total else None


def standard_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation, ddof 0."""
    mean = sum(values) / len(values)
    return math.sqrt(sum([(value - mean) ** 2 for value in values]) / len(values))


def _by_model(turn: Turn) -> bool:
    """Return False for players by rule. Of answers from outside only the cost is known, not the tokens."""
    completion = turn.completion
    sampled = completion.finish not in ("overflow", "aborted")
    return sampled and (bool(completion.prompt_ids) or completion.usage is not None)


def _question(turn: Turn) -> str:
    return turn.problem or turn.request.state


def _equal_pairs(items: Sequence[object]) -> int:
    """Return the number of ordered pairs of equal items, each with itself included."""
    return sum([count * count for count in Counter(items).values()])
