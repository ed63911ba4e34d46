"""A few turns of an evaluation, a line each: what was said, read, expected and earned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from marl.graph import Trajectory
from marl.types import Turn
from marl.view.verdicts import problem_of

_LONGEST_SAID, _LONGEST = 60, 30
"""Most characters of what was said, and of what it was read as and of what was expected."""


def examples(trajectories: Sequence[Trajectory], limit: int = 3) -> Iterator[str]:
    """Yield a line for one model's turn in each of up to `limit` episodes, with a different role each, if there are."""
    shown = 0
    for trajectory in trajectories:
        # Scripted players and verifiers sample no tokens.
        turns = [turn for turn in trajectory.turns if turn.completion.token_ids]
        if turns and shown < limit:
            roles = list(dict.fromkeys(turn.role for turn in turns))
            wanted = roles[shown % len(roles)]
            yield _line(next(turn for turn in reversed(turns) if turn.role == wanted), trajectory)
            shown += 1


def _line(turn: Turn, trajectory: Trajectory) -> str:
    read = "nothing" if turn.action is None else _quoted(turn.action, _LONGEST)
    expected = problem_of(trajectory)[1]
    parts = [f"said {_quoted(turn.completion.text, _LONGEST_SAID)}", f"read as {read}"]
    parts += [f"expected {_quoted(expected, _LONGEST)}"] if expected else []
    earned = trajectory.returns.get(turn.agent, 0.0)
    return f"  {turn.agent}: {', '.join(parts)}, earned {earned:.3g}"


def _quoted(text: str, length: int) -> str:
    """Return the end of a text, where answers stand, on one line."""
    line = " ".join(text.split())
    return repr(line if len(line) <= length else f"...{line[3 - length :]}")
