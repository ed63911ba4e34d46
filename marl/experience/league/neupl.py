"""Play of a one-model population (NeuPL, Liu et al. 2022, https://arxiv.org/abs/2202.07415): all members learn at once.

One model plays all members; its prompt names the member. In each group of a step one member learns against an earlier
member, drawn by the interaction graph. Both speak with the newest weights, and only the learning member is trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.state import MetricsReporter
from marl.core.types import Deal
from marl.experience.league.matchmaking import (
    alpha_rank_probabilities,
    entropy,
    interaction_graph,
    latest_opponent_probabilities,
    psro_probabilities,
    systematic_sample,
    uniform_opponent_probabilities,
)
from marl.experience.league.results import MeanPayoffTable, payoff_matches, return_margin
from marl.protocols import DealsOfStep, Simulator, WeightArchive

if TYPE_CHECKING:
    from marl.experience.league.neupl_settings import OneModelPopulation

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
neupl/members | members | members that learn (`experience: neupl`)
neupl/matches | episodes | played in the step between members for their payoffs; counted in `step/eval_tokens`
neupl/entropy | nats | of the probabilities with which a member meets the earlier ones: mean over the members that learn
"""


class OneModelPopulationExperience(MetricsReporter):
    """Experience built from `OneModelPopulation`: matches between members, and the payoffs that set who meets whom."""

    def __init__(self, settings: OneModelPopulation) -> None:
        self._settings = settings
        self._payoffs = MeanPayoffTable()
        self._archive: WeightArchive | None = None

    def set_archive(self, archive: WeightArchive) -> None:
        """Set the archive of the run, which knows the run's seed and the policies of roles."""
        self._archive = archive

    def on_policies_updated(self, policies: Collection[str], step: int) -> None:
        """Keep nothing: all members play with the newest weights."""

    def gather(self, step: int, deals: DealsOfStep, simulator: Simulator) -> list[Trajectory]:
        """Return the episodes of the step's deals. In each group one member learns against an earlier one.

        All members that learn in a step have the same seat, and the seats alternate from step to step. So no member is
        compared with its own turns as an opponent, which have the same role, but another agent.

        Raises:
            RuntimeError: if the archive was never set.
        """
        if self._archive is None:
            raise RuntimeError("a population needs the seed of a run: train it by marl.training.loop.TrainingLoop")
        archive, members, planned = self._archive, self._settings.active_members(step), list(deals(step))
        agents = list(planned[0].seats)
        matches = self._play_for_payoffs(step, members, agents, simulator) if self._settings.needs_payoffs else 0
        graph = interaction_graph(self._settings.by, self._payoffs.payoff_matrix(members))
        groups = list(dict.fromkeys(deal.group for deal in planned))
        pairs = dict(zip(groups, self._pairs(step, graph, len(groups)), strict=True))
        changed: list[Deal] = []
        for deal in planned:
            pair = [members[index] for index in pairs[deal.group]]
            seats = dict(zip(agents, pair[:: -1 if step % 2 else 1], strict=True))
            # A role that `Deal.policies` names is not trained, though this opponent speaks with its own policy.
            policies = {pair[1]: archive.policy_of_role(pair[1])}
            changed.append(replace(deal, seats=seats, policies={**deal.policies, **policies}))
        self._metrics = {
            "neupl/members": float(len(members) - 1),
            "neupl/matches": float(matches),
            "neupl/entropy": fmean(map(entropy, graph[1:])),
        }
        return simulator.play(changed)

    def member_probabilities(self, step: int) -> dict[str, float]:
        """Return role of each member that has learned -> probability under the meta-strategy after `step` steps.

        The meta-strategy is that of `by` for a member after the last one, without the first member, which is not
        trained. Of `rectified` it is the whole equilibrium.
        """
        members = self._settings.active_members(max(0, step - 1))[1:]
        match self._settings.by:
            case "uniform":
                probabilities = uniform_opponent_probabilities(len(members))
            case "latest":
                probabilities = latest_opponent_probabilities(len(members))
            case "alpha_rank":
                probabilities = alpha_rank_probabilities(self._payoffs.payoff_matrix(members))
            case "psro" | "rectified":
                probabilities = psro_probabilities(self._payoffs.payoff_matrix(members))
        return dict(zip(members, probabilities, strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {"payoffs": self._payoffs.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._payoffs.load_state_dict(state["payoffs"])

    def _pairs(self, step: int, graph: Sequence[Sequence[float]], count: int) -> list[tuple[int, int]]:
        """Return the indices (learning member, opponent) of `count` groups; all members learn equally often."""
        learning = list(range(1, len(graph)))
        drawn = systematic_sample(learning, [1.0] * len(learning), count, self._offset(step, "learning"))
        pairs: list[tuple[int, int]] = []
        for index, groups in Counter(drawn).items():
            offset = self._offset(step, self._settings.members[index])
            opponents = systematic_sample(range(len(graph)), graph[index], groups, offset)
            pairs += [(index, opponent) for opponent in opponents]
        return pairs

    def _offset(self, step: int, purpose: str) -> float:
        """Return the random offset of systematic sampling, in [0, 1)."""
        assert self._archive is not None
        return hash_to_seed(self._archive.seed, "neupl", step, purpose) / 2**64

    def _play_for_payoffs(self, step: int, members: Sequence[str], agents: Sequence[str], simulator: Simulator) -> int:
        """Measure the payoffs of all pairs anew if it is time, else of pairs without games; return the number of
        episodes."""
        assert self._archive is not None
        if step % self._settings.every == 0:
            self._payoffs = MeanPayoffTable()
        deals: list[Deal] = []
        for pair in self._payoffs.pairs_without_games(members):
            # Names with the step make the matches of every measurement different ones.
            names = (f"{pair[0]}@{step:06d}", f"{pair[1]}@{step:06d}")
            deals += payoff_matches(names, pair, agents, range(self._settings.matches), self._archive.seed)
        played = simulator.play(deals)
        for trajectory in played:
            # The deal names its two members in the order of the agents; payoffs are stored under the earlier member.
            row, column = sorted(trajectory.deal.seats.values(), key=members.index)
            # In a zero-sum game, a player's return is half the margin between the two returns.
            self._payoffs.add_game_result(row, column, return_margin(trajectory, row, column) / 2)
        return len(played)
