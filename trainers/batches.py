"""Rows -> padded tensors, and the distributions a model gives at their completion tokens.

Shape suffixes: B = rows, T = completion tokens, N = completion tokens of all rows in one line, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainers.rows import Floats, Row
from trainers.texts import Texts, logits, logits_and_ends, whole_texts


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one forward pass. Column t of a [B, T] tensor is completion token t."""

    texts: Texts
    mask_BT: Tensor
    counts_B: Tensor
    lengths_B: Tensor
    tokens_N: Tensor
    """The completion tokens' ids."""
    sampling_N3: Tensor | None
    """Temperature, top-p and top-k; None if it is the model's own distribution throughout."""
    advantages_BT: Tensor
    sampled_BT: Tensor
    old_BT: Tensor

    def spread(self, values_N: Tensor) -> Tensor:
        """[B, T], zero where there is no token."""
        return values_N.new_zeros(self.mask_BT.shape).masked_scatter(self.mask_BT, values_N)


Layout = Callable[[Sequence[Row], Tensor, Tensor, torch.device], Texts]


def collate(rows: Sequence[Row], device: torch.device, layout: Layout = whole_texts) -> Batch:
    """Stack rows of different lengths, padded on the right. `layout` says what is computed of them and once only."""
    if any(not row.prompt_ids for row in rows):
        raise ValueError("a completion needs a prompt of at least one token")
    lengths_B = torch.tensor([len(row.token_ids) for row in rows])
    mask_BT = torch.arange(int(lengths_B.max())) < lengths_B[:, None]
    rows_N, t_N = mask_BT.nonzero(as_tuple=True)
    return Batch(
        texts=layout(rows, rows_N, t_N, device),
        mask_BT=mask_BT.to(device),
        counts_B=torch.tensor([float(row.count) for row in rows], device=device),
        lengths_B=lengths_B.to(device),
        tokens_N=torch.tensor([token for row in rows for token in row.token_ids], device=device),
        sampling_N3=_sampling(rows, rows_N, device),
        advantages_BT=_pad([row.advantages for row in rows], mask_BT).to(device),
        sampled_BT=_pad([row.sampled for row in rows], mask_BT).to(device),
        old_BT=_pad([row.old for row in rows], mask_BT).to(device),
    )


def _pad(rows: Sequence[Floats], like_BT: Tensor) -> Tensor:
    width = like_BT.shape[1]
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float32)


def _sampling(rows: Sequence[Row], rows_N: Tensor, device: torch.device) -> Tensor | None:
    settings: list[Floats] = [(s.temperature, s.top_p, s.top_k) for s in (row.sampling for row in rows)]
    if any(temperature == 0 for temperature, _, _ in settings):
        raise ValueError("temperature=0 has no log-probabilities to learn from or to read; choose one above 0")
    if all(setting == (1, 1, 0) for setting in settings):
        return None
    return torch.tensor(settings, dtype=torch.float32)[rows_N].to(device)


def vocabulary_logprobs(model: Any, batch: Batch) -> Tensor:
    """[N, V] log-probabilities at each row's temperature, before any truncation."""
    return _tempered(logits(model, batch.texts), batch)


def read_whole(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The same, and the last hidden states [B, 2, H] in float32 on the CPU, of a batch laid out as `ended_texts`."""
    logits_NV, ends_B2H = logits_and_ends(model, batch.texts)
    return _tempered(logits_NV, batch), ends_B2H.float().cpu()


def _tempered(logits_NV: Tensor, batch: Batch) -> Tensor:
    logits_NV = logits_NV.float()
    if batch.sampling_N3 is not None:
        logits_NV = logits_NV / batch.sampling_N3[:, :1]
    return logits_NV.log_softmax(-1)


def chosen_logprobs(logprobs_NV: Tensor, batch: Batch) -> Tensor:
    """[B, T] log-probability of every completion token under the sampling distribution, truncation included."""
    chosen_N = logprobs_NV.gather(1, batch.tokens_N[:, None]).squeeze(1)
    sampling_N3 = batch.sampling_N3
    if sampling_N3 is not None and bool(((sampling_N3[:, 1] < 1) | (sampling_N3[:, 2] > 0)).any()):
        kept_NV = _kept(logprobs_NV.detach(), sampling_N3).scatter(1, batch.tokens_N[:, None], True)
        chosen_N = chosen_N - logprobs_NV.masked_fill(~kept_NV, -torch.inf).logsumexp(1)
    return batch.spread(chosen_N)


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
