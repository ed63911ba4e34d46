"""League play: each group of a step is played by a learning player against an opponent, such as earlier weights.

Players, exploiters and prioritised fictitious self-play: Vinyals et al. 2019, https://doi.org/10.1038/s41586-019-1724-z.
Equilibria of the pool's payoffs (PSRO): Lanctot et al. 2017, https://arxiv.org/abs/1711.00832.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Any

from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.types import Deal, Metrics
from marl.experience.league.matchmaking import entropy, probabilities, systematic_sample
from marl.experience.league.pool import POOL, SELF, Member, PolicyPool
from marl.experience.league.results import Payoffs, RecentResults, margin
from marl.experience.league.temporary_policies import play_with_temporary_policies
from marl.protocols import AddedPlayer, Deals, EngineConfig, Simulator, WeightArchive

if TYPE_CHECKING:
    from marl.experience.league.settings import League, LeaguePlayer


@dataclass(frozen=True, slots=True)
class Matchup:
    """Player and opponent of a group."""

    role: str
    """Role of the learning player."""
    opponent: str
    """`self`, or the name of the policy in the opponents' seats."""


@dataclass(slots=True)
class Progress:
    """Training progress of a player."""

    updates: int = 0
    """Updates since the start of the run or the latest reset."""
    resets: int = 0


class LeaguePlay:
    """Experience in which league players train: matches, the pool of earlier weights, and all results so far."""

    def __init__(self, settings: League) -> None:
        self._settings = settings
        self._pool, self._results, self._payoffs = PolicyPool(settings.keep), RecentResults(settings.decay), Payoffs()
        self._progress = {role: Progress() for role in settings.players}
        self._archive: WeightArchive | None = None
        self._metrics: Metrics = {}

    def set_archive(self, archive: WeightArchive) -> None:
        """Set the archive of the run's earlier weights."""
        self._archive = archive

    @property
    def archive(self) -> WeightArchive:
        """Return the archive of the run's earlier weights.

        Raises:
            RuntimeError: if it was never set.
        """
        if self._archive is None:
            raise RuntimeError(
                "a league keeps weights in the folder of a run: train it by marl.training.loop.TrainingLoop"
            )
        return self._archive

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return the episodes of a step's deals; each group is played by one player against one opponent."""
        if step == 0:
            for role, player in self._settings.players.items():
                policy = self.archive.policy_of(role)
                if player.every:
                    self._save_member(policy, 0)
                if player.reset:
                    self.archive.save_initial_state(policy)
        starts = list(deals(step))
        matches = self._fill_payoffs(list(starts[0].seats), simulator)
        plan = self._plan(step, list(dict.fromkeys(deal.group for deal in starts)))
        played, loads = self._play([self._with_match(deal, plan[deal.group]) for deal in starts], simulator)
        for trajectory in played:
            match = plan[trajectory.deal.group]
            if match.opponent != SELF:
                result = margin(trajectory, match.role, self._settings.opponent)
                self._results.add(self.archive.policy_of(match.role), match.opponent, result)
        metrics = {"league/matches": float(matches), "league/loads": float(loads)}
        self._metrics = metrics | self._match_metrics(list(plan.values()))
        return played

    def policies_updated(self, policies: Collection[str], step: int) -> None:
        """Count updates of the players in `policies`; add their weights to the pool or reset them when due."""
        for role, player in self._settings.players.items():
            policy = self.archive.policy_of(role)
            if policy not in policies:
                continue
            progress = self._progress[role]
            progress.updates += 1
            if self._is_reset_due(role, player):
                self._save_member(policy, step)
                self.archive.reset_policy(policy, step)
                self._results.forget(policy)
                progress.updates, progress.resets = 0, progress.resets + 1
            elif player.every and progress.updates % player.every == 0:
                self._save_member(policy, step)

    def metrics(self) -> Metrics:
        """Return `league/...` of the last step."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        return {
            "taken": {policy: [*versions] for policy, versions in self._pool.saved_versions.items()},
            "progress": {role: [progress.updates, progress.resets] for role, progress in self._progress.items()},
            "results": self._results.state_dict(),
            "payoffs": self._payoffs.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pool.restore(state["taken"])
        self._progress = {role: Progress(*state["progress"].get(role, ())) for role in self._settings.players}
        self._results.load_state_dict(state["results"])
        self._payoffs.load_state_dict(state["payoffs"])

    # --- the pool -----------------------------------------------------------------------------------------------------

    def _save_member(self, policy: str, step: int) -> None:
        """Add a policy's newest weights to the pool, and delete the weights and results of removed members."""
        self.archive.save(policy, step)
        self._pool.add(policy, step)
        self.archive.prune(policy, partial(self._pool.versions, policy))
        names = {member.name for member in self._pool.members()}
        self._payoffs.retain(names)
        for player in self._settings.players.values():
            names |= player.opponents.keys()
        self._results.retain(names)

    def _is_reset_due(self, role: str, player: LeaguePlayer) -> bool:
        reset = player.reset
        if reset is None:
            return False
        if reset.every is not None and self._progress[role].updates >= reset.every:
            return True
        opponents = [name for name in player.opponents if name not in (SELF, POOL)]
        opponents += [member.name for member in self._pool.members(player.pool)] if player.opponents.get(POOL) else []
        records = self._results.against(self.archive.policy_of(role), opponents)
        return reset.win_rate is not None and all(
            record.games >= reset.games and record.win_rate >= reset.win_rate for record in records
        )

    # --- matches ------------------------------------------------------------------------------------------------------

    def _plan(self, step: int, groups: Sequence[str]) -> dict[str, Matchup]:
        """Return group -> match."""
        choices: list[Matchup] = []
        weights: list[float] = []
        for role, player in self._settings.players.items():
            for name, weight in player.opponents.items():
                choices.append(Matchup(role, name))
                weights.append(player.share * (weight / sum(player.opponents.values())))
        drawn = systematic_sample(choices, weights, len(groups), self._offset(step, "opponent"))
        # Equal matches have consecutive groups, so that the seats of a match rotate from group to group.
        matches: list[Matchup] = []
        for match, equal_matches in groupby(drawn):
            matches += self._with_members(match, len([*equal_matches]), step)
        return dict(zip(groups, matches, strict=True))

    def _with_members(self, match: Matchup, count: int, step: int) -> list[Matchup]:
        """Return `count` matches in which members of the pool replace `pool`, or `self` if the pool is empty."""
        if match.opponent != POOL:
            return [match] * count
        members = self._pool.members(self._settings.players[match.role].pool)
        if not members:
            return [replace(match, opponent=SELF)] * count
        draws, offset = min(self._settings.draws, count), self._offset(step, match.role)
        drawn = systematic_sample(members, self._distribution(match.role, members), draws, offset)
        return [replace(match, opponent=drawn[index * draws // count].name) for index in range(count)]

    def _distribution(self, role: str, members: Sequence[Member]) -> list[float]:
        """Return each member's probability of being a player's opponent."""
        names, player = [member.name for member in members], self._settings.players[role]
        rates = [record.win_rate for record in self._results.against(self.archive.policy_of(role), names)]
        payoffs = self._payoffs.matrix(names) if player.by == "psro" else ()
        return probabilities(player.by, player.power, rates, payoffs)

    def _offset(self, step: int, purpose: str) -> float:
        """Return the random offset of systematic sampling, in [0, 1)."""
        return seed_of(self.archive.seed, "league", step, purpose) / 2**64

    # --- play ---------------------------------------------------------------------------------------------------------

    def _with_match(self, deal: Deal, match: Matchup) -> Deal:
        """Return the deal with the player of `match` in the players' seats, its opponent in the opponents' seats."""
        player_roles, policies = {*self._settings.players}, dict(deal.policies)
        if match.opponent == SELF:
            player_roles.add(self._settings.opponent)
        else:
            policies[self._settings.opponent] = match.opponent
        seats = {agent: match.role if role in player_roles else role for agent, role in deal.seats.items()}
        return replace(deal, seats=seats, policies=policies)

    def _play(self, deals: Sequence[Deal], simulator: Simulator) -> tuple[list[Trajectory], int]:
        """Return the episodes of `deals`, and the number of earlier weights that were loaded."""
        names: set[str] = set()
        for deal in deals:
            names |= {*deal.policies.values()}
        members: dict[str, AddedPlayer] = {}
        for member in self._pool.members():
            if member.name in names:
                members[member.name] = self.archive.saved_weights(*member)
        exported: dict[str, EngineConfig] = {}
        for name in sorted(names - members.keys()):
            if player := self.archive.exported_player(name):
                exported[name] = player
        for name, player in exported.items():
            simulator.add_policy(name, player)
        try:
            return play_with_temporary_policies(deals, members, self._settings.resident, simulator)
        finally:
            for name in exported:
                simulator.remove_policy(name)

    # --- payoffs of the pool ------------------------------------------------------------------------------------------

    def _fill_payoffs(self, agents: Sequence[str], simulator: Simulator) -> int:
        """Play missing matches between members of the pool for `psro`; return the number of episodes."""
        pairs: dict[tuple[str, str], str] = {}
        for role, player in self._settings.players.items():
            if player.by == "psro":
                names = [member.name for member in self._pool.members(player.pool)]
                pairs |= dict.fromkeys(self._payoffs.missing_pairs(names), role)
        matches = self._settings.matches
        deals: list[Deal] = []
        for pair, role in list(pairs.items())[: max(1, self._settings.budget // matches)]:
            deals += [self._trial(agents, role, pair, number) for number in range(matches)]
        played, _ = self._play(deals, simulator)
        for trajectory in played:
            (role, row), (other, column) = trajectory.deal.policies.items()
            # In a zero-sum game the row's return is half the difference of the returns.
            self._payoffs.add(row, column, margin(trajectory, role, other) / 2)
        return len(played)

    def _trial(self, agents: Sequence[str], role: str, pair: tuple[str, str], number: int) -> Deal:
        """Return the deal of an episode between two members of the pool.

        Two consecutive numbers have the same start with the seats exchanged.
        """
        name, roles = f"league.{'.'.join(pair)}.{number}", (role, self._settings.opponent)
        seats = dict(zip(agents, roles[:: 1 if number % 2 else -1], strict=True))
        start = seed_of(self.archive.seed, "league", *pair, number // 2)
        return Deal(name, name, start, seats, "eval", policies=dict(zip(roles, pair, strict=True)))

    # --- figures ------------------------------------------------------------------------------------------------------

    def _match_metrics(self, matches: Sequence[Matchup]) -> Metrics:
        """Return the metrics of the pool and of each player's matches in a step."""
        metrics: Metrics = {"league/pool": float(len(self._pool.members()))}
        for role, player in self._settings.players.items():
            policy, members = self.archive.policy_of(role), self._pool.members(player.pool)
            names = [member.name for member in members]
            met = [match.opponent for match in matches if match.role == role]
            opponents = [POOL if name in names else name for name in met]
            if opponents:
                for name in player.opponents:
                    metrics[f"league/{policy}/share/{name}"] = opponents.count(name) / len(opponents)
            if player.reset:
                metrics[f"league/{policy}/resets"] = float(self._progress[role].resets)
            if members and player.opponents.get(POOL):
                rates = [record.win_rate for record in self._results.against(policy, names)]
                metrics[f"league/{policy}/win_rate"] = fmean(rates)
                metrics[f"league/{policy}/win_rate_least"] = min(rates)
                metrics[f"league/{policy}/entropy"] = entropy(self._distribution(role, members))
        return metrics
