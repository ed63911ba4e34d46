"""Forwards of a Hugging Face causal language model: prompts, new tokens after cached ones, and scores of texts.

Shape suffixes: P = prompts, N = rows, Q = new tokens, L = length, U = distinct lengths, V = vocabulary, T = tokens of
the longest text.
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

from marl.core.config import Sampling
from marl.engines.transformers.grouped_attention import use_grouped_attention
from marl.engines.transformers.memory import MAX_LOGITS_PER_FORWARD as _MAX_LOGITS_PER_FORWARD
from marl.engines.transformers.policy_weights import FullWeights
from marl.engines.transformers.sampling import SamplingTensors, next_token_logprobs
from marl.engines.transformers.slots import SamplingJob, SlotCache
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
        """Yield batches of one policy and at most `prefill_tokens` tokens, each as a list of indices of `prompts`."""
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
        # The shared prefix excludes the last token of each prompt, whose logits the second forward returns.
        limit = min(map(len, texts)) - 1
        # In sorted order, the first and the last text share exactly the prefix that all texts share.
        first, last = min(texts), max(texts)
        shared = next((index for index in range(limit) if first[index] != last[index]), limit)
        if (len(prompts) - 1) * shared * self._token_flops > _MIN_SAVED_PREFIX_FLOPS:
            self.policy_weights.set_row_policies(policies_P[:1])
            ids_1L = torch.tensor([texts[0][:shared]], device=self.device)
            self.model(input_ids=ids_1L, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.batch_repeat_interleave(len(prompts))
        else:
            shared = 0
        self.policy_weights.set_row_policies(policies_P)
        ends = [len(ids) - shared - 1 for ids in texts]
        # Padding on the right needs no mask, because causal attention never looks at later tokens.
        ids_PL = torch.tensor(_pad_right([ids[shared:] for ids in texts]), device=self.device)
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
        hidden = {"full_attention": behind_NQL < 0}
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
        return self.model(
            input_ids=ids_NQ,
            attention_mask=masks if self.layer_types else masks["full_attention"],
            position_ids=positions_NQ,
            past_key_values=cache,
            use_cache=True,
        ).logits

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


def _pad_right(texts: Sequence[TokenIds]) -> list[TokenIds]:
    """Return `texts` padded with token 0 on the right to equal lengths."""
    longest = max(map(len, texts))
    return [ids + (0,) * (longest - len(ids)) for ids in texts]


def score_forced_texts(
    forward_runner: ModelRunner, jobs: Sequence[SamplingJob], texts: Sequence[TokenIds]
) -> list[tuple[float, ...]]:
    """Return, for each job, the log-probability of each token of its text after its prompt, in nats.

    `texts[i]` are the token ids of the text of job i. Log-probabilities are under the job's sampling distribution. Each
    distinct prompt is read once.
    """
    scores: list[tuple[float, ...]] = [()] * len(jobs)
    prompts = list(dict.fromkeys(job.prompt for job in jobs))
    for batch in forward_runner.prefill_batch_indices(prompts):
        batch_prompts = [prompts[index] for index in batch]
        kv, logits_PV = forward_runner.prefill(batch_prompts)
        device = logits_PV.device
        row_of = {prompt: row for row, prompt in enumerate(batch_prompts)}
        longest_prompt = max(len(prompt.ids) for prompt in batch_prompts)
        members = [index for index, job in enumerate(jobs) if job.prompt in row_of]
        members.sort(key=lambda index: len(texts[index]))
        while members:
            # The longest text of a chunk limits its rows, so chunks are taken from the end of the sorted list.
            longest = len(texts[members[-1]])
            rows_by_tokens = forward_runner.prefill_tokens // (longest_prompt + longest)
            size = max(1, min(rows_by_tokens, _MAX_LOGITS_PER_FORWARD // (longest * forward_runner.vocabulary)))
            members, chunk = members[:-size], members[-size:]
            chunk_texts, samplings = [texts[index] for index in chunk], list[Sampling]()
            rows, prompt_lengths, policies = list[int](), list[int](), list[int]()
            for job in [jobs[index] for index in chunk]:
                rows.append(row_of[job.prompt])
                prompt_lengths.append(len(job.prompt.ids))
                policies.append(job.prompt.policy)
                samplings.append(job.request.sampling)
            logits_NTV = logits_PV[rows][:, None]
            if longest > 1:
                length = max(prompt_lengths) + longest - 1
                # No row grows later, so that the cache has no spare capacity, which would be filled with zeros.
                cache = SlotCache(forward_runner.layers, forward_runner.dtype, length)
                cache.store_prefilled(kv, rows, list(range(len(chunk))))
                # The last token of a text is left out, because no later token is predicted from it.
                ids_NQ = torch.tensor(_pad_right([ids[:-1] for ids in chunk_texts]), device=device)
                positions_NQ = torch.tensor(prompt_lengths, device=device)[:, None] + torch.arange(
                    longest - 1, device=device
                )
                policies_N = np.array(policies, np.int64)
                later_NQV = forward_runner.decode(cache, ids_NQ, positions_NQ, length, policies_N)
                logits_NTV = torch.cat([logits_NTV, later_NQV], 1)
            sampling = SamplingTensors.from_settings(samplings, device).with_rows_repeated(longest)
            logprobs_MV = next_token_logprobs(logits_NTV.flatten(0, 1), sampling)
            chosen_M1 = logprobs_MV.gather(1, torch.tensor(_pad_right(chunk_texts)).to(device).view(-1, 1))
            for index, logprobs in zip(chunk, chosen_M1.view(-1, longest).tolist(), strict=True):
                scores[index] = tuple(logprobs[: len(texts[index])])
    return scores
