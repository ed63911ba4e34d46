"""Descriptions of trajectory graph edges: source turns, kinds and prompt tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from marl.core.graph import Trajectory
from marl.core.types import EdgeKind, Turn, TurnId

EDGE_KINDS: tuple[EdgeKind, ...] = get_args(EdgeKind)
TokenFormat = Callable[[Sequence[int]], str]
"""Function that describes a list of token indices."""
PROMPT_EDGE_KINDS = frozenset(EDGE_KINDS) - {"gated"}
"""Kinds of edge whose source turn is part of the reader's prompt."""


def marked_tokens(reader: Turn, source: TurnId, kind: EdgeKind) -> list[int]:
    """Return the indices of prompt tokens derived from turn `source` by `kind`, or [] if unknown."""
    pairs = zip(reader.request.marks, reader.completion.mark_tokens, strict=False)
    ranges = [token_range for mark, token_range in pairs if (mark.source, mark.kind) == (source, kind)]
    # A foreign file may contain ranges beyond the prompt, such as 10^12 tokens.
    count = len(reader.completion.prompt_ids)
    return sorted({token for first, last in ranges for token in range(max(first, 0), min(last, count))})


def format_token_count(tokens: Sequence[int]) -> str:
    """Return the number of tokens as text, such as `14 tokens`."""
    return f"{len(tokens)} token{'s' * (len(tokens) != 1)}"


def format_token_ranges(tokens: Sequence[int]) -> str:
    """Return the number and the index ranges of tokens as text, such as `14 tokens (2-9, 31-36)`."""
    indices = set(tokens)
    begins = [token for token in tokens if token - 1 not in indices]
    ends = [token for token in tokens if token + 1 not in indices]
    ranges = (f"{begin}-{end}" if begin < end else f"{begin}" for begin, end in zip(begins, ends, strict=True))
    return f"{format_token_count(tokens)} ({', '.join(ranges)})"


def describe_edge(reader: Turn, source: TurnId, trajectory: Trajectory, show: TokenFormat = format_token_count) -> str:
    """Return the kinds of the edge from `source` to `reader` as text, such as `heard, 14 tokens; gated`."""
    kinds = trajectory.edge_kinds(source, reader.id)
    tokens = [(kind, marked_tokens(reader, source, kind)) for kind in EDGE_KINDS if kind in kinds]
    return "; ".join(f"{kind}, {show(indices)}" if indices else kind for kind, indices in tokens)


def describe_sources(turn: Turn, trajectory: Trajectory, limit: int | None) -> str:
    """Return the source turns of `turn` as text, such as `planner's turn 2 (heard, 14 tokens), critic's 3 (gated)`.

    At most `limit` sources are named, the latest ones (None: all). The text is empty if `turn` has no source.
    """
    sources = [trajectory.graph.nodes[source]["turn"] for source in trajectory.sources(turn.id, EDGE_KINDS)]
    left_out = max(len(sources) - limit, 0) if limit is not None else 0
    named, word = [], "turn "
    for source in sources[left_out:]:
        owner = "its own" if source.agent == turn.agent else f"{source.agent}'s"
        named.append(f"{owner} {word}{source.id[1]} ({describe_edge(turn, source.id, trajectory)})")
        word = ""
    return ", ".join([*([f"{left_out} earlier"] if left_out else []), *named])
