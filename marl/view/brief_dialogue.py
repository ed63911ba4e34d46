"""Summary of one episode in a few terminal lines: each agent's answer and the parsed move."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from marl.core.graph import Trajectory
from marl.core.types import Turn
from marl.host.outside import escape_for_terminal
from marl.view.verifier_scores import problem_of, scores_of

_LONGEST_ACTION = 24


def brief_dialogue(step: int, trajectory: Trajectory, width: int, lines: int) -> Iterator[Text]:
    """Yield at most `lines` lines of at most `width` characters, with the last turns of a long episode."""
    returns = ", ".join(f"{agent} {value:+.3g}" for agent, value in trajectory.returns.items())
    game = f" of {trajectory.deal.game}" if trajectory.deal.game else ""
    head = Text.assemble((f"episode {trajectory.id}{game}, step {step}: ", "bold"), returns or "nothing was paid")
    yield _cut(head, width)
    lines -= 1
    if (question := problem_of(trajectory)[0]) and lines > 2:
        yield _cut(Text(f"  {_one_line(question)}", "dim"), width)
        lines -= 1
    # Verifiers' turns are left out, because the rewards already contain their decisions.
    turns = [turn for turn in trajectory.turns if not scores_of(turn)]
    for turn in turns[-lines:] if lines > 0 else []:
        yield _turn(turn, width)


def _turn(turn: Turn, width: int) -> Text:
    """Return the end of the answer and the parsed move on one line. Moves usually stand at an answer's end."""
    move = "unreadable" if turn.action is None else _one_line(turn.action)
    move = move if len(move) <= _LONGEST_ACTION else f"{move[: _LONGEST_ACTION - 1]}…"
    agent, answer = f"  {escape_for_terminal(turn.agent)}: ", _one_line(turn.completion.text)
    room = max(8, width - len(agent) - len(move) - 4)
    answer = answer if len(answer) <= room else f"…{answer[1 - room :]}"
    style = "red" if turn.action is None else "green"
    return _cut(Text.assemble((agent, "cyan"), answer, " → ", (move, style)), width)


def _one_line(text: str) -> str:
    return escape_for_terminal(" ".join(text.split()))


def _cut(text: Text, width: int) -> Text:
    line = Text(escape_for_terminal(text.plain), spans=text.spans, no_wrap=True, overflow="ellipsis", end="\n")
    line.truncate(width, overflow="ellipsis")
    return line
