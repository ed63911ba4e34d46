"""Summary of one episode in a few terminal lines: each agent's answer and the parsed move."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from marl.core.graph import Trajectory
from marl.host.untrusted_text import escape_for_terminal
from marl.view.verifier_scores import question_and_right_answer, verifier_scores_in_turn

_LONGEST_ACTION = 24
"""Length limit of a displayed move [characters]."""


def brief_dialogue_lines(step: int, trajectory: Trajectory, width: int, max_lines: int) -> Iterator[Text]:
    """Yield an episode's summary: its returns, its question, and a line for each of its last turns.

    At most `max_lines` lines of at most `width` characters are yielded.
    """
    returns = ", ".join(f"{agent} {value:+.3g}" for agent, value in trajectory.returns.items())
    game = f" of {trajectory.deal.game}" if trajectory.deal.game else ""
    head = Text.assemble((f"episode {trajectory.id}{game}, step {step}: ", "bold"), returns or "nothing was paid")
    yield _truncated_escaped_line(head, width)
    max_lines -= 1
    if (question := question_and_right_answer(trajectory)[0]) and max_lines > 2:
        yield _truncated_escaped_line(Text(f"  {_to_escaped_line(question)}", "dim"), width)
        max_lines -= 1
    # Verifiers' turns are left out: the rewards already show what they decided.
    turns = [turn for turn in trajectory.turns if not verifier_scores_in_turn(turn)]
    for turn in turns[-max_lines:] if max_lines > 0 else []:
        move = "unreadable" if turn.action is None else _to_escaped_line(turn.action)
        move = move if len(move) <= _LONGEST_ACTION else f"{move[: _LONGEST_ACTION - 1]}…"
        agent, answer = f"  {escape_for_terminal(turn.agent)}: ", _to_escaped_line(turn.completion.text)
        # A long answer loses its beginning, because the move usually stands at its end.
        room = max(8, width - len(agent) - len(move) - 4)
        answer = answer if len(answer) <= room else f"…{answer[1 - room :]}"
        style = "red" if turn.action is None else "green"
        yield _truncated_escaped_line(Text.assemble((agent, "cyan"), answer, " → ", (move, style)), width)


def _to_escaped_line(text: str) -> str:
    """Return `text` on one line, with control characters escaped."""
    return escape_for_terminal(" ".join(text.split()))


def _truncated_escaped_line(text: Text, width: int) -> Text:
    """Return `text` on one line of at most `width` characters, with control characters escaped."""
    line = Text(escape_for_terminal(text.plain), spans=text.spans, no_wrap=True, overflow="ellipsis", end="\n")
    line.truncate(width, overflow="ellipsis")
    return line
