"""Advice on updates that diverged and on memory that is used up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from marl.errors import NonFinite
from marl.protocols import LearnerConfig
from marl.scenario.schema import PolicyConfig, Scenario
from marl.types import Sample

_LEARNER = {"learner": ("micro_tokens", "minibatches")}
_ENGINE = {"engine": ("slots", "prefill_tokens")}
_SIZES: dict[str, dict[str, tuple[str, ...]]] = {
    "play": _ENGINE,
    "evaluate": _ENGINE,
    "judge": _ENGINE,
    "read": _LEARNER,
    "learn": _LEARNER,
}
"""Stage -> part of a policy -> its settings on which the memory depends that the stage takes."""
_LONGEST = 200
"""Characters of the original error that are shown."""


def memory_advice(scenario: Scenario, stage: str, error: BaseException) -> str:
    """Return what to change after memory was used up in `stage` (`load`, or a stage of a step)."""
    text = str(error).partition("\n")[0][:_LONGEST] or type(error).__name__
    if stage == "load":
        advice = "take a smaller model, `dtype: bfloat16`, or adapters on a shared base"
    else:
        advice = f"lower {', '.join(_sizes(scenario, stage))}, or the length of prompts"
        if stage in ("learn", "read"):
            advice += "; or set gradient_checkpointing: true"
    return f"out of memory (stage: {stage}): {advice} ({text})"


def _sizes(scenario: Scenario, stage: str) -> Iterator[str]:
    """Yield the settings on which the stage's memory depends, with their values."""
    for name, policy in scenario.policies.items():
        for part, fields in _SIZES.get(stage, _ENGINE).items():
            settings = _settings(policy, part)
            yield from (f"policies.{name}.{part}.{f} (now {settings[f]})" for f in fields if f in settings)
    for name, role in scenario.roles.items():
        if scenario.policies[role.policy].model:
            yield f"roles.{name}.sampling.max_tokens (now {role.sampling.max_tokens})"


def _settings(policy: PolicyConfig, part: str) -> dict[str, Any]:
    config = policy.learner if part == "learner" else policy.engine
    return config.model_dump(mode="json") if config else {}


def divergence_advice(error: NonFinite, samples: Sequence[Sample], learner: LearnerConfig | None) -> str:
    """Return what to try after an update that was not finite."""
    named = set(error.samples)
    if not all(math.isfinite(number) for sample in samples if sample.id in named for number in _credit(sample)):
        return "To try: their advantages are not finite, so mend the reward or the credit rule that they come from"
    settings = learner.model_dump(mode="json") if learner else {}
    lower = [f"{name} (now {settings[name]:g})" for name in ("lr", "max_norm") if name in settings]
    return (
        f"To try: lower {' or '.join(f'policies.{error.policy}.learner.{name}' for name in lower)}, "
        "and go on from an older checkpoint with --force, as the newest may already be diverging"
        if lower
        else "To try: smaller steps of its learner"
    )


def _credit(sample: Sample) -> tuple[float, ...]:
    return (sample.earned, sample.advantage.value, *sample.advantage.tokens)


def resume_advice(step: int, checkpoints: Sequence[int]) -> str:
    """Return a warning about a checkpoint of `step` right after which the update was not finite."""
    older = ", ".join(f"{other:06d}" for other in checkpoints if other < step) or "none"
    return (
        f"This was the first update after going on from checkpoint {step:06d}. If it went well before, that checkpoint "
        f"is not what it was, although its checksums fit; older ones: {older} (--resume RUN/checkpoints/STEP)"
    )
