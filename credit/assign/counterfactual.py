"""Credit by comparing what was paid with what would have been without some agents, or with other moves."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from credit.assign.playing import Courses, PlayingAssign, text_probabilities
from credit.assign.shapley import (
    Coalition,
    CoalitionValues,
    Estimate,
    arcs,
    random_circles,
    sampled_shapley_values,
    shapley_values,
    subsets,
)
from credit.assign.teams import Team
from marl.config import nearest
from marl.protocols import Evidence, Simulator
from marl.seeds import seed_of
from marl.types import Fork, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


@dataclass(frozen=True, slots=True)
class Players:
    """The agents of a team whose turns in an episode are to be judged, in the order of their first turns."""

    trajectory: Trajectory
    team: Team
    turns: Mapping[str, Sequence[Turn]]

    @property
    def all(self) -> Coalition:
        return Coalition(self.turns)

    def outside(self, coalition: Coalition) -> list[str]:
        """Return the players that are not in it."""
        return [agent for agent in self.turns if agent not in coalition]


class CoalitionAssign(PlayingAssign):
    """Base of rules that compare with what would have been without some agents.

    A coalition of players is worth what the team is paid when all other players are muted: from the first turn of one
    of them on, they play `default` at every turn. Everybody else answers as in the recorded episode for as long as the
    prompts are those of that episode, word for word, and anew otherwise. So where all move at once, not a token is
    spent. All players together are worth what was paid; they are not played again.
    """

    default: str | dict[str, str | None] | None = None
    """The move of muted agents; for each role or agent its own, as a mapping. An agent without one gives an empty
    answer, which a game with a list of moves takes for an illegal move."""

    def check_names(self, evidence: Evidence) -> None:
        """Raises:
        ValueError: if a setting names a role or an agent that is not there.
        """
        PlayingAssign.check_names(self, evidence)
        seats = {pair for trajectory in evidence.trajectories for pair in trajectory.deal.seats.items()}
        known = {name for pair in seats for name in pair}
        for name in self.default if isinstance(self.default, dict) and known else ():
            if name not in known:
                raise ValueError(f"default: no role or agent {name!r}; {nearest(name, sorted(known))}")

    def default_move(self, trajectory: Trajectory, agent: str) -> str | None:
        """Return the move that replaces those of an agent."""
        if not isinstance(self.default, dict):
            return self.default
        return self.default[agent] if agent in self.default else self.default.get(trajectory.deal.seats[agent])

    def players(self, evidence: Evidence) -> Iterator[Players]:
        """Yield the players of every team of every episode, if it has any; an agent without a turn is none."""
        for trajectory in evidence.trajectories:
            for team, judged in self.judged_turns(trajectory, evidence):
                turns: dict[str, list[Turn]] = {}
                for turn in judged:
                    turns.setdefault(turn.agent, []).append(turn)
                if turns:
                    yield Players(trajectory, team, turns)

    def play_coalitions(
        self, coalitions: Sequence[tuple[Players, Sequence[Coalition]]], courses: Courses
    ) -> Iterator[tuple[Players, CoalitionValues]]:
        """Play all coalitions at once, none twice, and yield what they are worth.

        Players of whom one coalition could not be played are left out.
        """
        missing = [
            (index, players, coalition)
            for index, (players, some) in enumerate(coalitions)
            for coalition in dict.fromkeys(some)
            if players.outside(coalition)
        ]
        forks = [(self._without(players, coalition), players.team) for _, players, coalition in missing]
        values = [{players.all: players.team.total_reward(players.trajectory)} for players, _ in coalitions]
        for (index, _, coalition), value in zip(missing, courses.mean_rewards(forks), strict=True):
            if value is not None:
                values[index][coalition] = value
        for (players, some), known in zip(coalitions, values, strict=True):
            if known.keys() >= set(some):
                yield players, known

    def _without(self, players: Players, coalition: Coalition) -> Fork:
        past, outside = players.trajectory, players.outside(coalition)
        first = min(players.turns[agent][0].id[1] for agent in outside)
        muted = tuple([(agent, self.default_move(past, agent)) for agent in outside])
        return Fork(past, first, muted=muted, keeps=True, n=self.samples)


class LeaveOneOut(CoalitionAssign):
    """Each turn earns what the team was paid minus what it would have been without the turn's agent.

    v(N) - v(N without i), as in CCPO (arXiv 2603.21563). It shares nothing out: what the agents get need not sum to
    what was paid.
    """

    kind: str = "leave_one_out"

    def judge(self, evidence: Evidence, courses: Courses) -> Iterator[tuple[TurnId, float]]:
        coalitions = [
            (players, [players.all - {agent} for agent in players.turns]) for players in self.players(evidence)
        ]
        for players, values in self.play_coalitions(coalitions, courses):
            for agent, turns in players.turns.items():
                earned = values[players.all] - values[players.all - {agent}]
                yield from ((turn.id, earned) for turn in turns)


class Shapley(CoalitionAssign):
    """An agent earns what it adds to those who are there before it comes, on average over all orders of coming.

    phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! [v(S + i) - v(S)]. The values of a team's agents sum to
    v(N) - v(nobody), what was paid minus `credit/nobody`. With n agents that take turns it takes 2^n - 1 courses of an
    episode, times `samples`; above `exact` agents it is estimated, from `orders` times n (n - 1) + 1 courses at most.
    """

    kind: str = "shapley"
    exact: int = Field(default=8, ge=0, le=16)
    """Most agents for which all coalitions are played."""
    orders: int = Field(default=4, ge=2)
    """Number of random orders of agents that are drawn where there are more agents than `exact`. Each is closed to a
    circle, along which the agents come from every place on and in both directions: 2n orders at half the price.
    `credit/standard_error` is their error."""
    split: Literal["copy", "equal"] = "copy"
    """Credit of an agent's turns: the agent's value, or an equal share of it, so that turns sum to it, too."""

    def judge(self, evidence: Evidence, courses: Courses) -> Iterator[tuple[TurnId, float]]:
        coalitions = [(players, self._coalitions(players, evidence.seed)) for players in self.players(evidence)]
        errors, nobody = [], []
        for players, values in self.play_coalitions(coalitions, courses):
            estimates = self._estimates(players, values, evidence.seed)
            errors += [estimate.error for estimate in estimates.values()]
            nobody.append(values[Coalition()])
            for agent, turns in players.turns.items():
                share = estimates[agent].value / (len(turns) if self.split == "equal" else 1)
                yield from ((turn.id, share) for turn in turns)
        if errors:
            courses.metrics |= {"credit/standard_error": fmean(errors), "credit/nobody": fmean(nobody)}

    def _coalitions(self, players: Players, seed: int) -> list[Coalition]:
        if len(players.turns) <= self.exact:
            return list(subsets(list(players.turns)))
        return [coalition for circle in self._circles(players, seed) for coalition in arcs(circle)]

    def _estimates(self, players: Players, values: CoalitionValues, seed: int) -> Mapping[str, Estimate]:
        if len(players.turns) > self.exact:
            return sampled_shapley_values(self._circles(players, seed), values)
        return {agent: Estimate(v, 0.0) for agent, v in shapley_values(list(players.turns), values).items()}

    def _circles(self, players: Players, seed: int) -> list[tuple[str, ...]]:
        circle_seed = seed_of(seed, "shapley", players.trajectory.id, *sorted(players.turns))
        return random_circles(list(players.turns), self.orders, circle_seed)


class _Probe(NamedTuple):
    """A turn at which another move might have been made."""

    trajectory: Trajectory
    team: Team
    turn: Turn

    def fork(self, action: str, n: int) -> tuple[Fork, Team]:
        return Fork(self.trajectory, self.turn.id[1], action, keeps=True, n=n), self.team

    @property
    def reward(self) -> float:
        return self.team.total_reward(self.trajectory)


class Difference(LeaveOneOut):
    """Each turn earns what the team was paid minus what it would have been with something else in its place.

    D_i = G(a) - G(a_-i, c_i), the difference reward (Wolpert and Tumer 2002). Everybody else answers as in the recorded
    episode for as long as the prompts are those of that episode, word for word, and anew otherwise.

    With `against: policy`, c_i is the mean over the turn's own policy: the aristocrat utility, COMA's advantage (arXiv
    1705.08926) with Q = G. It takes a finite list of legal moves, of which every other one is played, and their
    probabilities: those of the moves' canonical texts, divided by their sum. So credit's mean under the policy is 0.
    """

    kind: str = "difference"
    each: Literal["agent", "turn"] = "turn"
    """The part that is replaced: a single turn, or (as in `leave_one_out`) all turns of its agent. A turn that says
    nothing is asked again where the game's `illegal.retry` says so."""
    against: Literal["default", "policy"] = "default"
    """Course that a turn is compared with: the move `default`, or the mean over what the policy might have said."""

    @model_validator(mode="after")
    def _check_policy(self) -> Self:
        if self.against == "policy" and self.each == "agent":
            raise ValueError(
                "each: 'agent' with against: 'policy'; a policy's moves are compared turn by turn: each: turn"
            )
        if self.against == "policy" and self.default is not None:
            raise ValueError(f"default: {self.default!r} has no effect with against: 'policy'; leave it out")
        return self

    def judge(self, evidence: Evidence, courses: Courses) -> Iterator[tuple[TurnId, float]]:
        """Return turns and what they earned.

        Raises:
            ValueError: if a turn cannot be replaced by itself, or its policy has no finite list of moves.
        """
        if self.each == "agent":
            return LeaveOneOut.judge(self, evidence, courses)
        probes = [
            _Probe(trajectory, team, turn)
            for trajectory in evidence.trajectories
            for team, turns in self.judged_turns(trajectory, evidence)
            for turn in turns
        ]
        _check_history(evidence.trajectories, {probe.turn.role for probe in probes})
        judge = self._against_policy if self.against == "policy" else self._against_default
        return judge(probes, courses)

    def _against_default(self, probes: Sequence[_Probe], courses: Courses) -> Iterator[tuple[TurnId, float]]:
        moves = [self.default_move(probe.trajectory, probe.turn.agent) or "" for probe in probes]
        forks = [probe.fork(move, self.samples) for probe, move in zip(probes, moves, strict=True)]
        for probe, value in zip(probes, courses.mean_rewards(forks), strict=True):
            if value is not None:
                yield probe.turn.id, probe.reward - value

    def _against_policy(self, probes: Sequence[_Probe], courses: Courses) -> Iterator[tuple[TurnId, float]]:
        chances = _move_chances([probe.turn for probe in probes], courses.simulator)
        alternatives = [
            (place, move, chance)
            for place, moves in enumerate(chances)
            for move, chance in moves.items()
            if move != probes[place].turn.action and chance > 0
        ]
        values = courses.mean_rewards([probes[place].fork(move, self.samples) for place, move, _ in alternatives])
        # The sum over all moves of chance times (G(a) - G(a_-i, move)); for the move that was played that is 0.
        terms: list[list[float | None]] = [[] if moves else [None] for moves in chances]
        for (place, _, chance), value in zip(alternatives, values, strict=True):
            terms[place].append(None if value is None else chance * (probes[place].reward - value))
        for probe, parts in zip(probes, terms, strict=True):
            known = [part for part in parts if part is not None]
            if len(known) == len(parts):
                yield probe.turn.id, math.fsum(known)


def _move_chances(turns: Sequence[Turn], simulator: Simulator) -> list[Mapping[str, float]]:
    """Return for each turn: legal move -> probability that its policy says its canonical text; {} if it says none.

    Equal questions are scored once.
    """
    keys = [_question(turn) for turn in turns]
    questions = dict(zip(keys, turns, strict=True))
    requests = [(simulator.request_for(turn), list(_options(turn).values())) for turn in questions.values()]
    scored = zip(questions.items(), text_probabilities(requests, simulator), strict=True)
    chances = {key: dict(zip(_options(turn), row, strict=False)) for (key, turn), row in scored}
    return [chances[key] for key in keys]


def _question(turn: Turn) -> Hashable:
    """Return all that the probabilities depend on."""
    request = turn.request
    return turn.role, request.messages, request.continues, request.state, tuple(_options(turn))


def _options(turn: Turn) -> Mapping[str, str]:
    if not turn.request.options:
        raise ValueError(
            f"against: 'policy' takes a finite list of legal moves, but role {turn.role!r} may say any text "
            f"(turn {turn.id}); choices: against: default, or other `roles`"
        )
    return turn.request.options


def _check_history(trajectories: Sequence[Trajectory], roles: set[str]) -> None:
    """Refuse prompts that continue a turn: one that is played without its policy has no tokens to continue."""
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.request.continues and turn.role in roles:
                raise ValueError(
                    f"each: 'turn' replaces what was said by a move without tokens, from which role {turn.role!r} "
                    "(history: append) cannot go on; choices: each: agent, or history: fresh"
                )
