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

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
role/ROLE/entropy | nats a token | mean of minus the log-probability of sampled tokens under the sampling
    distribution; greedy turns left out
role/ROLE/constant | share | most common move among readable turns with a choice, of the kind of decision in which
    it is most constant (answers in any words, or a list of moves, by stage of a workflow; lists that share a move are
    one kind); only if questions differ
role/ROLE/repeated | probability | two answers to different questions are the same text (turns without a list of
    moves)
role/ROLE/distinct2 | share | different bigrams of tokens / bigrams (turns without a list of moves)
"""

_FEW_TURNS = 16
"""Minimum number of turns per step of a kind of decision. Of several kinds, those with fewer turns are ignored."""


def collapse_metrics(turns: Sequence[Turn]) -> Metrics:
    """Return `entropy`, `constant`, `repeated` and `distinct2` of one role's turns; an undefined figure is absent."""
    answered = list(filter(_is_answered_by_model, turns))
    free_text = [turn for turn in answered if turn.request.options is None]
    figures = {
        "entropy": entropy_per_token(answered),
        "constant": _decision_kind_with_highest_majority_share(answered)[1],
        # Only free texts get `repeated` and `distinct2`: listed moves are repeated anyway, and `constant` covers them.
        "repeated": equal_answer_probability(free_text),
        "distinct2": distinct_bigram_share(free_text),
    }
    return {name: value for name, value in figures.items() if value is not None}


def most_common_move(turns: Iterable[Turn]) -> str:
    """Return the most common move of the kind of decision that determines the metric `constant`, or of all turns.

    Return "" if no turn has a move.
    """
    turns = list(turns)
    decision, _ = _decision_kind_with_highest_majority_share(list(filter(_is_answered_by_model, turns)))
    moves = Counter([turn.action for turn in decision or turns if turn.action is not None])
    return moves.most_common(1)[0][0] if moves else ""


def group_turns_by_decision_kind(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Return the turns grouped by kind of decision, without turns that have a single option.

    Free-text answers are one kind. Choices from lists of moves are one kind if the lists share a move, directly or
    through other lists. A role that chooses whom to hear and then answers has two kinds, of which one may collapse.
    """
    free_text: list[Turn] = []
    listed: list[Turn] = []
    for turn in turns:
        if turn.request.options is None:
            free_text.append(turn)
        elif len(turn.request.options) > 1:
            listed.append(turn)
    # Lists that share a move are merged, which makes the remaining sets of moves disjoint.
    move_sets: list[frozenset[str]] = []
    # Most turns have one of few lists, so that few sets of moves are built.
    lists = dict.fromkeys([tuple(turn.request.options or ()) for turn in listed])
    for moves in dict.fromkeys(map(frozenset, lists)):
        merged, disjoint = moves, list[frozenset[str]]()
        for other in move_sets:
            if other & moves:
                merged |= other
            else:
                disjoint.append(other)
        move_sets = [*disjoint, merged]
    groups = [free_text]
    group_of_move: dict[str, list[Turn]] = {}
    for moves in move_sets:
        groups.append([])
        group_of_move |= dict.fromkeys(moves, groups[-1])
    for turn in listed:
        # A turn's moves all belong to one group, so any of them finds it.
        group_of_move[next(iter(turn.request.options or ()))].append(turn)
    return list(filter(None, groups))


def _decision_kind_with_highest_majority_share(turns: Sequence[Turn]) -> tuple[list[Turn], float | None]:
    """Return the turns of the kind of decision with the highest majority share, and that share.

    A role that moves in several stages of a workflow has decisions of its own in each: a critic that gives every plan
    the same score is constant, however its scores of problems vary. Return ([], None) if no share is defined. Among
    several kinds, those with few turns are ignored.
    """
    by_stage: dict[str, list[Turn]] = {}
    for turn in turns:
        by_stage.setdefault(turn.stage, []).append(turn)
    decisions = [decision for stage in by_stage.values() for decision in group_turns_by_decision_kind(stage)]
    most_constant: list[Turn] = []
    highest: float | None = None
    for decision in decisions:
        share = most_common_move_share(decision) if len(decision) >= _FEW_TURNS or len(decisions) == 1 else None
        if share is not None and (highest is None or share > highest):
            most_constant, highest = decision, share
    return most_constant, highest


def entropy_per_token(turns: Sequence[Turn]) -> float | None:
    """Return the mean negative log-probability of sampled tokens [nats] under the sampling distribution.

    Greedy turns are ignored. Return None without sampled tokens.
    """
    logprobs = [turn.completion.logprobs for turn in turns if turn.request.sampling.temperature > 0]
    tokens = sum(map(len, logprobs))
    return -sum(map(sum, logprobs)) / tokens if tokens else None


def most_common_move_share(turns: Sequence[Turn]) -> float | None:
    """Return the share of the most common move among the readable moves of one kind of decision.

    Return None if all turns have the same question.
    """
    readable = [turn for turn in turns if turn.action is not None]
    moves = Counter([turn.action for turn in readable])
    questions = set(map(_problem_or_state_key, readable))
    return max(moves.values()) / moves.total() if len(questions) > 1 else None


def equal_answer_probability(turns: Sequence[Turn]) -> float | None:
    """Return the probability that two random answers to different questions are equal texts (Simpson 1949).

    Return None if all turns have the same question.
    """
    questions = list(map(_problem_or_state_key, turns))
    texts = [turn.completion.text for turn in turns]
    pairs = len(turns) ** 2 - _count_equal_pairs(questions)
    same = _count_equal_pairs(texts) - _count_equal_pairs(list(zip(questions, texts, strict=True)))
    return same / pairs if pairs else None


def distinct_bigram_share(turns: Sequence[Turn]) -> float | None:
    """Return distinct-2 (Li et al. 2016, arXiv 1510.03055): different bigrams / bigrams, or None without bigrams."""
    total, bigrams = 0, set[tuple[int, int]]()
    for turn in turns:
        total += max(0, len(turn.completion.token_ids) - 1)
        bigrams.update(pairwise(turn.completion.token_ids))
    return len(bigrams) / total if total else None


def population_standard_deviation(values: Sequence[float]) -> float:
    """Return the population standard deviation (ddof = 0)."""
    mean = sum(values) / len(values)
    return math.sqrt(sum([(value - mean) ** 2 for value in values]) / len(values))


def _is_answered_by_model(turn: Turn) -> bool:
    """Return True if a language model answered the turn. A turn of a remote model has a usage instead of tokens."""
    completion = turn.completion
    sampled = completion.finish not in ("overflow", "aborted")
    return sampled and (bool(completion.prompt_ids) or completion.usage is not None)


def _problem_or_state_key(turn: Turn) -> str:
    return turn.problem or turn.request.state


def _count_equal_pairs(answers: Sequence[object]) -> int:
    """Return the number of ordered pairs of equal answers, including the pairs of an answer with itself."""
    return sum([count * count for count in Counter(answers).values()])
