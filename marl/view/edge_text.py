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


def edge_prompt_token_indices(reading_turn: Turn, source_id: TurnId, kind: EdgeKind) -> list[int]:
    """Return the indices of the reader's prompt tokens that stem from turn `source_id` by an edge of `kind`.

    The list is empty if the tokens are unknown.
    """
    count, tokens = len(reading_turn.completion.prompt_ids), set[int]()
    for mark, (first, last) in zip(reading_turn.request.marks, reading_turn.completion.mark_tokens, strict=False):
        if (mark.source, mark.kind) == (source_id, kind):
            # A trajectory file of unknown origin may contain a range of 10^12 tokens; so it is cut to the prompt.
            tokens.update(range(max(first, 0), min(last, count)))
    return sorted(tokens)


def format_token_count(token_indices: Sequence[int]) -> str:
    """Return the number of tokens as text, such as `14 tokens`."""
    return f"{len(token_indices)} token{'s' * (len(token_indices) != 1)}"


def format_token_ranges(token_indices: Sequence[int]) -> str:
    """Return the number and the index ranges of tokens as text, such as `14 tokens (2-9, 31-36)`."""
    indices, ranges, begin = set(token_indices), list[str](), 0
    for token in token_indices:
        if token - 1 not in indices:
            begin = token
        if token + 1 not in indices:
            ranges.append(f"{begin}-{token}" if begin < token else f"{begin}")
    return f"{format_token_count(token_indices)} ({', '.join(ranges)})"


def describe_edge(
    reading_turn: Turn, source_id: TurnId, trajectory: Trajectory, format_tokens: TokenFormat = format_token_count
) -> str:
    """Return the edge from turn `source_id` to `reading_turn` as text: its kinds, each with the tokens that it put into
    the reader's prompt. `format_tokens` formats the tokens. Example: `heard, 14 tokens; gated`."""
    kinds, texts = trajectory.edge_kinds(source_id, reading_turn.id), list[str]()
    for kind in EDGE_KINDS:
        if kind in kinds:
            tokens = edge_prompt_token_indices(reading_turn, source_id, kind)
            texts.append(f"{kind}, {format_tokens(tokens)}" if tokens else kind)
    return "; ".join(texts)


def describe_source_turns(turn: Turn, trajectory: Trajectory, max_sources: int | None) -> str:
    """Return the source turns of `turn` as text, such as `planner's turn 2 (heard, 14 tokens), critic's 3 (gated)`.

    Only the latest `max_sources` sources are named (None: all). The text is empty if `turn` has no source.
    """
    sources = [trajectory.graph.nodes[source]["turn"] for source in trajectory.sources(turn.id, EDGE_KINDS)]
    left_out = max(len(sources) - max_sources, 0) if max_sources is not None else 0
    named, word = [], "turn "
    for source in sources[left_out:]:
        owner = "its own" if source.agent == turn.agent else f"{source.agent}'s"
        named.append(f"{owner} {word}{source.id[1]} ({describe_edge(turn, source.id, trajectory)})")
        word = ""
    return ", ".join([*([f"{left_out} earlier"] if left_out else []), *named])
