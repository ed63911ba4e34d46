"""Episodes whose turns have lengths, prompts, problems and shared pasts, written down by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, TurnId
from tests.support.handmade_episodes import make_episode

Values = Mapping[str, Sequence[float]]
"""Episode -> what each of its turns earned."""


def detailed_episode(
    name: str,
    agents: Sequence[str],
    *,
    start: str = "",
    seats: Mapping[str, str] | None = None,
    prompts: Sequence[tuple[int, ...]] = (),
    lengths: Sequence[int] = (),
    problems: Sequence[str] = (),
) -> Trajectory:
    """Turns of `agents` in this order: asked `prompts`, answered in `lengths` tokens, on `problems`."""
    plain = make_episode(name, agents, start=start, prompts=prompts, seats=seats)
    made = Trajectory(plain.deal, start)
    for index, turn in enumerate(plain.turns):
        ids = (2,) * (lengths[index] if lengths else 1)
        completion = replace(turn.completion, token_ids=ids, logprobs=(-0.5,) * len(ids))
        made.add(replace(turn, completion=completion, problem=problems[index] if problems else ""), ())
    return made


def forked_episode(past: Trajectory, at: int, rest: Trajectory) -> Trajectory:
    """The course `rest`, whose turns before `at` are those of `past`."""
    made = Trajectory(rest.deal, past.start, past.turns[at].id)
    for turn in (*past.turns[:at], *rest.turns[at:]):
        made.add(turn, ())
    return made


def worth(values: Values) -> Credit:
    return {(name, index): Advantage(float(v)) for name, row in values.items() for index, v in enumerate(row)}


def numbers(credit: Credit) -> dict[TurnId, float]:
    return {turn: advantage.value for turn, advantage in credit.items()}
