"""An exchange of a run for its card: what a policy was asked last, and what it answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from marl.export.markdown import block
from marl.runs.run_folder import RunFolder
from marl.types import Message, Turn

_LONGEST = 4000
"""Most characters of a prompt, or of an answer, that is shown."""
_LOOKED_AT = 200
"""Most episodes that are read to find one."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A prompt that does not continue another one, and its answer."""

    step: int
    role: str
    messages: tuple[Message, ...]
    answer: str

    def shown(self) -> dict[str, Any]:
        """Return it as a card shows it."""
        prompt = "\n\n".join(f"{message.role}: {message.content}" for message in self.messages)
        values = {"step": self.step, "role": self.role}
        return values | {"prompt": block(prompt), "answer": block(self.answer or "(nothing)")}


def find_exchange(home: RunFolder, policy: str, step: int) -> Exchange | None:
    """Return the first short exchange of a policy in the latest recorded step up to `step`; None if there is none."""
    recorded = [each for each in home.recorded() if each <= step]
    return next(_exchanges(home, policy, recorded[-1]), None) if recorded else None


def _exchanges(home: RunFolder, policy: str, step: int) -> Iterator[Exchange]:
    for place, trajectory in enumerate(home.read_episodes(step)):
        if place == _LOOKED_AT:
            return
        for turn in trajectory.turns:
            if turn.request.policy == policy and _is_short(turn):
                yield Exchange(step, turn.role, tuple(turn.request.messages), turn.completion.text)


def _is_short(turn: Turn) -> bool:
    length = sum(len(message.content) for message in turn.request.messages)
    fits = 0 < length < _LONGEST and len(turn.completion.text) < _LONGEST
    return fits and not turn.request.continues and not turn.request.tools and turn.action is not None
