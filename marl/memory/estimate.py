"""Memory estimate of a run from its settings and the sizes of its models, without loading weights.

`EngineConfig.memory_uses` and `LearnerConfig.memory_uses` list the memory of an engine or learner. The estimate adds up
these lists, and counts shared memory once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from os.path import commonprefix

from marl.evaluation.dry_run import DryRun
from marl.protocols.memory_estimates import MemoryUse, ModelSize, Stage, Workload
from marl.scenario.schema import Scenario

_MIN_BYTES_PER_TOKEN = 3
"""Low estimate of the bytes of English text per token, by which prompt lengths are guessed without a tokenizer."""
_TEMPLATE_TOKENS = 8
"""Approximate number of tokens that a chat template adds to each message."""


@dataclass(frozen=True)
class MemoryEstimateEntry:
    """One entry of a memory estimate, such as the gradients of a policy."""

    policies: tuple[str, ...]
    """Policies that use the memory."""
    content: str
    """Content of the memory, such as `gradients`."""
    bytes: float
    stage: Stage = "always"
    """Stage of a step in which the memory is held."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Estimated memory of a run whose engines and learners are all in one process and on one device."""

    items: tuple[MemoryEstimateEntry, ...]
    unknown_policies: tuple[str, ...]
    """Policies that are missing in the estimate, because the sizes of their models are unknown."""
    guessed_roles: tuple[str, ...]
    """Roles whose prompt lengths are guessed from their bytes, because no tokenizer is present."""

    def stage_bytes(self, stage: Stage) -> float:
        """Return the memory that `stage` of a step needs beyond the memory that is always held [bytes].

        Engines sample, and learners update, one after the other, so the maximum over policies counts. While one engine
        samples, all engines are awake. Copies to save exist for all policies at once, so their sum counts.
        """
        by_policies: dict[tuple[str, ...], float] = {}
        for item in self.items:
            if item.stage == stage:
                by_policies[item.policies] = by_policies.get(item.policies, 0.0) + item.bytes
        combine = max if stage in ("play", "learn") else sum
        awake = self.stage_bytes("awake") if stage == "play" else 0.0
        return awake + combine(by_policies.values() or [0.0])

    def peak_bytes(self, stages: Iterable[Stage] = ("play", "learn")) -> float:
        """Return the memory held during the most demanding of the `stages` [bytes]."""
        return self.stage_bytes("always") + max(map(self.stage_bytes, stages))


@dataclass(frozen=True)
class ModelSizesAndWorkloads:
    """Model sizes and workloads of a scenario, which with its settings determine the memory of a run."""

    models: Mapping[str, ModelSize]
    """Policy -> sizes of its model, for policies with known sizes."""
    workloads: Mapping[str, Workload]
    """Role -> number and lengths of its turns in one step."""
    independent_turns: tuple[Mapping[str, float], ...]
    """Role -> number of its turns of a step, for each set of turns of which none depends on another."""
    guessed_roles: tuple[str, ...] = ()
    """Roles whose prompt lengths are guessed from their bytes, because no tokenizer is present."""

    def max_concurrent_turns(self, roles: Collection[str]) -> float:
        """Return the maximum number of turns of `roles` that can be sampled at once."""
        totals: list[float] = []
        for turns in self.independent_turns:
            totals.append(sum(count for role, count in turns.items() if role in roles))
        return max(totals, default=0.0)


def measure_model_sizes_and_workloads(dry_run: DryRun) -> ModelSizesAndWorkloads:
    """Return the model sizes and workloads of a scenario, measured on the random play of a dry run."""
    from networkx import topological_generations  # imported late: the import takes 0.1 s

    models = {name: facts.size for name, facts in dry_run.model_facts.items() if facts.size}
    workloads: dict[str, Workload] = {}
    guessed: list[str] = []
    for role in dry_run.turns_by_role:
        if dry_run.scenario.roles[role].policy in models:
            workloads[role] = _workload_of_role(dry_run, role)
            if role not in dry_run.prompt_token_counts:
                guessed.append(role)
    independent: list[Mapping[str, float]] = []
    for episode in dry_run.episodes:
        role_of = {turn.id: turn.role for turn in episode.turns}
        # Turns of one topological generation are independent, so they may all be sampled at the same time.
        for generation in topological_generations(episode.graph):
            turns = Counter(role_of[turn_id] for turn_id in generation)
            independent.append({role: count * dry_run.episodes_per_step for role, count in turns.items()})
    return ModelSizesAndWorkloads(models, workloads, tuple(independent), tuple(guessed))


def _workload_of_role(dry_run: DryRun, role: str) -> Workload:
    """Return the number and lengths of a role's turns in one step. First turns of a group's episodes share a prompt."""
    turns = dry_run.turns_by_role[role]
    graphs = {episode.id: episode.graph for episode in dry_run.episodes}
    first_share = sum(not graphs[turn.id[0]].in_degree(turn.id) for turn in turns) / len(turns)
    completions = dry_run.role_turns_per_episode(role) * dry_run.episodes_per_step
    prompts = completions * (first_share / dry_run.scenario.schedule.group_size + 1 - first_share)
    counts = list(dry_run.prompt_token_counts.get(role) or ())
    texts: list[str] = []
    for turn in turns:
        contents = [message.content for message in turn.request.messages]
        texts.append("\n".join(contents))
        if role not in dry_run.prompt_token_counts:
            counts.append(sum(len(content.encode()) // _MIN_BYTES_PER_TOKEN + _TEMPLATE_TOKENS for content in contents))
    common_share = len(commonprefix(texts)) / max(1, *map(len, texts))  # noqa: RUF071  # these texts are no paths
    longest = max(counts)
    max_tokens = dry_run.scenario.roles[role].sampling.max_tokens
    return Workload(completions, prompts, longest, max_tokens, int(common_share * longest))


def estimate_memory(
    scenario: Scenario, sizes: ModelSizesAndWorkloads, device_bytes: float | None = None
) -> MemoryEstimate:
    """Return the estimated memory of a run of `scenario`.

    `device_bytes` is the total memory of the GPU, of which some engines reserve a share, or None without a GPU.
    """
    items: dict[tuple[str, str, Stage], MemoryEstimateEntry] = {}
    engines = _engine_memory_uses(scenario, sizes, device_bytes)
    earlier_weights = _league_opponent_memory_uses(scenario, sizes, device_bytes)
    for key, policies, use in chain(engines, earlier_weights, _learner_memory_uses(scenario, sizes)):
        # Memory that several policies share has one key, so it is counted once.
        before = items.get((key, use.content, use.stage), MemoryEstimateEntry((), use.content, 0.0, use.stage))
        names = tuple(dict.fromkeys((*before.policies, *policies)))
        items[key, use.content, use.stage] = replace(before, policies=names, bytes=max(use.bytes, before.bytes))
    unknown = tuple(name for name, policy in scenario.policies.items() if policy.model and name not in sizes.models)
    return MemoryEstimate(tuple(item for item in items.values() if item.bytes), unknown, sizes.guessed_roles)


KeyedMemoryUses = Iterator[tuple[str, tuple[str, ...], MemoryUse]]
"""(key, policies, memory use) each. Uses with equal keys are the same memory, which several policies share."""


def _engine_memory_uses(
    scenario: Scenario, sizes: ModelSizesAndWorkloads, device_bytes: float | None
) -> KeyedMemoryUses:
    """Yield the memory of each engine."""
    groups: dict[str, list[str]] = {}
    for name in sizes.models:
        policy = scenario.policies[name]
        if name not in scenario.sampling_policies:
            continue
        assert policy.model is not None
        base = policy.model.shared_base() if policy.engine.serves_several_policies else None
        if base is None and policy.learner:
            key = name
        else:
            # Policies with adapters of one base, or with the same frozen weights, share an engine.
            key = (base or policy.model).model_dump_json() + policy.engine.model_dump_json()
        groups.setdefault(key, []).append(name)
    for key, names in groups.items():
        policies, engine = tuple(names), scenario.policies[names[0]].engine
        work = _policies_workload(scenario, sizes, names, learning=False)
        # A verifier's turns, for example, are concurrent with a critic's, but take no rows of the critic's engine.
        roles = [role for role in sizes.workloads if scenario.roles[role].policy in policies]
        rows = min(work.completions, sizes.max_concurrent_turns(roles))
        work = replace(work, completions=rows, distinct_prompts=min(work.distinct_prompts, rows))
        for use in engine.memory_uses([sizes.models[name] for name in names], work, device_bytes):
            if use.is_shared_base:
                yield _base_model_key(scenario, names[0]), policies, use
            elif engine.can_sleep and device_bytes is not None and use.stage == "always":
                # A sleeping engine frees its GPU memory, so this memory is in use only while the engine is awake.
                yield key, policies, replace(use, stage="awake")
            else:
                yield key, policies, use


def _league_opponent_memory_uses(
    scenario: Scenario, sizes: ModelSizesAndWorkloads, device_bytes: float | None
) -> KeyedMemoryUses:
    """Yield the memory of opponents' earlier weights. All policies have equal keys, so that the largest counts."""
    for name, size in sizes.models.items():
        policy, work = scenario.policies[name], _policies_workload(scenario, sizes, [name], learning=False)
        for number in range(scenario.experience.max_saved_weights_in_memory if policy.learner else 0):
            for use in policy.engine.memory_uses([size], work, device_bytes):
                if use.is_shared_base:
                    yield _base_model_key(scenario, name), (name,), use
                else:
                    yield f"guest {number}", (name,), replace(use, content=f"{use.content} of earlier weights")


def _learner_memory_uses(scenario: Scenario, sizes: ModelSizesAndWorkloads) -> KeyedMemoryUses:
    """Yield the memory of each learner."""
    for name, size in sizes.models.items():
        policy = scenario.policies[name]
        if not policy.learner:
            continue
        work, steps = _policies_workload(scenario, sizes, [name], learning=True), policy.update_every
        work = replace(work, completions=work.completions * steps, distinct_prompts=work.distinct_prompts * steps)
        for teacher in dict.fromkeys(policy.learner.taught_by.values()):
            if teacher_size := sizes.models.get(teacher):
                weights = MemoryUse("weights of a teacher", teacher_size.parameters * teacher_size.weight_bytes)
                yield f"teacher {teacher} of {name}", (name, teacher), weights
        for use in policy.learner.memory_uses(size, work):
            yield _base_model_key(scenario, name) if use.is_shared_base else f"learner {name}", (name,), use


def _base_model_key(scenario: Scenario, policy: str) -> str:
    """Return a key of the policy's base model, equal for policies with adapters of the same base."""
    model = scenario.policies[policy].model
    base = model and (model.shared_base() or model)
    return f"base {base.model_dump_json() if base else policy}"


def _policies_workload(
    scenario: Scenario, sizes: ModelSizesAndWorkloads, policies: list[str], *, learning: bool
) -> Workload:
    """Return the combined workload of all roles of `policies`, or with `learning` of the trainable roles."""
    workloads: list[Workload] = []
    for role, work in sizes.workloads.items():
        settings = scenario.roles[role]
        if settings.policy in policies and (settings.trainable or not learning):
            workloads.append(work)
    return Workload.combined(workloads)
