"""Edges of the trajectory graph in words: which earlier turns led to a turn, in which ways, and in which tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from marl.graph import Trajectory
from marl.types import EdgeKind, Turn, TurnId

KINDS: tuple[EdgeKind, ...] = get_args(EdgeKind)
IN_PROMPT = frozenset(KINDS) - {"gated"}
"""Ways in which an earlier turn is part of a prompt."""


def _marked_tokens(reader: Turn, source: TurnId, kind: EdgeKind) -> list[int]:
    """Return the tokens of a turn's prompt that were made from an earlier turn; [] where they are unknown, too."""
    pairs = zip(reader.request.marks, reader.completion.mark_tokens, strict=False)
    ranges = [places for mark, places in pairs if (mark.source, mark.kind) == (source, kind)]
    return sorted({token for first, last in ranges for token in range(first, last)})


def _edge_in_words(reader: Turn, source: TurnId, trajectory: Trajectory) -> str:
    """Return in which ways a turn led to another, such as `heard, 14 tokens; gated`."""
    kinds = trajectory.kinds(source, reader.id)
    return "; ".join(_kind_in_words(reader, source, kind) for kind in KINDS if kind in kinds)


def _kind_in_words(reader: Turn, source: TurnId, kind: EdgeKind) -> str:
    count = len(_marked_tokens(reader, source, kind))
    return f"{kind}, {count} token{'s' * (count != 1)}" if count else kind


def earlier_turns(turn: Turn, trajectory: Trajectory) -> Iterator[tuple[Turn, str]]:
    """Yield the earlier turns that led to a turn, in the order of play, each with its ways."""
    for source in trajectory.sources(turn.id, KINDS):
        yield trajectory.graph.nodes[source]["turn"], _edge_in_words(turn, source, trajectory)


def later_turns(turn: Turn, trajectory: Trajectory) -> Iterator[tuple[Turn, str]]:
    """Yield the later turns that a turn led to, in the order of play, each with its ways."""
    for reader in trajectory.readers(turn.id, KINDS):
        later = trajectory.graph.nodes[reader]["turn"]
        yield later, _edge_in_words(later, turn.id, trajectory)


def sources_in_words(turn: Turn, trajectory: Trajectory, most: int | None) -> str:
    """Return which turns led to a turn, such as `planner's turn 2 (heard, 14 tokens), critic's 3 (gated)`.

    `most`: how many are named, the latest; None: all. Empty, if none led to it.
    """
    sources = list(earlier_turns(turn, trajectory))
    left_out = max(len(sources) - most, 0) if most is not None else 0
    named, word = [], "turn "
    for source, kinds in sources[left_out:]:
        owner = "its own" if source.agent == turn.agent else f"{source.agent}'s"
        named.append(f"{owner} {word}{source.id[1]} ({kinds})")
        word = ""
    return ", ".join([*([f"{left_out} earlier"] if left_out else []), *named])
