"""Forwards of a Hugging Face causal language model: prompts, new tokens after cached ones, and scores of texts.

Shape suffixes: P = prompts, N = rows, Q = new tokens, L = length, U = distinct lengths, V = vocabulary, T = tokens of
the longest text.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from marl.engines.transformers.grouped_attention import use_grouped_attention
from marl.engines.transformers.memory import LOGITS_AT_ONCE as _LOGITS_AT_ONCE
from marl.engines.transformers.policy_weights import PolicyWeights
from marl.engines.transformers.sampling import SamplingTensors, log_distribution
from marl.engines.transformers.slots import SamplingJob, SlotCache
from marl.models.chat_template import Prompt

_SAVED = 4e9
"""Minimum number of FLOPs to save by a separate forward over the prompts' common prefix. In tiny models the overhead of
a forward exceeds the time of the matrix products."""
_MASKS = {"full_attention", "sliding_attention"}
TokenIds = tuple[int, ...]
KeysAndValues = list[tuple[Tensor, Tensor]]
"""Keys and values [P, H, L, D] of each layer."""


class ModelRunner:
    """A model whose layers all keep ordinary keys and values, full or in a sliding window."""

    def __init__(self, policy_weights: PolicyWeights, prefill_tokens: int) -> None:
        """Check that cached decoding agrees with a plain forward.

        Raises:
            ValueError: if the architecture cannot be decoded in slots.
        """
        self.policy_weights, model = policy_weights, policy_weights.model
        use_grouped_attention(model)
        self.model = model.requires_grad_(False).eval()
        self.name = type(model).__name__
        self.device, self.dtype, self.prefill_tokens = model.device, model.dtype, prefill_tokens
        self.layers = self._count_layers()
        settings = model.config.get_text_config().to_dict()
        self.vocabulary: int = settings["vocab_size"]
        # Embeddings are looked up and the output head runs on last tokens only: neither counts for a token of a prompt.
        tables = {id(module.weight) for module in (model.get_input_embeddings(), model.get_output_embeddings())}
        self._token_flops = 2.0 * sum(p.numel() for p in model.parameters() if id(p) not in tables)
        self.layer_types = frozenset(settings.get("layer_types") or ())
        self.window: int | None = settings.get("sliding_window")
        """Number of tokens visible to a layer with a sliding window, the current token included."""
        special = [name for name in ("attention_chunk_size", "window_size") if settings.get(name)]
        if special or not self.layer_types <= _MASKS:
            kinds = [*special, *sorted(self.layer_types - _MASKS)]
            raise ValueError(f"{self.name}: masks its past by {', '.join(kinds)}; known are {sorted(_MASKS)}")
        self._check_decoding()

    def batches(self, prompts: Sequence[Prompt]) -> Iterator[list[int]]:
        """Yield indices of prompts to read together: of one policy, and at most `prefill_tokens` with padding."""
        batch: list[int] = []
        lengths: set[int] = set()
        for index in sorted(range(len(prompts)), key=lambda index: (prompts[index].policy, len(prompts[index].ids))):
            length, rows = len(prompts[index].ids), len(batch) + 1
            # A forward computes logits of every prompt at every length in the batch.
            logits = rows * len(lengths | {length}) * self.vocabulary
            other = batch and prompts[index].policy != prompts[batch[0]].policy
            if batch and (other or rows * length > self.prefill_tokens or logits > _LOGITS_AT_ONCE):
                yield batch
                batch, lengths = [], set()
            batch.append(index)
            lengths.add(length)
        if batch:
            yield batch

    def prefill(self, prompts: Sequence[Prompt]) -> tuple[KeysAndValues, Tensor]:
        """Read prompts of one policy; return their keys and values, and the next token's logits [P, V]."""
        cache, shared = DynamicCache(), self._shared_prefix(prompts)
        if shared:
            self.policy_weights.select(policies_of(prompts[:1]))
            ids_1L = torch.tensor([prompts[0].ids[:shared]], device=self.device)
            self.model(input_ids=ids_1L, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.batch_repeat_interleave(len(prompts))
        self.policy_weights.select(policies_of(prompts))
        texts = [prompt.ids[shared:] for prompt in prompts]
        ends = [len(ids) - 1 for ids in texts]
        # Padding on the right needs no mask: causal attention never looks at later tokens.
        ids_PL = torch.tensor([(*ids, *[0] * (max(ends) + 1 - len(ids))) for ids in texts], device=self.device)
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

    def _shared_prefix(self, prompts: Sequence[Prompt]) -> int:
        """Return the length of the common prefix to read in a forward of its own, or 0 if that saves too little."""
        texts = [prompt.ids for prompt in prompts]
        # The common prefix of all texts is that of the first and the last in sorted order.
        first, last = min(texts), max(texts)
        # The last token of each prompt is read in the second forward, which returns its logits.
        shared = min(map(len, texts)) - 1
        for index in range(shared):
            if first[index] != last[index]:
                shared = index
                break
        one_policy = all(prompt.policy == prompts[0].policy for prompt in prompts)
        return shared if one_policy and (len(prompts) - 1) * shared * self._token_flops > _SAVED else 0

    def decode(
        self, cache: SlotCache, ids_NQ: Tensor, positions_NQ: Tensor, length: int, policies_N: NDArray[np.int64]
    ) -> Tensor:
        """Return logits [N, Q, V] after new tokens of rows [0, N); `length` is the largest position plus 1."""
        cache.aim(positions_NQ, length)
        self.policy_weights.select(policies_N)
        return self.model(
            input_ids=ids_NQ,
            attention_mask=self._masks(positions_NQ, length),
            position_ids=positions_NQ,
            past_key_values=cache,
            use_cache=True,
        ).logits

    def rows_at_once(self, length: int, new: int) -> int:
        """Return the maximum number of rows of one forward, each of `length` tokens with `new` tokens after a cache."""
        return max(1, min(self.prefill_tokens // length, _LOGITS_AT_ONCE // (new * self.vocabulary)))

    def _masks(self, positions_NQ: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """Return additive masks [N, 1, Q, L], by layer type if the model has several."""
        behind_NQL = positions_NQ[:, :, None] - torch.arange(length, device=self.device)
        future_NQL = behind_NQL < 0
        hidden_of = {"full_attention": future_NQL}
        if self.window is not None and self.layer_types != {"full_attention"}:
            hidden_of["sliding_attention"] = future_NQL | (behind_NQL >= self.window)
        if not self.layer_types:
            # A window without layer types holds for every layer.
            return self._additive_mask(hidden_of.get("sliding_attention", future_NQL))
        return {kind: self._additive_mask(hidden_NQL) for kind, hidden_NQL in hidden_of.items()}

    def _additive_mask(self, hidden_NQL: Tensor) -> Tensor:
        # The lowest finite number: a row of minus infinities would turn into NaN in the softmax.
        lowest = torch.finfo(self.dtype).min
        return torch.zeros_like(hidden_NQL, dtype=self.dtype).masked_fill_(hidden_NQL, lowest)[:, None]

    def _count_layers(self) -> int:
        """Return the number of layers.

        Raises:
            ValueError: if a layer keeps anything but an ordinary attention cache.
        """
        parameters = inspect.signature(self.model.forward).parameters
        absent = [name for name in ("past_key_values", "position_ids", "logits_to_keep") if name not in parameters]
        if absent:
            raise ValueError(f"{self.name}: its forward takes no {', '.join(absent)}; cannot be decoded in slots")
        layers = DynamicCache(config=self.model.config).layers
        unfit = {type(layer).__name__ for layer in layers} - {
            DynamicLayer.__name__,
            DynamicSlidingWindowLayer.__name__,
        }
        if unfit:
            names = ", ".join(sorted(unfit))
            raise ValueError(f"{self.name}: keeps {names}; only ordinary attention caches can be held in slots")
        return len(layers)

    @torch.inference_mode()
    def _check_decoding(self) -> None:
        """Compare cached decoding of two rows of different lengths with one plain forward.

        Raises:
            ValueError: if they disagree: the architecture keeps or masks the past in a different way.
        """
        ids = [index % self.vocabulary for index in (3, 5, 7, 11, 13, 17)]
        cache = SlotCache(self.layers, self.dtype)
        cache.store(self.prefill([Prompt(tuple(ids[:2])), Prompt(tuple(ids[:5]))])[0], [0, 1], [0, 1])
        step_NQ = torch.tensor([[ids[2]], [ids[5]]], device=self.device)
        positions_NQ = torch.tensor([[2], [5]], device=self.device)
        cached_NV = self.decode(cache, step_NQ, positions_NQ, 6, np.zeros(2, np.int64))[:, 0].float()
        self.policy_weights.select(np.zeros(1, np.int64))
        plain_LV = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).logits[0].float()
        plain_NV = plain_LV[[2, 5]]
        # Relative to the spread of the logits, as half precision rounds; NaN fails the comparison.
        spread = (plain_NV - plain_NV.mean(-1, keepdim=True)).norm()
        if not bool((cached_NV - plain_NV).norm() <= 0.1 * spread + 1e-3):
            raise ValueError(f"{self.name}: cached decoding disagrees with a plain forward; use another engine")


def policies_of(prompts: Iterable[Prompt]) -> NDArray[np.int64]:
    """Return the policy index of each prompt, [P]."""
    return np.array([prompt.policy for prompt in prompts], np.int64)


def score_texts(
    network: ModelRunner, jobs: Sequence[SamplingJob], texts: Sequence[TokenIds]
) -> list[tuple[float, ...]]:
    """Return, for each job, the log-probability of each token of its text after its prompt, in nats.

    Log-probabilities are under the job's sampling distribution. Each distinct prompt is read once.
    """
    scores: list[tuple[float, ...]] = [()] * len(jobs)
    prompts = list(dict.fromkeys(job.prompt for job in jobs))
    for batch in network.batches(prompts):
        batch_prompts = [prompts[index] for index in batch]
        kv, logits_PV = network.prefill(batch_prompts)
        source_of = {prompt: row for row, prompt in enumerate(batch_prompts)}
        longest_prompt = max(len(prompt.ids) for prompt in batch_prompts)
        members = [index for index, job in enumerate(jobs) if job.prompt in source_of]
        members.sort(key=lambda index: len(texts[index]))
        while members:
            # From the end: the longest text decides how many fit beside it.
            longest = len(texts[members[-1]])
            size = network.rows_at_once(longest_prompt + longest, longest)
            members, chunk = members[:-size], members[-size:]
            pairs = [(jobs[index], texts[index]) for index in chunk]
            sources = [source_of[job.prompt] for job, _ in pairs]
            cache = SlotCache(network.layers, network.dtype)
            cache.store(kv, sources, list(range(len(chunk))))
            logits_NTV = _text_logits(network, cache, pairs, logits_PV[sources])
            for index, row_scores in zip(chunk, _text_logprobs(logits_NTV, pairs), strict=True):
                scores[index] = row_scores
    return scores


Pairs = Sequence[tuple[SamplingJob, TokenIds]]


def _text_logits(network: ModelRunner, cache: SlotCache, pairs: Pairs, first_NV: Tensor) -> Tensor:
    """Return logits [N, T, V] of texts. The first token's logits come from the prompt (`first_NV`)."""
    longest = max(len(ids) for _, ids in pairs)
    if longest == 1:
        return first_NV[:, None]
    device = first_NV.device
    # The last token of a text predicts nothing, so it is not read.
    ids_NQ = torch.tensor([(*ids[:-1], *[0] * (longest - len(ids))) for _, ids in pairs], device=device)
    starts_N1 = torch.tensor([[len(job.prompt.ids)] for job, _ in pairs], device=device)
    positions_NQ = starts_N1 + torch.arange(longest - 1, device=device)
    length = max(len(job.prompt.ids) for job, _ in pairs) + longest - 1
    policies_N = policies_of(job.prompt for job, _ in pairs)
    return torch.cat([first_NV[:, None], network.decode(cache, ids_NQ, positions_NQ, length, policies_N)], 1)


def _text_logprobs(logits_NTV: Tensor, pairs: Pairs) -> list[tuple[float, ...]]:
    """Return the log-probabilities of each text under the sampling distribution of its job."""
    longest = logits_NTV.shape[1]
    samplings = []
    padded = []
    for job, ids in pairs:
        samplings += [job.request.sampling] * longest
        padded += [*ids, *[0] * (longest - len(ids))]
    logprobs_MV = log_distribution(logits_NTV.flatten(0, 1), SamplingTensors.of(samplings, logits_NTV.device))
    chosen_M1 = logprobs_MV.gather(1, torch.tensor(padded).to(logits_NTV.device)[:, None])
    rows = chosen_M1.view(-1, longest).tolist()
    return [tuple(row[: len(ids)]) for row, (_, ids) in zip(rows, pairs, strict=True)]
