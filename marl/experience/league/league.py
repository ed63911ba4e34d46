"""League play: every group of a step gets a player that learns and an opponent; earlier weights are kept on the way.

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

from marl.experience.league.matchmaking import POOL, SELF, entropy, probabilities, shared_out
from marl.experience.league.payoff import Payoffs, RecentResults, margin
from marl.experience.league.pool import Member, Pool
from marl.experience.league.visits import play_with_guests
from marl.protocols import Archive, Deals, Player, Simulator
from marl.seeds import seed_of
from marl.types import Deal, Metrics

if TYPE_CHECKING:
    from marl.experience.league.settings import League, LeaguePlayer
    from marl.graph import Trajectory


@dataclass(frozen=True, slots=True)
class Match:
    """Player of a group, and its opponent by name."""

    role: str
    opponent: str
    """`self`, or the policy or player that takes the opponents' seats."""


@dataclass(slots=True)
class Progress:
    """Progress of a player."""

    updates: int = 0
    """Updates since it began, or began anew."""
    resets: int = 0


class LeaguePlay:
    """Players of a league, their pool, and all results so far."""

    def __init__(self, settings: League) -> None:
        self._settings = settings
        self._pool, self._results, self._payoffs = Pool(settings.keep), RecentResults(settings.decay), Payoffs()
        self._progress = {role: Progress() for role in settings.players}
        self._archive: Archive | None = None
        self._metrics: Metrics = {}

    def follow(self, archive: Archive) -> None:
        """Take the archive of the run."""
        self._archive = archive

    @property
    def archive(self) -> Archive:
        """Return the archive that was taken.

        Raises:
            RuntimeError: if there is none.
        """
        if self._archive is None:
            raise RuntimeError("a league keeps weights in the folder of a run: train it by marl.training.loop.Training")
        return self._archive

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return the episodes of the deals, each group played by one player against one opponent."""
        if step == 0:
            self._begin()
        starts = list(deals(step))
        matches = self._fill_payoffs(list(starts[0].seats), simulator)
        plan = self._plan(step, list(dict.fromkeys(deal.group for deal in starts)))
        played, loads = self._play([self._seated(deal, plan[deal.group]) for deal in starts], simulator)
        for trajectory in played:
            self._record(trajectory, plan[trajectory.deal.group])
        metrics = {"league/matches": float(matches), "league/loads": float(loads)}
        self._metrics = metrics | self._figures(list(plan.values()))
        return played

    def learnt(self, policies: Collection[str], step: int) -> None:
        """Count updates; keep weights, and let players begin anew, where it is time for that."""
        for role, player in self._settings.players.items():
            policy = self.archive.policy_of(role)
            if policy not in policies:
                continue
            progress = self._progress[role]
            progress.updates += 1
            if self._is_to_begin_anew(role, player):
                self._take(policy, step)
                self.archive.begin_anew(policy, step)
                self._results.forget(policy)
                progress.updates, progress.resets = 0, progress.resets + 1
            elif player.every and progress.updates % player.every == 0:
                self._take(policy, step)

    def metrics(self) -> Metrics:
        """Return `league/...` of the last step."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        return {
            "taken": {policy: [*versions] for policy, versions in self._pool.taken.items()},
            "progress": {role: [each.updates, each.resets] for role, each in self._progress.items()},
            "results": self._results.state_dict(),
            "payoffs": self._payoffs.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pool.restore(state["taken"])
        self._progress = {role: Progress(*state["progress"].get(role, ())) for role in self._settings.players}
        self._results.load_state_dict(state["results"])
        self._payoffs.load_state_dict(state["payoffs"])

    # --- the pool -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Keep the first weights of all players, and how those who begin anew began."""
        for role, player in self._settings.players.items():
            policy = self.archive.policy_of(role)
            if player.every:
                self._take(policy, 0)
            if player.reset:
                self.archive.note_start(policy)

    def _take(self, policy: str, step: int) -> None:
        """Keep a policy's newest weights, and forget what a member is too many for."""
        self.archive.save(policy, step)
        self._pool.add(policy, step)
        self.archive.keep(policy, partial(self._pool.versions, policy))
        names = {member.name for member in self._pool.members()}
        self._payoffs.retain(names)
        self._results.retain(names | {name for each in self._settings.players.values() for name in each.opponents})

    def _is_to_begin_anew(self, role: str, player: LeaguePlayer) -> bool:
        reset = player.reset
        if reset is None:
            return False
        if reset.every is not None and self._progress[role].updates >= reset.every:
            return True
        opponents = [name for name in player.opponents if name not in (SELF, POOL)]
        opponents += [member.name for member in self._met(player)] if player.opponents.get(POOL) else []
        records = self._results.against(self.archive.policy_of(role), opponents)
        return reset.win_rate is not None and all(
            record.games >= reset.games and record.win_rate >= reset.win_rate for record in records
        )

    def _met(self, player: LeaguePlayer) -> list[Member]:
        return self._pool.members(player.pool)

    # --- matches ------------------------------------------------------------------------------------------------------

    def _plan(self, step: int, groups: Sequence[str]) -> dict[str, Match]:
        """Return group -> its match. Groups of a player, and of an opponent, are neighbours, so that seats rotate."""
        players = self._settings.players
        choices = [Match(role, name) for role, player in players.items() for name in player.opponents]
        weights = [players[each.role].share * self._weight(each) for each in choices]
        drawn = shared_out(choices, weights, len(groups), self._offset(step, "opponent"))
        matches = [each for choice, same in groupby(drawn) for each in self._with_members(choice, len([*same]), step)]
        return dict(zip(groups, matches, strict=True))

    def _weight(self, match: Match) -> float:
        """Return the share of an opponent among those of its player."""
        opponents = self._settings.players[match.role].opponents
        return opponents[match.opponent] / sum(opponents.values())

    def _with_members(self, match: Match, count: int, step: int) -> list[Match]:
        """Return so many matches, in which members of the pool stand for `pool`; `self` where there are none."""
        if match.opponent != POOL:
            return [match] * count
        player = self._settings.players[match.role]
        members = self._met(player)
        if not members:
            return [replace(match, opponent=SELF)] * count
        many, offset = min(self._settings.draws, count), self._offset(step, match.role)
        drawn = shared_out(members, self._chances(match.role, members), many, offset)
        return [replace(match, opponent=drawn[place * many // count].name) for place in range(count)]

    def _chances(self, role: str, members: Sequence[Member]) -> list[float]:
        """Return the probability with which a player meets each of these members."""
        names, player = [member.name for member in members], self._settings.players[role]
        rates = [record.win_rate for record in self._results.against(self.archive.policy_of(role), names)]
        return probabilities(player, rates, self._payoffs.matrix(names) if player.by == "psro" else ())

    def _offset(self, step: int, purpose: str) -> float:
        return seed_of(self.archive.seed, "league", step, purpose) / 2**64

    # --- play ---------------------------------------------------------------------------------------------------------

    def _seated(self, deal: Deal, match: Match) -> Deal:
        """Return the deal with a match's player in the seats of players, and its opponent in those of opponents."""
        learning = {*self._settings.players, *([self._settings.opponent] if match.opponent == SELF else [])}
        seats = {agent: match.role if role in learning else role for agent, role in deal.seats.items()}
        policies = {} if match.opponent == SELF else {self._settings.opponent: match.opponent}
        return replace(deal, seats=seats, policies={**deal.policies, **policies})

    def _play(self, deals: Sequence[Deal], simulator: Simulator) -> tuple[list[Trajectory], int]:
        """Return the episodes of the deals, and how many weights were loaded for them."""
        named = {name for deal in deals for name in deal.policies.values()}
        members: dict[str, Player] = {
            member.name: self.archive.weights(*member) for member in self._pool.members() if member.name in named
        }
        exported = {name: player for name in sorted(named - members.keys()) if (player := self.archive.exported(name))}
        for name, player in exported.items():
            simulator.add_policy(name, player)
        try:
            return play_with_guests(deals, members, self._settings.resident, simulator)
        finally:
            for name in exported:
                simulator.remove_policy(name)

    def _record(self, trajectory: Trajectory, match: Match) -> None:
        if match.opponent != SELF:
            won = margin(trajectory, match.role, self._settings.opponent)
            self._results.add(self.archive.policy_of(match.role), match.opponent, won)

    # --- payoffs of the pool ------------------------------------------------------------------------------------------

    def _fill_payoffs(self, agents: Sequence[str], simulator: Simulator) -> int:
        """Let members of the pool play that have not met, where their payoffs are asked for; return the number of
        episodes."""
        pairs: dict[tuple[str, str], str] = {}
        for role, player in self._settings.players.items():
            if player.by == "psro":
                names = [member.name for member in self._met(player)]
                pairs |= dict.fromkeys(self._payoffs.unknown(names), role)
        matches = self._settings.matches
        chosen = list(pairs.items())[: max(1, self._settings.budget // matches)]
        deals = [self._trial(agents, role, pair, number) for pair, role in chosen for number in range(matches)]
        played, _ = self._play(deals, simulator)
        for trajectory in played:
            (role, row), (other, column) = trajectory.deal.policies.items()
            self._payoffs.add(row, column, margin(trajectory, role, other) / 2)
        return len(played)

    def _trial(self, agents: Sequence[str], role: str, pair: tuple[str, str], number: int) -> Deal:
        """Return an episode between two members of the pool; they change seats, and play every start from both."""
        name, roles = f"league.{'.'.join(pair)}.{number}", (role, self._settings.opponent)
        seats = dict(zip(agents, roles[:: 1 if number % 2 else -1], strict=True))
        start = seed_of(self.archive.seed, "league", *pair, number // 2)
        return Deal(name, name, start, seats, "eval", policies=dict(zip(roles, pair, strict=True)))

    # --- figures ------------------------------------------------------------------------------------------------------

    def _figures(self, matches: Sequence[Match]) -> Metrics:
        metrics: Metrics = {"league/pool": float(len(self._pool.members()))}
        for role, player in self._settings.players.items():
            policy, members = self.archive.policy_of(role), self._met(player)
            names = [member.name for member in members]
            opponents = [POOL if each.opponent in names else each.opponent for each in matches if each.role == role]
            shares = {name: opponents.count(name) / len(opponents) for name in player.opponents} if opponents else {}
            metrics |= {f"league/{policy}/share/{name}": share for name, share in shares.items()}
            metrics |= {f"league/{policy}/resets": float(self._progress[role].resets)} if player.reset else {}
            if members and player.opponents.get(POOL):
                rates = [record.win_rate for record in self._results.against(policy, names)]
                metrics[f"league/{policy}/win_rate"] = fmean(rates)
                metrics[f"league/{policy}/win_rate_least"] = min(rates)
                metrics[f"league/{policy}/entropy"] = entropy(self._chances(role, members))
        return metrics
