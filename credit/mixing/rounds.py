"""Division of an episode into a team's rounds, in which each agent has at most one turn."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from marl.core.graph import Trajectory
from marl.core.types import EdgeKind, Turn, TurnId
from marl.credit.assign.edges import INFORMATION
from marl.credit.assign.teams import CreditTeam


@dataclass(frozen=True, slots=True)
class Round:
    """Turns of a team in one episode that count as one time step."""

    number: int
    """Index of the round in the episode, from 0."""
    turns: Sequence[Turn]
    """Turns of the round, in playing order."""
    reward: float
    """The team's reward from this round until the next round begins."""
    last: bool
    """True for the team's last round of the episode."""
    truncated: bool
    """True for the last round of a truncated episode: the rewards after it are unknown."""
    graph_features: tuple[float, ...]
    """Position of the round in the trajectory graph, as five numbers. The first four are log(1 + x) of the round's
    index, of its number of turns, of the number of turns that its turns read, and of the longest chain of edges before
    its turns. The fifth is the density within the round: edges over pairs of turns."""


GRAPH_FEATURES = 5
"""Length of `Round.graph_features`."""


def team_rounds(
    trajectory: Trajectory,
    team: CreditTeam,
    grouping: Literal["reading", "turns"],
    edge_kinds: Collection[EdgeKind] = INFORMATION,
) -> Iterator[Round]:
    """Yield the rounds of a team in an episode, first to last.

    A reward belongs to the latest round that had begun at its payment, so it counts for every turn before it. A reward
    before the team's first turn belongs to the first round.

    Args:
        trajectory: the episode.
        team: the team of the rounds.
        grouping: `turns`: a round contains the agents' nth turns; `reading`: a round contains turns with equally long
            longest
            chains of edges before them, so none of them read another.
        edge_kinds: kinds of edges that count.
    """
    # The depth of a turn is the length of the longest chain of edges before it. An agent also reads its own last turn.
    depth: dict[TurnId, int] = {}
    reads: dict[TurnId, Sequence[TurnId]] = {}
    latest: dict[str, int] = {}
    for turn in trajectory.turns:
        reads[turn.id] = trajectory.sources(turn.id, edge_kinds)
        before = map(depth.__getitem__, reads[turn.id])
        depth[turn.id] = latest[turn.agent] = max([latest.get(turn.agent, -1), *before]) + 1
    # Depths may skip numbers that only other teams' turns have; rounds are renumbered without gaps.
    turns_at: dict[int, list[Turn]] = {}
    for turn in team.turns(trajectory):
        turns_at.setdefault(turn.nth if grouping == "turns" else depth[turn.id], []).append(turn)
    turns_of_round = list(map(turns_at.__getitem__, sorted(turns_at)))
    round_of: dict[TurnId, int] = {}
    for number, turns in enumerate(turns_of_round):
        for turn in turns:
            round_of[turn.id] = number
    rewards, begun = [0.0] * len(turns_of_round), 0
    by_turn = team.rewards_by_turn(trajectory)
    for turn in trajectory.turns:
        begun = max(begun, round_of.get(turn.id, 0))
        if turn.id in by_turn and rewards:
            rewards[begun] += by_turn[turn.id]
    for number, turns in enumerate(turns_of_round):
        deepest, sources, edges_within = 0, 0, 0
        for turn in turns:
            deepest = max(deepest, depth[turn.id])
            sources += len(reads[turn.id])
            edges_within += sum(round_of.get(source) == number for source in reads[turn.id])
        pairs = len(turns) * (len(turns) - 1) / 2
        density = edges_within / pairs if pairs else 0.0
        features = *map(math.log1p, (number, len(turns), sources, deepest)), density
        last = number + 1 == len(turns_of_round)
        yield Round(number, turns, rewards[number], last, last and trajectory.end == "truncated", features)
