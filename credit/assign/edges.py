"""Kinds of edges that lead from turn to turn in the trajectory graph: the one setting of all rules that follow them."""

from __future__ import annotations

from pydantic import Field

from marl.protocols import AssignConfig
from marl.types import EdgeKind

INFORMATION: tuple[EdgeKind, ...] = ("heard", "told", "posed", "tool", "self")
"""Ways in which something of an earlier turn came to stand in a prompt: all but `gated`."""


class EdgeAssign(AssignConfig):
    """Base of rules that follow who read whom."""

    along: tuple[EdgeKind, ...] = Field(default=INFORMATION, min_length=1)
    """Kinds of edges that count: the reader `heard` an earlier turn's words; the game `told` it of them, or of facts
    made from them; the earlier turn `posed` the problem, or called the `tool` whose answer is read; it is the reader's
    own (`self`); or it only decided that somebody spoke or was heard (`gated`, not followed by default)."""
