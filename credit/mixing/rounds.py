"""Division of an episode into a team's rounds, in which each agent has at most one turn."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from marl.core.graph import Trajectory
from marl.core.types import EdgeKind, Turn, TurnId
from marl.credit.assign.edges import INFORMATION
from marl.credit.assign.teams import Team


@dataclass(frozen=True, slots=True)
class Round:
    """Turns of a team that count as one step of time."""

    number: int
    """Index of the round, from 0."""
    turns: Sequence[Turn]
    """Turns in playing order."""
    reward: float
    """The team's reward in the round."""
    last: bool
    """True for the team's last round."""
    truncated: bool
    """True for the last round of a truncated episode: the rewards after it are unknown."""
    graph_features: tuple[float, ...]
    """`GRAPH_FEATURES` numbers: logarithms of 1 + the round's index, its number of turns, the number of turns that they
    read, and the longest chain of edges before them; and the density within the round, edges over pairs."""


GRAPH_FEATURES = 5
"""Number of features of a round's position in the trajectory graph."""


def rounds(
    trajectory: Trajectory, team: Team, by: Literal["reading", "turns"], along: Collection[EdgeKind] = INFORMATION
) -> Iterator[Round]:
    """Yield the rounds of a team, first to last.

    A reward belongs to the latest round that had begun at its payment, so it counts for every turn before it. A reward
    before the team's first turn belongs to the first round.

    Args:
        trajectory: the episode.
        team: the team of the rounds.
        by: `turns`: a round contains the agents' nth turns; `reading`: a round contains turns with equally long longest
            chains of edges before them, so none of them read another.
        along: kinds of edges that count.
    """
    team_turns = team.turns(trajectory)
    reads = {turn.id: trajectory.sources(turn.id, along) for turn in trajectory.turns}
    depth = _depths(trajectory, reads)
    numbers = [turn.nth if by == "turns" else depth[turn.id] for turn in team_turns]
    index_of = {number: index for index, number in enumerate(sorted(set(numbers)))}
    round_of: dict[TurnId, int] = {}
    turns_of: list[list[Turn]] = [[] for _ in index_of]
    for turn, number in zip(team_turns, numbers, strict=True):
        round_of[turn.id] = index_of[number]
        turns_of[index_of[number]].append(turn)
    rewards = _rewards(trajectory, team, round_of)
    for number, turns in enumerate(turns_of):
        features = (math.log1p(number), *_graph_features(turns, reads, depth))
        last = number + 1 == len(turns_of)
        yield Round(number, turns, rewards[number], last, last and trajectory.end == "truncated", features)


def _rewards(trajectory: Trajectory, team: Team, round_of: Mapping[TurnId, int]) -> list[float]:
    """Return the team's reward in each round."""
    rewards, begun = [0.0] * (max(round_of.values(), default=-1) + 1), 0
    by_turn = team.rewards_by_turn(trajectory)
    for turn in trajectory.turns:
        begun = max(begun, round_of.get(turn.id, 0))
        if turn.id in by_turn and rewards:
            rewards[begun] += by_turn[turn.id]
    return rewards


def _depths(trajectory: Trajectory, reads: Mapping[TurnId, Sequence[TurnId]]) -> dict[TurnId, int]:
    """Return turn -> length of the longest chain of edges before it; an agent's own earlier turns count as read."""
    depth: dict[TurnId, int] = {}
    latest: dict[str, int] = {}
    for turn in trajectory.turns:
        before = [depth[source] for source in reads.get(turn.id, ())]
        depth[turn.id] = latest[turn.agent] = max([*before, latest.get(turn.agent, -1)], default=-1) + 1
    return depth


def _graph_features(
    turns: Sequence[Turn], reads: Mapping[TurnId, Sequence[TurnId]], depth: Mapping[TurnId, int]
) -> tuple[float, ...]:
    ids = {turn.id for turn in turns}
    sources = [source for turn in turns for source in reads.get(turn.id, ())]
    pairs = len(turns) * (len(turns) - 1) / 2
    density = sum([source in ids for source in sources]) / pairs if pairs else 0.0
    deepest = max([depth[turn.id] for turn in turns])
    return math.log1p(len(turns)), math.log1p(len(sources)), math.log1p(deepest), density
