"""Who earned it: what was paid against what would have been, had somebody done something else, or nothing."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from credit.assign.coalitions import CoalitionAssign, Players
from credit.assign.playing import Courses
from credit.assign.shapley import (
    Coalition,
    Estimate,
    Worths,
    arcs,
    random_circles,
    sampled_shapley_values,
    shapley_values,
    subsets,
)
from credit.assign.teams import Team
from marl.protocols import Evidence, Simulator
from marl.seeds import seed_of
from marl.types import Completion, Fork, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


class LeaveOneOut(CoalitionAssign):
    """Each turn is worth what the team was paid minus what it would have been without the turn's agent.

    v(N) - v(N without i), as in CCPO (arXiv 2603.21563). It shares nothing out: what the agents get need not sum to
    what was paid.
    """

    kind: str = "leave_one_out"

    def judge(self, evidence: Evidence, courses: Courses) -> Iterator[tuple[TurnId, float]]:
        wanted = [(players, [players.all - {agent} for agent in players.turns]) for players in self.players(evidence)]
        for players, worths in self.played(wanted, courses):
            for agent, turns in players.turns.items():
                worth = worths[players.all] - worths[players.all - {agent}]
                yield from ((turn.id, worth) for turn in turns)


class Shapley(CoalitionAssign):
    """An agent is worth what it adds to those who are there before it comes, on average over all orders of coming.

    phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! [v(S + i) - v(S)]. The values of a team's agents sum to
    v(N) - v(nobody), what was paid minus `credit/nobody`. With n agents that take turns it takes 2^n - 1 courses of an
    episode, times `samples`; above `exact` agents it is estimated, from `orders` times n (n - 1) + 1 courses at most.
    """

    kind: str = "shapley"
    exact: int = Field(default=8, ge=0, le=16)
    """Most agents for which all coalitions are played."""
    orders: int = Field(default=4, ge=2)
    """How many random orders are drawn beyond that. Each is closed to a circle, along which the agents come from every
    place on and in both directions: 2n orders at half the price. `credit/standard_error` says what that leaves open."""
    split: Literal["copy", "equal"] = "copy"
    """What each turn of an agent gets: the agent's value, or an equal share of it, so that turns sum to it, too."""

    def judge(self, evidence: Evidence, courses: Courses) -> Iterator[tuple[TurnId, float]]:
        wanted = [(players, self._wanted(players, evidence.seed)) for players in self.players(evidence)]
        errors, nobody = [], []
        for players, worths in self.played(wanted, courses):
            values = self._values(players, worths, evidence.seed)
            errors += [value.error for value in values.values()]
            nobody.append(worths[Coalition()])
            for agent, turns in players.turns.items():
                share = values[agent].value / (len(turns) if self.split == "equal" else 1)
                yield from ((turn.id, share) for turn in turns)
        if errors:
            courses.metrics |= {"credit/standard_error": fmean(errors), "credit/nobody": fmean(nobody)}

    def _wanted(self, players: Players, seed: int) -> list[Coalition]:
        if len(players.turns) <= self.exact:
            return list(subsets(list(players.turns)))
        return [coalition for circle in self._circles(players, seed) for coalition in arcs(circle)]

    def _values(self, players: Players, worths: Worths, seed: int) -> Mapping[str, Estimate]:
        if len(players.turns) > self.exact:
            return sampled_shapley_values(self._circles(players, seed), worths)
        return {agent: Estimate(v, 0.0) for agent, v in shapley_values(list(players.turns), worths).items()}

    def _circles(self, players: Players, seed: int) -> list[tuple[str, ...]]:
        drawn = seed_of(seed, "shapley", players.trajectory.id, *sorted(players.turns))
        return random_circles(list(players.turns), self.orders, drawn)


class _Probe(NamedTuple):
    """A turn at which something else might have been said."""

    trajectory: Trajectory
    team: Team
    turn: Turn

    def fork(self, action: str, n: int) -> tuple[Fork, Team]:
        return Fork((self.trajectory.id, self.turn.id[1]), action, keeps=True, n=n), self.team

    @property
    def worth(self) -> float:
        return self.team.worth(self.trajectory)


class Difference(LeaveOneOut):
    """Each turn is worth what the team was paid minus what it would have been with something else in its place.

    D_i = G(a) - G(a_-i, c_i), the difference reward (Wolpert and Tumer 2002). Everybody else answers as in the recorded
    episode for as long as it is asked, word for word, what it was asked there, and anew otherwise.

    With `against: policy`, c_i is the mean over the turn's own policy: the aristocrat utility, COMA's advantage (arXiv
    1705.08926) with Q = G. It takes a finite list of legal moves, of which every other one is played, and their
    probabilities: those of the moves' canonical texts, divided by their sum. So credit's mean under the policy is 0.
    """

    kind: str = "difference"
    each: Literal["agent", "turn"] = "turn"
    """What is replaced: a single turn, or (as in `leave_one_out`) all turns of its agent. A turn that says nothing is
    asked again where the game's `illegal.retry` says so."""
    against: Literal["default", "policy"] = "default"
    """c_i: the move `default`, or the mean over what the policy might have said."""

    @model_validator(mode="after")
    def _single_turns(self) -> Self:
        if self.against == "policy" and self.each == "agent":
            raise ValueError(
                "each: 'agent' with against: 'policy'; a policy's moves are compared turn by turn: each: turn"
            )
        if self.against == "policy" and self.default is not None:
            raise ValueError(f"default: {self.default!r} has no effect with against: 'policy'; leave it out")
        return self

    def judge(self, evidence: Evidence, courses: Courses) -> Iterator[tuple[TurnId, float]]:
        """Turns and worths.

        Raises:
            ValueError: if a turn cannot be replaced by itself, or its policy has no finite list of moves.
        """
        if self.each == "agent":
            return LeaveOneOut.judge(self, evidence, courses)
        probes = [
            _Probe(trajectory, team, turn)
            for trajectory in evidence.trajectories
            for team, turns in self.judged(trajectory, evidence)
            for turn in turns
        ]
        _check_continued(evidence.trajectories, {probe.turn.role for probe in probes})
        return self._from_policy(probes, courses) if self.against == "policy" else self._from_default(probes, courses)

    def _from_default(self, probes: Sequence[_Probe], courses: Courses) -> Iterator[tuple[TurnId, float]]:
        moves = [self.instead(probe.trajectory, probe.turn.agent) or "" for probe in probes]
        forks = [probe.fork(move, self.samples) for probe, move in zip(probes, moves, strict=True)]
        for probe, worth in zip(probes, courses.worths(forks), strict=True):
            if worth is not None:
                yield probe.turn.id, probe.worth - worth

    def _from_policy(self, probes: Sequence[_Probe], courses: Courses) -> Iterator[tuple[TurnId, float]]:
        chances = _move_chances([probe.turn for probe in probes], courses.simulator)
        other = [
            (place, move, chance)
            for place, moves in enumerate(chances)
            for move, chance in moves.items()
            if move != probes[place].turn.action and chance > 0
        ]
        worths = courses.worths([probes[place].fork(move, self.samples) for place, move, _ in other])
        # The sum over all moves of chance times (G(a) - G(a_-i, move)); for the move that was played that is 0.
        better: list[list[float | None]] = [[] if moves else [None] for moves in chances]
        for (place, _, chance), worth in zip(other, worths, strict=True):
            better[place].append(None if worth is None else chance * (probes[place].worth - worth))
        for probe, parts in zip(probes, better, strict=True):
            known = [part for part in parts if part is not None]
            if len(known) == len(parts):
                yield probe.turn.id, math.fsum(known)


def _move_chances(turns: Sequence[Turn], simulator: Simulator) -> list[Mapping[str, float]]:
    """For each turn, legal move -> probability that its policy says the move's canonical text, over all legal moves; {}
    where it says none of them. The same question is asked once."""
    keys = [_question(turn) for turn in turns]
    questions = dict(zip(keys, turns, strict=True))
    asked = [(key, move, text) for key, turn in questions.items() for move, text in _options(turn).items()]
    scored = simulator.score([replace(simulator.address(questions[key]), forced=text) for key, _, text in asked])
    logs: dict[Hashable, dict[str, float]] = {key: {} for key in questions}
    for (key, move, _), said in zip(asked, scored, strict=True):
        logs[key][move] = math.fsum(said.logprobs) if isinstance(said, Completion) else -math.inf
    chances = {key: _normalised(each) for key, each in logs.items()}
    return [chances[key] for key in keys]


def _question(turn: Turn) -> Hashable:
    """All that the probabilities depend on."""
    request = turn.request
    return turn.role, request.messages, request.continues, request.state, tuple(_options(turn))


def _normalised(logs: Mapping[str, float]) -> dict[str, float]:
    most = max(logs.values())
    if most == -math.inf:
        return {}
    weights = {move: math.exp(log - most) for move, log in logs.items()}
    total = math.fsum(weights.values())
    return {move: weight / total for move, weight in weights.items()}


def _options(turn: Turn) -> Mapping[str, str]:
    if not turn.request.options:
        raise ValueError(
            f"against: 'policy' takes a finite list of legal moves, but role {turn.role!r} may say any text "
            f"(turn {turn.id}); choices: against: default, or other `roles`"
        )
    return turn.request.options


def _check_continued(trajectories: Sequence[Trajectory], roles: set[str]) -> None:
    """A turn that is played without its policy has no tokens that the agent's next prompt could continue."""
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.request.continues and turn.role in roles:
                raise ValueError(
                    f"each: 'turn' replaces what was said by a move without tokens, from which role {turn.role!r} "
                    "(history: append) cannot go on; choices: each: agent, or history: fresh"
                )
