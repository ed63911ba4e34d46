"""Episodes as a team sees them: rounds, in which each agent has at most one turn."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from credit.assign.edges import INFORMATION
from marl.types import EdgeKind

if TYPE_CHECKING:
    from credit.assign.teams import Team
    from marl.graph import Trajectory
    from marl.types import Turn, TurnId


@dataclass(frozen=True, slots=True)
class Round:
    """Turns of a team that count as one step of time."""

    number: int
    """From 0."""
    turns: Sequence[Turn]
    """In playing order."""
    reward: float
    """The team's reward in it."""
    last: bool
    """True for the team's last round."""
    cut: bool
    """True for the last round of an episode that was truncated: what would have come after it is not known."""
    shape: tuple[float, ...]
    """Its place in the graph, in `SHAPE` numbers: logarithms of 1 + its number, its turns, the turns that they had
    read, and the longest chain of reading before them; and the density among them, edges over pairs."""


SHAPE = 5


def rounds(
    trajectory: Trajectory, team: Team, by: Literal["reading", "turns"], along: Collection[EdgeKind] = INFORMATION
) -> Iterator[Round]:
    """Yield the rounds of a team, first to last.

    A reward belongs to the latest round that had begun when it was paid, so that no turn before it loses it. What is
    paid before the team's first turn belongs to its first round.

    Args:
        by: `turns`: a round holds each agent's turn of one number; `reading`: turns before which the longest chain of
            reading is equally long, so that none of them had read another.
        along: kinds of edges that count as reading.
    """
    team_turns, reads = team.turns(trajectory), _reads(trajectory, along)
    depth = _depths(trajectory, reads)
    numbers = [turn.nth if by == "turns" else depth[turn.id] for turn in team_turns]
    place = {number: place for place, number in enumerate(sorted(set(numbers)))}
    round_of = {turn.id: place[number] for turn, number in zip(team_turns, numbers, strict=True)}
    played: list[list[Turn]] = [[] for _ in place]
    for turn in team_turns:
        played[round_of[turn.id]].append(turn)
    rewards = _rewards(trajectory, team, round_of)
    for number, turns in enumerate(played):
        shape = (math.log1p(number), *_shape(turns, reads, depth))
        last = number + 1 == len(played)
        yield Round(number, turns, rewards[number], last, last and trajectory.end == "truncated", shape)


def _rewards(trajectory: Trajectory, team: Team, round_of: Mapping[TurnId, int]) -> list[float]:
    """Return the team's reward in each round."""
    rewards, begun = [0.0] * (max(round_of.values(), default=-1) + 1), 0
    paid: dict[TurnId, float] = {}
    for reward in trajectory.rewards:
        if reward.agent in team.agents:
            paid[reward.turn] = paid.get(reward.turn, 0.0) + team.share * reward.value
    for turn in trajectory.turns:
        begun = max(begun, round_of.get(turn.id, 0))
        if turn.id in paid and rewards:
            rewards[begun] += paid[turn.id]
    return rewards


def _reads(trajectory: Trajectory, along: Collection[EdgeKind]) -> dict[TurnId, list[TurnId]]:
    """Return turn -> the turns that it had read."""
    return {turn.id: trajectory.sources(turn.id, along) for turn in trajectory.turns}


def _depths(trajectory: Trajectory, reads: Mapping[TurnId, Sequence[TurnId]]) -> dict[TurnId, int]:
    """Return turn -> the length of the longest chain of reading before it; an agent remembers its own turns."""
    depth: dict[TurnId, int] = {}
    latest: dict[str, int] = {}
    for turn in trajectory.turns:
        before = [depth[source] for source in reads.get(turn.id, ())]
        depth[turn.id] = latest[turn.agent] = max([*before, latest.get(turn.agent, -1)], default=-1) + 1
    return depth


def _shape(
    turns: Sequence[Turn], reads: Mapping[TurnId, Sequence[TurnId]], depth: Mapping[TurnId, int]
) -> tuple[float, ...]:
    ids = {turn.id for turn in turns}
    sources = [source for turn in turns for source in reads.get(turn.id, ())]
    pairs = len(turns) * (len(turns) - 1) / 2
    density = sum([source in ids for source in sources]) / pairs if pairs else 0.0
    deepest = max([depth[turn.id] for turn in turns])
    return math.log1p(len(turns)), math.log1p(len(sources)), math.log1p(deepest), density
