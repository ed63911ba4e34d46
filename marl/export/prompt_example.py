"""Example exchange for a model card: a recorded prompt and the policy's answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from marl.core.types import Message, Turn
from marl.export.markdown import fenced_block
from marl.runs.run_folder import RunFolder

_LONGEST = 4000
"""Length limit of the prompt, and of the answer [characters]."""
_LOOKED_AT = 200
"""Maximum number of episodes to search for an example."""


@dataclass(frozen=True, slots=True)
class PromptExample:
    """Recorded prompt without earlier turns, with the policy's answer."""

    step: int
    role: str
    messages: tuple[Message, ...]
    answer: str

    def template_values(self) -> dict[str, Any]:
        """Return the template's values, with prompt and answer as fenced blocks."""
        prompt = "\n\n".join(f"{message.role}: {message.content}" for message in self.messages)
        values = {"step": self.step, "role": self.role}
        return values | {"prompt": fenced_block(prompt), "answer": fenced_block(self.answer or "(nothing)")}


def find_prompt_example(home: RunFolder, policy: str, step: int) -> PromptExample | None:
    """Return the first short exchange of `policy` in the latest recorded step up to `step`, or None."""
    recorded = [recorded_step for recorded_step in home.recorded_steps() if recorded_step <= step]
    return next(_exchanges(home, policy, recorded[-1]), None) if recorded else None


def _exchanges(home: RunFolder, policy: str, step: int) -> Iterator[PromptExample]:
    for index, trajectory in enumerate(home.iter_trajectories(step)):
        if index == _LOOKED_AT:
            return
        for turn in trajectory.turns:
            if turn.request.policy == policy and _is_short(turn):
                yield PromptExample(step, turn.role, tuple(turn.request.messages), turn.completion.text)


def _is_short(turn: Turn) -> bool:
    length = sum(len(message.content) for message in turn.request.messages)
    fits = 0 < length < _LONGEST and len(turn.completion.text) < _LONGEST
    return fits and not turn.request.continues and not turn.request.tools and turn.action is not None
