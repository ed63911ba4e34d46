"""Setting for the kinds of edges of the trajectory graph that credit rules follow."""

from __future__ import annotations

from pydantic import Field

from marl.core.config import DistinctValues
from marl.core.types import EdgeKind
from marl.protocols import AssignConfig

INFORMATION: tuple[EdgeKind, ...] = ("heard", "told", "posed", "tool", "self")
"""Kinds of edges along which content of an earlier turn entered a prompt: all kinds except `gated`."""


class EdgeFollowingAssign(AssignConfig):
    """Base of rules that follow the edges from read turns to their readers."""

    along: DistinctValues[EdgeKind] = Field(default=INFORMATION, min_length=1)
    """Kinds of edges to follow from an earlier turn to its reader. `heard`: the prompt quotes the earlier turn; `told`:
    the game reports the turn, or facts derived from it; `posed`: the turn posed the problem; `tool`: the turn called
    the tool whose answer is read; `self`: the turn is the reader's own; `gated`: the turn only decided who spoke or was
    heard (not followed by default)."""
