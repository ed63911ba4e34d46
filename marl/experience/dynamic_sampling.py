"""Dynamic sampling: new groups replace groups whose episodes all have equal returns, as these give no advantages.

DAPO (https://arxiv.org/abs/2503.14476): a prompt is kept only if some of its answers are right and some are not, and
the batch is filled up with fresh prompts. PRIME (https://arxiv.org/abs/2502.01456) keeps success rates from 0.2 to 0.8.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress
from math import fsum, inf, isfinite
from statistics import fmean, pvariance
from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from marl.core.config import Config, DistinctValues, choices_hint
from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.types import Deal
from marl.experience.rollouts import (
    StatelessExperience,
    mean_measures,
    measure_of_episode,
    unknown_measure_error,
)
from marl.protocols import DealsOfStep, Experience, ExperienceConfig, ScenarioSummary, Simulator

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
dynamic/rounds | rounds | rounds of play in the step (`experience: dynamic`)
dynamic/kept | groups | groups whose returns differ
dynamic/dropped | groups | groups that were played and are not in the step, those outside of `rank` included
dynamic/first/MEASURE | the game's | mean of a measure over the first round, before anything was chosen
"""


class GroupRanking(Config):
    """Selection of the groups with the most varied returns, which carry most of the learning signal (RAGEN-2,
    2604.06268)."""

    example = "top_p: 0.9"
    by: Literal["variance"] = "variance"
    """Measure of a group: the sum over the compared agents of the variance (ddof 0) of their returns."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Share of the summed variance of all kept groups: the groups with the greatest variance are used, as few as reach
    this share."""
    top_k: PositiveInt | None = None
    """Number of groups with the greatest variance that are used, fewer than `schedule.groups`."""

    @model_validator(mode="after")
    def _check_one_limit(self) -> Self:
        if (self.top_p is None) == (self.top_k is None):
            raise ValueError(f"give either top_p or top_k, got top_p={self.top_p} and top_k={self.top_k}")
        return self

    def problem_with_group_count(self, groups: int) -> str:
        """Return the reason why this never leaves out one of `groups`, and the choices, or "" if it may."""
        if groups == 1:
            return ": schedule.groups is 1, so there is nothing to rank; remove it, or play more groups"
        if self.top_k is None or self.top_k < groups:
            return ""
        return f".top_k: {self.top_k} leaves out none of schedule.groups {groups}; choices: 1 to {groups - 1}"

    def select(self, variances: Sequence[float]) -> list[bool]:
        """Return whether each group is used, given the groups' variances. Of equal groups, earlier ones come first.

        Without any variance all groups are used, because there is nothing to rank.
        """
        if not any(variances):
            return [True] * len(variances)
        order = sorted(range(len(variances)), key=lambda index: -variances[index])
        count = self.top_k or 0
        if self.top_p is not None:
            # A rounding error must not demand a further group.
            needed, reached = self.top_p * fsum(variances) * (1 - 1e-12), 0.0
            while reached < needed:
                reached += variances[order[count]]
                count += 1
        selected = {*order[:count]}
        return [index in selected for index in range(len(variances))]


class DynamicSampling(ExperienceConfig):
    """Plays the deals of each step, and replaces groups whose episodes have equal returns by new groups (DAPO).

    A group, the episodes from one start, is kept if the return of some agent differs among its episodes: max > min,
    exactly. In a team one agent is enough, since an agent whose own return is constant may be credited with the
    others'.
    """

    kind: str = "dynamic"
    rounds: PositiveInt = 3
    """Maximum number of rounds of play in a step. The first round plays all deals; later rounds play new groups that
    replace rejected groups."""
    roles: DistinctValues[str] = ()
    """Roles whose agents' returns are compared: the return of one agent must differ within a group (default: all
    roles)."""
    success: str = "success"
    """Measure of the game to which the bounds `inside` apply."""
    inside: tuple[float, float] | None = None
    """Bounds (low, high) between which the mean `success` of a kept group must lie, exclusively (default: no bounds).
    [0, 1] demands a right and a wrong answer, whatever else is rewarded; PRIME has [0.2, 0.8]."""
    rank: GroupRanking | None = None
    """Selection among the kept groups by the variance of their returns (default: all kept groups are used)."""
    constant: Literal["drop", "keep"] = "drop"
    """Treatment of groups that are still rejected after the last round. `drop`: they are left out, so that the step has
    fewer groups; `keep`: they stay as they were played last. If all groups are rejected, all of them stay."""

    @model_validator(mode="after")
    def _check_bounds_ascending(self) -> Self:
        if self.inside and not self.inside[0] < self.inside[1]:
            raise ValueError(f"inside: {list(self.inside)} has nothing inside; choices: [low, high] with low < high")
        return self

    def seating_conflicts(self, role_by_agent: Mapping[str, str], group_size: int) -> Iterator[str]:
        for role in self.roles:
            if role not in role_by_agent.values():
                yield f"roles: no seat has the role {role!r}; {choices_hint(role, sorted(set(role_by_agent.values())))}"
        if group_size < 2:
            yield (
                f"kind: {self.kind!r} compares the episodes of one start, but schedule.group_size is {group_size}; "
                "use 2 or more, or another experience (rollouts)"
            )

    @property
    def needed_measure(self) -> str:
        return self.success if self.inside else ""

    def scenario_conflicts(self, summary: ScenarioSummary) -> Iterator[str]:
        constant = (summary.game.constant_rewards() if summary.game else None) or {}
        if self.roles and constant.keys() >= {*self.roles}:
            paid = [role for role in dict.fromkeys(summary.seats.values()) if role not in constant]
            yield (
                f"roles: {', '.join(self.roles)}: paid the same whatever they do, so that the returns of no group "
                f"differ; choices: {', '.join(paid) or 'none'}"
            )
        if self.inside is None and self.success != "success":
            yield f"success: {self.success!r} has no effect without bounds; give inside: [low, high], or remove it"
        if self.rank and (problem := self.rank.problem_with_group_count(summary.groups)):
            yield f"rank{problem}"
        if self.inside and (error := unknown_measure_error(summary.game, self.success)):
            yield error

    def build(self) -> Experience:
        return GroupSampler(self)


class GroupSampler(StatelessExperience):
    """Experience that plays new groups in place of rejected ones until all are kept, or all rounds are used.

    Metrics `dynamic/...` of a step: `rounds`: number of rounds of play; `kept`, `dropped`: number of groups that are
    kept or left out; `first/...`: means of the game's measures in the first round, before groups were selected.
    """

    def __init__(self, settings: DynamicSampling) -> None:
        self._settings = settings

    def gather(self, step: int, deals: DealsOfStep, simulator: Simulator) -> list[Trajectory]:
        """Return the episodes of the kept groups, in deal order. A new group has the position of the group that it
        replaces.

        Raises:
            ValueError: if `inside` is given and the game has no measure `success`.
        """
        by_name: dict[str, list[Deal]] = defaultdict(list)
        for deal in deals(step):
            by_name[deal.group].append(deal)
        groups = list(by_name.values())
        played = self._play_groups(groups, simulator)
        kept = list(map(self._is_group_kept, played))
        measures = mean_measures(list(chain.from_iterable(played)), "dynamic/first/")
        count, rounds = len(groups), 1
        while rounds < self._settings.rounds and not all(kept):
            rejected = [index for index, group_kept in enumerate(kept) if not group_kept]
            for index in rejected:
                group = groups[index]
                name = f"{group[0].group.partition('+')[0]}+{rounds}"
                # A replacement group's seed is derived from the rejected group's seed, so that runs are reproducible.
                seed = hash_to_seed(group[0].seed, "again")
                for i, deal in enumerate(group):
                    group[i] = replace(deal, episode=f"{name}.{i}", group=name, seed=seed)
            for index, episodes in zip(
                rejected, self._play_groups(list(map(groups.__getitem__, rejected)), simulator), strict=True
            ):
                played[index], kept[index] = episodes, self._is_group_kept(episodes)
            count, rounds = count + len(rejected), rounds + 1
        if any(kept) and self._settings.constant == "drop":
            played = list(compress(played, kept))
        if self._settings.rank:
            played = list(compress(played, self._settings.rank.select(list(map(self._variance, played)))))
        self._metrics = {
            "dynamic/rounds": float(rounds),
            "dynamic/kept": float(sum(kept)),
            "dynamic/dropped": float(count - len(played)),
            **measures,
        }
        return list(chain.from_iterable(played))

    def _play_groups(self, groups: Sequence[Sequence[Deal]], simulator: Simulator) -> list[list[Trajectory]]:
        """Return the episodes of each group, all played at once."""
        episodes: dict[str, list[Trajectory]] = {group[0].group: [] for group in groups}
        for trajectory in simulator.play(list(chain.from_iterable(groups))):
            episodes[trajectory.deal.group].append(trajectory)
        return list(episodes.values())

    def _is_group_kept(self, episodes: Sequence[Trajectory]) -> bool:
        """Return True if the group of `episodes` is kept. An empty group lost all episodes to errors of the game."""
        if not episodes:
            return False
        settings = self._settings
        if not all(map(isfinite, chain.from_iterable(self._returns_by_agent(episodes)))):
            # A game that pays NaN is not hidden by a new group: the learner refuses the turns and names them.
            return True
        differs = any(max(returns) > min(returns) for returns in self._returns_by_agent(episodes))
        if not differs or settings.inside is None:
            return differs
        low, high = settings.inside
        return low < fmean(measure_of_episode(episode, settings.success) for episode in episodes) < high

    def _variance(self, episodes: Sequence[Trajectory]) -> float:
        """Return the sum over the compared agents of the variance of their returns, 0.0 without episodes, or infinity
        if a return is not finite, so that the learner sees it."""
        if not episodes:
            return 0.0
        variance = fsum(pvariance(returns) for returns in self._returns_by_agent(episodes))
        return variance if isfinite(variance) else inf

    def _returns_by_agent(self, episodes: Sequence[Trajectory]) -> Iterator[list[float]]:
        """Yield the returns in all of `episodes`, for each agent whose role is compared."""
        for agent, role in episodes[0].deal.seats.items():
            if not self._settings.roles or role in self._settings.roles:
                returns: list[float] = []
                for episode in episodes:
                    # `fsum` gives equal rewards the same sum in any order, so that equal returns compare equal.
                    returns.append(fsum(reward.value for reward in episode.rewards if reward.agent == agent))
                yield returns
