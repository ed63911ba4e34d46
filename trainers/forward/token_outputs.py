"""What a model says of completion tokens: hidden states -> distributions over the vocabulary -> a few numbers a token.

Shape suffixes: B = rows, T = completion tokens, N = completion tokens of all rows in one line, H = hidden,
V = vocabulary. Log-probabilities are in nats, float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainers.batching.batches import Batch
from trainers.forward.head import head
from trainers.forward.model_inputs import States, states
from trainers.losses.penalties import entropy, exact_kl


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
AT_ONCE = 1 << 24
"""Numbers in a table of tokens by vocabulary that is held at once: 64 MiB in float32."""


def said(model: Any, batch: Batch, asked: Asked = NOTHING, anchors: Mapping[str, Any] | None = None) -> Said:
    """One forward pass of `model`, and one of each of the `anchors` (models of the same vocabulary), no gradient.

    Distributions over the vocabulary are made for a few tokens at a time, and again in the backward pass, so that
    memory does not grow with tokens times vocabulary. What fits in `AT_ONCE` is made once.
    """
    anchors = anchors or {}
    found, others = states(model, batch.texts), _anchored(anchors, asked, batch)
    teller = _Teller(model, asked, {name: anchor for name, (anchor, _) in others.items()})
    given = [found.said_NH, batch.tokens_N, batch.sampling_N3, *(states_NH for _, states_NH in others.values())]
    logprobs_N, entropy_N, *beside = _by_chunk(teller, given, _vocabulary(model))
    told = dict(zip(others, beside, strict=True))
    entropy_BT = batch.spread(entropy_N) if asked.entropy else None
    return Said(batch.spread(logprobs_N), found, entropy_BT, {name: batch.spread(told[name]) for name in anchors})


def log_distributions(model: Any, batch: Batch) -> Tensor:
    """[N, V] log-probabilities at each row's temperature, before any truncation; all at once."""
    return _tempered(head(model, states(model, batch.texts).said_NH), batch.sampling_N3)


@dataclass(frozen=True, slots=True)
class _Teller:
    """Last hidden states of some tokens -> a few numbers of each. Holds a table of tokens by vocabulary meanwhile."""

    model: Any
    asked: Asked
    anchors: Mapping[str, Any]

    def __call__(
        self, states_NH: Tensor, tokens_N: Tensor, sampling_N3: Tensor | None, *anchors_NH: Tensor
    ) -> tuple[Tensor, ...]:
        """[N] each: log-probability, entropy (empty if not asked for), then what is told of each anchor."""
        logprobs_NV = _tempered(head(self.model, states_NH), sampling_N3)
        chosen_N = _kept_chosen(logprobs_NV, tokens_N, sampling_N3)
        with torch.set_grad_enabled(self.asked.differentiable and torch.is_grad_enabled()):
            entropy_N = entropy(logprobs_NV) if self.asked.entropy else chosen_N.new_empty(0)
        beside: list[Tensor] = []
        read: dict[int, Tensor] = {}
        for (name, anchor), anchor_NH in zip(self.anchors.items(), anchors_NH, strict=True):
            if id(anchor) not in read:
                with torch.no_grad():
                    read[id(anchor)] = _tempered(head(anchor, anchor_NH), sampling_N3)
            anchor_NV = read[id(anchor)]
            exact = name in self.asked.kl
            beside.append(exact_kl(logprobs_NV, anchor_NV) if exact else _chosen(anchor_NV, tokens_N))
        return chosen_N, entropy_N, *beside

    @property
    def draws(self) -> bool:
        """Whether it is random, as an adapter on the head with dropout is."""
        output = self.model.get_output_embeddings()
        return output.training and any(isinstance(m, nn.Dropout) and m.p > 0 for m in output.modules())


def _anchored(anchors: Mapping[str, Any], asked: Asked, batch: Batch) -> dict[str, tuple[Any, Tensor]]:
    """Each anchor with its last hidden states; those that are one model are run once."""
    read: dict[int, Tensor] = {}
    with torch.no_grad():
        for anchor in anchors.values():
            if id(anchor) not in read:
                read[id(anchor)] = states(anchor, batch.texts).said_NH
    # Those without a gradient come last: the backward pass stops to recompute where it needs no more.
    ordered = sorted(anchors, key=lambda name: name not in asked.kl)
    return {name: (anchors[name], read[id(anchors[name])]) for name in ordered}


def _by_chunk(teller: _Teller, given: Sequence[Tensor | None], vocabulary: int) -> list[Tensor]:
    """What the teller says of all tokens, asked about a few at a time if all were too many."""
    first_NH = given[0]
    assert first_NH is not None
    pieces = -(-len(first_NH) * vocabulary // AT_ONCE)
    if pieces <= 1:
        return list(teller(*given))  # type: ignore[arg-type]  # only sampling_N3 may be None
    size, draws = -(-len(first_NH) // pieces), teller.draws
    told: list[tuple[Tensor, ...]] = []
    for start in range(0, len(first_NH), size):
        chunk = [None if each is None else each[start : start + size] for each in given]
        told.append(checkpoint(teller, *chunk, use_reentrant=False, preserve_rng_state=draws))
    return [torch.cat(column) for column in zip(*told, strict=True)]


def _vocabulary(model: Any) -> int:
    return model.config.get_text_config(decoder=True).vocab_size


def _tempered(logits_NV: Tensor, sampling_N3: Tensor | None) -> Tensor:
    if sampling_N3 is not None:
        logits_NV = logits_NV / sampling_N3[:, :1]
    return logits_NV.log_softmax(-1)


def _chosen(logprobs_NV: Tensor, tokens_N: Tensor) -> Tensor:
    return logprobs_NV.gather(1, tokens_N[:, None]).squeeze(1)


def _kept_chosen(logprobs_NV: Tensor, tokens_N: Tensor, sampling_N3: Tensor | None) -> Tensor:
    chosen_N = _chosen(logprobs_NV, tokens_N)
    if sampling_N3 is not None and bool(((sampling_N3[:, 1] < 1) | (sampling_N3[:, 2] > 0)).any()):
        kept_NV = _kept(logprobs_NV.detach(), sampling_N3).scatter(1, tokens_N[:, None], True)
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
