"""Placement: where the engines, simulators and learners of a run live. Local: all in this process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from marl.protocols import Engine, GameConfig, Learner, LearnerConfig, LearnerContext, ModelConfig, ModelSource
from marl.rollout.base import BaseSimulator, PartStatus
from marl.rollout.casting import RoleCasting
from marl.rollout.guests import Spare, SpareAdapters, SpareEngines
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import PolicyConfig, Scenario
from marl.seeds import seed_of
from marl.types import Metrics, Reading, Sample, Turn

Sources = Mapping[str, ModelSource | None]
"""Policy -> where its weights come from; None for players without weights."""


class Learners(Mapping[str, Learner]):
    """The learners of a run, by policy. Learners of one step are called together, so they may work in parallel."""

    @abstractmethod
    def read(self, turns: Mapping[str, Sequence[Turn]], wanted: Mapping[str, frozenset[str]]) -> list[Reading]:
        """Return the readings of each policy's turns, policy by policy; `wanted`: policy -> fields of `Reading`."""

    @abstractmethod
    def update(self, samples: Mapping[str, Sequence[Sample]]) -> dict[str, Metrics]:
        """Update these policies as a group; return policy -> figures of its update.

        Raises:
            NonFinite: naming the policy whose loss or gradient is not finite.
        """

    def status(self) -> list[PartStatus]:
        """Return what each process of its own does; may be called from any thread."""
        return []


class LocalLearners(Learners):
    """Learners in this process, which work one after the other."""

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        self._learners = learners

    def __getitem__(self, policy: str) -> Learner:
        return self._learners[policy]

    def __iter__(self) -> Iterator[str]:
        return iter(self._learners)

    def __len__(self) -> int:
        return len(self._learners)

    def read(self, turns: Mapping[str, Sequence[Turn]], wanted: Mapping[str, frozenset[str]]) -> list[Reading]:
        return [reading for policy in turns for reading in self[policy].read(turns[policy], wanted[policy])]

    def update(self, samples: Mapping[str, Sequence[Sample]]) -> dict[str, Metrics]:
        return {policy: self[policy].update(batch) for policy, batch in samples.items()}


class Placement(Protocol):
    """Builds the working parts of a run where they are to live."""

    def simulator(self, scenario: Scenario, sources: Sources) -> BaseSimulator:
        """Return the scenario's simulator, with an engine for each policy in `sources`."""
        ...

    def learners(self, scenario: Scenario, sources: Sources) -> Learners:
        """Return a learner for each policy that has one."""
        ...


class LocalPlacement:
    """All parts in this process."""

    def simulator(self, scenario: Scenario, sources: Sources) -> BaseSimulator:
        return playing_simulator(scenario, sources)

    def learners(self, scenario: Scenario, sources: Sources) -> LocalLearners:
        contexts = learner_contexts(scenario, sources)
        return LocalLearners({name: settings.build(context) for name, (settings, context) in contexts.items()})


def learner_contexts(scenario: Scenario, sources: Sources) -> dict[str, tuple[LearnerConfig, LearnerContext]]:
    """Return policy -> settings of its learner and what they need to build it, for each policy that has one."""
    schedule = scenario.schedule
    contexts: dict[str, tuple[LearnerConfig, LearnerContext]] = {}
    for name, policy in scenario.policies.items():
        if policy.learner and (source := sources[name]):
            seed = seed_of(schedule.seed, "learner", name)
            contexts[name] = policy.learner, LearnerContext(name, source, policy.updates(schedule.steps), seed)
    return contexts


def playing_simulator(scenario: Scenario, sources: Sources) -> RolloutSimulator:
    """Return a simulator of a run, with engines of its own, and with room for weights that its policies had earlier."""
    engines = build_engines(scenario.policies, sources)
    return make_simulator(scenario, engines).with_spares(_spares(scenario.policies, sources, engines))


def _spares(policies: Mapping[str, PolicyConfig], sources: Sources, engines: Mapping[str, Engine]) -> dict[str, Spare]:
    """Return policy -> room for its saved weights, which takes no memory before it is used."""
    return {
        name: SpareAdapters(engines[name], source)
        if _base(policies[name])
        else SpareEngines(partial(policies[name].engine.build, source))
        for name, source in sources.items()
        if source
    }


def make_simulator(scenario: Scenario, engines: Mapping[str, Engine], seed: int | None = None) -> RolloutSimulator:
    """Return a simulator of the scenario's games and roles with `engines` (policy -> engine); default: its own seed."""
    schedule = scenario.schedule
    casting = RoleCasting(scenario.roles, schedule.seed if seed is None else seed)
    simulator = RolloutSimulator(
        games_of(scenario), casting, engines, schedule.deadline_s, schedule.worker_delay, schedule.max_turns
    )
    simulator.may_drop = schedule.max_drops if schedule.on_error == "drop" else 0
    return simulator


def games_of(scenario: Scenario) -> dict[str, GameConfig]:
    """Return name -> game; the name of a scenario's only game is ""."""
    return {name: view.game for name, view in scenario.by_game().items()}


def build_engines(policies: Mapping[str, PolicyConfig], sources: Sources) -> dict[str, Engine]:
    """Return an engine for each policy.

    Policies with a base in common share one; so do policies that never learn and have the same settings and weights.
    """
    groups: dict[Hashable, list[str]] = {}
    for name, policy in policies.items():
        groups.setdefault(_engine_key(name, policy, sources[name]), []).append(name)
    engines: dict[str, Engine] = {}
    for names in groups.values():
        engine = _build_engine(policies[names[0]], {name: sources[name] for name in names})
        engines |= dict.fromkeys(names, engine)
    return {name: engines[name] for name in policies}


def _build_engine(policy: PolicyConfig, sources: Sources) -> Engine:
    """Return one engine for all policies in `sources`, which are like `policy`."""
    if _base(policy):
        return policy.engine.build_shared({name: source for name, source in sources.items() if source})
    return policy.engine.build(next(iter(sources.values())))


def _engine_key(name: str, policy: PolicyConfig, source: ModelSource | None) -> Hashable:
    """Return a key that is equal for policies that one engine can sample for."""
    if base := _base(policy):
        return base.model_dump_json(), policy.engine.model_dump_json()
    # Equal settings may mean different weights: a tiny model is warmed up for what its policy says.
    return name if policy.learner else (policy.engine.model_dump_json(), source)


def _base(policy: PolicyConfig) -> ModelConfig | None:
    return policy.model.shared() if policy.model and policy.engine.shares_base else None


def use_threads(threads: int | None) -> None:
    """Let torch use this many threads; None leaves its setting as it is."""
    import torch

    if threads:
        torch.set_num_threads(threads)
