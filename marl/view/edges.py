"""Edges of the trajectory graph in words: which earlier turns led to a turn, in which ways, and in which tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from marl.graph import Trajectory
from marl.types import EdgeKind, Turn, TurnId

KINDS: tuple[EdgeKind, ...] = get_args(EdgeKind)
Show = Callable[[Sequence[int]], str]
"""Return tokens in words."""
IN_PROMPT = frozenset(KINDS) - {"gated"}
"""Ways in which an earlier turn is part of a prompt."""


def marked_tokens(reader: Turn, source: TurnId, kind: EdgeKind) -> list[int]:
    """Return the tokens of a turn's prompt that were made from an earlier turn; [] where they are unknown, too."""
    pairs = zip(reader.request.marks, reader.completion.mark_tokens, strict=False)
    ranges = [places for mark, places in pairs if (mark.source, mark.kind) == (source, kind)]
    # A file from outside may name more tokens than there are.
    count = len(reader.completion.prompt_ids)
    return sorted({token for first, last in ranges for token in range(max(first, 0), min(last, count))})


def counted(tokens: Sequence[int]) -> str:
    """Return how many tokens there are, such as `14 tokens`."""
    return f"{len(tokens)} token{'s' * (len(tokens) != 1)}"


def placed(tokens: Sequence[int]) -> str:
    """Return how many tokens there are, and which, such as `14 tokens (2-9, 31-36)`."""
    held = set(tokens)
    begins = [token for token in tokens if token - 1 not in held]
    ends = [token for token in tokens if token + 1 not in held]
    ranges = (f"{begin}-{end}" if begin < end else f"{begin}" for begin, end in zip(begins, ends, strict=True))
    return f"{counted(tokens)} ({', '.join(ranges)})"


def kinds_in_words(reader: Turn, source: TurnId, trajectory: Trajectory, show: Show = counted) -> str:
    """Return in which ways a turn led to another, such as `heard, 14 tokens; gated`."""
    kinds = trajectory.kinds(source, reader.id)
    tokens = [(kind, marked_tokens(reader, source, kind)) for kind in KINDS if kind in kinds]
    return "; ".join(f"{kind}, {show(held)}" if held else kind for kind, held in tokens)


def sources_in_words(turn: Turn, trajectory: Trajectory, most: int | None) -> str:
    """Return which turns led to a turn, such as `planner's turn 2 (heard, 14 tokens), critic's 3 (gated)`.

    `most`: how many are named, the latest; None: all. Empty, if none led to it.
    """
    sources = [trajectory.graph.nodes[source]["turn"] for source in trajectory.sources(turn.id, KINDS)]
    left_out = max(len(sources) - most, 0) if most is not None else 0
    named, word = [], "turn "
    for source in sources[left_out:]:
        owner = "its own" if source.agent == turn.agent else f"{source.agent}'s"
        named.append(f"{owner} {word}{source.id[1]} ({kinds_in_words(turn, source.id, trajectory)})")
        word = ""
    return ", ".join([*([f"{left_out} earlier"] if left_out else []), *named])
