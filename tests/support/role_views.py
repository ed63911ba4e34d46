"""Situations in which a role speaks."""

from __future__ import annotations

import re
from typing import Any

from marl.core.config import Sampling
from marl.core.types import Completion, Info, Request, Turn
from marl.protocols import PromptContext


def make_view(
    text: str = "pile 3", legal: tuple[str, ...] | None = ("1", "2"), attempt: int = 0, **more: Any
) -> PromptContext:
    """Return the view of `player_0`, who hears the other two."""
    hears = ("player_1", "player_2")
    info: Info = {"legal": legal, "hears": hears, "together": (), "state": "", "attempt": attempt}
    return PromptContext("player_0", {"text": text}, info, **more)


def make_turn(agent: str, text: str, move: str | None = None) -> Turn:
    """Return a turn with made-up tokens."""
    completion = Completion(text, (1, 2), (3,), (-0.5,), "stop")
    return Turn(("e", 0), agent, 0, 0, "player", Request("actor", (), Sampling()), completion, move)


def fence_lines(text: str) -> str:
    """Return a prompt in which every line `` `words` `` stands in a fence."""
    return re.sub(r"^`(.*)`$", r"```\n\1\n```", text, flags=re.MULTILINE)
