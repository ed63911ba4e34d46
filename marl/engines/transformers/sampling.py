"""Logits to tokens: sampling distributions, truncation, and random numbers that depend on the request alone.

Shape suffixes: N = rows, V = vocabulary, G = greedy rows, C = rows with a truncated distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marl.core.config import Sampling

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""Increment of SplitMix64's counter."""
_SPLITMIX64_ROUNDS = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))
"""Shift and factor of each round of SplitMix64."""
_MASK = (1 << 64) - 1


def _splitmix64(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the outputs of SplitMix64 for the counters `state` (Steele, Lea, Flood 2014; Vigna's constants)."""
    for shift, factor in _SPLITMIX64_ROUNDS:
        state = (state ^ (state >> np.uint64(shift))) * factor
    return state ^ (state >> np.uint64(31))


def random_counters_from_seeds(seeds: Sequence[int]) -> NDArray[np.uint64]:
    """Return the initial counter of each request's random stream. `seeds`: one integer for each request."""
    # Seeds are hashed to counters, because the random streams of neighbouring seeds would overlap otherwise.
    return _splitmix64(np.array([seed & _MASK for seed in seeds], dtype=np.uint64) + _GAMMA)


def uniform_random_numbers(counters_N: NDArray[np.uint64], positions_N: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return, for each row n, the random number in (0, 1] at `positions_N[n]` of the stream from `counters_N[n]`."""
    # SplitMix64 computes each number from its counter alone, so it depends neither on earlier draws nor on other rows.
    current_N = counters_N + (positions_N.astype(np.uint64) + np.uint64(1)) * _GAMMA
    # A float32 holds 24 bits. The number is never 0, because inverse CDF would draw a first token of probability 0.
    bits = (_splitmix64(current_N) >> np.uint64(40)).astype(np.float32)
    return (bits + np.float32(1)) * np.float32(2.0**-24)


def uniform_random_numbers_on_device(counters_N: Tensor, positions_N: Tensor) -> Tensor:
    """Return the numbers of `uniform_random_numbers` [N], computed on the device of int64 tensors [N]."""
    # Signed products wrap around like unsigned ones; a shift of signed numbers repeats the sign, hence the masks.
    state_N = counters_N + (positions_N + 1) * _as_int64(_GAMMA)
    for shift, factor in _SPLITMIX64_ROUNDS:
        state_N = (state_N ^ (state_N >> shift & _MASK >> shift)) * _as_int64(factor)
    state_N = state_N ^ (state_N >> 31 & _MASK >> 31)
    return ((state_N >> 40 & _MASK >> 40).float() + 1) * 2.0**-24


def _as_int64(number: np.uint64) -> int:
    """Return the signed integer with the bits of `number`."""
    return int(number.astype(np.int64))


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Sampling settings of N rows as tensors. Truncation and greedy decoding are computed in affected rows only."""

    temperature_N1: Tensor
    greedy_G: Tensor | None
    """Indices of rows at temperature 0, or None without such rows."""
    cut_C: Tensor | None
    """Indices of rows with top-k or top-p, or None without such rows."""
    top_k_C1: Tensor
    top_p_C1: Tensor

    @classmethod
    def from_settings(cls, samplings: Sequence[Sampling], device: torch.device) -> SamplingTensors:
        """Return the sampling settings of all rows as tensors on `device`. `samplings`: settings of each row."""
        temperatures, greedy, cut, top_k, top_p = [], list[int](), list[int](), [], []
        for row, sampling in enumerate(samplings):
            # Greedy rows have temperature 0 and are divided by 1; a later step replaces their distribution.
            temperatures.append([sampling.temperature or 1.0])
            if sampling.temperature == 0:
                greedy.append(row)
            elif sampling.truncates_distribution:
                cut.append(row)
                top_k.append([sampling.top_k or np.iinfo(np.int32).max])
                # Rounding may push the cumulative mass above 1 before the last token, so 2 stands for no limit.
                top_p.append([sampling.top_p if sampling.top_p < 1 else 2.0])
        return cls(
            torch.tensor(temperatures, device=device),
            torch.tensor(greedy, device=device) if greedy else None,
            torch.tensor(cut, device=device) if cut else None,
            torch.tensor(top_k, device=device),
            torch.tensor(top_p, device=device),
        )

    def copied_into(self, target: SamplingTensors) -> SamplingTensors:
        """Copy these settings of N rows into the first rows of the tensors of `target`; return views of them.

        The lists of rows are filled up to N entries by repeating their first one, so that they have a fixed shape.
        """
        rows = len(self.temperature_N1)
        target.temperature_N1[:rows] = self.temperature_N1
        greedy = cut = None
        if self.greedy_G is not None and target.greedy_G is not None:
            greedy = _fill(target.greedy_G[:rows], self.greedy_G)
        if self.cut_C is not None and target.cut_C is not None:
            cut = _fill(target.cut_C[:rows], self.cut_C)
            _fill(target.top_k_C1[:rows], self.top_k_C1)
            _fill(target.top_p_C1[:rows], self.top_p_C1)
        return SamplingTensors(
            target.temperature_N1[:rows], greedy, cut, target.top_k_C1[:rows], target.top_p_C1[:rows]
        )


def _fill(target: Tensor, entries: Tensor) -> Tensor:
    """Copy `entries` to the beginning of `target`, and the first entry to all of the remainder; return `target`."""
    missing = len(target) - len(entries)
    return target.copy_(torch.cat([entries, entries[:1].expand(missing, *entries.shape[1:])]))


def next_token_logprobs(logits_NV: Tensor, sampling: SamplingTensors) -> Tensor:
    """Return the log-probabilities [N, V] of the next token in float32, after temperature, then top-k, then top-p.

    The order is that of Transformers. At temperature 0 the most likely token has log-probability 0 and every other
    token minus infinity.
    """
    scaled_NV = logits_NV.float() / sampling.temperature_N1
    if sampling.cut_C is not None:
        scaled_NV[sampling.cut_C] = truncate_logits(scaled_NV[sampling.cut_C], sampling.top_k_C1, sampling.top_p_C1)
    if sampling.greedy_G is not None:
        greedy_GV = scaled_NV[sampling.greedy_G]
        largest_G1, best_G1 = greedy_GV.max(-1, keepdim=True)
        # The difference is 0, or NaN if a logit of the row is NaN, so that the caller notices NaN logits.
        only_GV = torch.full_like(greedy_GV, -torch.inf).scatter_(1, best_G1, largest_G1 - largest_G1)
        scaled_NV[sampling.greedy_G] = only_GV
    return scaled_NV.log_softmax(-1)


def truncate_logits(logits_NV: Tensor, top_k_N1: Tensor, top_p_N1: Tensor) -> Tensor:
    """Return logits with minus infinity outside the k likeliest tokens, then outside the smallest set of mass >= p.

    Among equally likely tokens, the lower id ranks higher. The likeliest token is never removed.
    """
    sorted_NV, order_NV = logits_NV.sort(dim=-1, descending=True, stable=True)
    outside_NV = torch.arange(logits_NV.shape[-1], device=logits_NV.device) >= top_k_N1
    mass_NV = sorted_NV.masked_fill(outside_NV, -torch.inf).softmax(-1)
    outside_NV |= (mass_NV.cumsum(-1) - mass_NV) >= top_p_N1
    outside_NV[:, 0] = False
    return logits_NV.masked_fill(torch.zeros_like(outside_NV).scatter_(1, order_NV, outside_NV), -torch.inf)


def draw_tokens(logprobs_NV: Tensor, uniforms_N: Tensor, imposed_N: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Draw a token for each row by inverse CDF. Return the token ids [N] and their log-probabilities [N] in nats.

    Row n gets the token `imposed_N[n]` instead if that is not negative.
    """
    cdf_NV = logprobs_NV.exp().cumsum(-1)
    tokens_N1 = torch.searchsorted(cdf_NV, uniforms_N[:, None] * cdf_NV[:, -1:])
    # NaN logits make the search end beyond the last token; the clamp avoids an index error, and the caller raises.
    tokens_N1 = tokens_N1.clamp_(max=logprobs_NV.shape[-1] - 1)
    if imposed_N is not None:
        tokens_N1 = torch.where(imposed_N[:, None] < 0, tokens_N1, imposed_N[:, None])
    return tokens_N1.squeeze(1), logprobs_NV.gather(1, tokens_N1).squeeze(1)
