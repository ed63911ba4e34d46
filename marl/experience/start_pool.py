"""A pool of starts of medium difficulty, which are replayed among fresh starts.

Starts that always or never succeed give no advantages where episodes of one start are compared (dynamic sampling in
DAPO, https://arxiv.org/abs/2503.14476; replayed levels: Jiang et al. 2021, https://arxiv.org/abs/2010.03934).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from pydantic import Field, field_validator

from marl.core.config import Config
from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.types import Deal, Metrics
from marl.experience.rollouts import success_of
from marl.protocols import Deals, Experience, ExperienceConfig, Simulator


class Curriculum(Config):
    """Opens a game's problems gradually, the easiest first, by the game's reset option `open`."""

    start: float = Field(0.2, gt=0, le=1)
    """Share of the problems that is open in the first step."""
    raise_at: float = Field(0.7, ge=0, le=1)
    """Mean success of a step's fresh starts above which more problems are opened."""
    by: float = Field(0.1, gt=0, le=1)
    """Share of the problems that is opened at once."""


class StartPool(ExperienceConfig):
    """Plays fresh starts, replays starts of medium difficulty, and tries starts that the game found in play."""

    kind: str = "pool"
    success: str = "success"
    """The game's measure of how well an episode went, from 0 to 1."""
    keep: tuple[float, float] = (0.2, 0.8)
    """Range of the mean success of starts in the pool. In groups of one episode, a success of 0 or 1 is outside."""
    replay: float = Field(0.5, ge=0, le=1)
    """Share of a step's groups that start from the pool, if the pool has enough starts."""
    size: int = Field(1000, ge=1)
    """Maximum number of starts. The least recently played starts are removed first, among them the easiest."""
    momentum: float = Field(0.5, ge=0, lt=1)
    """Weight of a start's previous average success when it is replayed."""
    curriculum: Curriculum | None = None
    """Gradual opening of the game's problems, the easiest first. None: all are open from the first step."""

    @field_validator("keep")
    @classmethod
    def _ordered(cls, keep: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= keep[0] <= keep[1] <= 1:
            raise ValueError(f"keep: {list(keep)} is no range; choices: [low, high] with 0 <= low <= high <= 1")
        return keep

    def build(self) -> Experience:
        return PoolSampler(self)


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """A start in the pool."""

    seed: int
    options: dict[str, Any] | None
    played: int
    """Step in which the start was last played, or found if it was never played."""
    success: float | None = None
    """Moving average of success, or None before the first play."""
    game: str = ""
    """Name of the game, or "" if the run has only one game."""


class PoolSampler:
    """Experience that plays some groups from the pool, and updates the pool and the curriculum."""

    def __init__(self, settings: StartPool) -> None:
        self._settings = settings
        self._entries: dict[str, PoolEntry] = {}
        """Key of a start -> entry. The key of an entry that was never played is made of its options."""
        self._step = 0
        self._open = settings.curriculum.start if settings.curriculum else 1.0
        self._metrics: Metrics = {}

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return the episodes of the deals, of which some groups start from the pool instead.

        Raises:
            ValueError: if the game has no measure `success`.
        """
        starts = deals(step)
        replayed = self._choose(starts)
        played = simulator.play([self._deal(deal, replayed.get(deal.group)) for deal in starts])
        groups: dict[str, list[Trajectory]] = defaultdict(list)
        for trajectory in played:
            if trajectory.deal.purpose == "train":
                groups[trajectory.deal.group].append(trajectory)
        measure = self._settings.success
        success = {group: fmean([success_of(t, measure) for t in episodes]) for group, episodes in groups.items()}
        self._step += 1
        for group, episodes in groups.items():
            self._update(episodes[0], replayed.get(group), success[group])
        self._add_found([trajectory for episodes in groups.values() for trajectory in episodes])
        self._trim()
        fresh = [value for group, value in success.items() if group not in replayed]
        self._metrics = self._measure(fresh, 1 - len(fresh) / max(1, len(success)))
        curriculum = self._settings.curriculum
        if curriculum and fresh and fmean(fresh) > curriculum.raise_at:
            self._open = min(1.0, self._open + curriculum.by)
        return played

    def metrics(self) -> Metrics:
        """Return `pool/...` of the last step: size, untested, success, replayed, fresh_success, open."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        entries = {name: asdict(entry) for name, entry in self._entries.items()}
        return {"entries": entries, "step": self._step, "open": self._open}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._entries = {name: PoolEntry(**entry) for name, entry in state["entries"].items()}
        self._step, self._open = int(state["step"]), float(state["open"])

    def _choose(self, deals: Sequence[Deal]) -> dict[str, str]:
        """Return group -> name of its entry, drawn by the groups' seeds without replacement."""
        groups = {deal.group: deal for deal in deals if deal.purpose == "train"}
        chosen: dict[str, str] = {}
        available: dict[str, list[str]] = defaultdict(list)
        for name, entry in self._entries.items():
            available[entry.game].append(name)
        for group, deal in groups.items():
            entries = available[deal.game]
            if entries and seed_of(deal.seed, "replay") < self._settings.replay * 2**64:
                chosen[group] = entries.pop(seed_of(deal.seed, "start") % len(entries))
        return chosen

    def _deal(self, deal: Deal, name: str | None) -> Deal:
        """Return the deal with the start of entry `name`; without a name, with the open share of problems."""
        if name is not None:
            entry = self._entries[name]
            return replace(deal, seed=entry.seed, options=entry.options)
        if self._settings.curriculum and deal.purpose == "train":
            return replace(deal, options={**(deal.options or {}), "open": self._open})
        return deal

    def _update(self, first: Trajectory, name: str | None, success: float) -> None:
        """Update the pool by the mean success of a group.

        Args:
            first: first episode of the group.
            name: entry from which the group started, or None for a fresh start.
            success: mean success of the group.
        """
        before = self._entries.pop(name, None) if name is not None else None
        before = self._entries.pop(first.start, None) or before
        if before and before.success is not None:
            success = self._settings.momentum * before.success + (1 - self._settings.momentum) * success
        low, high = self._settings.keep
        if low <= success <= high:
            # As read from a checkpoint, where tuples are lists: a resumed run has equal entries.
            options = json.loads(json.dumps(first.deal.options))
            self._entries[first.start] = PoolEntry(first.deal.seed, options, self._step, success, first.deal.game)

    def _add_found(self, trajectories: Sequence[Trajectory]) -> None:
        """Add the starts that the game found in play, unless they are in the pool."""
        names = {_name(entry.options, entry.game) for entry in self._entries.values() if entry.options}
        for trajectory in trajectories:
            for start in trajectory.findings.starts:
                options, deal = json.loads(json.dumps(start)), trajectory.deal
                name = _name(options, deal.game)
                if name not in names:
                    names.add(name)
                    self._entries[name] = PoolEntry(deal.seed, options, self._step, game=deal.game)

    def _trim(self) -> None:
        def rank(name: str) -> tuple[int, float]:
            entry = self._entries[name]
            return entry.played, -1.0 if entry.success is None else -entry.success

        newest = set(sorted(self._entries, key=rank)[-self._settings.size :])
        self._entries = {name: entry for name, entry in self._entries.items() if name in newest}

    def _measure(self, fresh: Sequence[float], replayed: float) -> Metrics:
        tested = [entry.success for entry in self._entries.values() if entry.success is not None]
        metrics = {
            "pool/size": float(len(self._entries)),
            "pool/untested": float(len(self._entries) - len(tested)),
            "pool/replayed": replayed,
        }
        metrics |= {"pool/success": fmean(tested)} if tested else {}
        metrics |= {"pool/fresh_success": fmean(fresh)} if fresh else {}
        return metrics | ({"pool/open": self._open} if self._settings.curriculum else {})


def _name(options: Mapping[str, Any], game: str) -> str:
    """Return the name of a start that was never played: the key of its problem, or all its options without a key."""
    problem = options.get("problem")
    key = problem["key"] if isinstance(problem, Mapping) and "key" in problem else options
    return f"untested {game and f'{game} '}{json.dumps(key, sort_keys=True)}"
