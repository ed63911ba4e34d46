"""Advice for users after an update with non-finite numbers, and after memory ran out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from marl.core.errors import NonFiniteError
from marl.core.types import Sample
from marl.protocols import LearnerConfig
from marl.scenario.schema import Scenario

_LEARNER = ("learner", ("micro_tokens", "minibatches"))
_ENGINE = ("engine", ("slots", "prefill_tokens"))
_MEMORY_SETTINGS = {"play": _ENGINE, "evaluate": _ENGINE, "credit": _ENGINE, "read": _LEARNER, "learn": _LEARNER}
"""Stage of a step -> (section of a policy, settings in this section that determine how much memory the stage takes)."""
_MAX_ERROR_CHARACTERS = 200
"""Maximum number of characters of the original error that the advice quotes."""


def out_of_memory_advice(scenario: Scenario, stage: str, error: BaseException) -> str:
    """Return the settings to change after memory ran out in `stage` (`load`, or a stage of a step)."""
    text = str(error).partition("\n")[0][:_MAX_ERROR_CHARACTERS] or type(error).__name__
    if stage == "load":
        advice = "take a smaller model, `dtype: bfloat16`, or adapters on a shared base"
        return f"out of memory (stage: {stage}): {advice} ({text})"
    section, fields = _MEMORY_SETTINGS.get(stage, _ENGINE)
    lower: list[str] = []
    for name, policy in scenario.policies.items():
        config = policy.learner if section == "learner" else policy.engine
        settings: dict[str, Any] = config.model_dump(mode="json") if config else {}
        for field in fields:
            if field in settings:
                lower.append(f"policies.{name}.{section}.{field} (now {settings[field]})")
    for name, role in scenario.roles.items():
        if scenario.policies[role.policy].model:
            lower.append(f"roles.{name}.sampling.max_tokens (now {role.sampling.max_tokens})")
    advice = f"lower {', '.join(lower)}, or the length of prompts"
    if stage in ("learn", "read"):
        advice += "; or set gradient_checkpointing: true"
    return f"out of memory (stage: {stage}): {advice} ({text})"


def divergence_advice(error: NonFiniteError, samples: Sequence[Sample], learner: LearnerConfig | None) -> str:
    """Return the changes to try after an update of `samples` with a non-finite loss, gradient or weight."""
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


def failed_resume_advice(resumed_step: int, checkpoint_steps: Sequence[int]) -> str:
    """Return a warning for a run whose first update after resuming from checkpoint `resumed_step` was not finite."""
    older = ", ".join(f"{other:06d}" for other in checkpoint_steps if other < resumed_step) or "none"
    return (
        f"This was the first update after going on from checkpoint {resumed_step:06d}. If it went well before, "
        f"that checkpoint is not what it was, although its checksums fit; older ones: "
        f"{older} (--resume RUN/checkpoints/STEP)"
    )
