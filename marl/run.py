"""Everything one run needs, built once from its scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl.graph import Trajectory
from marl.judge import Judge
from marl.protocols import Brief, Engine, Experience, Learner, Source
from marl.rollout import Cast, seed_of
from marl.scenario import PolicyConfig, Scenario
from marl.simulator import Table
from marl.types import Deal, Reading, TurnId


@dataclass
class Run:
    """The working parts of a run. Data travels through them one way, see `marl.loop`."""

    scenario: Scenario
    table: Table
    learners: dict[str, Learner]
    judge: Judge
    experience: Experience
    step: int = 0
    """Steps done."""
    versions: dict[str, int] = field(default_factory=dict)

    def deal(self, step: int) -> list[Deal]:
        """The starts of one step: groups share a seed, so their episodes begin alike."""
        schedule = self.scenario.schedule
        deals = []
        for group in range(schedule.groups):
            name = f"{step:06d}.{group}"
            seed = seed_of(schedule.seed, "deal", name)
            seats = self._seats(step * schedule.groups + group)
            deals += [Deal(f"{name}.{i}", name, seed, seats) for i in range(schedule.group_size)]
        return deals

    def _seats(self, turn: int) -> dict[str, str]:
        seats = self.scenario.seats
        shift = turn % len(seats) if self.scenario.schedule.rotate_seats else 0
        roles = list(seats.values())
        return dict(zip(seats, roles[shift:] + roles[:shift], strict=True))

    def read(self, trajectories: Sequence[Trajectory]) -> dict[TurnId, Reading]:
        """One pass of each learner's model over its own turns, if a part asks for it."""
        roles = self.scenario.roles
        readings: dict[TurnId, Reading] = {}
        for name, learner in self.learners.items():
            if not self.judge.needs | learner.needs:
                continue
            turns = [
                t for tr in trajectories for t in tr.turns if roles[t.role].policy == name and roles[t.role].trainable
            ]
            turns = [turn for turn in turns if turn.completion.prompt_ids]
            readings.update(zip((turn.id for turn in turns), learner.read(turns), strict=True))
        return readings

    def publish(self, name: str, version: int) -> None:
        """Hand a learner's new weights to the engine that speaks with them."""
        self.versions[name] = version
        self.table.engines[name].load_weights(name, self.learners[name].publish(), version)

    def save_policies(self, folder: Path) -> None:
        """One Hugging Face folder per policy that learns."""
        for name, learner in self.learners.items():
            learner.save(folder / name)

    def state_dict(self) -> dict[str, Any]:
        return {
            "learners": {name: learner.state_dict() for name, learner in self.learners.items()},
            "judge": self.judge.state_dict(),
            "versions": dict(self.versions),
            **self.played(),
        }

    def played(self) -> dict[str, Any]:
        """The part of the state that play changes: where experience stands, and what was counted."""
        return {
            "experience": self.experience.state_dict(),
            "tokens": dict(self.table.tokens),
            "dropped": self.table.dropped,
        }

    def unplay(self, state: Mapping[str, Any]) -> None:
        """Go back to what `played` returned."""
        self.experience.load_state_dict(state["experience"])
        self.table.tokens.clear()
        self.table.tokens.update(state["tokens"])
        self.table.dropped = state["dropped"]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.judge.load_state_dict(state["judge"])
        self.unplay(state)
        for name, learner in self.learners.items():
            learner.load_state_dict(state["learners"][name])
            self.publish(name, state["versions"].get(name, 0))


def build(scenario: Scenario) -> Run:
    """Load weights and put the parts of a run together."""
    use_threads(scenario.schedule.threads)
    schedule = scenario.schedule
    sources = {name: _source(scenario, name) for name in scenario.policies}
    table = lay(scenario, engines(scenario.policies, sources))
    learners = {
        name: policy.learner.build(Brief(name, source, schedule.steps, seed_of(schedule.seed, "learner", name)))
        for name, policy in scenario.policies.items()
        if policy.learner and (source := sources[name])
    }
    return Run(scenario, table, learners, Judge(scenario.credit), scenario.experience.build())


def lay(scenario: Scenario, speakers: Mapping[str, Engine], seed: int | None = None) -> Table:
    """The scenario's game with its roles, spoken for by `speakers` (policy -> engine); default: the scenario's seed."""
    schedule = scenario.schedule
    cast = Cast(scenario.roles, schedule.seed if seed is None else seed)
    table = Table(scenario.game, cast, speakers, schedule.deadline_s)
    table.may_drop = schedule.max_drops if schedule.on_error == "drop" else 0
    return table


def engines(policies: Mapping[str, PolicyConfig], sources: Mapping[str, Source | None]) -> dict[str, Engine]:
    """An engine for each policy; those that never learn and are alike share one."""
    shared: dict[str, Engine] = {}
    speakers: dict[str, Engine] = {}
    for name, policy in policies.items():
        alike = policy.model_dump_json() if policy.learner is None else name
        if alike not in shared:
            shared[alike] = policy.engine.build(sources[name])
        speakers[name] = shared[alike]
    return speakers


def _source(scenario: Scenario, name: str) -> Source | None:
    model = scenario.policies[name].model
    return model.prepare(scenario, name) if model else None


def use_threads(threads: int | None) -> None:
    """Let torch use this many threads; None leaves it as it is."""
    import torch

    if threads:
        torch.set_num_threads(threads)
