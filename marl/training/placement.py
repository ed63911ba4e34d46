"""Placement: where the engines, simulators and learners of a run are built, by default in this process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from marl.core.seeds import hash_to_seed
from marl.core.types import MetricsByPolicy, Reading, Sample, Turn
from marl.protocols import Engine, GameConfig, Learner, LearnerBuildArguments, LearnerConfig, ModelConfig, ModelSource
from marl.protocols.models import NoModelSource
from marl.rollout.added_policies import AddedPolicies, EarlierWeightsAdapterPool, EarlierWeightsEnginePool, SlotPool
from marl.rollout.base import BaseSimulator, ProcessActivity
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.sharded_simulator import ShardedSimulator
from marl.rollout.shards import ShardGroup
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import PolicyConfig, Scenario

ModelSources = Mapping[str, ModelSource | None]
"""Policy -> source of its weights, or None for a policy without weights."""


class Learners(Mapping[str, Learner]):
    """Learners of a run by policy. All learners of a step are called together, so that they can work in parallel."""

    @abstractmethod
    def read(self, turns: Mapping[str, Sequence[Turn]], fields: Mapping[str, frozenset[str]]) -> list[Reading]:
        """Return one reading for each turn in `turns`, policy by policy.

        Args:
            turns: policy -> turns to read.
            fields: policy -> names of the fields of `Reading` to compute.
        """

    @abstractmethod
    def update(self, samples: Mapping[str, Sequence[Sample]]) -> MetricsByPolicy:
        """Update the policies in `samples` together, and return policy -> metrics of its update.

        Raises:
            NonFiniteError: if a loss or gradient is not finite; the error names the policy.
        """

    def process_activities(self) -> list[ProcessActivity]:
        """Return the status of each separate learner process. Any thread may call this method."""
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

    def update(self, samples: Mapping[str, Sequence[Sample]]) -> MetricsByPolicy:
        return {policy: self[policy].update(batch) for policy, batch in samples.items()}


class Placement(Protocol):
    """Builds the simulator and the learners of a run, in this process or on other machines."""

    def build_simulator(self, scenario: Scenario, sources: ModelSources) -> BaseSimulator:
        """Return the simulator that plays the scenario's games, with an engine for each policy in `sources`."""
        ...

    def build_learners(self, scenario: Scenario, sources: ModelSources) -> Learners:
        """Return the learners of the scenario, one for each policy with a learner."""
        ...

    def process_activities(self) -> tuple[list[ProcessActivity], list[ProcessActivity]]:
        """Return the activities of separate processes of simulators and of learners, also of those that are starting.

        Any thread may call this method.
        """
        ...


class LocalPlacement:
    """Placement that builds simulator and learners in this process."""

    def build_simulator(self, scenario: Scenario, sources: ModelSources) -> BaseSimulator:
        return build_simulator(scenario, sources)

    def build_learners(self, scenario: Scenario, sources: ModelSources) -> LocalLearners:
        contexts = learner_settings_and_contexts(scenario, sources)
        return LocalLearners({policy: settings.build(context) for policy, (settings, context) in contexts.items()})

    def process_activities(self) -> tuple[list[ProcessActivity], list[ProcessActivity]]:
        return [], []


def learner_settings_and_contexts(
    scenario: Scenario, sources: ModelSources
) -> dict[str, tuple[LearnerConfig, LearnerBuildArguments]]:
    """Return policy -> (settings of its learner, context for building it), for each policy with a learner."""
    schedule = scenario.schedule
    contexts: dict[str, tuple[LearnerConfig, LearnerBuildArguments]] = {}
    for name, policy in scenario.policies.items():
        source = sources[name]
        if policy.learner and not policy.learner.trains_weights:
            source = source or NoModelSource()
        if policy.learner and source:
            seed = hash_to_seed(schedule.seed, "learner", name)
            teachers: dict[str, ModelSource] = {}
            for teacher in policy.learner.taught_by.values():
                if teacher_source := sources[teacher]:
                    teachers[teacher] = teacher_source
            updates = policy.count_updates(schedule.steps)
            roles = {role: config for role, config, _ in scenario.learning_roles() if config.policy == name}
            agents: set[str] = set()
            for view in scenario.scenario_by_game().values():
                agents |= {agent for agent, role in view.seats.items() if role in roles}
            arguments = LearnerBuildArguments(
                name, source, updates, seed, teachers, roles=roles, agents=tuple(sorted(agents))
            )
            contexts[name] = policy.learner, arguments
    return contexts


def build_simulator(scenario: Scenario, sources: ModelSources, index: int = 0, simulators: int = 1) -> RolloutSimulator:
    """Return a simulator with an engine for each policy, and with slots for earlier weights of these policies.

    `index`: number of this simulator, from 0, among the run's `simulators`.
    """
    playing: dict[str, PolicyConfig] = {}
    for name, policy in scenario.policies.items():
        if name in scenario.sampling_policies:
            playing[name] = policy.model_copy(update={"engine": policy.engine.for_simulator(index, simulators)})
    engines = build_engines(playing, sources)
    simulator = simulator_from_engines(scenario, engines)
    slots: dict[str, SlotPool] = {}
    # A slot uses no memory until it holds the weights of a league member.
    for name, source in sources.items():
        if name not in playing:
            continue
        policy = playing[name]
        if source and _shared_base(policy):
            slots[name] = EarlierWeightsAdapterPool(engines[name], source)
        elif source:
            slots[name] = EarlierWeightsEnginePool(partial(policy.engine.build, source))
    simulator.added = AddedPolicies(slots)
    return simulator


def sharded_simulator(scenario: Scenario, shards: ShardGroup) -> ShardedSimulator:
    """Return a simulator of the scenario's games and roles whose episodes are played by `shards`."""
    schedule = scenario.schedule
    simulator = ShardedSimulator(
        game_configs_by_name(scenario), RoleRequestBuilder(scenario.roles, schedule.seed), shards
    )
    simulator.drops.limit = schedule.max_drops if schedule.on_error == "drop" else 0
    return simulator


def simulator_from_engines(
    scenario: Scenario, engines: Mapping[str, Engine], seed: int | None = None
) -> RolloutSimulator:
    """Return a simulator of the scenario's games and roles.

    Args:
        scenario: scenario to simulate.
        engines: policy -> engine that samples for it.
        seed: seed of sampling (default: the scenario's seed).
    """
    schedule = scenario.schedule
    casting = RoleRequestBuilder(scenario.roles, schedule.seed if seed is None else seed)
    simulator = RolloutSimulator(
        game_configs_by_name(scenario), casting, engines, schedule.deadline_s, schedule.worker_delay, schedule.max_turns
    )
    simulator.drops.limit = schedule.max_drops if schedule.on_error == "drop" else 0
    return simulator


def game_configs_by_name(scenario: Scenario) -> dict[str, GameConfig]:
    """Return name -> settings of each game of the scenario; the name is "" in a scenario with one game."""
    return {name: view.game for name, view in scenario.scenario_by_game().items()}


def build_engines(policies: Mapping[str, PolicyConfig], sources: ModelSources) -> dict[str, Engine]:
    """Return policy -> engine that samples for it.

    Policies with adapters on one base share an engine, as do frozen policies with equal settings and weights.
    """
    groups: dict[Hashable, list[str]] = {}
    for name, policy in policies.items():
        if base := _shared_base(policy):
            key: Hashable = (base.model_dump_json(), policy.engine.model_dump_json())
        elif policy.learner:
            key = name
        else:
            # Tiny models with equal settings may differ in their warm-up, so the key includes the model's source.
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
    """Return the base of the policy's adapter if its engine can sample for several adapters, else None."""
    return policy.model.shared_base() if policy.model and policy.engine.serves_several_policies else None


def set_torch_threads(threads: int | None) -> None:
    """Set the number of threads of torch (default: torch's own setting)."""
    # torch is imported here, because `marl check` imports this module and must not load torch.
    import torch

    if threads:
        torch.set_num_threads(threads)
