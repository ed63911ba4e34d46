"""Dynamic sampling: new groups replace groups whose episodes all have equal returns, as these give no advantages.

DAPO (https://arxiv.org/abs/2503.14476): a prompt is kept only if some of its answers are right and some are not, and
the batch is filled up with fresh ones. PRIME (https://arxiv.org/abs/2502.01456) keeps success rates from 0.2 to 0.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import fsum
from statistics import fmean
from typing import Literal, Self

from pydantic import PositiveInt, model_validator

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.types import Deal, Metrics
from marl.experience.rollouts import StatelessExperience, mean_measures, success_of
from marl.protocols import Deals, Experience, ExperienceConfig, Simulator


class DynamicSampling(ExperienceConfig):
    """Plays the deals of each step, and replaces groups whose episodes have equal returns by new groups (DAPO).

    A group, the episodes from one start, is kept if the return of some agent differs among them: max > min, exactly.
    In a team one agent is enough, since an agent whose own return is constant may be credited with the others'.
    """

    kind: str = "dynamic"
    rounds: PositiveInt = 3
    """Maximum number of rounds of play in a step. The first plays all deals, the others replace rejected groups."""
    roles: tuple[str, ...] = ()
    """Roles whose return must differ for a group to be kept; default: any role's."""
    success: str = "success"
    """Measure of the game for `inside`."""
    inside: tuple[float, float] | None = None
    """A group must also have its mean `success` strictly between these two: [0, 1] asks for one right and one wrong
    answer, whatever else is rewarded; [0.2, 0.8] is PRIME's."""
    constant: Literal["drop", "keep"] = "drop"
    """Treatment of groups that could not be replaced in all rounds: `drop` leaves them out, so that the step has fewer
    groups; `keep` keeps them as they were played last. If no group at all would be left, all are kept."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.inside and not self.inside[0] < self.inside[1]:
            raise ValueError(f"inside: {list(self.inside)} has nothing inside; choices: [low, high] with low < high")
        return self

    def conflicts(self, seats: Mapping[str, str], group_size: int) -> Iterator[str]:
        for role in self.roles:
            if role not in seats.values():
                yield f"roles: no seat has the role {role!r}; {choices_hint(role, sorted(set(seats.values())))}"
        if group_size < 2:
            yield (
                f"kind: {self.kind!r} compares the episodes of one start, but schedule.group_size is {group_size}; "
                "use 2 or more, or another experience (rollouts)"
            )

    def build(self) -> Experience:
        return GroupSampler(self)


class GroupSampler(StatelessExperience):
    """Plays groups until all are kept or all rounds are used. The seed of a new group follows from the replaced one."""

    def __init__(self, settings: DynamicSampling) -> None:
        self._settings = settings
        self._metrics: Metrics = {}

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return the episodes of the kept groups, in deal order; a new group has the position of the replaced one.

        Raises:
            ValueError: if `inside` is given and the game has no measure `success`.
        """
        groups = _by_group(deals(step))
        played = self._play(groups, simulator)
        varied = [self._differ(episodes) for episodes in played]
        measures = mean_measures([episode for episodes in played for episode in episodes], "dynamic/first/")
        count, rounds = len(groups), 1
        while rounds < self._settings.rounds and not all(varied):
            replacements = {i: _new_group(groups[i], rounds) for i in range(len(groups)) if not varied[i]}
            for i, episodes in zip(replacements, self._play(list(replacements.values()), simulator), strict=True):
                groups[i], played[i], varied[i] = replacements[i], episodes, self._differ(episodes)
            count, rounds = count + len(replacements), rounds + 1
        drop = any(varied) and self._settings.constant == "drop"
        used = [episodes for i, episodes in enumerate(played) if varied[i] or not drop]
        numbers = {"rounds": rounds, "kept": sum(varied), "dropped": count - len(used)}
        self._metrics = {f"dynamic/{name}": float(value) for name, value in numbers.items()} | measures
        return [episode for episodes in used for episode in episodes]

    def metrics(self) -> Metrics:
        """Return `dynamic/...` of the last step: `rounds`; `kept`, groups that differ; `dropped`, groups left out;
        `first/...`, the mean of each measure before anything was chosen."""
        return dict(self._metrics)

    def _play(self, groups: Sequence[Sequence[Deal]], simulator: Simulator) -> list[list[Trajectory]]:
        """Return the episodes of each group, all played at once."""
        episodes: dict[str, list[Trajectory]] = {group[0].group: [] for group in groups}
        for trajectory in simulator.play([deal for group in groups for deal in group]):
            episodes[trajectory.deal.group].append(trajectory)
        return list(episodes.values())

    def _differ(self, episodes: Sequence[Trajectory]) -> bool:
        """Return True if a group is kept. A group is empty if the game raised in all its episodes."""
        if not episodes:
            return False
        settings, seats = self._settings, episodes[0].deal.seats
        agents = [agent for agent, role in seats.items() if not settings.roles or role in settings.roles]
        returns = [[_return(episode, agent) for episode in episodes] for agent in agents]
        if not any(max(values) > min(values) for values in returns):
            return False
        if settings.inside is None:
            return True
        low, high = settings.inside
        return low < fmean([success_of(episode, settings.success) for episode in episodes]) < high


def _return(episode: Trajectory, agent: str) -> float:
    # `fsum` rounds once: equal rewards in another order have equal sums, to the last bit.
    return fsum([reward.value for reward in episode.rewards if reward.agent == agent])


def _by_group(deals: Iterable[Deal]) -> list[list[Deal]]:
    groups: dict[str, list[Deal]] = {}
    for deal in deals:
        groups.setdefault(deal.group, []).append(deal)
    return list(groups.values())


def _new_group(group: Sequence[Deal], round_number: int) -> list[Deal]:
    """Return the deals of a new group with the same seats."""
    name = f"{group[0].group.partition('+')[0]}+{round_number}"
    seed = seed_of(group[0].seed, "again")
    return [replace(deal, episode=f"{name}.{i}", group=name, seed=seed) for i, deal in enumerate(group)]
