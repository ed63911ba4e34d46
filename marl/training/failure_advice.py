"""Advice for users after an update that was not finite, and after memory ran out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from marl.core.errors import NonFiniteError
from marl.core.types import Sample
from marl.protocols import LearnerConfig
from marl.scenario.schema import Scenario

_LEARNER = ("learner", ("micro_tokens", "minibatches"))
_ENGINE = ("engine", ("slots", "prefill_tokens"))
_MEMORY_SETTINGS = {"play": _ENGINE, "evaluate": _ENGINE, "credit": _ENGINE, "read": _LEARNER, "learn": _LEARNER}
"""Stage -> (section of a policy, settings in it that determine the stage's memory)."""
_LONGEST = 200
"""Maximum length of the original error in a message, in characters."""


def memory_advice(scenario: Scenario, stage: str, error: BaseException) -> str:
    """Return the settings to change after memory ran out in `stage` (`load`, or a stage of a step)."""
    text = str(error).partition("\n")[0][:_LONGEST] or type(error).__name__
    if stage == "load":
        advice = "take a smaller model, `dtype: bfloat16`, or adapters on a shared base"
    else:
        advice = f"lower {', '.join(_memory_settings(scenario, stage))}, or the length of prompts"
        if stage in ("learn", "read"):
            advice += "; or set gradient_checkpointing: true"
    return f"out of memory (stage: {stage}): {advice} ({text})"


def _memory_settings(scenario: Scenario, stage: str) -> Iterator[str]:
    """Yield the settings that determine the memory of a stage, with their values."""
    section, fields = _MEMORY_SETTINGS.get(stage, _ENGINE)
    for name, policy in scenario.policies.items():
        config = policy.learner if section == "learner" else policy.engine
        settings: dict[str, Any] = config.model_dump(mode="json") if config else {}
        for setting in fields:
            if setting in settings:
                yield f"policies.{name}.{section}.{setting} (now {settings[setting]})"
    for name, role in scenario.roles.items():
        if scenario.policies[role.policy].model:
            yield f"roles.{name}.sampling.max_tokens (now {role.sampling.max_tokens})"


def divergence_advice(error: NonFiniteError, samples: Sequence[Sample], learner: LearnerConfig | None) -> str:
    """Return the changes to try after an update that was not finite."""
    failed_ids = set(error.samples)
    for sample in samples:
        credit = (sample.earned, sample.advantage.value, *sample.advantage.tokens)
        if sample.id in failed_ids and not all(map(math.isfinite, credit)):
            return "To try: their advantages are not finite, so mend the reward or the credit rule that they come from"
    settings = learner.model_dump(mode="json") if learner else {}
    lower: list[str] = []
    for name in ("lr", "max_norm"):
        if name in settings:
            lower.append(f"policies.{error.policy}.learner.{name} (now {settings[name]:g})")
    if not lower:
        return "To try: smaller steps of its learner"
    return (
        f"To try: lower {' or '.join(lower)}, and go on from an older checkpoint with --force, "
        "as the newest may already be diverging"
    )


def resume_advice(step: int, checkpoints: Sequence[int]) -> str:
    """Return a warning for a run whose first update after resuming from checkpoint `step` was not finite."""
    older = ", ".join(f"{other:06d}" for other in checkpoints if other < step) or "none"
    return (
        f"This was the first update after going on from checkpoint {step:06d}. If it went well before, that checkpoint "
        f"is not what it was, although its checksums fit; older ones: {older} (--resume RUN/checkpoints/STEP)"
    )
