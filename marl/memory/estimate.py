"""An estimate of the memory that a run takes, from its settings and its models' sizes; no weight is loaded.

Engines and learners state in their settings what they hold (`EngineConfig.memory`, `LearnerConfig.memory`); here it is
added up, each thing once, whoever shares it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from os.path import commonprefix

from marl.evaluation.dry_run import DryRun
from marl.protocols.memory import MemoryUse, ModelSize, Stage, Workload
from marl.scenario.schema import PolicyConfig, Scenario
from marl.types import Request

_BYTES_A_TOKEN = 3
"""Bytes of English text in a token of a large vocabulary, at least: for prompts whose tokenizer is not here."""
_MARKS = 8
"""Tokens of a chat template for each message, about."""


@dataclass(frozen=True)
class Holding:
    """Something that is held in memory."""

    policies: tuple[str, ...]
    """Policies that use it."""
    content: str
    bytes: float
    stage: Stage = "always"


@dataclass(frozen=True)
class MemoryEstimate:
    """Everything that a run holds in memory at some time. Parts of it in this process are on one device."""

    holdings: tuple[Holding, ...]
    unknown: tuple[str, ...]
    """Policies with a model of which no sizes are known."""
    guessed: tuple[str, ...]
    """Roles whose prompts' tokens were guessed from their length, as there is no tokenizer."""

    def stage_bytes(self, stage: Stage) -> float:
        """Return the bytes of a stage beside what is always held. Engines and learners take turns, though all engines
        are awake while one of them samples; what is saved is copied of all of them."""
        by_policies: dict[tuple[str, ...], float] = {}
        for each in self.holdings:
            if each.stage == stage:
                by_policies[each.policies] = by_policies.get(each.policies, 0.0) + each.bytes
        together = max if stage in ("play", "learn") else sum
        awake = self.stage_bytes("awake") if stage == "play" else 0.0
        return awake + together(by_policies.values() or [0.0])

    def peak(self, stages: Iterable[Stage] = ("play", "learn")) -> float:
        """Return the bytes held in the stage that takes most."""
        return self.stage_bytes("always") + max(map(self.stage_bytes, stages))


@dataclass(frozen=True)
class ScenarioSizes:
    """Everything about a scenario on which the memory of its run depends, beside its settings."""

    models: Mapping[str, ModelSize]
    """Policy -> sizes of its model, of those that are known."""
    work: Mapping[str, Workload]
    """Role -> its turns of a step."""
    at_once: float
    """Most turns of a step that can be sampled at the same time, as none of them follows from another."""
    guessed: tuple[str, ...] = ()


def sizes_of(run: DryRun) -> ScenarioSizes:
    """Return sizes from random play."""
    models = {name: facts.size for name, facts in run.models.items() if facts.size}
    guessed = tuple(role for role in run.turns if role not in run.prompt_tokens and _policy(run, role) in models)
    roles = [role for role in run.turns if _policy(run, role) in models]
    return ScenarioSizes(models, {role: _workload(run, role) for role in roles}, _at_once(run), guessed)


def _at_once(run: DryRun) -> float:
    from networkx import topological_generations  # here for the reason given in `marl.graph`

    widest = (max(map(len, topological_generations(episode.graph)), default=1) for episode in run.episodes)
    return run.episodes_a_step * max(widest, default=1)


def _policy(run: DryRun, role: str) -> str:
    return run.scenario.roles[role].policy


def _workload(run: DryRun, role: str) -> Workload:
    """Return the turns of a role in a step. Those of a group that read nobody's words have one prompt."""
    turns = run.turns[role]
    graphs = {episode.id: episode.graph for episode in run.episodes}
    first = sum(not graphs[turn.id[0]].in_degree(turn.id) for turn in turns) / len(turns)
    rows = run.per_episode(role) * run.episodes_a_step
    prompts = rows * (first / run.scenario.schedule.group_size + 1 - first)
    counts = run.prompt_tokens.get(role) or [_guessed(turn.request) for turn in turns]
    texts = ["\n".join(message.content or "" for message in turn.request.messages) for turn in turns]
    common = len(commonprefix(texts)) / max(1, *map(len, texts))  # noqa: RUF071  # these are no paths
    longest = max(counts)
    return Workload(rows, prompts, longest, run.scenario.roles[role].sampling.max_tokens, int(common * longest))


def _guessed(request: Request) -> int:
    return sum(len(message.content.encode()) // _BYTES_A_TOKEN + _MARKS for message in request.messages)


def estimate(scenario: Scenario, sizes: ScenarioSizes, device_bytes: float | None = None) -> MemoryEstimate:
    """Return what a run of the scenario holds. `device_bytes`: the GPU's memory, for engines that claim a share; None:
    it runs on the processor."""
    held: dict[tuple[str, str, Stage], Holding] = {}
    sampling = chain(_engines(scenario, sizes, device_bytes), _guests(scenario, sizes, device_bytes))
    for key, policies, use in chain(sampling, _learners(scenario, sizes)):
        # What is shared has one key, and so is counted once.
        before = held.get((key, use.content, use.stage), Holding((), use.content, 0.0, use.stage))
        names = tuple(dict.fromkeys((*before.policies, *policies)))
        held[key, use.content, use.stage] = replace(before, policies=names, bytes=max(use.bytes, before.bytes))
    unknown = tuple(name for name, policy in scenario.policies.items() if policy.model and name not in sizes.models)
    return MemoryEstimate(tuple(each for each in held.values() if each.bytes), unknown, sizes.guessed)


Keyed = Iterator[tuple[str, tuple[str, ...], MemoryUse]]
"""Key, which is equal for the same thing in memory, policies, and what they use."""


def _engines(scenario: Scenario, sizes: ScenarioSizes, device_bytes: float | None) -> Keyed:
    groups: dict[str, list[str]] = {}
    for name in sizes.models:
        groups.setdefault(_engine_key(name, scenario.policies[name]), []).append(name)
    for key, names in groups.items():
        policies, engine = tuple(names), scenario.policies[names[0]].engine
        work = Workload.together(_work(scenario, sizes, names, learning=False))
        rows = min(work.rows, sizes.at_once)
        work = replace(work, rows=rows, prompts=min(work.prompts, rows))
        for use in engine.memory([sizes.models[name] for name in names], work, device_bytes):
            freed = engine.sleeps and device_bytes is not None and use.stage == "always" and not use.of_base
            used = replace(use, stage="awake") if freed else use
            yield _base_key(scenario, names[0]) if use.of_base else key, policies, used


def _guests(scenario: Scenario, sizes: ScenarioSizes, device_bytes: float | None) -> Keyed:
    """Yield what earlier weights take, of whichever policy is largest."""
    for name, size in sizes.models.items():
        policy, work = scenario.policies[name], Workload.together(_work(scenario, sizes, [name], learning=False))
        for number in range(scenario.experience.guests if policy.learner else 0):
            for use in policy.engine.memory([size], work, device_bytes):
                key = _base_key(scenario, name) if use.of_base else f"guest {number}"
                yield key, (name,), use if use.of_base else replace(use, content=f"{use.content} of earlier weights")


def _learners(scenario: Scenario, sizes: ScenarioSizes) -> Keyed:
    for name, size in sizes.models.items():
        policy = scenario.policies[name]
        if policy.learner:
            work = Workload.together(_work(scenario, sizes, [name], learning=True))
            load = replace(work, rows=work.rows * policy.update_every, prompts=work.prompts * policy.update_every)
            for use in policy.learner.memory(size, load):
                yield _base_key(scenario, name) if use.of_base else f"learner {name}", (name,), use


def _base_key(scenario: Scenario, policy: str) -> str:
    """Return a key that is equal for policies whose adapters are on one base."""
    model = scenario.policies[policy].model
    base = model and (model.shared() or model)
    return f"base {base.model_dump_json() if base else policy}"


def _work(scenario: Scenario, sizes: ScenarioSizes, policies: list[str], *, learning: bool) -> Iterator[Workload]:
    for role, work in sizes.work.items():
        settings = scenario.roles[role]
        if settings.policy in policies and (settings.trainable or not learning):
            yield work


def _engine_key(name: str, policy: PolicyConfig) -> str:
    """Return a key that is equal for policies that share an engine: the same base, or the same frozen weights."""
    assert policy.model is not None
    base = policy.model.shared() if policy.engine.shares_base else None
    if base is None and policy.learner:
        return name
    return (base or policy.model).model_dump_json() + policy.engine.model_dump_json()
