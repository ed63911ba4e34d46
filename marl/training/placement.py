"""Placement: the location of a run's engines, simulators and learners. Local placement: this process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from marl.core.seeds import seed_of
from marl.core.types import Metrics, Reading, Sample, Turn
from marl.protocols import Engine, GameConfig, Learner, LearnerConfig, LearnerContext, ModelConfig, ModelSource
from marl.rollout.added_policies import AdapterPool, AddedPolicies, EnginePool, SlotPool
from marl.rollout.base import BaseSimulator, ProcessStatus
from marl.rollout.casting import RoleCasting
from marl.rollout.sharded_simulator import ShardedSimulator
from marl.rollout.shards import ShardGroup
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import PolicyConfig, Scenario

Sources = Mapping[str, ModelSource | None]
"""Policy -> source of its weights, or None for players without weights."""


class Learners(Mapping[str, Learner]):
    """The learners of a run by policy. Learners of one step are called together, so that they may work in parallel."""

    @abstractmethod
    def read(self, turns: Mapping[str, Sequence[Turn]], fields: Mapping[str, frozenset[str]]) -> list[Reading]:
        """Return one reading for each turn, policy by policy.

        Args:
            turns: policy -> turns to read.
            fields: policy -> names of the fields of `Reading` to compute.
        """

    @abstractmethod
    def update(self, samples: Mapping[str, Sequence[Sample]]) -> dict[str, Metrics]:
        """Update the policies in `samples` together; return policy -> metrics of its update.

        Raises:
            NonFiniteError: naming the policy whose loss or gradient is not finite.
        """

    def status(self) -> list[ProcessStatus]:
        """Return the state of each separate learner process; safe to call from any thread."""
        return []


class LocalLearners(Learners):
    """Learners in this process, which work one after another."""

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        self._learners = learners

    def __getitem__(self, policy: str) -> Learner:
        return self._learners[policy]

    def __iter__(self) -> Iterator[str]:
        return iter(self._learners)

    def __len__(self) -> int:
        return len(self._learners)

    def read(self, turns: Mapping[str, Sequence[Turn]], fields: Mapping[str, frozenset[str]]) -> list[Reading]:
        readings: list[Reading] = []
        for policy, policy_turns in turns.items():
            readings += self[policy].read(policy_turns, fields[policy])
        return readings

    def update(self, samples: Mapping[str, Sequence[Sample]]) -> dict[str, Metrics]:
        return {policy: self[policy].update(batch) for policy, batch in samples.items()}


class Placement(Protocol):
    """Builds the parts of a run at their location."""

    def simulator(self, scenario: Scenario, sources: Sources) -> BaseSimulator:
        """Return the scenario's simulator, with an engine for each policy in `sources`."""
        ...

    def learners(self, scenario: Scenario, sources: Sources) -> Learners:
        """Return a learner for each policy that has one."""
        ...


class LocalPlacement:
    """Placement of all parts in this process."""

    def simulator(self, scenario: Scenario, sources: Sources) -> BaseSimulator:
        return build_simulator(scenario, sources)

    def learners(self, scenario: Scenario, sources: Sources) -> LocalLearners:
        contexts = learner_contexts(scenario, sources)
        return LocalLearners({policy: settings.build(context) for policy, (settings, context) in contexts.items()})


def learner_contexts(scenario: Scenario, sources: Sources) -> dict[str, tuple[LearnerConfig, LearnerContext]]:
    """Return policy -> (settings of its learner, context to build it), for each policy with a learner."""
    schedule = scenario.schedule
    contexts: dict[str, tuple[LearnerConfig, LearnerContext]] = {}
    for name, policy in scenario.policies.items():
        if policy.learner and (source := sources[name]):
            seed = seed_of(schedule.seed, "learner", name)
            contexts[name] = policy.learner, LearnerContext(name, source, policy.updates(schedule.steps), seed)
    return contexts


def build_simulator(scenario: Scenario, sources: Sources) -> RolloutSimulator:
    """Return a simulator with engines for a run's policies, and with slots for earlier weights of these policies."""
    engines = build_engines(scenario.policies, sources)
    simulator = make_simulator(scenario, engines)
    slots: dict[str, SlotPool] = {}
    # A slot takes no memory until weights are loaded into it.
    for name, source in sources.items():
        policy = scenario.policies[name]
        if source and _shared_base(policy):
            slots[name] = AdapterPool(engines[name], source)
        elif source:
            slots[name] = EnginePool(partial(policy.engine.build, source))
    simulator.added = AddedPolicies(slots)
    return simulator


def sharded_simulator(scenario: Scenario, shards: ShardGroup) -> ShardedSimulator:
    """Return a simulator of the scenario's games and roles with these shards."""
    schedule = scenario.schedule
    simulator = ShardedSimulator(games_of(scenario), RoleCasting(scenario.roles, schedule.seed), shards)
    simulator.max_drops = schedule.max_drops if schedule.on_error == "drop" else 0
    return simulator


def make_simulator(scenario: Scenario, engines: Mapping[str, Engine], seed: int | None = None) -> RolloutSimulator:
    """Return a simulator of the scenario's games and roles.

    Args:
        scenario: scenario to simulate.
        engines: policy -> engine.
        seed: seed of sampling (default: the scenario's seed).
    """
    schedule = scenario.schedule
    casting = RoleCasting(scenario.roles, schedule.seed if seed is None else seed)
    simulator = RolloutSimulator(
        games_of(scenario), casting, engines, schedule.deadline_s, schedule.worker_delay, schedule.max_turns
    )
    simulator.max_drops = schedule.max_drops if schedule.on_error == "drop" else 0
    return simulator


def games_of(scenario: Scenario) -> dict[str, GameConfig]:
    """Return name -> game. The name of a scenario's only game is ""."""
    return {name: view.game for name, view in scenario.by_game().items()}


def build_engines(policies: Mapping[str, PolicyConfig], sources: Sources) -> dict[str, Engine]:
    """Return policy -> engine.

    Policies with adapters on one base share an engine, as do policies without learners whose settings and weights are
    equal.
    """
    groups: dict[Hashable, list[str]] = {}
    for name, policy in policies.items():
        if base := _shared_base(policy):
            key: Hashable = (base.model_dump_json(), policy.engine.model_dump_json())
        elif policy.learner:
            key = name
        else:
            # Settings alone are no key: equal settings of a tiny model mean other weights after another warm-up.
            key = (policy.engine.model_dump_json(), sources[name])
        groups.setdefault(key, []).append(name)
    engines: dict[str, Engine] = {}
    for names in groups.values():
        policy = policies[names[0]]
        if _shared_base(policy):
            adapters = {name: source for name in names if (source := sources[name])}
            engine = policy.engine.build_shared(adapters)
        else:
            engine = policy.engine.build(sources[names[0]])
        engines |= dict.fromkeys(names, engine)
    return {name: engines[name] for name in policies}


def _shared_base(policy: PolicyConfig) -> ModelConfig | None:
    """Return the base of a policy's adapter if one engine can sample for several adapters, else None."""
    return policy.model.shared_base() if policy.model and policy.engine.serves_several_policies else None


def use_threads(threads: int | None) -> None:
    """Set the number of torch's threads; None keeps torch's setting."""
    # `marl check` imports this module's users, and must not load torch.
    import torch

    if threads:
        torch.set_num_threads(threads)
