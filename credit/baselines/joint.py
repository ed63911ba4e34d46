"""What a team did together against what it did in other episodes (MAGRPO)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from statistics import pstdev
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from credit.assign.teams import check_disjoint, named_teams
from credit.baselines.peers import Compared, Comparison, Pool, judged, mean, means, others, peer_of, prompt, turns_of
from marl.protocols import Evidence, Likeness, Peers
from marl.types import Advantage, Credit, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


class Joint(Comparison):
    """MAGRPO (arXiv 2508.04652): all turns of a team's members get the advantage of the joint return, R^j - mean.

    The joint return R^j of an episode is what `earned` says of the members: each member's is the mean of its turns',
    and `common` joins those of the members that this rule judges. That is meant for rules that give all turns of a
    member the same (`outcome`, `uniform`); numbers for single tokens are lost. A turn that several forks inherited was
    part of several joint actions: its R is their mean.

    `per: round` with `assign: {kind: outcome, to_go: true}` gives the paper's R_t = r_t + mean of the continuations'
    R_t+1, with gamma 1: a round's joint action is its members' nth turns, and it is compared with those in which all
    members were asked the same, token for token. That fits members who speak at once, and `experience: tree`; of
    episodes that have parted, later rounds have no peers and get 0. CoMLRL's cross mode, which pairs each answer of one
    member with every answer of the others, needs rewards of pairs that were never played: there is none here.
    """

    kind: str = "joint"
    teams: tuple[tuple[str, ...], ...] = ()
    """Agents that act jointly; agents in none of them act alone. Default: all are one team."""
    common: Literal["sum", "mean"] = "mean"
    """How the members' worths make the joint return: their mean, where all are paid the same or `assign` gives each
    what the team was paid; their sum, where each is paid a share of its own."""
    per: Literal["episode", "round"] = "episode"
    against: Literal["mean", "leave_one_out", "max"] = "mean"
    """What is subtracted: the mean of the group; that of the others (MARLOO); the best one (CoMLRL's "MAReMax", which
    is not ReMax: for that, see `greedy`)."""
    std: bool = False
    """Divide by max(std, epsilon), std with ddof 0: CoMLRL 1.4.3. Its older releases do not."""
    epsilon: float = Field(default=1e-6, ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_disjoint(self.teams)
        if self.std and self.against != "mean":
            raise ValueError(
                f"against: {self.against!r} makes no difference with std: true, which takes the mean off again (as in "
                "CoMLRL); use std: false, or against: mean"
            )
        return self

    @property
    def likeness(self) -> Likeness:
        return "start" if self.per == "episode" else "prompt"

    def compare(self, evidence: Evidence, earned: Credit) -> Compared:
        return super().compare(evidence, self._joined(evidence, earned))

    def pools(self, evidence: Evidence, earned: Credit) -> list[Pool]:
        found: dict[Hashable, dict[Hashable, dict[TurnId, Turn]]] = defaultdict(dict)
        for trajectory, team, turns in self._actions(evidence, earned):
            one, key = trajectory.id, (trajectory.start, team)
            if self.per == "round":
                asked = frozenset((turn.agent, turn.nth, prompt(turn)) for turn in turns.values())
                one, key = tuple(turns), (*key, asked)
            found[key][one] = turns
        return [[peer_of(turns, earned) for turns in pool.values()] for pool in found.values()]

    def peers(self, evidence: Evidence, earned: Credit) -> Peers:
        """Agent by agent: those who act together are compared as one, and are asked different things."""
        agents = {turn.id: turn.agent for _, turn in judged(evidence, earned)}
        groups: dict[Hashable, list[TurnId]] = defaultdict(list)
        for number, pool in enumerate(self.pools(evidence, earned)):
            for turn in turns_of(pool):
                groups[number, agents[turn]].append(turn)
        return Peers(self.likeness, list(groups.values()))

    def baselines(self, pool: Pool) -> Mapping[TurnId, float]:
        if self.against == "max":
            return dict.fromkeys(turns_of(pool), max(peer.worth for peer in pool))
        return others(pool) if self.against == "leave_one_out" else means(pool)

    def scale(self, worths: Sequence[float], spread: float) -> float:
        return 1 / max(pstdev(worths), self.epsilon) if self.std else 1.0

    def _joined(self, evidence: Evidence, earned: Credit) -> Credit:
        """Every turn is worth what the joint actions that it is part of are."""
        worths: dict[TurnId, list[float]] = defaultdict(list)
        for _, _, turns in self._actions(evidence, earned):
            members: dict[str, list[float]] = defaultdict(list)
            for turn in turns.values():
                members[turn.agent].append(earned[turn.id].value)
            own = [mean(values) for values in members.values()]
            joint = sum(own) if self.common == "sum" else mean(own)
            for turn in turns:
                worths[turn].append(joint)
        return {turn: Advantage(mean(joint), (), earned[turn].returns) for turn, joint in worths.items()}

    def _actions(self, evidence: Evidence, earned: Credit) -> Iterator[tuple[Trajectory, Hashable, dict[TurnId, Turn]]]:
        """Every joint action: its episode, whose it is, and the turns that it is made of.

        Raises:
            ValueError: if `teams` names an agent that the game does not have.
        """
        episodes: dict[str, tuple[Trajectory, list[Turn]]] = {}
        for trajectory, turn in judged(evidence, earned):
            episodes.setdefault(trajectory.id, (trajectory, []))[1].append(turn)
        for trajectory, spoken in episodes.values():
            seats = self._seats(trajectory, evidence)
            actions: dict[tuple[Hashable, int], dict[TurnId, Turn]] = defaultdict(dict)
            for turn in spoken:
                actions[seats[turn.agent], turn.nth if self.per == "round" else 0][turn.id] = turn
            for (team, _), turns in actions.items():
                yield trajectory, team, turns

    def _seats(self, trajectory: Trajectory, evidence: Evidence) -> dict[str, Hashable]:
        """Agent -> its team, with everybody's role."""
        roles = trajectory.deal.seats
        players = [agent for agent, role in roles.items() if role not in evidence.rules]
        teams = named_teams(self.teams, trajectory, players) if self.teams else [frozenset(players)]
        return {agent: frozenset((a, roles[a]) for a in team) for team in teams for agent in team}
