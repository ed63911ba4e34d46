"""Losses, penalties and weights as plain functions of tensors, for use without a learner. Loads torch.

Arguments are in one order everywhere: the numbers that learn, those that they are compared with, further numbers of
tokens, the mask, then options. A policy's are `(logprobs, old, advantages, mask, ...)`, a critic's `(values, targets,
old, mask, ...)`, of a KL `(logprobs, anchor, old, mask, ...)`, weights against a mismatch `(old, sampled, mask, ...)`.
All tensors are [B, T] (rows, tokens of completions); what a mask leaves out changes nothing. A loss has one number for
each token, of which `aggregate` makes one.
"""

from trainers.losses.aggregation import aggregate
from trainers.losses.mismatch import geometric, icepop, mis, opsm, rejected, tis
from trainers.losses.penalties import entropy, exact_kl, sampled_kl
from trainers.losses.policy import (
    advantage_weighted,
    cispo,
    clipped_surrogate,
    gmpo,
    gspo,
    gspo_token,
    reinforce,
    sapo,
    sequence_surrogate,
    value_loss,
)
from trainers.losses.preferences import bradley_terry, dpo, implicit_rewards, orm

__all__ = [
    "advantage_weighted",
    "aggregate",
    "bradley_terry",
    "cispo",
    "clipped_surrogate",
    "dpo",
    "entropy",
    "exact_kl",
    "geometric",
    "gmpo",
    "gspo",
    "gspo_token",
    "icepop",
    "implicit_rewards",
    "mis",
    "opsm",
    "orm",
    "reinforce",
    "rejected",
    "sampled_kl",
    "sapo",
    "sequence_surrogate",
    "tis",
    "value_loss",
]
