"""League play: each group of a step is played by a learning player against an opponent, such as earlier weights.

Players, exploiters and prioritised fictitious self-play: Vinyals et al. 2019, https://doi.org/10.1038/s41586-019-1724-z.
Equilibria of the pool's payoffs (PSRO): Lanctot et al. 2017, https://arxiv.org/abs/1711.00832.
Other mixtures of the pool: Balduzzi et al. 2019, https://arxiv.org/abs/1901.08106 (`rectified`);
Omidshafiei et al. 2019, https://arxiv.org/abs/1903.01373 (`alpha_rank`);
McAleer et al. 2022, https://arxiv.org/abs/2201.07700 (`anytime`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.state import MetricsReporter
from marl.core.types import Deal, Metrics
from marl.experience.league.matchmaking import (
    alpha_rank_probabilities,
    entropy,
    opponent_probabilities,
    psro_probabilities,
    systematic_sample,
)
from marl.experience.league.pool import POOL, SELF, PolicyPool, PoolMember
from marl.experience.league.restricted_mixture import RestrictedMixture
from marl.experience.league.results import MeanPayoffTable, RecentGameResults, payoff_matches, return_margin
from marl.experience.league.temporary_policies import play_with_temporary_policies
from marl.protocols import AddedPlayer, DealsOfStep, EngineConfig, SavedWeights, Simulator, WeightArchive

if TYPE_CHECKING:
    from marl.experience.league.settings import League, LeaguePlayer

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
league/pool | members | members of the pool at the step's end of play (`experience: league`)
league/loads | weights | members of the pool, and of populations, that were loaded for the step's episodes
league/matches | episodes | played in the step between members of the pool, for a meta-strategy (`by: psro`,
    `rectified` or `alpha_rank`); counted in `step/eval_tokens`
league/POLICY/share/OPPONENT | share of groups | groups of a player that met an opponent; `pool`, and the name of a
    population, stand for all members
league/POLICY/win_rate, win_rate_least | share of points | a player's results against the members that it may meet,
    later games counting more (a draw is half a point; .5 before the first game): mean over members, and the least
league/POLICY/entropy | nats | of the probabilities with which members of the pool are met: of the meta-strategy
    with `by: psro`
league/POLICY/resets | resets | times that a player has begun anew (`reset`)
"""


@dataclass(frozen=True, slots=True)
class Matchup:
    """Learning player and opponent in the episodes of one group."""

    role: str
    """Role of the learning player."""
    opponent: str
    """`self`, or the name of the policy in the opponents' seats."""
    population: str = ""
    """Population of the opponent, or "" if the opponent is no member of a population."""


@dataclass(slots=True)
class LeaguePlayerProgress:
    """Training progress of a player."""

    updates: int = 0
    """Number of updates since the start of the run or the latest reset."""
    resets: int = 0


class LeagueExperience(MetricsReporter):
    """Experience built from `League`: matches of the players, the pool of earlier weights, and all results so far."""

    def __init__(self, settings: League) -> None:
        self._settings = settings
        self._pool, self._payoffs = PolicyPool(settings.keep), MeanPayoffTable()
        self._results = RecentGameResults(settings.decay)
        self._progress = {role: LeaguePlayerProgress() for role in settings.players}
        anytime_roles = [role for role, player in settings.players.items() if player.by == "anytime"]
        self._mixtures = {role: RestrictedMixture() for role in anytime_roles}
        self._populations: dict[str, dict[str, tuple[SavedWeights, float]]] = {}
        """Population -> name of a member in `Deal.policies` -> weights and probability of the member."""
        self._archive: WeightArchive | None = None

    def set_archive(self, archive: WeightArchive) -> None:
        """Set the archive of the run's earlier weights."""
        self._archive = archive

    @property
    def archive(self) -> WeightArchive:
        """Return the archive of the run's earlier weights.

        Raises:
            RuntimeError: if the archive was never set.
        """
        if self._archive is None:
            raise RuntimeError(
                "a league keeps weights in the folder of a run: train it by marl.training.loop.TrainingLoop"
            )
        return self._archive

    def gather(self, step: int, deals: DealsOfStep, simulator: Simulator) -> list[Trajectory]:
        """Return the episodes of the step's deals. Each group is played by one player against one opponent."""
        if step == 0:
            self._read_populations()
            for role, player in self._settings.players.items():
                policy = self.archive.policy_of_role(role)
                if player.every:
                    self._add_policy_to_pool(policy, 0)
                if player.reset:
                    self.archive.save_initial_learner_state(policy)
        original_deals = list(deals(step))
        matches = self._play_for_payoffs(list(original_deals[0].seats), simulator)
        plan = self._plan_matches(step, list(dict.fromkeys(deal.group for deal in original_deals)))
        match_deals: list[Deal] = []
        for deal in original_deals:
            # The matched policy plays all roles in `players`; in self-play it also plays the role `opponent`.
            match, policies = plan[deal.group], dict(deal.policies)
            player_roles = {*self._settings.players}
            if match.opponent == SELF:
                player_roles.add(self._settings.opponent)
            else:
                policies[self._settings.opponent] = match.opponent
            seats = {agent: match.role if role in player_roles else role for agent, role in deal.seats.items()}
            match_deals.append(replace(deal, seats=seats, policies=policies))
        played, loads = self._play_with_pool_members(match_deals, simulator)
        for trajectory in played:
            match = plan[trajectory.deal.group]
            if match.opponent != SELF:
                result = return_margin(trajectory, match.role, self._settings.opponent)
                opponent = match.population or match.opponent
                self._results.add_game_result(self.archive.policy_of_role(match.role), opponent, result)
        self._update_mixtures(plan, played)
        metrics = {"league/matches": float(matches), "league/loads": float(loads)}
        self._metrics = metrics | self._match_metrics(list(plan.values()))
        return played

    def on_policies_updated(self, policies: Collection[str], step: int) -> None:
        """Count an update of the players with `policies`; when due, add weights to the pool, or reset players."""
        for role, player in self._settings.players.items():
            policy = self.archive.policy_of_role(role)
            if policy not in policies:
                continue
            progress = self._progress[role]
            progress.updates += 1
            if self._is_reset_due(role, player):
                self._add_policy_to_pool(policy, step)
                self.archive.reset_to_initial_state(policy, step)
                self._results.delete_results_of(policy)
                progress.updates, progress.resets = 0, progress.resets + 1
            elif player.every and progress.updates % player.every == 0:
                self._add_policy_to_pool(policy, step)

    def state_dict(self) -> dict[str, Any]:
        populations: dict[str, dict[str, list[Any]]] = {}
        for population, members in self._populations.items():
            populations[population] = {}
            for name, (weights, probability) in members.items():
                row = [weights.policy, str(weights.folder), weights.version, probability]
                populations[population][name] = row
        state: dict[str, Any] = {"populations": populations} if populations else {}
        if self._mixtures:
            state["mixtures"] = {role: mixture.state_dict() for role, mixture in self._mixtures.items()}
        return state | {
            "taken": {policy: [*versions] for policy, versions in self._pool.saved_versions.items()},
            "progress": {role: [progress.updates, progress.resets] for role, progress in self._progress.items()},
            "results": self._results.state_dict(),
            "payoffs": self._payoffs.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pool.restore_versions(state["taken"])
        self._progress = {
            role: LeaguePlayerProgress(*state["progress"].get(role, ())) for role in self._settings.players
        }
        self._results.load_state_dict(state["results"])
        self._payoffs.load_state_dict(state["payoffs"])
        for role, mixture in self._mixtures.items():
            mixture.load_state_dict(state["mixtures"][role])
        self._populations = {}
        for population in self._settings.populations:
            members = self._populations[population] = {}
            for name, (policy, folder, version, probability) in state["populations"][population].items():
                members[name] = (SavedWeights(policy, Path(folder), version), probability)

    def _read_populations(self) -> None:
        """Read the members of all populations, which stay the same to the end of the run."""
        policy = self.archive.policy_of_role(self._settings.opponent)
        for population, settings in self._settings.populations.items():
            members = self._populations[population] = {}
            for name, weights, probability in self.archive.population_members(settings.run, policy):
                members[f"{population}@{name}"] = (weights, probability)

    def _add_policy_to_pool(self, policy: str, step: int) -> None:
        """Add a policy's newest weights to the pool, and delete the weights and results of removed members."""
        self.archive.save(policy, step)
        self._pool.add_member(policy, step)
        self.archive.prune_weights(policy, partial(self._pool.member_versions_after_step, policy))
        names = set(self._pool.member_names())
        self._payoffs.delete_results_except(names)
        for role, mixture in self._mixtures.items():
            members = self._settings.players[role].pool
            if members is None or policy in members:
                mixture.start_phase(self._pool.member_names(members))
        for player in self._settings.players.values():
            names |= player.opponents.keys()
        self._results.delete_results_except(names)

    def _is_reset_due(self, role: str, player: LeaguePlayer) -> bool:
        reset = player.reset
        if reset is None:
            return False
        if reset.every is not None and self._progress[role].updates >= reset.every:
            return True
        if reset.win_rate is None:
            return False
        opponents = [name for name in player.opponents if name not in (SELF, POOL)]
        if player.opponents.get(POOL):
            opponents += self._pool.member_names(player.pool)
        for record in self._results.results_against(self.archive.policy_of_role(role), opponents):
            if record.games < reset.games or record.win_rate < reset.win_rate:
                return False
        return True

    def _plan_matches(self, step: int, group_names: Sequence[str]) -> dict[str, Matchup]:
        """Return group of episodes -> its match: a player drawn by its share, and opponents drawn by their weights."""
        choices: list[Matchup] = []
        weights: list[float] = []
        for role, player in self._settings.players.items():
            for name, weight in player.opponents.items():
                choices.append(Matchup(role, name))
                weights.append(player.share * (weight / sum(player.opponents.values())))
        drawn = systematic_sample(
            choices, weights, len(group_names), self._systematic_sampling_offset(step, "opponent")
        )
        # Groups of equal matches are consecutive, so that the rotation of seats covers all seats of a match.
        matches: list[Matchup] = []
        for match, count in Counter(drawn).items():
            members = self._pool.member_names(self._settings.players[match.role].pool)
            if match.opponent in self._populations:
                population = self._populations[match.opponent]
                weights = [probability for _, probability in population.values()]
                drawn_members = self._draw_members(step, match, count, list(population), weights)
                matches += [replace(match, opponent=name, population=match.opponent) for name in drawn_members]
            elif match.opponent != POOL:
                matches += [match] * count
            elif not members:
                # While the pool is empty, players play against themselves.
                matches += [replace(match, opponent=SELF)] * count
            else:
                weights = self._opponent_probabilities(match.role, self.archive.policy_of_role(match.role), members)
                drawn_members = self._draw_members(step, match, count, members, weights)
                matches += [replace(match, opponent=name) for name in drawn_members]
        return dict(zip(group_names, matches, strict=True))

    def _draw_members(
        self, step: int, match: Matchup, count: int, names: Sequence[str], weights: Sequence[float]
    ) -> list[str]:
        """Return the members in the opponents' seats of `count` groups: at most `draws` members, drawn by weight."""
        purpose = match.role if match.opponent == POOL else f"{match.role} {match.opponent}"
        draws = min(self._settings.draws, count)
        drawn = systematic_sample(names, weights, draws, self._systematic_sampling_offset(step, purpose))
        return [drawn[index * draws // count] for index in range(count)]

    def pool_members(self) -> list[PoolMember]:
        """Return all members of the pool, oldest first."""
        return self._pool.members()

    def member_probabilities(self, role: str, policy: str) -> dict[PoolMember, float]:
        """Return member -> probability under the meta-strategy of the player `role`, which speaks with `policy`.

        For most rules these are the probabilities of meeting the members. That of `rectified` is the whole equilibrium,
        that of `anytime` the average mixture of its last complete phase.
        """
        player = self._settings.players[role]
        members = self._pool.members(player.pool)
        if player.needs_payoffs:
            members = self._members_with_payoffs(members)
        if not members:
            return {}
        names = [member.name for member in members]
        if player.by == "anytime":
            probabilities = self._mixtures[role].average_probabilities(names)
        elif player.needs_payoffs:
            probabilities = self._meta_strategy(player, names)
        else:
            probabilities = self._opponent_probabilities(role, policy, names)
        return dict(zip(members, probabilities, strict=True))

    def population(self) -> dict[str, tuple[SavedWeights, float]]:
        """Return name of a member of the pool -> its weights, and its probability under the meta-strategy.

        The meta-strategy is that of the first player that meets the pool; without one, all probabilities are 0.
        """
        probabilities: dict[PoolMember, float] = {}
        for role, player in self._settings.players.items():
            if player.opponents.get(POOL) and not probabilities:
                probabilities = self.member_probabilities(role, self.archive.policy_of_role(role))
        population: dict[str, tuple[SavedWeights, float]] = {}
        for member in self._pool.members():
            population[member.name] = (self.archive.saved_weights(*member), probabilities.get(member, 0.0))
        return population

    def _members_with_payoffs(self, members: Sequence[PoolMember]) -> list[PoolMember]:
        """Return the members, oldest first, that have played all earlier members of the result.

        A newer member's payoffs would count as 0, and an equilibrium could choose it for this reason alone.
        """
        known: list[PoolMember] = []
        for member in members:
            if all(self._payoffs.games_of(earlier.name, member.name) for earlier in known):
                known.append(member)
        return known

    def _opponent_probabilities(self, role: str, policy: str, members: Sequence[str]) -> list[float]:
        """Return the probability that the player `role` meets each of `members`, which are names in the pool."""
        player = self._settings.players[role]
        if player.by == "anytime":
            return self._mixtures[role].draw_probabilities(members)
        rates = [record.win_rate for record in self._results.results_against(policy, members)]
        payoffs = self._payoffs.payoff_matrix(members) if player.needs_payoffs else ()
        own_indices = [index for index, name in enumerate(members) if name.rpartition("@")[0] == policy]
        return opponent_probabilities(player.by, player.power, rates, payoffs, max(own_indices, default=None))

    def _meta_strategy(self, player: LeaguePlayer, members: Sequence[str]) -> list[float]:
        """Return the mixture of `members` by their payoffs: of alpha-Rank, or their equilibrium."""
        payoffs = self._payoffs.payoff_matrix(members)
        return alpha_rank_probabilities(payoffs) if player.by == "alpha_rank" else psro_probabilities(payoffs)

    def _update_mixtures(self, plan: Mapping[str, Matchup], played: Sequence[Trajectory]) -> None:
        """Update the mixtures of `anytime` by the step's episodes against members of the pool."""
        for role, mixture in self._mixtures.items():
            members = self._pool.member_names(self._settings.players[role].pool)
            payoffs: dict[str, list[float]] = {}
            for trajectory in played:
                match = plan[trajectory.deal.group]
                if match.role == role and match.opponent in members:
                    margin = return_margin(trajectory, role, self._settings.opponent)
                    payoffs.setdefault(match.opponent, []).append(-margin / 2)
            mixture.update(payoffs)

    def _systematic_sampling_offset(self, step: int, purpose: str) -> float:
        """Return the random offset of systematic sampling, in [0, 1)."""
        return hash_to_seed(self.archive.seed, "league", step, purpose) / 2**64

    def _play_with_pool_members(self, deals: Sequence[Deal], simulator: Simulator) -> tuple[list[Trajectory], int]:
        """Return the episodes of `deals`, and the number of earlier weights that were loaded."""
        names: set[str] = set()
        for deal in deals:
            names |= {*deal.policies.values()}
        members: dict[str, AddedPlayer] = {}
        for member in self._pool.members():
            if member.name in names:
                members[member.name] = self.archive.saved_weights(*member)
        for population in self._populations.values():
            members |= {name: weights for name, (weights, _) in population.items() if name in names}
        exported: dict[str, EngineConfig] = {}
        for name in sorted(names - members.keys()):
            if player := self.archive.reference_player(name):
                exported[name] = player
        for name, player in exported.items():
            simulator.add_policy(name, player)
        try:
            return play_with_temporary_policies(deals, members, self._settings.resident, simulator)
        finally:
            for name in exported:
                simulator.remove_policy(name)

    def _play_for_payoffs(self, agents: Sequence[str], simulator: Simulator) -> int:
        """Play matches between members of the pool for their payoffs; return the number of episodes.

        Pairs without a payoff come first. If there are none, pairs in the support of the meta-strategy play on.
        """
        matches, settings = self._settings.matches, self._settings
        pairs: dict[tuple[str, str], str] = {}
        for role, player in settings.players.items():
            if player.needs_payoffs:
                names = self._pool.member_names(player.pool)
                pairs |= dict.fromkeys(self._payoffs.pairs_without_games(names), role)
        chosen = list(pairs.items())[: max(1, settings.budget // matches)]
        if not chosen:
            for role, player in settings.players.items():
                names = self._pool.member_names(player.pool) if player.needs_payoffs else []
                if len(names) > 1:
                    probabilities = self._meta_strategy(player, names)
                    refined = self._payoffs.pairs_by_worth(dict(zip(names, probabilities, strict=True)))
                    chosen += [(pair, role) for pair in refined[: settings.refine // matches]]
        deals: list[Deal] = []
        for pair, role in chosen:
            roles = (role, settings.opponent)
            first = self._payoffs.games_of(*pair)
            policies = dict(zip(roles, pair, strict=True))
            for deal in payoff_matches(pair, roles, agents, range(first, first + matches), self.archive.seed):
                deals.append(replace(deal, policies=policies))
        played, _ = self._play_with_pool_members(deals, simulator)
        for trajectory in played:
            (role, row), (other, column) = trajectory.deal.policies.items()
            # In a zero-sum game, a player's return is half the margin between the two returns.
            self._payoffs.add_game_result(row, column, return_margin(trajectory, role, other) / 2)
        return len(played)

    def _match_metrics(self, matches: Sequence[Matchup]) -> Metrics:
        """Return the metrics of the pool and of each player's matches in a step."""
        metrics: Metrics = {"league/pool": float(len(self._pool.members()))}
        for role, player in self._settings.players.items():
            policy, members = self.archive.policy_of_role(role), self._pool.member_names(player.pool)
            opponents = Counter[str]()
            for match in matches:
                if match.role == role:
                    opponents[match.population or (POOL if match.opponent in members else match.opponent)] += 1
            if opponents:
                for name in player.opponents:
                    metrics[f"league/{policy}/share/{name}"] = opponents[name] / opponents.total()
            if player.reset:
                metrics[f"league/{policy}/resets"] = float(self._progress[role].resets)
            if members and player.opponents.get(POOL):
                rates = [record.win_rate for record in self._results.results_against(policy, members)]
                metrics[f"league/{policy}/win_rate"] = fmean(rates)
                metrics[f"league/{policy}/win_rate_least"] = min(rates)
                metrics[f"league/{policy}/entropy"] = entropy(self._opponent_probabilities(role, policy, members))
        return metrics
