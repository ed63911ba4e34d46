"""Losses, penalties and weights as plain functions of tensors, for use without a learner. Loads torch.

Arguments have the same order everywhere: the trained quantity, the quantity it is compared with, other per-token
values, the mask, then options. Losses of a policy take `(logprobs, old, advantages, mask, ...)`, of a critic `(values,
targets, old, mask, ...)`, a KL `(logprobs, anchor, old, mask, ...)`, mismatch weights `(old, sampled, mask, ...)`. All
tensors are [B, T] (rows, tokens of completions); masked tokens change nothing. A loss has a number for each token;
`aggregate` reduces the numbers to a single loss.
"""

from marl.trainers.batching.aggregation import aggregate
from marl.trainers.forward.divergences import entropy, exact_kl, sampled_kl
from marl.trainers.policy_gradient.critic import value_loss
from marl.trainers.policy_gradient.losses import (
    advantage_weighted,
    cispo,
    clipped_surrogate,
    gmpo,
    gspo,
    gspo_token,
    positive_advantage_only,
    reinforce,
    rloo,
    sapo,
)
from marl.trainers.policy_gradient.mismatch import (
    icepop,
    mis,
    off_policy_sequence_mask,
    reject_by_divergence,
    tis,
    tis_within_sequence_bounds,
)
from marl.trainers.policy_gradient.prime import implicit_rewards
from marl.trainers.preferences.losses import dpo
from marl.trainers.reward_model.losses import bradley_terry, orm

__all__ = [
    "advantage_weighted",
    "aggregate",
    "bradley_terry",
    "cispo",
    "clipped_surrogate",
    "dpo",
    "entropy",
    "exact_kl",
    "gmpo",
    "gspo",
    "gspo_token",
    "icepop",
    "implicit_rewards",
    "mis",
    "off_policy_sequence_mask",
    "orm",
    "positive_advantage_only",
    "reinforce",
    "reject_by_divergence",
    "rloo",
    "sampled_kl",
    "sapo",
    "tis",
    "tis_within_sequence_bounds",
    "value_loss",
]
