"""Forwards of a Hugging Face causal language model: prompts, texts packed behind prompts, tokens after cached ones.

Shape suffixes: P = prompts, N = rows, Q = new tokens, L = length, W = length of a packed row, U = distinct lengths, K =
kept positions, V = vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from marl.engines.transformers.grouped_attention import use_grouped_attention
from marl.engines.transformers.memory import MAX_LOGITS_PER_FORWARD as _MAX_LOGITS_PER_FORWARD
from marl.engines.transformers.packing import PackedPrompts
from marl.engines.transformers.policy_weights import FullWeights
from marl.engines.transformers.slots import SlotCache
from marl.models.chat_template import Prompt

if TYPE_CHECKING:
    # Adapters need PEFT, which other runs do not load.
    from marl.engines.transformers.multi_lora import MultiLoraModel

_MIN_SAVED_PREFIX_FLOPS = 4e9
"""Minimum number of FLOPs that a separate forward over the prompts' common prefix must save. Below this number, the
overhead of a forward exceeds the time of its matrix products."""
_DECODABLE_CACHE_LAYERS = {DynamicLayer.__name__, DynamicSlidingWindowLayer.__name__}
_SUPPORTED_LAYER_TYPES = {"full_attention", "sliding_attention"}
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Types of rotary embeddings whose forward compares positions on the host, which a CUDA graph cannot."""
TokenIds = tuple[int, ...]
KeysAndValues = list[tuple[Tensor, Tensor]]
"""Keys and values [P, H, L, D] of each layer."""


class ModelRunner:
    """Forward passes of a model whose layers all cache ordinary keys and values, full or in a sliding window."""

    def __init__(self, policy_weights: FullWeights | MultiLoraModel, prefill_tokens: int) -> None:
        """Check that cached decoding agrees with a plain forward.

        `prefill_tokens` is the maximum number of tokens of one forward over prompts, padding included.

        Raises:
            ValueError: if the architecture cannot be decoded in slots.
        """
        self.policy_weights, model = policy_weights, policy_weights.model
        use_grouped_attention(model)
        self.model = model.requires_grad_(False).eval()
        self.name = type(model).__name__
        self.device, self.dtype, self.prefill_tokens = model.device, model.dtype, prefill_tokens
        parameters = inspect.signature(model.forward).parameters
        absent = [name for name in ("past_key_values", "position_ids", "logits_to_keep") if name not in parameters]
        if absent:
            raise ValueError(f"{self.name}: its forward takes no {', '.join(absent)}; cannot be decoded in slots")
        layers = DynamicCache(config=model.config).layers
        self.layers = len(layers)
        unfit = {type(layer).__name__ for layer in layers} - _DECODABLE_CACHE_LAYERS
        if unfit:
            names = ", ".join(sorted(unfit))
            raise ValueError(f"{self.name}: keeps {names}; only ordinary attention caches can be held in slots")
        settings = model.config.get_text_config().to_dict()
        self.vocabulary: int = settings["vocab_size"]
        # FLOPs per prompt token leave out the embeddings (a look-up) and the head (computed for last tokens only).
        embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        products = [p.numel() for p in model.parameters() if p is not embeddings and p is not head]
        self._token_flops = 2.0 * sum(products)
        self.layer_types = frozenset(settings.get("layer_types") or ())
        self.window: int | None = settings.get("sliding_window")
        """Number of tokens in a layer's sliding window, including the current token, or None without a window."""
        kinds = [name for name in ("attention_chunk_size", "window_size") if settings.get(name)]
        kinds += sorted(self.layer_types - _SUPPORTED_LAYER_TYPES)
        if kinds:
            raise ValueError(
                f"{self.name}: masks its past by {', '.join(kinds)}; known are {sorted(_SUPPORTED_LAYER_TYPES)}"
            )
        self._check_cached_decoding()

    def uses_static_cache(self, cache: str | None) -> bool:
        """Return True if rows are decoded in tensors of fixed shapes. `cache`: the engine's setting of that name.

        Raises:
            ValueError: if the setting is `static`, but forwards cannot be captured as CUDA graphs.
        """
        if self.device.type != "cuda":
            return cache == "static"
        settings = self.model.config.get_text_config().to_dict()
        obstacle = ""
        if not self.model._can_compile_fullgraph:
            obstacle = "Transformers marks it as not to be compiled as one graph"
        elif odd := [word for word in _LENGTH_DEPENDENT_ROPE if word in str(settings.get("rope_parameters"))]:
            obstacle = f"its rotary embeddings ({odd[0]}) depend on the longest position, which the host would read"
        if cache == "static" and obstacle:
            raise ValueError(f"cache: 'static' is not for {self.name} on a GPU: {obstacle}; choose 'dynamic'")
        return cache != "dynamic" and not obstacle

    def prefill_batch_indices(self, prompts: Sequence[Prompt]) -> Iterator[list[int]]:
        """Divide `prompts` into batches; yield each batch as a list of indices of `prompts`.

        The prompts of a batch belong to one policy. Padded to the longest, they have at most `prefill_tokens` tokens
        together, unless the batch is a single prompt.
        """
        batch: list[int] = []
        lengths: set[int] = set()
        for index in sorted(range(len(prompts)), key=lambda index: (prompts[index].policy, len(prompts[index].ids))):
            length, rows = len(prompts[index].ids), len(batch) + 1
            # A forward computes logits for every prompt at each distinct length in the batch.
            logits = rows * len(lengths | {length}) * self.vocabulary
            other = batch and prompts[index].policy != prompts[batch[0]].policy
            if batch and (other or rows * length > self.prefill_tokens or logits > _MAX_LOGITS_PER_FORWARD):
                yield batch
                batch, lengths = [], set()
            batch.append(index)
            lengths.add(length)
        if batch:
            yield batch

    def prefill(self, prompts: Sequence[Prompt]) -> tuple[KeysAndValues, Tensor]:
        """Read `prompts` of one policy; return their keys and values, and the next token's logits [P, V]."""
        cache, policies_P = DynamicCache(), np.full(len(prompts), prompts[0].policy, np.int64)
        texts = [prompt.ids for prompt in prompts]
        if shared := self.length_of_prefix_to_read_once(prompts):
            self.policy_weights.set_row_policies(policies_P[:1])
            ids_1L = torch.tensor([texts[0][:shared]], device=self.device)
            self.model(input_ids=ids_1L, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.batch_repeat_interleave(len(prompts))
        self.policy_weights.set_row_policies(policies_P)
        ends = [len(ids) - shared - 1 for ids in texts]
        # Padding on the right needs no mask, because causal attention never looks at later tokens.
        ids_PL = torch.tensor(pad_right([ids[shared:] for ids in texts]), device=self.device)
        last_positions = sorted(set(ends))
        logits_PUV = self.model(
            input_ids=ids_PL,
            position_ids=torch.arange(shared, shared + ids_PL.shape[1], device=self.device).expand_as(ids_PL),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=torch.tensor(last_positions, device=self.device),
        ).logits
        last_P = torch.tensor([last_positions.index(end) for end in ends], device=self.device)
        rows_P = torch.arange(len(prompts), device=self.device)
        kv = [(layer.keys, layer.values) for layer in cast("list[Any]", cache.layers)]
        return kv, logits_PUV[rows_P, last_P]

    def length_of_prefix_to_read_once(self, prompts: Sequence[Prompt]) -> int:
        """Return the number of tokens with which all `prompts` begin, or 0 if a forward over them saves too little."""
        texts = [prompt.ids for prompt in prompts]
        # The shared prefix excludes the last token of each prompt, whose logits the second forward returns.
        limit = min(map(len, texts)) - 1
        # In sorted order, the first and the last text share exactly the prefix that all texts share.
        first, last = min(texts), max(texts)
        shared = next((index for index in range(limit) if first[index] != last[index]), limit)
        return shared if (len(prompts) - 1) * shared * self._token_flops > _MIN_SAVED_PREFIX_FLOPS else 0

    def read_packed_prompts(self, packed: PackedPrompts, policy_index: int) -> Tensor:
        """Return the logits [P, K, V] after each row's prompt, and after each token of its texts as `packed` has them.

        `policy_index` is the index of the policy that reads all rows.
        """
        ids_PW = torch.tensor(packed.ids, device=self.device)
        positions_PW, branches_PW = torch.tensor([packed.positions, packed.branches], device=self.device)
        columns_W = torch.arange(ids_PW.shape[1], device=self.device)
        is_earlier_WW = columns_W <= columns_W[:, None]
        of_prompt_P1W = branches_PW[:, None] == 0
        is_seen_PWW = is_earlier_WW & (of_prompt_P1W | (branches_PW[:, None] == branches_PW[:, :, None]))
        behind_PWW = positions_PW[:, :, None] - positions_PW[:, None]
        self.policy_weights.set_row_policies(np.full(len(packed.ids), policy_index, np.int64))
        return self.model(
            input_ids=ids_PW,
            attention_mask=self._attention_masks(~is_seen_PWW, behind_PWW),
            position_ids=positions_PW,
            use_cache=False,
            logits_to_keep=packed.logits_per_row,
        ).logits

    def decode(
        self,
        cache: SlotCache,
        ids_NQ: Tensor,
        positions_NQ: Tensor,
        cache_length: int,
        policy_indices_N: NDArray[np.int64],
    ) -> Tensor:
        """Write new tokens of the cache's rows [0, N) to `cache` and return the logits [N, Q, V] after each new token.

        `ids_NQ` are the new tokens, `positions_NQ` their positions, `cache_length` is the largest position plus 1, and
        `policy_indices_N` holds the policy index of each row.
        """
        cache.set_write_positions_and_read_length(positions_NQ, cache_length)
        self.policy_weights.set_row_policies(policy_indices_N)
        behind_NQL = positions_NQ[:, :, None] - torch.arange(cache_length, device=self.device)
        return self.model(
            input_ids=ids_NQ,
            attention_mask=self._attention_masks(behind_NQL < 0, behind_NQL),
            position_ids=positions_NQ,
            past_key_values=cache,
            use_cache=True,
        ).logits

    def _attention_masks(self, hidden_NQL: Tensor, behind_NQL: Tensor) -> Tensor | dict[str, Tensor]:
        """Return the masks [N, 1, Q, L] that are added to attention scores, by type of layer if the model has types.

        Args:
            hidden_NQL: True where the query must not see the key.
            behind_NQL: number of positions from the key to the query, for sliding windows.
        """
        hidden = {"full_attention": hidden_NQL}
        # If the configuration lists no layer types, the sliding window applies to every layer.
        layer_type = "sliding_attention" if self.layer_types else "full_attention"
        if self.window is not None and (not self.layer_types or layer_type in self.layer_types):
            hidden[layer_type] = hidden["full_attention"] | (behind_NQL >= self.window)
        masks: dict[str, Tensor] = {}
        # Masks use the lowest finite number, because a row of minus infinities gives NaN in the softmax.
        lowest = torch.finfo(self.dtype).min
        for layer_type, hidden_NQL in hidden.items():
            mask_NQL = torch.zeros_like(hidden_NQL, dtype=self.dtype).masked_fill_(hidden_NQL, lowest)
            masks[layer_type] = mask_NQL[:, None]
        return masks if self.layer_types else masks["full_attention"]

    @torch.inference_mode()
    def _check_cached_decoding(self) -> None:
        """Compare cached decoding of two rows of different lengths with one plain forward.

        Raises:
            ValueError: if the logits disagree, because the architecture keeps or masks the past in a different way.
        """
        ids = [index % self.vocabulary for index in (3, 5, 7, 11, 13, 17)]
        cache = SlotCache(self.layers, self.dtype)
        cache.store_prefilled(self.prefill([Prompt(tuple(ids[:2])), Prompt(tuple(ids[:5]))])[0], [0, 1], [0, 1])
        step_NQ = torch.tensor([[ids[2]], [ids[5]]], device=self.device)
        positions_NQ = torch.tensor([[2], [5]], device=self.device)
        cached_NV = self.decode(cache, step_NQ, positions_NQ, 6, np.zeros(2, np.int64))[:, 0].float()
        self.policy_weights.set_row_policies(np.zeros(1, np.int64))
        plain_LV = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).logits[0].float()
        plain_NV = plain_LV[[2, 5]]
        # The tolerance is relative to the spread of the logits, as half precision rounds. NaN fails the comparison.
        spread = (plain_NV - plain_NV.mean(-1, keepdim=True)).norm()
        if not bool((cached_NV - plain_NV).norm() <= 0.1 * spread + 1e-3):
            raise ValueError(f"{self.name}: cached decoding disagrees with a plain forward; use another engine")


def pad_right(texts: Sequence[TokenIds]) -> list[TokenIds]:
    """Return `texts` padded with token 0 on the right to equal lengths."""
    longest = max(map(len, texts))
    return [ids + (0,) * (longest - len(ids)) for ids in texts]
