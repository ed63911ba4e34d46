"""Dynamic sampling: starts from which every episode ends alike teach nothing, so others are played in their place.

DAPO (https://arxiv.org/abs/2503.14476): a prompt is kept only if some of its answers are right and some are not, and
the batch is filled up with fresh ones. PRIME (https://arxiv.org/abs/2502.01456) keeps success rates from 0.2 to 0.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import PositiveInt, model_validator

from marl.config import nearest
from marl.protocols import Experience, ExperienceConfig, Simulator
from marl.seeds import seed_of
from marl.types import Deal, Metrics

if TYPE_CHECKING:
    from marl.graph import Trajectory


class Dynamic(ExperienceConfig):
    """Plays each step's starts; where all episodes of one end alike, plays fresh starts in its place (DAPO).

    A group, the episodes from one start, is kept if what an agent is paid differs among them: max > min, exactly. In a
    team one agent is enough, for who is paid the same all the same may share what the others are paid.
    """

    kind: str = "dynamic"
    rounds: PositiveInt = 3
    """How often a step plays at most; the first time all its starts, then others for those that were not kept."""
    roles: tuple[str, ...] = ()
    """Whose pay must differ for a group to be kept; default: anybody's."""
    success: str = "success"
    """The game's measure that `inside` looks at."""
    inside: tuple[float, float] | None = None
    """A group must also have its mean `success` strictly between these two: [0, 1] asks for one right and one wrong
    answer, whatever is paid beside; [0.2, 0.8] is PRIME's."""
    constant: Literal["drop", "keep"] = "drop"
    """What becomes of a start for which nothing better was found in all rounds: left out, so that the step has fewer
    groups, or kept as it was played last. Where none at all would be left, they are kept."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.inside and not self.inside[0] < self.inside[1]:
            raise ValueError(f"inside: {list(self.inside)} has nothing inside; choices: [low, high] with low < high")
        return self

    def unfit(self, seats: Mapping[str, str], group_size: int) -> Iterator[str]:
        """Roles that nobody plays, and groups of one."""
        for role in self.roles:
            if role not in seats.values():
                yield f"roles: no seat has the role {role!r}; {nearest(role, sorted(set(seats.values())))}"
        if group_size < 2:
            yield (
                f"kind: {self.kind!r} compares the episodes of one start, but schedule.group_size is {group_size}; "
                "use 2 or more, or another experience (rollouts)"
            )

    def build(self) -> Experience:
        return Groups(self)


@dataclass(frozen=True, slots=True)
class _Slot:
    """A place for one group in the step."""

    deals: Sequence[Deal]
    episodes: Sequence[Trajectory] = ()
    """As they were played last."""
    kept: bool = False


class Groups:
    """Plays groups until there are enough that differ. Keeps nothing from step to step: fresh starts follow from the
    seeds of those that they replace."""

    def __init__(self, settings: Dynamic) -> None:
        self._settings = settings
        self._metrics: Metrics = {}

    def gather(self, deals: Sequence[Deal], simulator: Simulator) -> list[Trajectory]:
        """The episodes of the groups that are kept, in deal order: a fresh one stands where it replaces another.

        Raises:
            ValueError: if `inside` is given and the game has no measure `success`.
        """
        first = slots = self._played(_slots(deals), simulator)
        played, rounds = len(slots), 1
        while rounds < self._settings.rounds and (wanting := [slot for slot in slots if not slot.kept]):
            again = iter(self._played([_redealt(slot, rounds) for slot in wanting], simulator))
            slots = [slot if slot.kept else next(again) for slot in slots]
            played, rounds = played + len(wanting), rounds + 1
        used = self._used(slots)
        kept = sum(slot.kept for slot in slots)
        self._metrics = {
            "dynamic/rounds": float(rounds),
            "dynamic/kept": float(kept),
            "dynamic/dropped": float(played - len(used)),
        } | _first(first)
        return [episode for slot in used for episode in slot.episodes]

    def metrics(self) -> Metrics:
        """Of the last step: `dynamic/rounds`; `kept`, groups that differ; `dropped`, groups that were played in vain;
        `first/...` of each measure, as it was before anything was chosen."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""

    def _played(self, slots: Sequence[_Slot], simulator: Simulator) -> list[_Slot]:
        """All at once."""
        episodes: dict[str, list[Trajectory]] = {slot.deals[0].group: [] for slot in slots}
        for trajectory in simulator.play([deal for slot in slots for deal in slot.deals]):
            episodes[trajectory.deal.group].append(trajectory)
        return [_Slot(s.deals, own, self._differ(own)) for s, own in zip(slots, episodes.values(), strict=True)]

    def _differ(self, episodes: Sequence[Trajectory]) -> bool:
        """Whether there is something to learn from a group. Games may raise and leave it empty."""
        if not episodes:
            return False
        roles, seats = self._settings.roles, episodes[0].deal.seats
        agents = [agent for agent, role in seats.items() if not roles or role in roles]
        paid = [[_paid(episode, agent) for episode in episodes] for agent in agents]
        return any(max(own) > min(own) for own in paid) and self._moderate(episodes)

    def _moderate(self, episodes: Sequence[Trajectory]) -> bool:
        if self._settings.inside is None:
            return True
        low, high = self._settings.inside
        return low < fmean(map(self._success, episodes)) < high

    def _success(self, trajectory: Trajectory) -> float:
        name, measures = self._settings.success, trajectory.findings.measures
        if name not in measures:
            raise ValueError(
                f"experience.success: the game has no measure {name!r}; {nearest(name, measures)} "
                f"(episode {trajectory.id}, which ended {trajectory.end!r})"
            )
        return measures[name]

    def _used(self, slots: Sequence[_Slot]) -> list[_Slot]:
        kept = [slot for slot in slots if slot.kept]
        return kept if kept and self._settings.constant == "drop" else list(slots)


def _paid(episode: Trajectory, agent: str) -> float:
    # Rounded once: equal rewards that came in another order are equal here, to the last bit.
    return fsum([reward.value for reward in episode.rewards if reward.agent == agent])


def _slots(deals: Iterable[Deal]) -> list[_Slot]:
    groups: dict[str, list[Deal]] = {}
    for deal in deals:
        groups.setdefault(deal.group, []).append(deal)
    return [_Slot(own) for own in groups.values()]


def _redealt(slot: _Slot, again: int) -> _Slot:
    """A fresh start for the same seats."""
    group = f"{slot.deals[0].group.partition('+')[0]}+{again}"
    seed = seed_of(slot.deals[0].seed, "again")
    return _Slot([replace(deal, episode=f"{group}.{i}", group=group, seed=seed) for i, deal in enumerate(slot.deals)])


def _first(slots: Sequence[_Slot]) -> Metrics:
    """The game's measures of what was dealt: how well policies do by themselves."""
    found = [episode.findings.measures for slot in slots for episode in slot.episodes]
    names = sorted({name for measures in found for name in measures})
    return {f"dynamic/first/{name}": fmean([m[name] for m in found if name in m]) for name in names}
