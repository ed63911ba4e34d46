"""What a model says of completion tokens: hidden states -> distributions over the vocabulary -> a few numbers a token.

Shape suffixes: B = rows, T = completion tokens, N = completion tokens of all rows in one line, H = hidden,
V = vocabulary. Log-probabilities are in nats, float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainers.batches import Batch
from trainers.losses import entropy, exact_kl
from trainers.texts import States, states


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be told of each token beside its log-probability."""

    entropy: bool = False
    differentiable: bool = False
    """Whether gradients go through the entropy."""
    kl: frozenset[str] = frozenset()
    """Anchors whose exact KL divergence is wanted; of the others, the token's log-probability."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a model says of a batch."""

    logprobs_BT: Tensor
    """Of every completion token under its sampling distribution, truncation included."""
    states: States
    entropy_BT: Tensor | None = None
    """Over the whole vocabulary at the sampling temperature, top-p and top-k aside."""
    anchors: Mapping[str, Tensor] | None = None
    """Anchor -> [B, T]: KL(model ‖ anchor), or the anchor's log-probability of the token."""


NOTHING = Asked()


def said(model: Any, batch: Batch, asked: Asked = NOTHING, anchors: Mapping[str, Any] | None = None) -> Said:
    """One forward pass of `model`, and one of each of the `anchors` (models of the same vocabulary), no gradient."""
    found = states(model, batch.texts)
    logprobs_NV = _tempered(head(model, found.said_NH), batch)
    beside: dict[str, Tensor] = {}
    read: dict[int, Tensor] = {}
    for name, anchor in (anchors or {}).items():
        if id(anchor) not in read:
            with torch.no_grad():
                read[id(anchor)] = log_distributions(anchor, batch)
        anchor_NV = read[id(anchor)]
        told_N = exact_kl(logprobs_NV, anchor_NV) if name in asked.kl else _chosen(anchor_NV, batch)
        beside[name] = batch.spread(told_N)
    entropy_BT = None
    if asked.entropy:
        with torch.set_grad_enabled(asked.differentiable and torch.is_grad_enabled()):
            entropy_BT = batch.spread(entropy(logprobs_NV))
    return Said(batch.spread(_kept_chosen(logprobs_NV, batch)), found, entropy_BT, beside)


def log_distributions(model: Any, batch: Batch) -> Tensor:
    """[N, V] log-probabilities at each row's temperature, before any truncation."""
    return _tempered(head(model, states(model, batch.texts).said_NH), batch)


def head(model: Any, states_NH: Tensor) -> Tensor:
    """[N, V] logits in float32, as the model makes them of its last hidden states."""
    settings = model.config.get_text_config(decoder=True).to_dict()
    logits_NV = model.get_output_embeddings()(states_NH).float()
    cap = settings.get("final_logit_softcapping")
    return cap * torch.tanh(logits_NV / cap) if cap else logits_NV


def _tempered(logits_NV: Tensor, batch: Batch) -> Tensor:
    if batch.sampling_N3 is not None:
        logits_NV = logits_NV / batch.sampling_N3[:, :1]
    return logits_NV.log_softmax(-1)


def _chosen(logprobs_NV: Tensor, batch: Batch) -> Tensor:
    return logprobs_NV.gather(1, batch.tokens_N[:, None]).squeeze(1)


def _kept_chosen(logprobs_NV: Tensor, batch: Batch) -> Tensor:
    chosen_N, sampling_N3 = _chosen(logprobs_NV, batch), batch.sampling_N3
    if sampling_N3 is not None and bool(((sampling_N3[:, 1] < 1) | (sampling_N3[:, 2] > 0)).any()):
        kept_NV = _kept(logprobs_NV.detach(), sampling_N3).scatter(1, batch.tokens_N[:, None], True)
        chosen_N = chosen_N - logprobs_NV.masked_fill(~kept_NV, -torch.inf).logsumexp(1)
    return chosen_N


def _kept(logprobs_NV: Tensor, sampling_N3: Tensor) -> Tensor:
    """[N, V] tokens left by top-k, then by top-p on what top-k left: the smallest set that holds that much."""
    top_p_N1, top_k_N1 = sampling_N3[:, 1:2], sampling_N3[:, 2:3]
    sorted_NV, order_NV = logprobs_NV.sort(dim=1, descending=True)
    rank_V = torch.arange(sorted_NV.shape[1], device=sorted_NV.device)
    probabilities_NV = torch.where((rank_V < top_k_N1) | (top_k_N1 == 0), sorted_NV.exp(), 0.0)
    probabilities_NV = probabilities_NV / probabilities_NV.sum(1, keepdim=True)
    before_NV = probabilities_NV.cumsum(1) - probabilities_NV
    kept_NV = (probabilities_NV > 0) & ((before_NV < top_p_N1) | (top_p_N1 == 1))
    return torch.zeros_like(kept_NV).scatter(1, order_NV, kept_NV)
