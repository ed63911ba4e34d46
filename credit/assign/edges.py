"""Setting for the kinds of edges of the trajectory graph that credit rules follow."""

from __future__ import annotations

from pydantic import Field

from marl.core.types import EdgeKind
from marl.protocols import AssignConfig

INFORMATION: tuple[EdgeKind, ...] = ("heard", "told", "posed", "tool", "self")
"""Kinds of edges by which content of an earlier turn entered a prompt: all kinds except `gated`."""


class EdgeAssign(AssignConfig):
    """Base of rules that follow the edges from read turns to their readers."""

    along: tuple[EdgeKind, ...] = Field(default=INFORMATION, min_length=1)
    """Kinds of edges that count: the reader `heard` an earlier turn's words; the game `told` it of them, or of facts
    made from them; the earlier turn `posed` the problem, or called the `tool` whose answer is read; it is the reader's
    own (`self`); or it only decided that somebody spoke or was heard (`gated`, not followed by default)."""
