"""Credit by comparing the reward with that of forks without some agents, or with other moves."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.types import Fork, Turn, TurnId
from marl.credit.assign.rollouts import CreditRollouts, RolloutAssign, text_probabilities
from marl.credit.assign.shapley import (
    Coalition,
    CoalitionValues,
    Estimate,
    arcs,
    random_circles,
    sampled_shapley_values,
    shapley_values,
    subsets,
)
from marl.credit.assign.teams import Team
from marl.protocols import Evidence, Simulator


@dataclass(frozen=True, slots=True)
class CoalitionPlayers:
    """The agents of a team whose turns in an episode get credit, in the order of their first turns."""

    trajectory: Trajectory
    team: Team
    turns: Mapping[str, Sequence[Turn]]

    @property
    def all(self) -> Coalition:
        """Return the coalition of all players."""
        return Coalition(self.turns)

    def outside(self, coalition: Coalition) -> list[str]:
        """Return the players outside `coalition`."""
        return [agent for agent in self.turns if agent not in coalition]


class CoalitionAssign(RolloutAssign):
    """Base of rules that compare with forks of the episode without some agents.

    The value of a coalition of players is the team's reward when all other players are muted: from the first turn of a
    muted player on, muted players make the move `default` at every turn. Every other agent repeats its recorded answer
    while its prompts equal those of the episode, word for word, and samples a new answer otherwise. So where all agents
    move at once, no token is spent. The value of all players together is the recorded reward, without a rollout.
    """

    default: str | dict[str, str | None] | None = None
    """Move of muted agents; as a mapping, the move of each role or agent. An agent without a move gives an empty
    answer, which a game with a list of moves treats as an illegal move."""

    def check_names(self, evidence: Evidence) -> None:
        """Raises:
        ValueError: if a setting names a role or an agent that the game does not have.
        """
        RolloutAssign.check_names(self, evidence)
        names: set[str] = set()
        for trajectory in evidence.trajectories:
            names.update(trajectory.deal.seats.keys(), trajectory.deal.seats.values())
        for name in self.default if isinstance(self.default, dict) and names else ():
            if name not in names:
                raise ValueError(f"default: no role or agent {name!r}; {choices_hint(name, sorted(names))}")

    def default_move(self, trajectory: Trajectory, agent: str) -> str | None:
        """Return the move of a muted agent, or None if it has none."""
        if not isinstance(self.default, dict):
            return self.default
        return self.default[agent] if agent in self.default else self.default.get(trajectory.deal.seats[agent])

    def players(self, evidence: Evidence) -> Iterator[CoalitionPlayers]:
        """Yield the players of every team of every episode, if there are any; an agent without a turn is no player."""
        for trajectory in evidence.trajectories:
            for team, credited in self.credited_turns(trajectory, evidence):
                turns: dict[str, list[Turn]] = {}
                for turn in credited:
                    turns.setdefault(turn.agent, []).append(turn)
                if turns:
                    yield CoalitionPlayers(trajectory, team, turns)

    def play_coalitions(
        self, coalitions: Sequence[tuple[CoalitionPlayers, Sequence[Coalition]]], rollouts: CreditRollouts
    ) -> Iterator[tuple[CoalitionPlayers, CoalitionValues]]:
        """Play all coalitions at once, each distinct one once, and yield the players with the values of coalitions.

        Players with a coalition that could not be played are left out.
        """
        missing: list[tuple[int, Coalition]] = []
        forks: list[tuple[Fork, Team]] = []
        for index, (players, needed) in enumerate(coalitions):
            for coalition in dict.fromkeys(needed):
                if outside := players.outside(coalition):
                    past = players.trajectory
                    first = min(players.turns[agent][0].id[1] for agent in outside)
                    muted = tuple([(agent, self.default_move(past, agent)) for agent in outside])
                    fork = Fork(past, first, scripted_moves=muted, keeps_unchanged_answers=True, n=self.samples)
                    missing.append((index, coalition))
                    forks.append((fork, players.team))
        values = [{players.all: players.team.total_reward(players.trajectory)} for players, _ in coalitions]
        for (index, coalition), value in zip(missing, rollouts.mean_rewards(forks), strict=True):
            if value is not None:
                values[index][coalition] = value
        for (players, needed), of_players in zip(coalitions, values, strict=True):
            if of_players.keys() >= set(needed):
                yield players, of_players


class LeaveOneOut(CoalitionAssign):
    """Each turn earns the team's reward minus its reward without the turn's agent.

    v(N) - v(N without i), as in CCPO (arXiv 2603.21563). The credit of the agents need not sum to the reward.
    """

    kind: str = "leave_one_out"

    def credit_values(self, evidence: Evidence, rollouts: CreditRollouts) -> Iterator[tuple[TurnId, float]]:
        coalitions: list[tuple[CoalitionPlayers, Sequence[Coalition]]] = []
        for players in self.players(evidence):
            coalitions.append((players, [players.all - {agent} for agent in players.turns]))
        for players, values in self.play_coalitions(coalitions, rollouts):
            for agent, turns in players.turns.items():
                earned = values[players.all] - values[players.all - {agent}]
                yield from ((turn.id, earned) for turn in turns)


class Shapley(CoalitionAssign):
    """An agent earns its contribution to the agents that joined before it, averaged over all orders of joining.

    phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! [v(S + i) - v(S)]. The values of a team's agents sum to
    v(N) - v(nobody), the reward minus `credit/nobody`. With n agents that take turns this takes 2^n - 1 rollouts of an
    episode, times `samples`; above `exact` agents the values are estimated, from at most `orders` times n (n - 1) + 1
    rollouts.
    """

    kind: str = "shapley"
    exact: int = Field(default=8, ge=0, le=16)
    """Maximum number of agents for which all coalitions are played."""
    orders: int = Field(default=4, ge=2)
    """Number of random orders of agents if there are more agents than `exact`. Each order is closed to a circle, along
    which agents join from every start and in both directions: 2n orders at half the cost. `credit/standard_error` is
    the standard error over circles."""
    split: Literal["copy", "equal"] = "copy"
    """Credit of an agent's turns: `copy`: the agent's value; `equal`: equal shares, so that turns sum to the value."""

    def credit_values(self, evidence: Evidence, rollouts: CreditRollouts) -> Iterator[tuple[TurnId, float]]:
        coalitions = [(players, self._coalitions(players, evidence.seed)) for players in self.players(evidence)]
        errors, nobody = [], []
        for players, values in self.play_coalitions(coalitions, rollouts):
            estimates = self._estimates(players, values, evidence.seed)
            errors += [estimate.error for estimate in estimates.values()]
            nobody.append(values[Coalition()])
            for agent, turns in players.turns.items():
                share = estimates[agent].value / (len(turns) if self.split == "equal" else 1)
                yield from ((turn.id, share) for turn in turns)
        if errors:
            rollouts.metrics |= {"credit/standard_error": fmean(errors), "credit/nobody": fmean(nobody)}

    def _coalitions(self, players: CoalitionPlayers, seed: int) -> list[Coalition]:
        if len(players.turns) <= self.exact:
            return list(subsets(list(players.turns)))
        return list(chain.from_iterable(map(arcs, self._circles(players, seed))))

    def _estimates(self, players: CoalitionPlayers, values: CoalitionValues, seed: int) -> Mapping[str, Estimate]:
        if len(players.turns) > self.exact:
            return sampled_shapley_values(self._circles(players, seed), values)
        return {agent: Estimate(v, 0.0) for agent, v in shapley_values(list(players.turns), values).items()}

    def _circles(self, players: CoalitionPlayers, seed: int) -> list[tuple[str, ...]]:
        # Seeded by episode and players, so that credit does not depend on the other episodes of the step.
        circle_seed = seed_of(seed, "shapley", players.trajectory.id, *sorted(players.turns))
        return random_circles(list(players.turns), self.orders, circle_seed)


class _Probe(NamedTuple):
    """A turn whose move is replaced in forks."""

    trajectory: Trajectory
    team: Team
    turn: Turn

    def fork(self, action: str, n: int) -> tuple[Fork, Team]:
        return Fork(self.trajectory, self.turn.id[1], action, keeps_unchanged_answers=True, n=n), self.team

    @property
    def reward(self) -> float:
        return self.team.total_reward(self.trajectory)


class Difference(LeaveOneOut):
    """Each turn earns the team's reward minus its reward with another move at this turn.

    D_i = G(a) - G(a_-i, c_i), the difference reward (Wolpert and Tumer 2002). Every other agent repeats its recorded
    answer while its prompts equal those of the episode, word for word, and samples a new answer otherwise.

    With `against: policy`, c_i is the mean over the turn's own policy: the aristocrat utility, COMA's advantage (arXiv
    1705.08926) with Q = G. This needs a finite list of legal moves; every other move is played. Its probability is that
    of the move's canonical text, divided by the sum over all moves. So the mean of credit under the policy is 0.
    """

    kind: str = "difference"
    each: Literal["agent", "turn"] = "turn"
    """Scope of the replacement: a single turn, or (as in `leave_one_out`) all turns of its agent. An empty answer is
    retried if the game's `illegal.retry` says so."""
    against: Literal["default", "policy"] = "default"
    """Alternative to the turn: the move `default`, or the mean over the answers of the turn's policy."""

    @model_validator(mode="after")
    def _check_policy(self) -> Self:
        if self.against == "policy" and self.each == "agent":
            raise ValueError(
                "each: 'agent' with against: 'policy'; a policy's moves are compared turn by turn: each: turn"
            )
        if self.against == "policy" and self.default is not None:
            raise ValueError(f"default: {self.default!r} has no effect with against: 'policy'; leave it out")
        return self

    def credit_values(self, evidence: Evidence, rollouts: CreditRollouts) -> Iterator[tuple[TurnId, float]]:
        """Return turns with their credit.

        Raises:
            ValueError: if a turn cannot be replaced by itself, or its policy has no finite list of moves.
        """
        if self.each == "agent":
            return LeaveOneOut.credit_values(self, evidence, rollouts)
        probes: list[_Probe] = []
        for trajectory in evidence.trajectories:
            for team, turns in self.credited_turns(trajectory, evidence):
                probes += [_Probe(trajectory, team, turn) for turn in turns]
        _check_history(evidence.trajectories, {probe.turn.role for probe in probes})
        if self.against == "policy":
            return self._against_policy(probes, rollouts)
        return self._against_default(probes, rollouts)

    def _against_default(self, probes: Sequence[_Probe], rollouts: CreditRollouts) -> Iterator[tuple[TurnId, float]]:
        forks: list[tuple[Fork, Team]] = []
        for probe in probes:
            move = self.default_move(probe.trajectory, probe.turn.agent) or ""
            forks.append(probe.fork(move, self.samples))
        for probe, value in zip(probes, rollouts.mean_rewards(forks), strict=True):
            if value is not None:
                yield probe.turn.id, probe.reward - value

    def _against_policy(self, probes: Sequence[_Probe], rollouts: CreditRollouts) -> Iterator[tuple[TurnId, float]]:
        probabilities = _move_probabilities([probe.turn for probe in probes], rollouts.simulator)
        alternatives: list[tuple[int, float]] = []
        forks: list[tuple[Fork, Team]] = []
        for index, (probe, moves) in enumerate(zip(probes, probabilities, strict=True)):
            for move, probability in moves.items():
                if move != probe.turn.action and probability > 0:
                    alternatives.append((index, probability))
                    forks.append(probe.fork(move, self.samples))
        # The sum over all moves of probability times (G(a) - G(a_-i, move)); the term of the played move is 0.
        terms: list[list[float] | None] = [[] if moves else None for moves in probabilities]
        for (index, probability), value in zip(alternatives, rollouts.mean_rewards(forks), strict=True):
            of_turn = terms[index]
            if value is None:
                terms[index] = None
            elif of_turn is not None:
                of_turn.append(probability * (probes[index].reward - value))
        for probe, of_turn in zip(probes, terms, strict=True):
            if of_turn is not None:
                yield probe.turn.id, math.fsum(of_turn)


def _move_probabilities(turns: Sequence[Turn], simulator: Simulator) -> list[Mapping[str, float]]:
    """Return, for each turn, legal move -> probability of its canonical text; {} if no text is possible.

    Equal questions are scored once.
    """
    keys: list[Hashable] = []
    for turn in turns:
        request = turn.request
        keys.append((turn.role, request.messages, request.continues, request.state, tuple(_options(turn))))
    questions = dict(zip(keys, turns, strict=True))
    requests = [(simulator.request_for(turn), list(_options(turn).values())) for turn in questions.values()]
    probabilities: dict[Hashable, Mapping[str, float]] = {}
    for (key, turn), row in zip(questions.items(), text_probabilities(requests, simulator), strict=True):
        # Not strict: the row is empty if no text is possible.
        probabilities[key] = dict(zip(_options(turn), row, strict=False))
    return [probabilities[key] for key in keys]


def _options(turn: Turn) -> Mapping[str, str]:
    """Return legal move -> canonical text.

    Raises:
        ValueError: if the game lists no moves at this turn.
    """
    if not turn.request.options:
        raise ValueError(
            f"against: 'policy' takes a finite list of legal moves, but role {turn.role!r} may say any text "
            f"(turn {turn.id}); choices: against: default, or other `roles`"
        )
    return turn.request.options


def _check_history(trajectories: Sequence[Trajectory], roles: set[str]) -> None:
    """Refuse prompts that continue an earlier turn: a turn replaced by a move has no tokens to continue."""
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.request.continues and turn.role in roles:
                raise ValueError(
                    f"each: 'turn' replaces what was said by a move without tokens, from which role {turn.role!r} "
                    "(history: append) cannot go on; choices: each: agent, or history: fresh"
                )
