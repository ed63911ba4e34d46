"""Memory estimate of a run from its settings and the sizes of its models, without loading weights.

Settings of engines and learners list the memory that they use (`EngineConfig.memory`, `LearnerConfig.memory`). The
estimate adds up these lists and counts shared memory once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from os.path import commonprefix

from marl.evaluation.dry_run import DryRun
from marl.protocols.memory_estimates import MemoryUse, ModelSize, Stage, Workload
from marl.scenario.schema import Scenario

_BYTES_A_TOKEN = 3
"""Lower bound of the bytes of English text in one token of a large vocabulary, for prompts without a tokenizer."""
_MARKS = 8
"""Approximate number of tokens that a chat template adds to each message."""


@dataclass(frozen=True)
class MemoryItem:
    """One entry of a memory estimate, such as the gradients of a policy."""

    policies: tuple[str, ...]
    """Policies that use the memory."""
    content: str
    bytes: float
    stage: Stage = "always"


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory that a run holds at any time, all in one process and on one device."""

    items: tuple[MemoryItem, ...]
    unknown_policies: tuple[str, ...]
    """Policies whose models have unknown sizes."""
    guessed_roles: tuple[str, ...]
    """Roles whose prompt lengths are guessed from their bytes, because no tokenizer is present."""

    def stage_bytes(self, stage: Stage) -> float:
        """Return the memory of `stage`, beyond the memory that is always held [bytes].

        Engines sample one after the other, and so do learners update, so their maximum counts. All engines stay awake
        while one engine samples. Copies that are saved exist for all policies at once, so their sum counts.
        """
        by_policies: dict[tuple[str, ...], float] = {}
        for item in self.items:
            if item.stage == stage:
                by_policies[item.policies] = by_policies.get(item.policies, 0.0) + item.bytes
        combine = max if stage in ("play", "learn") else sum
        awake = self.stage_bytes("awake") if stage == "play" else 0.0
        return awake + combine(by_policies.values() or [0.0])

    def peak_bytes(self, stages: Iterable[Stage] = ("play", "learn")) -> float:
        """Return the memory held in the largest of `stages` [bytes]."""
        return self.stage_bytes("always") + max(map(self.stage_bytes, stages))


@dataclass(frozen=True)
class ScenarioSizes:
    """Measured sizes of a scenario: with the settings, they determine the memory of its run."""

    models: Mapping[str, ModelSize]
    """Policy -> sizes of its model; policies with unknown sizes are left out."""
    workloads: Mapping[str, Workload]
    """Role -> its turns of one step."""
    max_concurrent_turns: float
    """Maximum number of turns of a step that can be sampled at once, because none depends on another."""
    guessed_roles: tuple[str, ...] = ()


def measure_sizes(run: DryRun) -> ScenarioSizes:
    """Return the sizes of a scenario, measured on the random play of a dry run."""
    from networkx import topological_generations  # here for the reason given in `marl.core.graph`

    models = {name: facts.size for name, facts in run.models.items() if facts.size}
    workloads: dict[str, Workload] = {}
    guessed: list[str] = []
    for role in run.turns:
        if run.scenario.roles[role].policy not in models:
            continue
        workloads[role] = _workload(run, role)
        if role not in run.prompt_tokens:
            guessed.append(role)
    width = 1
    for episode in run.episodes:
        # Turns of one generation do not depend on each other.
        width = max(width, max(map(len, topological_generations(episode.graph)), default=1))
    return ScenarioSizes(models, workloads, run.episodes_a_step * width, tuple(guessed))


def _workload(run: DryRun, role: str) -> Workload:
    """Return the turns of `role` in one step. First turns of a group's episodes share one prompt."""
    turns = run.turns[role]
    graphs = {episode.id: episode.graph for episode in run.episodes}
    first_share = sum(not graphs[turn.id[0]].in_degree(turn.id) for turn in turns) / len(turns)
    completions = run.per_episode(role) * run.episodes_a_step
    prompts = completions * (first_share / run.scenario.schedule.group_size + 1 - first_share)
    counts = list(run.prompt_tokens.get(role) or ())
    texts: list[str] = []
    for turn in turns:
        contents = [message.content for message in turn.request.messages]
        texts.append("\n".join(contents))
        if role not in run.prompt_tokens:
            counts.append(sum(len(content.encode()) // _BYTES_A_TOKEN + _MARKS for content in contents))
    common_share = len(commonprefix(texts)) / max(1, *map(len, texts))  # noqa: RUF071  # these are no paths
    longest = max(counts)
    max_tokens = run.scenario.roles[role].sampling.max_tokens
    return Workload(completions, prompts, longest, max_tokens, int(common_share * longest))


def estimate(scenario: Scenario, sizes: ScenarioSizes, device_bytes: float | None = None) -> MemoryEstimate:
    """Return the estimated memory of a run of `scenario`.

    `device_bytes` is the memory of the GPU, of which some engines claim a share; None for a run on the processor.
    """
    items: dict[tuple[str, str, Stage], MemoryItem] = {}
    engines = _engine_uses(scenario, sizes, device_bytes)
    earlier_weights = _earlier_weight_uses(scenario, sizes, device_bytes)
    for key, policies, use in chain(engines, earlier_weights, _learner_uses(scenario, sizes)):
        # Shared memory has one key, so that it is counted once.
        before = items.get((key, use.content, use.stage), MemoryItem((), use.content, 0.0, use.stage))
        names = tuple(dict.fromkeys((*before.policies, *policies)))
        items[key, use.content, use.stage] = replace(before, policies=names, bytes=max(use.bytes, before.bytes))
    unknown = tuple(name for name, policy in scenario.policies.items() if policy.model and name not in sizes.models)
    return MemoryEstimate(tuple(item for item in items.values() if item.bytes), unknown, sizes.guessed_roles)


Keyed = Iterator[tuple[str, tuple[str, ...], MemoryUse]]
"""(key, policies, use): uses with equal keys are the same memory."""


def _engine_uses(scenario: Scenario, sizes: ScenarioSizes, device_bytes: float | None) -> Keyed:
    groups: dict[str, list[str]] = {}
    for name in sizes.models:
        policy = scenario.policies[name]
        assert policy.model is not None
        base = policy.model.shared_base() if policy.engine.serves_several_policies else None
        if base is None and policy.learner:
            key = name
        else:  # policies on one base, or with the same frozen weights, share an engine
            key = (base or policy.model).model_dump_json() + policy.engine.model_dump_json()
        groups.setdefault(key, []).append(name)
    for key, names in groups.items():
        policies, engine = tuple(names), scenario.policies[names[0]].engine
        work = _work(scenario, sizes, names, learning=False)
        rows = min(work.completions, sizes.max_concurrent_turns)
        work = replace(work, completions=rows, distinct_prompts=min(work.distinct_prompts, rows))
        for use in engine.memory([sizes.models[name] for name in names], work, device_bytes):
            if use.is_shared_base:
                yield _base_key(scenario, names[0]), policies, use
            elif engine.sleeps and device_bytes is not None and use.stage == "always":
                # An engine that sleeps frees a GPU's memory while learners work.
                yield key, policies, replace(use, stage="awake")
            else:
                yield key, policies, use


def _earlier_weight_uses(scenario: Scenario, sizes: ScenarioSizes, device_bytes: float | None) -> Keyed:
    """Yield the memory of loaded earlier weights. Equal keys for all policies let the largest policy count."""
    for name, size in sizes.models.items():
        policy, work = scenario.policies[name], _work(scenario, sizes, [name], learning=False)
        for number in range(scenario.experience.max_loaded_weights if policy.learner else 0):
            for use in policy.engine.memory([size], work, device_bytes):
                if use.is_shared_base:
                    yield _base_key(scenario, name), (name,), use
                else:
                    yield f"guest {number}", (name,), replace(use, content=f"{use.content} of earlier weights")


def _learner_uses(scenario: Scenario, sizes: ScenarioSizes) -> Keyed:
    for name, size in sizes.models.items():
        policy = scenario.policies[name]
        if not policy.learner:
            continue
        work, steps = _work(scenario, sizes, [name], learning=True), policy.update_every
        work = replace(work, completions=work.completions * steps, distinct_prompts=work.distinct_prompts * steps)
        for use in policy.learner.memory(size, work):
            yield _base_key(scenario, name) if use.is_shared_base else f"learner {name}", (name,), use


def _base_key(scenario: Scenario, policy: str) -> str:
    """Return a key of the base model: equal for policies with adapters of the same base."""
    model = scenario.policies[policy].model
    base = model and (model.shared_base() or model)
    return f"base {base.model_dump_json() if base else policy}"


def _work(scenario: Scenario, sizes: ScenarioSizes, policies: list[str], *, learning: bool) -> Workload:
    """Return the workload of all roles of `policies`; with `learning`, of their trainable roles only."""
    workloads: list[Workload] = []
    for role, work in sizes.workloads.items():
        settings = scenario.roles[role]
        if settings.policy in policies and (settings.trainable or not learning):
            workloads.append(work)
    return Workload.combined(workloads)
