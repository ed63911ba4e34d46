"""Example exchange for a model card: a recorded prompt and the policy's answer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from marl.core.types import Message
from marl.runs.run_folder import RunFolder

_MAX_CHARACTERS = 4000
"""Maximum length of the example's prompt, and of its answer, in characters."""
_MAX_EPISODES = 200
"""Maximum number of episodes that are searched for an example."""


@dataclass(frozen=True, slots=True)
class PromptExample:
    """Recorded prompt that continues no earlier turn, with the policy's answer."""

    step: int
    role: str
    messages: tuple[Message, ...]
    answer: str


def find_prompt_example(run_folder: RunFolder, policy: str, step: int) -> PromptExample | None:
    """Return the first short prompt of `policy`, with a legal answer, in the latest recorded step up to `step`.

    The result is None if no turn of the step qualifies.
    """
    recorded = [recorded_step for recorded_step in run_folder.recorded_steps() if recorded_step <= step]
    if not recorded:
        return None
    for trajectory in islice(run_folder.iter_trajectories(recorded[-1]), _MAX_EPISODES):
        for turn in trajectory.turns:
            request, answer = turn.request, turn.completion.text
            if request.policy != policy or request.continues or request.tools or turn.action is None:
                continue
            length = sum(len(message.content) for message in request.messages)
            if 0 < length < _MAX_CHARACTERS and len(answer) < _MAX_CHARACTERS:
                return PromptExample(recorded[-1], turn.role, tuple(request.messages), answer)
    return None
