"""What some agents of a team would have been paid without the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from credit.assign.playing import Courses, PlayingAssign
from credit.assign.shapley import Coalition, Worths
from credit.assign.teams import Team
from marl.config import nearest
from marl.protocols import Evidence
from marl.types import Fork, Turn

if TYPE_CHECKING:
    from marl.graph import Trajectory


@dataclass(frozen=True, slots=True)
class Players:
    """Those whose turns in an episode are to be judged, in the order of their first turns."""

    trajectory: Trajectory
    team: Team
    turns: Mapping[str, Sequence[Turn]]

    @property
    def all(self) -> Coalition:
        return Coalition(self.turns)

    def gone(self, coalition: Coalition) -> list[str]:
        """Players who are not in it."""
        return [agent for agent in self.turns if agent not in coalition]


class CoalitionAssign(PlayingAssign):
    """Base of rules that ask what would have been without some agents.

    A coalition of players is worth what the team is paid when all other players are muted: from the first turn of one
    of them on, they play `default` whenever they are asked. Everybody else answers as in the recorded episode for as
    long as it is asked, word for word, what it was asked there, and anew otherwise. So where all move at once, not a
    token is spent. All players together are worth what was paid; they are not played again.
    """

    default: str | dict[str, str | None] | None = None
    """The move of those who are muted; for each role or agent its own, as a mapping. Who has none says nothing, which
    a game with a list of moves takes for an illegal one."""

    def expect(self, evidence: Evidence) -> None:
        """Raises:
        ValueError: if a setting names a role or an agent that is not there.
        """
        PlayingAssign.expect(self, evidence)
        seats = {pair for trajectory in evidence.trajectories for pair in trajectory.deal.seats.items()}
        known = {name for pair in seats for name in pair}
        for name in self.default if isinstance(self.default, dict) and known else ():
            if name not in known:
                raise ValueError(f"default: no role or agent {name!r}; {nearest(name, sorted(known))}")

    def instead(self, trajectory: Trajectory, agent: str) -> str | None:
        """The move that stands for an agent's own."""
        if not isinstance(self.default, dict):
            return self.default
        return self.default[agent] if agent in self.default else self.default.get(trajectory.deal.seats[agent])

    def players(self, evidence: Evidence) -> Iterator[Players]:
        """The players of every team of every episode, if it has any; nobody is one who took no turn."""
        for trajectory in evidence.trajectories:
            for team, judged in self.judged(trajectory, evidence):
                turns: dict[str, list[Turn]] = {}
                for turn in judged:
                    turns.setdefault(turn.agent, []).append(turn)
                if turns:
                    yield Players(trajectory, team, turns)

    def played(
        self, wanted: Sequence[tuple[Players, Sequence[Coalition]]], courses: Courses
    ) -> Iterator[tuple[Players, Worths]]:
        """What the wanted coalitions are worth; all are played at once, and none twice. Without those players of whom
        one could not be played."""
        asked = [
            (number, players, coalition)
            for number, (players, coalitions) in enumerate(wanted)
            for coalition in dict.fromkeys(coalitions)
            if players.gone(coalition)
        ]
        forks = [(self._without(players, coalition), players.team) for _, players, coalition in asked]
        found = [{players.all: players.team.worth(players.trajectory)} for players, _ in wanted]
        for (number, _, coalition), worth in zip(asked, courses.worths(forks), strict=True):
            if worth is not None:
                found[number][coalition] = worth
        for (players, coalitions), worths in zip(wanted, found, strict=True):
            if worths.keys() >= set(coalitions):
                yield players, worths

    def _without(self, players: Players, coalition: Coalition) -> Fork:
        past, gone = players.trajectory, players.gone(coalition)
        first = min(players.turns[agent][0].id[1] for agent in gone)
        muted = tuple([(agent, self.instead(past, agent)) for agent in gone])
        return Fork((past.id, first), muted=muted, keeps=True, n=self.samples)
