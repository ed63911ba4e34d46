"""Experience that replays starts of medium difficulty from a pool, among fresh starts.

Starts that always or never succeed give no advantages where episodes of one start are compared (dynamic sampling in
DAPO, https://arxiv.org/abs/2503.14476; replayed levels: Jiang et al. 2021, https://arxiv.org/abs/2010.03934).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Any

from pydantic import Field, field_validator

from marl.core.config import Config
from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.state import MetricsReporter
from marl.core.types import Deal
from marl.experience.rollouts import measure_of_episode, unknown_measure_error
from marl.protocols import DealsOfStep, Experience, ExperienceConfig, ScenarioSummary, Simulator

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
pool/size | starts | starts in the pool after the step (`experience: pool`)
pool/untested | starts | of these, never played
pool/success | share | mean success of the others
pool/replayed | share of groups | groups that started from the pool
pool/fresh_success | share | mean success of the groups that did not
pool/open | share | problems that the curriculum had opened in the step
"""


class Curriculum(Config):
    """Settings that open a game's problems gradually, the easiest first, by the game's reset option `open`."""

    start: float = Field(default=0.2, gt=0, le=1)
    """Share of the game's problems that fresh starts may use in the first step."""
    raise_at: float = Field(default=0.7, ge=0, le=1)
    """Mean success above which more problems are opened, over the step's groups that did not start from the pool."""
    by: float = Field(default=0.1, gt=0, le=1)
    """Share of the game's problems that is opened in addition after each step with a mean success above `raise_at`."""


class StartPool(ExperienceConfig):
    """Experience that mixes fresh starts, replayed starts of medium difficulty, and starts reported by the game."""

    kind: str = "pool"
    success: str = "success"
    """Name of the game's measure of success in an episode, from 0 to 1."""
    keep: tuple[float, float] = (0.2, 0.8)
    """Range of the mean success of the starts in the pool. A single episode per group has a success of 0 or 1, often
    outside the range."""
    replay: float = Field(default=0.5, ge=0, le=1)
    """Share of a step's groups that start from the pool, if the pool has enough starts."""
    size: int = Field(default=1000, ge=1)
    """Maximum number of starts in the pool. The least recently played starts are removed first; of equally old starts,
    the easiest is removed first."""
    momentum: float = Field(default=0.5, ge=0, lt=1)
    """Weight of a start's previous average success in its new average when the start is replayed."""
    curriculum: Curriculum | None = None
    """Gradual opening of the game's problems, the easiest first (default: all are open from the first step)."""

    @field_validator("keep")
    @classmethod
    def _check_keep_is_range(cls, keep: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= keep[0] <= keep[1] <= 1:
            raise ValueError(f"keep: {list(keep)} is no range; choices: [low, high] with 0 <= low <= high <= 1")
        return keep

    @property
    def needed_measure(self) -> str:
        return self.success

    def scenario_conflicts(self, summary: ScenarioSummary) -> Iterator[str]:
        if error := unknown_measure_error(summary.game, self.success):
            yield error

    def build(self) -> Experience:
        return StartPoolSampler(self)


@dataclass(frozen=True, slots=True)
class StartPoolEntry:
    """Start in the pool: seed and reset options of an episode, with the results of its plays so far."""

    seed: int
    options: dict[str, Any] | None
    played: int
    """Step in which the start was last played, or was reported by the game if it was never played."""
    success: float | None = None
    """Moving average of the mean success of the start's groups, or None before the first play."""
    game: str = ""
    """Name of the game, or "" if the run has only one game."""


class StartPoolSampler(MetricsReporter):
    """Experience built from `StartPool`: replays some groups from the pool, and updates pool and curriculum.

    Metrics `pool/...` of a step: `size`: number of starts in the pool; `untested`: number of starts in the pool that
    were never played; `success`: mean success of the other starts in the pool; `replayed`: share of groups that start
    from the pool; `fresh_success`: mean success of fresh starts; `open`: share of the game's problems that is open.
    """

    def __init__(self, settings: StartPool) -> None:
        self._settings = settings
        self._entries: dict[str, StartPoolEntry] = {}
        """Key of a start -> entry. The key of an entry that was never played is made of its options."""
        self._step = 0
        self._open = settings.curriculum.start if settings.curriculum else 1.0
        """Share of the game's problems that fresh starts may use."""

    def gather(self, step: int, deals: DealsOfStep, simulator: Simulator) -> list[Trajectory]:
        """Play the step's deals, some groups from starts of the pool, and return the episodes.

        Raises:
            ValueError: if the game has no measure `success`.
        """
        settings, original_deals = self._settings, deals(step)
        replayed = self._draw_entry_key_by_replaying_group(original_deals)
        new_deals: list[Deal] = []
        for deal in original_deals:
            if deal.group in replayed:
                entry = self._entries[replayed[deal.group]]
                deal = replace(deal, seed=entry.seed, options=entry.options)
            elif settings.curriculum and deal.purpose == "train":
                deal = replace(deal, options={**(deal.options or {}), "open": self._open})
            new_deals.append(deal)
        played = simulator.play(new_deals)
        groups: dict[str, list[Trajectory]] = defaultdict(list)
        success: dict[str, float] = {}
        for trajectory in played:
            if trajectory.deal.purpose == "train":
                groups[trajectory.deal.group].append(trajectory)
        for group, episodes in groups.items():
            success[group] = fmean(measure_of_episode(episode, settings.success) for episode in episodes)
        self._step += 1
        fresh: list[float] = []
        for group, episodes in groups.items():
            self._update_entry(episodes[0], replayed.get(group), success[group])
            if group not in replayed:
                fresh.append(success[group])
        self._add_reported_starts(chain.from_iterable(groups.values()))
        # A full pool first removes the starts that were played longest ago, and the easiest among these.
        ages: dict[str, tuple[int, float]] = {}
        for name, entry in self._entries.items():
            ages[name] = entry.played, -1.0 if entry.success is None else -entry.success
        for name in sorted(ages, key=ages.__getitem__)[: -settings.size]:
            del self._entries[name]
        tested = [entry.success for entry in self._entries.values() if entry.success is not None]
        metrics = {
            "pool/size": float(len(self._entries)),
            "pool/untested": float(len(self._entries) - len(tested)),
            "pool/replayed": 1 - len(fresh) / max(1, len(groups)),
        }
        if tested:
            metrics["pool/success"] = fmean(tested)
        if fresh:
            metrics["pool/fresh_success"] = fmean(fresh)
        if settings.curriculum:
            metrics["pool/open"] = self._open
        self._metrics = metrics
        if settings.curriculum and fresh and fmean(fresh) > settings.curriculum.raise_at:
            self._open = min(1.0, self._open + settings.curriculum.by)
        return played

    def state_dict(self) -> dict[str, Any]:
        entries = {name: asdict(entry) for name, entry in self._entries.items()}
        return {"entries": entries, "step": self._step, "open": self._open}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._entries = {name: StartPoolEntry(**entry) for name, entry in state["entries"].items()}
        self._step, self._open = int(state["step"]), float(state["open"])

    def _draw_entry_key_by_replaying_group(self, deals: Sequence[Deal]) -> dict[str, str]:
        """Return group that replays a start -> key of the start's entry, drawn without replacement by seed."""
        groups = {deal.group: deal for deal in deals if deal.purpose == "train"}
        chosen: dict[str, str] = {}
        available: dict[str, list[str]] = defaultdict(list)
        for name, entry in self._entries.items():
            available[entry.game].append(name)
        for group, deal in groups.items():
            entries = available[deal.game]
            if entries and hash_to_seed(deal.seed, "replay") < self._settings.replay * 2**64:
                chosen[group] = entries.pop(hash_to_seed(deal.seed, "start") % len(entries))
        return chosen

    def _update_entry(self, first_episode: Trajectory, entry_key: str | None, success_rate: float) -> None:
        """Add, update or remove the entry of a group's start, by the success of the group.

        Args:
            first_episode: first episode of the group.
            entry_key: key of the entry from which the group started, or None for a fresh start.
            success_rate: mean success of the group.
        """
        before = self._entries.pop(entry_key, None) if entry_key is not None else None
        before = self._entries.pop(first_episode.start, None) or before
        if before and before.success is not None:
            success_rate = self._settings.momentum * before.success + (1 - self._settings.momentum) * success_rate
        low, high = self._settings.keep
        if low <= success_rate <= high:
            # Options are converted to JSON and back, so that they are equal to those of a resumed run's checkpoint.
            options = json.loads(json.dumps(first_episode.deal.options))
            self._entries[first_episode.start] = StartPoolEntry(
                first_episode.deal.seed, options, self._step, success_rate, first_episode.deal.game
            )

    def _add_reported_starts(self, trajectories: Iterable[Trajectory]) -> None:
        """Add the starts that the game reported in `findings.starts` of the episodes, unless they are in the pool."""
        names = {_unplayed_start_key(entry.options, entry.game) for entry in self._entries.values() if entry.options}
        for trajectory in trajectories:
            for start in trajectory.findings.starts:
                options, deal = json.loads(json.dumps(start)), trajectory.deal
                name = _unplayed_start_key(options, deal.game)
                if name not in names:
                    names.add(name)
                    self._entries[name] = StartPoolEntry(deal.seed, options, self._step, game=deal.game)


def _unplayed_start_key(options: Mapping[str, Any], game: str) -> str:
    """Return the key of a start that was never played, made of its problem's key, or else of all its options."""
    problem = options.get("problem")
    key = problem["key"] if isinstance(problem, Mapping) and "key" in problem else options
    return f"untested {game and f'{game} '}{json.dumps(key, sort_keys=True)}"
