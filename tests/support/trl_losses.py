"""TRL's own trainers, without models or data: only what their loss functions look at."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.support.loss_samples import LossCase

ARGUMENTS = {
    "use_bias_correction_kl": True,
    "delta": None,
    "steps_per_generation": 1,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "entropy_target": 0.2,
    "entropy_coef_delta": 0.005,
    "entropy_coef_min": 0.0,
    "entropy_coef_max": 1.0,
}
FACTS = {
    "aux_loss_enabled": False,
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "importance_sampling_level": "token",
    "beta": 0.0,
    "epsilon_low": 0.2,
    "epsilon_high": 0.28,
    "loss_type": "grpo",
    "use_vllm": False,
    "current_gradient_accumulation_steps": 1,
    "_entropy_bonus_enabled": False,
    "use_adaptive_entropy": False,
    "entropy_coef": 0.0,
}


def trainer_stub(kind: Any, arguments: dict[str, Any] | None = None, **facts: Any) -> Any:
    """A trainer of TRL's that was never set up."""
    trainer = kind.__new__(kind)
    alone = SimpleNamespace(
        num_processes=1,
        sync_gradients=True,
        device=torch.device("cpu"),
        gather=lambda x: x,
        gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction: x,
    )
    trainer.__dict__.update(
        {
            **FACTS,
            "accelerator": alone,
            "model": SimpleNamespace(training=True),
            "args": SimpleNamespace(**{**ARGUMENTS, **(arguments or {})}),
            "_metrics": {"train": defaultdict(list)},
            "_total_train_tokens": 0,
            "_tp_size": 1,
            **facts,
        }
    )
    return trainer


def policy_loss(trainer: Any, case: LossCase, entropies: Tensor | None = None) -> Tensor:
    """What the trainer makes of log-probabilities; the first token's advantage is the row's."""
    trainer.max_completion_length = case.mask.shape[1]
    entropies = torch.zeros_like(case.logprobs) if entropies is None else entropies
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (case.logprobs, entropies, None)
    ids = torch.zeros(case.mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids,
        "prompt_mask": ids,
        "completion_ids": ids,
        "completion_mask": case.mask.long(),
        "advantages": case.advantages[:, 0],
        "old_per_token_logps": case.old,
        "ref_per_token_logps": case.anchor,
        "old_logps": (case.old * case.mask).sum(1),
        "num_items_in_batch": case.mask.sum().float(),
    }
    return trainer._compute_loss(None, inputs)
