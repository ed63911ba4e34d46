"""Observations as lines, each marked with the moves that it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from marl.text.origins import Span, TextOrigin, TextWithOrigins


class ObservationLine(NamedTuple):
    """Line in the observations of some players, or of all, from now on."""

    text: str
    readers: tuple[str, ...] | None
    """Agents who read the line, or None if all do."""
    sources: tuple[tuple[str, int], ...]
    """(agent, index of the game's step) of each move that the line was made from."""


def observation_with_origins(
    reader: str, heading: str, observed_lines: Sequence[ObservationLine], move_request: str
) -> TextWithOrigins:
    """Return the observation of `reader`: a heading, the events that it may read, and the request for its move.

    Each event is marked with the moves that it was made from, which become edges of the trajectory graph.
    """
    lines, spans, offset = [heading], list[Span](), len(heading) + 1
    for event in observed_lines:
        if event.readers is not None and reader not in event.readers:
            continue
        end = offset + len(event.text)
        for agent, step in event.sources:
            spans.append((offset, end, TextOrigin(step, "self" if agent == reader else "told")))
        lines.append(event.text)
        offset = end + 1
    return TextWithOrigins("\n".join([*lines, move_request]), tuple(spans))
