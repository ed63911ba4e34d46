"""Examples of an evaluation's turns, one line each: answer, parsed move, expected answer and return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from marl.core.graph import Trajectory
from marl.view.verifier_scores import question_and_right_answer

_MAX_ANSWER_CHARACTERS, _MAX_MOVE_CHARACTERS = 60, 30
"""Length limits [characters]: of a displayed answer, and of a displayed parsed move or expected answer."""


def example_model_turn_lines(trajectories: Sequence[Trajectory], limit: int = 3) -> Iterator[str]:
    """Yield a line for one model turn in each of up to `limit` episodes, cycling through the roles."""
    count = 0
    for trajectory in trajectories:
        # Each role's last turn with sampled tokens; scripted players and verifiers sample none.
        last_turns = {turn.role: turn for turn in trajectory.turns if turn.completion.token_ids}
        if last_turns and count < limit:
            turn = list(last_turns.values())[count % len(last_turns)]
            move = "nothing" if turn.action is None else _quote_last_characters(turn.action, _MAX_MOVE_CHARACTERS)
            expected = question_and_right_answer(trajectory)[1]
            parts = [f"said {_quote_last_characters(turn.completion.text, _MAX_ANSWER_CHARACTERS)}", f"read as {move}"]
            parts += [f"expected {_quote_last_characters(expected, _MAX_MOVE_CHARACTERS)}"] if expected else []
            earned = trajectory.returns.get(turn.agent, 0.0)
            yield f"  {turn.agent}: {', '.join(parts)}, earned {earned:.3g}"
            count += 1


def _quote_last_characters(text: str, length: int) -> str:
    """Return the last `length` characters of a text, quoted on one line. Answers usually stand at the end."""
    line = " ".join(text.split())
    return repr(line if len(line) <= length else f"...{line[3 - length :]}")
