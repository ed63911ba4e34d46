"""Forwards of a Hugging Face causal language model: whole prompts, and new tokens on top of cached ones."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from marl.engines.transformers.kv_cache import SlotCache
from marl.engines.transformers.policy_weights import Voices
from marl.models.chat_template import Prompt

_LOGITS_AT_ONCE = 1 << 26
"""Elements (256 MiB in float32)."""
_MASKS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What reading P prompts left: per layer keys and values [P, H, L, D], and the next token's logits [P, V]."""

    kv: list[tuple[Tensor, Tensor]]
    logits_PV: Tensor


class Network:
    """A model whose layers all keep ordinary keys and values, full or in a sliding window."""

    def __init__(self, voices: Voices, prefill_tokens: int) -> None:
        self.voices, model = voices, voices.model
        self.model = model.requires_grad_(False).eval()
        self.device, self.dtype, self.prefill_tokens = model.device, model.dtype, prefill_tokens
        self.layers = _layers(model)
        settings = model.config.get_text_config().to_dict()
        self.vocabulary: int = settings["vocab_size"]
        self.layer_types = frozenset(settings.get("layer_types") or ())
        self.window: int | None = settings.get("sliding_window")
        """Tokens that a layer with a window sees, the current one included."""
        own = [name for name in ("attention_chunk_size", "window_size") if settings.get(name)]
        if own or not self.layer_types <= _MASKS:
            kinds = [*own, *sorted(self.layer_types - _MASKS)]
            raise ValueError(f"{_name(model)}: masks its past by {', '.join(kinds)}; known are {sorted(_MASKS)}")
        self._check()

    def cache(self) -> SlotCache:
        return SlotCache(self.layers)

    def batches(self, prompts: Sequence[Prompt]) -> Iterator[list[int]]:
        """Indices of prompts that are read together: similar lengths, at most `prefill_tokens` with padding.

        Each prompt gets logits at every length in its batch, so different lengths must not be too many either.
        """
        batch: list[int] = []
        lengths: set[int] = set()
        for index in sorted(range(len(prompts)), key=lambda index: len(prompts[index].ids)):
            length, rows = len(prompts[index].ids), len(batch) + 1
            logits = rows * len(lengths | {length}) * self.vocabulary
            if batch and (rows * length > self.prefill_tokens or logits > _LOGITS_AT_ONCE):
                yield batch
                batch, lengths = [], set()
            batch.append(index)
            lengths.add(length)
        if batch:
            yield batch

    def prefill(self, prompts: Sequence[Prompt]) -> Prefilled:
        """Read prompts, padded on the right: causal attention never looks there, so no mask is needed."""
        self.voices.aim(voices_of(prompts))
        texts = [prompt.ids for prompt in prompts]
        ends = [len(ids) - 1 for ids in texts]
        ids_PL = torch.tensor([(*ids, *[0] * (max(ends) + 1 - len(ids))) for ids in texts], device=self.device)
        wanted = sorted(set(ends))
        cache = DynamicCache()
        logits_PUV = self.model(
            input_ids=ids_PL,
            position_ids=torch.arange(ids_PL.shape[1], device=self.device).expand_as(ids_PL),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=torch.tensor(wanted, device=self.device),
        ).logits
        last_P = torch.tensor([wanted.index(end) for end in ends], device=self.device)
        rows_P = torch.arange(len(prompts), device=self.device)
        kv = [(layer.keys, layer.values) for layer in cast("list[Any]", cache.layers)]
        return Prefilled(kv, logits_PUV[rows_P, last_P])

    def extend(
        self, cache: SlotCache, ids_NQ: Tensor, positions_NQ: Tensor, length: int, voices_N: NDArray[np.int64]
    ) -> Tensor:
        """Logits [N, Q, V] after new tokens of rows [0, N); `length` is the largest position plus 1."""
        cache.aim(positions_NQ, length)
        self.voices.aim(voices_N)
        return self.model(
            input_ids=ids_NQ,
            attention_mask=self._masks(positions_NQ, length),
            position_ids=positions_NQ,
            past_key_values=cache,
            use_cache=True,
        ).logits

    def rows_at_once(self, length: int, new: int) -> int:
        """How many rows with `new` tokens each, `length` in all, one forward may read."""
        return max(1, min(self.prefill_tokens // length, _LOGITS_AT_ONCE // (new * self.vocabulary)))

    def _masks(self, positions_NQ: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """Additive masks [N, 1, Q, length], by layer type where the model has several."""
        behind_NQL = positions_NQ[:, :, None] - torch.arange(length, device=self.device)
        hidden_NQL = behind_NQL < 0
        if not self.layer_types:
            return self._additive(hidden_NQL if self.window is None else hidden_NQL | (behind_NQL >= self.window))
        masks = {"full_attention": self._additive(hidden_NQL)}
        if "sliding_attention" in self.layer_types and self.window is not None:
            masks["sliding_attention"] = self._additive(hidden_NQL | (behind_NQL >= self.window))
        return masks

    def _additive(self, hidden_NQL: Tensor) -> Tensor:
        lowest = torch.finfo(self.dtype).min
        return torch.zeros_like(hidden_NQL, dtype=self.dtype).masked_fill_(hidden_NQL, lowest)[:, None]

    @torch.inference_mode()
    def _check(self) -> None:
        """Cached decoding of two uneven rows must say what one plain forward says.

        Raises:
            ValueError: for an architecture that keeps or masks its past in a way of its own.
        """
        ids = [index % self.vocabulary for index in (3, 5, 7, 11, 13, 17)]
        cache = self.cache()
        cache.store(self.prefill([Prompt(tuple(ids[:2])), Prompt(tuple(ids[:5]))]).kv, [0, 1], [0, 1])
        step_NQ = torch.tensor([[ids[2]], [ids[5]]], device=self.device)
        positions_NQ = torch.tensor([[2], [5]], device=self.device)
        cached_NV = self.extend(cache, step_NQ, positions_NQ, 6, np.zeros(2, np.int64))[:, 0].float()
        self.voices.aim(np.zeros(1, np.int64))
        plain_LV = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).logits[0].float()
        wanted_NV = plain_LV[[2, 5]]
        spread = (wanted_NV - wanted_NV.mean(-1, keepdim=True)).norm()
        if not bool((cached_NV - wanted_NV).norm() <= 0.1 * spread + 1e-3):
            raise ValueError(f"{_name(self.model)}: cached decoding disagrees with a plain forward; use another engine")


def voices_of(prompts: Iterable[Prompt]) -> NDArray[np.int64]:
    """Who reads each prompt."""
    return np.array([prompt.voice for prompt in prompts], np.int64)


def _layers(model: Any) -> int:
    """How many layers keep keys and values.

    Raises:
        ValueError: for an architecture without an ordinary attention cache.
    """
    takes = inspect.signature(model.forward).parameters
    absent = [name for name in ("past_key_values", "position_ids", "logits_to_keep") if name not in takes]
    if absent:
        raise ValueError(f"{_name(model)}: its forward takes no {', '.join(absent)}; cannot be decoded in slots")
    layers = DynamicCache(config=model.config).layers
    odd = sorted(
        {type(layer).__name__ for layer in layers if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer)}
    )
    if odd:
        raise ValueError(f"{_name(model)}: keeps {', '.join(odd)}; only ordinary attention caches can be held in slots")
    return len(layers)


def _name(model: Any) -> str:
    return type(model).__name__
