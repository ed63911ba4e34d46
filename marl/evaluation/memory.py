"""A rough estimate of the memory that a scenario's weights take, worked out without loading any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from marl.engines.transformers.settings import Transformers
from marl.evaluation.dry_run import DryRun
from marl.evaluation.model_facts import ModelFacts
from marl.scenario.schema import PolicyConfig


@dataclass(frozen=True, slots=True)
class Holding:
    """Something that is held in memory."""

    policies: tuple[str, ...]
    """Policies that use it."""
    content: str
    bytes: float


def holdings(run: DryRun) -> list[Holding]:
    """Return what weights, their learning and the cache of keys and values take in memory, as far as it is known.

    Activations are left out: they depend on `micro_tokens` and on the model's layers.
    """
    held: dict[str, Holding] = {}
    for name, facts in run.models.items():
        policy = run.scenario.policies[name]
        for key, content, size in (*_held(name, policy, facts), *_cache(run, name, facts)):
            # What is shared has one key, and so is counted once.
            before = held.get(key, Holding((), content, 0.0))
            held[key] = Holding((*before.policies, name), content, max(size, before.bytes))
    return list(held.values())


def _held(name: str, policy: PolicyConfig, facts: ModelFacts) -> Iterator[tuple[str, str, float]]:
    """Yield (key, content, bytes); equal keys are the same thing in memory."""
    if facts.weights is None or facts.shared is None:
        return
    width = facts.weight_bytes
    if facts.shared:
        yield f"base {_engine_key(name, policy)}", "base", facts.shared * width
    yield (
        f"sampler {name if facts.shared else _engine_key(name, policy)}",
        "weights to sample with",
        facts.weights * width,
    )
    if policy.learner:
        yield f"learner {name}", "weights that learn", facts.weights * width
        for content, size in policy.learner.memory(width).items():
            yield f"{content} {name}", content, facts.weights * size


def _engine_key(name: str, policy: PolicyConfig) -> str:
    """Return a key that is equal for policies that share an engine: the same base, or the same frozen weights."""
    assert policy.model is not None
    base = policy.model.shared()
    if base is None and policy.learner:
        return name
    return (base or policy.model).model_dump_json() + policy.engine.model_dump_json()


def _cache(run: DryRun, name: str, facts: ModelFacts) -> Iterator[tuple[str, str, float]]:
    """Yield, likewise, keys and values of as many rows as are decoded at once, each as long as it can get."""
    policy = run.scenario.policies[name]
    roles = [role for role in run.prompt_tokens if run.scenario.roles[role].policy == name]
    if not roles or facts.cache_bytes is None or not isinstance(policy.engine, Transformers):
        return
    longest = max(max(run.prompt_tokens[role]) + run.scenario.roles[role].sampling.max_tokens for role in roles)
    if limit := policy.engine.max_context or facts.context:
        longest = min(longest, limit)
    rows = min(policy.engine.slots, run.episodes_a_step * max(1.0, sum(map(run.per_episode, roles))))
    yield f"cache {_engine_key(name, policy)}", "keys and values", rows * longest * facts.cache_bytes
