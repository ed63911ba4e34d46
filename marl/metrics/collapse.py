"""Signs that what a role says is collapsing: pure functions of what it said in one step.

Counted over the turns that a language model spoke. Where questions must differ, they do if their problems do, or, in
games without problems, what the agent knows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from marl.types import Metrics, Turn

_UNSAID = ("overflow", "aborted")


def signs(turns: Sequence[Turn]) -> Metrics:
    """Those that can be told from these turns of one role: `entropy`, `constant`, `repeated`, `distinct2`."""
    said = [turn for turn in turns if _by_model(turn)]
    chosen = [turn for turn in said if turn.request.options is None or len(turn.request.options) > 1]
    free = [turn for turn in chosen if turn.request.options is None]
    found = {
        "entropy": entropy(said),
        "constant": constant(chosen),
        # A list of moves limits what can be said: there, `constant` tells.
        "repeated": repeated(free),
        "distinct2": distinct([turn.completion.token_ids for turn in free]),
    }
    return {name: value for name, value in found.items() if value is not None}


def favourite(turns: Iterable[Turn]) -> str:
    """The move made most often."""
    moves = Counter([turn.action for turn in turns if turn.action is not None])
    return moves.most_common(1)[0][0] if moves else ""


def entropy(turns: Sequence[Turn]) -> float | None:
    """Nats a token: what was sampled, under the distribution it was sampled from. Greedy turns do not count."""
    said = [turn.completion for turn in turns if turn.request.sampling.temperature > 0]
    tokens = sum([len(completion.logprobs) for completion in said])
    return -sum([sum(completion.logprobs) for completion in said]) / tokens if tokens else None


def constant(turns: Sequence[Turn]) -> float | None:
    """Share of the move made most often among those that could be read; None if all were asked the same."""
    read = [turn for turn in turns if turn.action is not None]
    if not _differ(read):
        return None
    return max(Counter([turn.action for turn in read]).values()) / len(read)


def repeated(turns: Sequence[Turn]) -> float | None:
    """How likely two answers to different questions are the same text (Simpson 1949); None without two questions."""
    questions = [_question(turn) for turn in turns]
    texts = [turn.completion.text for turn in turns]
    pairs = len(turns) ** 2 - _squares(questions)
    same = _squares(texts) - _squares(list(zip(questions, texts, strict=True)))
    return same / pairs if pairs else None


def distinct(said: Sequence[tuple[int, ...]]) -> float | None:
    """distinct-2: different bigrams of tokens / bigrams (Li et al. 2016, arXiv 1510.03055); None without bigrams."""
    total = sum([max(0, len(ids) - 1) for ids in said])
    different = {pair for ids in set(said) for pair in pairwise(ids)}
    return len(different) / total if total else None


def spread(values: Sequence[float]) -> float:
    """Standard deviation, ddof 0."""
    mean = sum(values) / len(values)
    return math.sqrt(sum([(value - mean) ** 2 for value in values]) / len(values))


def _by_model(turn: Turn) -> bool:
    """Not so for players by rule; of answers from outside only the cost is known."""
    said = turn.completion
    return said.finish not in _UNSAID and (bool(said.prompt_ids) or said.usage is not None)


def _question(turn: Turn) -> str:
    return turn.problem or turn.request.state


def _differ(turns: Sequence[Turn]) -> bool:
    return any(_question(turn) != _question(turns[0]) for turn in turns)


def _squares(items: Sequence[object]) -> int:
    return sum([many * many for many in Counter(items).values()])
