"""Credit by comparing the reward with that of forks without some agents, or with other moves."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.seeds import episode_name_for_seeding, hash_to_seed
from marl.core.types import Fork, Turn, TurnId
from marl.credit.assign.rollouts import CreditRolloutPlayer, RolloutAssign, probabilities_among_texts
from marl.credit.assign.shapley import (
    Coalition,
    CoalitionValues,
    all_coalitions,
    arc_coalitions,
    random_circular_orders,
    sampled_shapley_values,
    shapley_values,
)
from marl.credit.assign.teams import CreditTeam
from marl.protocols import Evidence, Simulator

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
credit/standard_error | reward | mean standard error of estimated Shapley values; 0 where they are exact
credit/nobody | reward | mean reward of the rollout in which every agent gives an empty answer (`shapley`)
"""


@dataclass(frozen=True, slots=True)
class TeamPlayersInEpisode:
    """Players of one team in one episode: the agents whose turns get credit, in the order of their first turns."""

    trajectory: Trajectory
    team: CreditTeam
    turns: Mapping[str, Sequence[Turn]]
    """Player -> its credited turns."""

    @property
    def grand_coalition(self) -> Coalition:
        """Return the coalition of all players."""
        return Coalition(self.turns)


class CoalitionAssign(RolloutAssign):
    """Base of rules that compare an episode with forks in which some agents make a fixed move.

    Only agents with credited turns can be absent. The value of a coalition is the team's reward if all credited agents
    outside the coalition are absent. The fork begins at the first turn of an absent agent, and absent agents make the
    move `default` at all their turns. Every other agent repeats its recorded answer while its prompt equals the prompt
    in the episode, word for word; otherwise it samples a new answer. So a fork costs no tokens if all agents move at
    once. The value of all agents together is the recorded reward, without a rollout.
    """

    default: str | dict[str, str | None] | None = None
    """Move of absent agents; as a mapping, the move of each role or agent. An absent agent without a move gives an
    empty answer, which a game with a list of moves treats as an illegal move."""

    def refuse_unknown_roles_or_agents(self, evidence: Evidence) -> None:
        """Raise ValueError if a setting of the rule names a role or an agent that the game does not have."""
        RolloutAssign.refuse_unknown_roles_or_agents(self, evidence)
        names: set[str] = set()
        for trajectory in evidence.trajectories:
            names.update(trajectory.deal.seats.keys(), trajectory.deal.seats.values())
        for name in self.default if isinstance(self.default, dict) and names else ():
            if name not in names:
                raise ValueError(f"default: no role or agent {name!r}; {choices_hint(name, sorted(names))}")

    def replacement_move_of_absent_agent(self, trajectory: Trajectory, absent_agent: str) -> str | None:
        """Return the move of an absent agent, or None if `default` names no move for it."""
        if not isinstance(self.default, dict):
            return self.default
        return (
            self.default[absent_agent]
            if absent_agent in self.default
            else self.default.get(trajectory.deal.seats[absent_agent])
        )

    def credited_team_players(self, evidence: Evidence) -> Iterator[TeamPlayersInEpisode]:
        """Yield the players of each team of each episode; a team without credited turns has no players."""
        for trajectory in evidence.trajectories:
            for team, credited in self.credited_turns_by_team(trajectory, evidence):
                turns: dict[str, list[Turn]] = {}
                for turn in credited:
                    turns.setdefault(turn.agent, []).append(turn)
                if turns:
                    yield TeamPlayersInEpisode(trajectory, team, turns)

    def play_and_value_coalitions(
        self,
        coalitions_by_players: Sequence[tuple[TeamPlayersInEpisode, Sequence[Coalition]]],
        rollouts: CreditRolloutPlayer,
    ) -> Iterator[tuple[TeamPlayersInEpisode, CoalitionValues]]:
        """Play the given coalitions of each team's players, and yield the players with the values of their coalitions.

        Each distinct coalition is played once, and all forks at the same time. Players with a coalition that could not
        be played are left out.
        """
        values: list[dict[Coalition, float]] = []
        played: list[tuple[int, Coalition]] = []
        forks: list[tuple[Fork, CreditTeam]] = []
        for index, (players, needed) in enumerate(coalitions_by_players):
            past, team = players.trajectory, players.team
            values.append({players.grand_coalition: team.total_reward(past)})
            for coalition in dict.fromkeys(needed):
                moves = [
                    (agent, self.replacement_move_of_absent_agent(past, agent))
                    for agent in players.turns
                    if agent not in coalition
                ]
                if moves:
                    # `moves` is in the order of first turns, so the fork starts at the first turn of its first agent.
                    start = players.turns[moves[0][0]][0].id[1]
                    fork = Fork(past, start, scripted_moves=tuple(moves), keeps_unchanged_answers=True, n=self.samples)
                    played.append((index, coalition))
                    forks.append((fork, team))
        for (index, coalition), value in zip(played, rollouts.mean_team_reward_per_fork(forks), strict=True):
            if value is not None:
                values[index][coalition] = value
        for (players, needed), coalition_values in zip(coalitions_by_players, values, strict=True):
            if coalition_values.keys() >= set(needed):
                yield players, coalition_values


class LeaveOneAgentOut(CoalitionAssign):
    """Each turn earns the team's reward minus its reward without the turn's agent.

    Agent i's turns earn v(N) - v(N without i), as in CCPO (arXiv 2603.21563). The credit of the agents need not sum to
    the reward.
    """

    kind: str = "leave_one_out"

    def turn_credits_from_rollouts(
        self, evidence: Evidence, rollouts: CreditRolloutPlayer
    ) -> Iterator[tuple[TurnId, float]]:
        coalitions: list[tuple[TeamPlayersInEpisode, Sequence[Coalition]]] = []
        for players in self.credited_team_players(evidence):
            coalitions.append((players, [players.grand_coalition - {agent} for agent in players.turns]))
        for players, values in self.play_and_value_coalitions(coalitions, rollouts):
            for agent, turns in players.turns.items():
                earned = values[players.grand_coalition] - values[players.grand_coalition - {agent}]
                for turn in turns:
                    yield turn.id, earned


class Shapley(CoalitionAssign):
    """An agent earns its contribution to the agents that joined before it, averaged over all orders of joining.

    phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! [v(S + i) - v(S)]. The values of a team's agents sum to
    v(N) - v(nobody), the reward minus `credit/nobody`. For n agents with turns, an episode takes 2^n - 1 rollouts times
    `samples`. Above `exact` agents the values are estimated, from at most `orders` times n (n - 1) + 1 rollouts.
    """

    kind: str = "shapley"
    exact: int = Field(default=8, ge=0, le=16)
    """Maximum number of agents for which all coalitions are played."""
    orders: int = Field(default=4, ge=2)
    """Number of random orders of the n agents, used if n is above `exact`. Each order is closed to a circle: agents
    join along the circle from each of its n starts, in both directions. So an order gives 2n orders at half the cost.
    `credit/standard_error` is the standard error over circles."""
    split: Literal["copy", "equal"] = "copy"
    """Credit of an agent's turns: `copy`: the agent's value; `equal`: equal shares, so that turns sum to the value."""

    def turn_credits_from_rollouts(
        self, evidence: Evidence, rollouts: CreditRolloutPlayer
    ) -> Iterator[tuple[TurnId, float]]:
        coalitions: list[tuple[TeamPlayersInEpisode, Sequence[Coalition]]] = []
        for players in self.credited_team_players(evidence):
            if len(players.turns) <= self.exact:
                coalitions.append((players, list(all_coalitions(list(players.turns)))))
            else:
                circles = self._draw_circular_orders(players, evidence.seed)
                coalitions.append((players, list(chain.from_iterable(map(arc_coalitions, circles)))))
        errors: list[float] = []
        nobody: list[float] = []
        for players, values in self.play_and_value_coalitions(coalitions, rollouts):
            if len(players.turns) <= self.exact:
                shapley = shapley_values(list(players.turns), values)
                errors += [0.0] * len(shapley)
            else:
                estimates = sampled_shapley_values(self._draw_circular_orders(players, evidence.seed), values)
                shapley: dict[str, float] = {}
                for agent, estimate in estimates.items():
                    shapley[agent] = estimate.value
                    errors.append(estimate.error)
            nobody.append(values[Coalition()])
            for agent, turns in players.turns.items():
                share = shapley[agent] / (len(turns) if self.split == "equal" else 1)
                for turn in turns:
                    yield turn.id, share
        if errors:
            rollouts.metrics |= {"credit/standard_error": fmean(errors), "credit/nobody": fmean(nobody)}

    def _draw_circular_orders(self, players: TeamPlayersInEpisode, seed: int) -> list[tuple[str, ...]]:
        # The seed depends on the episode and its players, so that credit does not depend on the step's other episodes.
        circle_seed = hash_to_seed(
            seed, "shapley", episode_name_for_seeding(players.trajectory.id), *sorted(players.turns)
        )
        return random_circular_orders(list(players.turns), self.orders, circle_seed)


class _TurnWithReplacedMove(NamedTuple):
    """A turn whose move is replaced in forks of its episode."""

    trajectory: Trajectory
    team: CreditTeam
    turn: Turn
    reward: float
    """The team's reward in the recorded episode."""


class DifferenceReward(LeaveOneAgentOut):
    """Each turn earns the team's reward minus its reward with another move at this turn.

    D_i = G(a) - G(a_-i, c_i), the difference reward (Wolpert and Tumer 2002). Every other agent repeats its recorded
    answer while its prompt equals the prompt in the episode, word for word; otherwise it samples a new answer.

    With `against: policy`, c_i is the mean over the turn's own policy: the aristocrat utility, COMA's advantage (arXiv
    1705.08926) with Q = G. This needs a finite list of legal moves; every other move is played. The probability of a
    move is the probability of its canonical text, divided by the sum over all moves. So the mean of credit under the
    policy is 0.
    """

    kind: str = "difference"
    each: Literal["agent", "turn"] = "turn"
    """Scope of the replacement: a single turn, or (as in `leave_one_out`) all turns of its agent. An empty answer is
    retried if the game's `illegal.retry` says so."""
    against: Literal["default", "policy"] = "default"
    """Alternative to the turn: the move `default`, or the mean over the answers of the turn's policy."""

    @model_validator(mode="after")
    def _check_policy_comparison_settings(self) -> Self:
        if self.against == "policy" and self.each == "agent":
            raise ValueError(
                "each: 'agent' with against: 'policy'; a policy's moves are compared turn by turn: each: turn"
            )
        if self.against == "policy" and self.default is not None:
            raise ValueError(f"default: {self.default!r} has no effect with against: 'policy'; leave it out")
        return self

    def turn_credits_from_rollouts(
        self, evidence: Evidence, rollouts: CreditRolloutPlayer
    ) -> Iterator[tuple[TurnId, float]]:
        """Yield each credited turn with its credit.

        Raises:
            ValueError: if a turn cannot be replaced alone, or its policy has no finite list of moves.
        """
        if self.each == "agent":
            yield from LeaveOneAgentOut.turn_credits_from_rollouts(self, evidence, rollouts)
            return
        replaced: list[_TurnWithReplacedMove] = []
        replaced_turns: list[Turn] = []
        for trajectory in evidence.trajectories:
            for team, turns in self.credited_turns_by_team(trajectory, evidence):
                reward = team.total_reward(trajectory)
                for turn in turns:
                    replaced.append(_TurnWithReplacedMove(trajectory, team, turn, reward))
                replaced_turns += turns
        _refuse_continued_prompts(evidence.trajectories, {turn.role for turn in replaced_turns})
        # For each turn, the alternative moves that replace it, with their probabilities.
        alternatives: list[Mapping[str, float]] = []
        if self.against == "policy":
            alternatives = _probabilities_of_legal_moves(replaced_turns, rollouts.simulator)
        else:
            for trajectory, _, turn, _ in replaced:
                alternatives.append({self.replacement_move_of_absent_agent(trajectory, turn.agent) or "": 1.0})
        forks: list[tuple[Fork, CreditTeam]] = []
        fork_weights: list[tuple[int, float]] = []
        for index, (trajectory, team, turn, _) in enumerate(replaced):
            for move, probability in alternatives[index].items():
                # The policy's own move needs no fork: its difference from the recorded reward is 0.
                if self.against == "default" or (move != turn.action and probability > 0):
                    fork = Fork(trajectory, turn.id[1], move, keeps_unchanged_answers=True, n=self.samples)
                    forks.append((fork, team))
                    fork_weights.append((index, probability))
        # The credit of a turn is the sum over alternative moves of probability times (recorded reward - fork's reward).
        terms: dict[int, list[float]] = defaultdict(list)
        unplayable: set[int] = set()
        for (index, probability), value in zip(fork_weights, rollouts.mean_team_reward_per_fork(forks), strict=True):
            if value is None:
                unplayable.add(index)
            else:
                terms[index].append(probability * (replaced[index].reward - value))
        for index, (_, _, turn, _) in enumerate(replaced):
            if alternatives[index] and index not in unplayable:
                yield turn.id, math.fsum(terms[index])


def _refuse_continued_prompts(trajectories: Sequence[Trajectory], roles: set[str]) -> None:
    """Raise ValueError if a prompt of one of `roles` continues an earlier turn, as replaced turns have no tokens."""
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.request.continues and turn.role in roles:
                raise ValueError(
                    f"each: 'turn' replaces what was said by a move without tokens, from which role {turn.role!r} "
                    "(history: append) cannot go on; choices: each: agent, or history: fresh"
                )


def _probabilities_of_legal_moves(turns: Sequence[Turn], simulator: Simulator) -> list[Mapping[str, float]]:
    """Return, for each turn, legal move -> probability of its canonical text, or {} if all texts have probability 0.

    Equal prompts with equal moves are scored once.

    Raises:
        ValueError: if the game lists no moves at a turn.
    """
    keys: list[Hashable] = []
    questions: dict[Hashable, tuple[Turn, Mapping[str, str]]] = {}
    for turn in turns:
        request = turn.request
        if not request.options:
            raise ValueError(
                f"against: 'policy' takes a finite list of legal moves, but role {turn.role!r} may say any text "
                f"(turn {turn.id}); choices: against: default, or other `roles`"
            )
        keys.append((turn.role, request.messages, request.continues, request.state, tuple(request.options)))
        questions[keys[-1]] = turn, request.options
    requests = [
        (simulator.request_to_current_policy(turn), list(options.values())) for turn, options in questions.values()
    ]
    probabilities: dict[Hashable, Mapping[str, float]] = {}
    for (key, (_, options)), row in zip(questions.items(), probabilities_among_texts(requests, simulator), strict=True):
        # `row` has no probabilities if all texts have probability 0, so `zip` may not be strict.
        probabilities[key] = dict(zip(options, row, strict=False))
    return list(map(probabilities.__getitem__, keys))
