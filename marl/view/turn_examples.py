"""Examples of an evaluation's turns, one line each: answer, parsed move, expected answer and return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from marl.core.graph import Trajectory
from marl.core.types import Turn
from marl.view.verifier_scores import problem_of

_LONGEST_SAID, _LONGEST = 60, 30
"""Length limits of the answer, and of the parsed and expected answers [characters]."""


def example_lines(trajectories: Sequence[Trajectory], limit: int = 3) -> Iterator[str]:
    """Yield a line for one model turn in each of up to `limit` episodes, cycling through the roles."""
    count = 0
    for trajectory in trajectories:
        # Only models have token ids: scripted players and verifiers sample no tokens.
        turns = [turn for turn in trajectory.turns if turn.completion.token_ids]
        if turns and count < limit:
            roles = list(dict.fromkeys(turn.role for turn in turns))
            role = roles[count % len(roles)]
            yield _line(next(turn for turn in reversed(turns) if turn.role == role), trajectory)
            count += 1


def _line(turn: Turn, trajectory: Trajectory) -> str:
    move = "nothing" if turn.action is None else _quoted(turn.action, _LONGEST)
    expected = problem_of(trajectory)[1]
    parts = [f"said {_quoted(turn.completion.text, _LONGEST_SAID)}", f"read as {move}"]
    parts += [f"expected {_quoted(expected, _LONGEST)}"] if expected else []
    earned = trajectory.returns.get(turn.agent, 0.0)
    return f"  {turn.agent}: {', '.join(parts)}, earned {earned:.3g}"


def _quoted(text: str, length: int) -> str:
    """Return the quoted end of a text on one line. Answers usually stand at the end."""
    line = " ".join(text.split())
    return repr(line if len(line) <= length else f"...{line[3 - length :]}")
