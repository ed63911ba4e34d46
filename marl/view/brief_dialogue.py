"""One episode in a few lines of a terminal: what each agent answered and what was read from it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from marl.graph import Trajectory
from marl.text import for_terminal
from marl.types import Turn
from marl.view.verdicts import problem_of, scores_of

_LONGEST_ACTION = 24


def brief_dialogue(step: int, trajectory: Trajectory, width: int, lines: int) -> Iterator[Text]:
    """Yield at most `lines` lines of at most `width` characters; of many turns, the last ones."""
    returns = ", ".join(f"{agent} {value:+.3g}" for agent, value in trajectory.returns.items())
    game = f" of {trajectory.deal.game}" if trajectory.deal.game else ""
    head = Text.assemble((f"episode {trajectory.id}{game}, step {step}: ", "bold"), returns or "nothing was paid")
    yield _cut(head, width)
    lines -= 1
    if (question := problem_of(trajectory)[0]) and lines > 2:
        yield _cut(Text(f"  {_one_line(question)}", "dim"), width)
        lines -= 1
    # Verifiers' own turns are left out: what they decided is in the rewards.
    turns = [turn for turn in trajectory.turns if not scores_of(turn)]
    for turn in turns[-lines:] if lines > 0 else []:
        yield _turn(turn, width)


def _turn(turn: Turn, width: int) -> Text:
    """Return an answer's end, where the move stands, on one line."""
    read = "unreadable" if turn.action is None else _one_line(turn.action)
    read = read if len(read) <= _LONGEST_ACTION else f"{read[: _LONGEST_ACTION - 1]}…"
    agent, answer = f"  {for_terminal(turn.agent)}: ", _one_line(turn.completion.text)
    room = max(8, width - len(agent) - len(read) - 4)
    answer = answer if len(answer) <= room else f"…{answer[1 - room :]}"
    style = "red" if turn.action is None else "green"
    return _cut(Text.assemble((agent, "cyan"), answer, " → ", (read, style)), width)


def _one_line(text: str) -> str:
    return for_terminal(" ".join(text.split()))


def _cut(text: Text, width: int) -> Text:
    made = Text(for_terminal(text.plain), spans=text.spans, no_wrap=True, overflow="ellipsis", end="\n")
    made.truncate(width, overflow="ellipsis")
    return made
