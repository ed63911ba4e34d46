"""A pool of starts that are neither too easy nor too hard, played again among fresh ones.

Starts that always or never succeed teach nothing where episodes of one start are compared (dynamic sampling in DAPO,
https://arxiv.org/abs/2503.14476; replayed levels: Jiang et al. 2021, https://arxiv.org/abs/2010.03934).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from marl.config import Config, nearest
from marl.protocols import Experience, ExperienceConfig, Simulator
from marl.seeds import seed_of
from marl.types import Deal, Metrics

if TYPE_CHECKING:
    from marl.graph import Trajectory


class Curriculum(Config):
    """Opens a game's problems bit by bit, the easiest first, by its reset option `open`."""

    start: float = Field(0.2, gt=0, le=1)
    """Share of the problems that is open at first."""
    raise_at: float = Field(0.7, ge=0, le=1)
    """A step whose fresh starts succeed more often than this opens more."""
    by: float = Field(0.1, gt=0, le=1)


class Pool(ExperienceConfig):
    """Plays fresh starts, and again those that are neither too easy nor too hard; tries starts that play comes upon."""

    kind: str = "pool"
    success: str = "success"
    """The game's measure that says how well an episode went, from 0 to 1."""
    keep: tuple[float, float] = (0.2, 0.8)
    """A start is in the pool while its success lies within these; in groups of one, a plain yes or no never does."""
    replay: float = Field(0.5, ge=0, le=1)
    """Share of a step's groups that start from the pool, as far as it goes."""
    size: int = Field(1000, ge=1)
    """The most starts kept; those that were not played for longest give way, of these the easiest first."""
    momentum: float = Field(0.5, ge=0, lt=1)
    """How much of a start's average success stays when it is played again."""
    curriculum: Curriculum | None = None

    @field_validator("keep")
    @classmethod
    def _range(cls, keep: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= keep[0] <= keep[1] <= 1:
            raise ValueError(f"keep: {list(keep)} is no range; choices: [low, high] with 0 <= low <= high <= 1")
        return keep

    def build(self) -> Experience:
        return Starts(self)


@dataclass(frozen=True, slots=True)
class Entry:
    """A start in the pool."""

    seed: int
    options: dict[str, Any] | None
    played: int
    """The step in which it was last played, or came up."""
    success: float | None = None
    """Average; None before it was played."""


class Starts:
    """Where play may start again, by start key, and how far the curriculum is."""

    def __init__(self, settings: Pool) -> None:
        self._settings = settings
        self._entries: dict[str, Entry] = {}
        """By start key; those that nobody has played, by their options."""
        self._step = 0
        self._open = settings.curriculum.start if settings.curriculum else 1.0
        self._metrics: Metrics = {}

    def gather(self, deals: Sequence[Deal], simulator: Simulator) -> list[Trajectory]:
        """Play the deals; some groups start from the pool instead.

        Raises:
            ValueError: if the game has no measure `success`.
        """
        again = self._chosen(deals)
        played = simulator.play([self._redealt(deal, again.get(deal.group)) for deal in deals])
        groups: dict[str, list[Trajectory]] = defaultdict(list)
        for trajectory in played:
            if trajectory.deal.purpose == "train":
                groups[trajectory.deal.group].append(trajectory)
        success = {group: fmean(map(self._success, episodes)) for group, episodes in groups.items()}
        self._step += 1
        for group, episodes in groups.items():
            self._note(episodes[0], again.get(group), success[group])
        self._find([trajectory for episodes in groups.values() for trajectory in episodes])
        self._trim()
        fresh = [value for group, value in success.items() if group not in again]
        self._metrics = self._measured(fresh, 1 - len(fresh) / max(1, len(success)))
        self._advance(fresh)
        return played

    def metrics(self) -> Metrics:
        """Of the last step: `pool/` size, untested, success, replayed, fresh_success, open."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        entries = {name: asdict(entry) for name, entry in self._entries.items()}
        return {"entries": entries, "step": self._step, "open": self._open}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._entries = {name: Entry(**entry) for name, entry in state["entries"].items()}
        self._step, self._open = int(state["step"]), float(state["open"])

    def _chosen(self, deals: Sequence[Deal]) -> dict[str, str]:
        """Group -> the entry that it starts from. Drawn from the groups' own seeds; no entry is taken twice."""
        seeds = {deal.group: deal.seed for deal in deals if deal.purpose == "train"}
        left, chosen = list(self._entries), {}
        for group, seed in seeds.items():
            if left and seed_of(seed, "replay") < self._settings.replay * 2**64:
                chosen[group] = left.pop(seed_of(seed, "start") % len(left))
        return chosen

    def _redealt(self, deal: Deal, name: str | None) -> Deal:
        if name is not None:
            entry = self._entries[name]
            return replace(deal, seed=entry.seed, options=entry.options)
        if self._settings.curriculum and deal.purpose == "train":
            return replace(deal, options={**(deal.options or {}), "open": self._open})
        return deal

    def _note(self, first: Trajectory, name: str | None, success: float) -> None:
        """Take into account how a group fared whose first episode is `first`, and which began at the entry `name`."""
        before = self._entries.pop(name, None) if name is not None else None
        before = self._entries.pop(first.start, None) or before
        if before and before.success is not None:
            success = self._settings.momentum * before.success + (1 - self._settings.momentum) * success
        low, high = self._settings.keep
        if low <= success <= high:
            self._entries[first.start] = Entry(first.deal.seed, _plain(first.deal.options), self._step, success)

    def _find(self, trajectories: Sequence[Trajectory]) -> None:
        """Take in the starts that play came upon, unless they are there."""
        known = {_name(entry.options) for entry in self._entries.values() if entry.options}
        for trajectory in trajectories:
            for start in trajectory.findings.starts:
                options = json.loads(json.dumps(start))
                name = _name(options)
                if name not in known:
                    known.add(name)
                    self._entries[name] = Entry(trajectory.deal.seed, options, self._step)

    def _trim(self) -> None:
        def worth(name: str) -> tuple[int, float]:
            entry = self._entries[name]
            return entry.played, -1.0 if entry.success is None else -entry.success

        kept = set(sorted(self._entries, key=worth)[-self._settings.size :])
        self._entries = {name: entry for name, entry in self._entries.items() if name in kept}

    def _success(self, trajectory: Trajectory) -> float:
        measures = trajectory.findings.measures
        if self._settings.success not in measures:
            near = nearest(self._settings.success, measures)
            raise ValueError(
                f"experience.success: the game has no measure {self._settings.success!r}; {near} "
                f"(episode {trajectory.id}, which ended {trajectory.end!r})"
            )
        return measures[self._settings.success]

    def _measured(self, fresh: Sequence[float], replayed: float) -> Metrics:
        tested = [entry.success for entry in self._entries.values() if entry.success is not None]
        metrics = {
            "pool/size": float(len(self._entries)),
            "pool/untested": float(len(self._entries) - len(tested)),
            "pool/replayed": replayed,
        }
        metrics |= {"pool/success": fmean(tested)} if tested else {}
        metrics |= {"pool/fresh_success": fmean(fresh)} if fresh else {}
        return metrics | ({"pool/open": self._open} if self._settings.curriculum else {})

    def _advance(self, fresh: Sequence[float]) -> None:
        curriculum = self._settings.curriculum
        if curriculum and fresh and fmean(fresh) > curriculum.raise_at:
            self._open = min(1.0, self._open + curriculum.by)


def _name(options: Mapping[str, Any]) -> str:
    """Names a start that nobody has played: its problem's key, or else all its options."""
    problem = options.get("problem")
    told = problem["key"] if isinstance(problem, Mapping) and "key" in problem else options
    return f"untested {json.dumps(told, sort_keys=True)}"


def _plain(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """As it will be read from a checkpoint: tuples are lists there."""
    return json.loads(json.dumps(options))
