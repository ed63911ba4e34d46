"""Example exchange for a model card: a recorded prompt and the policy's answer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from marl.core.types import Message
from marl.runs.run_folder import RunFolder

_MAX_CHARACTERS = 4000
"""Length limit of the prompt, and of the answer."""
_MAX_EPISODES = 200
"""Maximum number of episodes to search for an example."""


@dataclass(frozen=True, slots=True)
class PromptExample:
    """Recorded prompt without earlier turns, with the policy's answer."""

    step: int
    role: str
    messages: tuple[Message, ...]
    answer: str


def find_prompt_example(home: RunFolder, policy: str, step: int) -> PromptExample | None:
    """Return the first short exchange of `policy` in the latest recorded step up to `step`, or None."""
    recorded = [recorded_step for recorded_step in home.recorded_steps() if recorded_step <= step]
    if not recorded:
        return None
    for trajectory in islice(home.iter_trajectories(recorded[-1]), _MAX_EPISODES):
        for turn in trajectory.turns:
            request, answer = turn.request, turn.completion.text
            plain = request.policy == policy and not request.continues and not request.tools
            length = sum(len(message.content) for message in request.messages)
            is_short = 0 < length < _MAX_CHARACTERS and len(answer) < _MAX_CHARACTERS
            if plain and is_short and turn.action is not None:
                return PromptExample(recorded[-1], turn.role, tuple(request.messages), answer)
    return None
