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
_MASK = (1 << 64) - 1


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the output of SplitMix64 (Steele, Lea, Flood 2014; constants of Vigna's splitmix64.c)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def stream_keys(seeds: Sequence[int]) -> NDArray[np.uint64]:
    """Return the initial counter of each request's random stream."""
    # Mixed: the streams of neighbouring seeds would otherwise overlap.
    return _mix(np.array([seed & _MASK for seed in seeds], dtype=np.uint64) + _GAMMA)


def uniforms(keys_N: NDArray[np.uint64], positions_N: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the random number at `positions_N[n]` of stream n, in (0, 1]."""
    # SplitMix64 is a function of a counter: a number depends neither on earlier draws nor on other rows.
    counter = keys_N + (positions_N.astype(np.uint64) + np.uint64(1)) * _GAMMA
    # 24 bits, as many as a float32 holds. Never 0: inverse CDF would draw a first token without probability.
    bits = (_mix(counter) >> np.uint64(40)).astype(np.float32)
    return (bits + np.float32(1)) * np.float32(2.0**-24)


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Sampling settings of N rows as tensors. Truncation and greedy rows are computed only where they occur."""

    temperature_N1: Tensor
    greedy_G: Tensor | None
    """Indices of rows at temperature 0, or None without any."""
    cut_C: Tensor | None
    """Indices of rows with top-k or top-p, or None without any."""
    top_k_C1: Tensor
    top_p_C1: Tensor

    @classmethod
    def of(cls, samplings: Sequence[Sampling], device: torch.device) -> SamplingTensors:
        """Return the settings of all rows as tensors on `device`."""
        # Greedy rows are divided by 1 and replaced later.
        temperatures = [sampling.temperature or 1.0 for sampling in samplings]
        greedy = [row for row, sampling in enumerate(samplings) if sampling.temperature == 0]
        cut = [row for row, sampling in enumerate(samplings) if sampling.truncated and sampling.temperature > 0]
        top_k = _column([samplings[row].top_k or np.iinfo(np.int32).max for row in cut], device)
        # Rounding may push the mass above 1 before the last token: 2 keeps everything.
        top_p = _column([samplings[row].top_p if samplings[row].top_p < 1 else 2.0 for row in cut], device)
        return cls(_column(temperatures, device), _rows(greedy, device), _rows(cut, device), top_k, top_p)


def _column(values: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)[:, None]


def _rows(rows: list[int], device: torch.device) -> Tensor | None:
    return torch.tensor(rows, device=device) if rows else None


def log_distribution(logits_NV: Tensor, shaping: SamplingTensors) -> Tensor:
    """Return log-probabilities [N, V] in float32: temperature, then top-k, then top-p, as in Transformers.

    At temperature 0 the most likely token has log-probability 0 and all others minus infinity.
    """
    scaled_NV = logits_NV.float() / shaping.temperature_N1
    if shaping.cut_C is not None:
        scaled_NV[shaping.cut_C] = truncate(scaled_NV[shaping.cut_C], shaping.top_k_C1, shaping.top_p_C1)
    if shaping.greedy_G is not None:
        greedy_GV = scaled_NV[shaping.greedy_G]
        only_GV = torch.full_like(greedy_GV, -torch.inf).scatter_(1, greedy_GV.argmax(-1, keepdim=True), 0.0)
        scaled_NV[shaping.greedy_G] = only_GV
    return scaled_NV.log_softmax(-1)


def truncate(logits_NV: Tensor, top_k_N1: Tensor, top_p_N1: Tensor) -> Tensor:
    """Return logits with minus infinity outside the k likeliest tokens, then outside the smallest set of mass >= p.

    Among equally likely tokens the lower id goes first. The likeliest token is never removed.
    """
    sorted_NV, order_NV = logits_NV.sort(dim=-1, descending=True, stable=True)
    outside_NV = torch.arange(logits_NV.shape[-1], device=logits_NV.device) >= top_k_N1
    mass_NV = sorted_NV.masked_fill(outside_NV, -torch.inf).softmax(-1)
    outside_NV |= (mass_NV.cumsum(-1) - mass_NV) >= top_p_N1
    outside_NV[:, 0] = False
    return logits_NV.masked_fill(torch.zeros_like(outside_NV).scatter_(1, order_NV, outside_NV), -torch.inf)


def draw(logprobs_NV: Tensor, uniforms_N: Tensor) -> tuple[Tensor, Tensor]:
    """Draw tokens [N] by inverse CDF; return them and their log-probabilities [N] in nats."""
    cdf_NV = logprobs_NV.exp().cumsum(-1)
    tokens_N1 = torch.searchsorted(cdf_NV, uniforms_N[:, None] * cdf_NV[:, -1:])
    # NaN logits lead beyond the last token; the caller refuses their log-probabilities.
    tokens_N1 = tokens_N1.clamp_(max=logprobs_NV.shape[-1] - 1)
    return tokens_N1.squeeze(1), logprobs_NV.gather(1, tokens_N1).squeeze(1)
