"""Forwards of a Hugging Face causal language model: prompts, new tokens on top of cached ones, and scores of texts.

Shape suffixes: P = prompts, N = rows, Q = new tokens, L = length, V = vocabulary, T = tokens of the longest text.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from marl.engines.transformers.grouped_attention import read_shared_keys_once
from marl.engines.transformers.memory import LOGITS_AT_ONCE as _LOGITS_AT_ONCE
from marl.engines.transformers.sampling import Shaping, log_distribution
from marl.engines.transformers.slots import SamplingJob, SlotCache
from marl.models.chat_template import Prompt

if TYPE_CHECKING:
    from marl.engines.transformers.policy_weights import PolicyWeights

_SAVED = 4e9
"""FLOPs of matrix products that must be saved for a further forward, over what prompts have in common. Those of tiny
models take less time than the forward's overhead."""
_MASKS = {"full_attention", "sliding_attention"}
TokenIds = tuple[int, ...]
KeysAndValues = list[tuple[Tensor, Tensor]]
"""Per layer keys and values [P, H, L, D]."""


class Network:
    """A model whose layers all keep ordinary keys and values, full or in a sliding window."""

    def __init__(self, policy_weights: PolicyWeights, prefill_tokens: int) -> None:
        """Take a model whose cached decoding agrees with a plain forward.

        Raises:
            ValueError: for any other architecture.
        """
        self.policy_weights, model = policy_weights, policy_weights.model
        read_shared_keys_once(model)
        self.model = model.requires_grad_(False).eval()
        self.device, self.dtype, self.prefill_tokens = model.device, model.dtype, prefill_tokens
        self.layers = _layers(model)
        settings = model.config.get_text_config().to_dict()
        self.vocabulary: int = settings["vocab_size"]
        tables = {id(part.weight) for part in (model.get_input_embeddings(), model.get_output_embeddings())}
        self._token_flops = 2.0 * sum(p.numel() for p in model.parameters() if id(p) not in tables)
        self.layer_types = frozenset(settings.get("layer_types") or ())
        self.window: int | None = settings.get("sliding_window")
        """Tokens that a layer with a sliding window sees, the current one included."""
        special = [name for name in ("attention_chunk_size", "window_size") if settings.get(name)]
        if special or not self.layer_types <= _MASKS:
            kinds = [*special, *sorted(self.layer_types - _MASKS)]
            raise ValueError(f"{_name(model)}: masks its past by {', '.join(kinds)}; known are {sorted(_MASKS)}")
        self._check()

    def batches(self, prompts: Sequence[Prompt]) -> Iterator[list[int]]:
        """Yield indices of prompts to read together: of a policy and similar lengths, at most `prefill_tokens` with
        padding.

        Each prompt gets logits at every length in its batch, so different lengths must not be too many either.
        """
        batch: list[int] = []
        lengths: set[int] = set()
        for index in sorted(range(len(prompts)), key=lambda index: (prompts[index].policy, len(prompts[index].ids))):
            length, rows = len(prompts[index].ids), len(batch) + 1
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
        """Read prompts of one policy; return their keys and values, and the next token's logits [P, V].

        They are padded on the right, which causal attention never sees, so no mask is needed.
        """
        cache, read = DynamicCache(), self._worth_sharing(prompts)
        if read:
            self._read_common(prompts, read, cache)
        self.policy_weights.select(policies_of(prompts))
        texts = [prompt.ids[read:] for prompt in prompts]
        ends = [len(ids) - 1 for ids in texts]
        ids_PL = torch.tensor([(*ids, *[0] * (max(ends) + 1 - len(ids))) for ids in texts], device=self.device)
        last_positions = sorted(set(ends))
        logits_PUV = self.model(
            input_ids=ids_PL,
            position_ids=torch.arange(read, read + ids_PL.shape[1], device=self.device).expand_as(ids_PL),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=torch.tensor(last_positions, device=self.device),
        ).logits
        last_P = torch.tensor([last_positions.index(end) for end in ends], device=self.device)
        rows_P = torch.arange(len(prompts), device=self.device)
        kv = [(layer.keys, layer.values) for layer in cast("list[Any]", cache.layers)]
        return kv, logits_PUV[rows_P, last_P]

    def _worth_sharing(self, prompts: Sequence[Prompt]) -> int:
        """Return how many tokens at the start of all prompts are to be read once; each keeps one of its own."""
        texts = [prompt.ids for prompt in prompts]
        most, (least, greatest) = min(map(len, texts)) - 1, (min(texts), max(texts))
        shared = next((n for n in range(most) if least[n] != greatest[n]), most)  # all others lie between these two
        one_policy = all(prompt.policy == prompts[0].policy for prompt in prompts)
        return shared if one_policy and (len(prompts) - 1) * shared * self._token_flops > _SAVED else 0

    def _read_common(self, prompts: Sequence[Prompt], tokens: int, cache: DynamicCache) -> None:
        """Read the first tokens of all prompts once; `cache` then holds them for each prompt."""
        self.policy_weights.select(policies_of(prompts[:1]))
        ids_1L = torch.tensor([prompts[0].ids[:tokens]], device=self.device)
        self.model(input_ids=ids_1L, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache.batch_repeat_interleave(len(prompts))

    def extend(
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
        """Return the number of rows with `new` tokens each, `length` in all, that one forward may read."""
        return max(1, min(self.prefill_tokens // length, _LOGITS_AT_ONCE // (new * self.vocabulary)))

    def _masks(self, positions_NQ: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """Return additive masks [N, 1, Q, L], by layer type if the model has several."""
        behind_NQL = positions_NQ[:, :, None] - torch.arange(length, device=self.device)
        hidden_NQL = behind_NQL < 0
        if not self.layer_types:
            return self._additive_mask(hidden_NQL if self.window is None else hidden_NQL | (behind_NQL >= self.window))
        masks = {"full_attention": self._additive_mask(hidden_NQL)}
        if "sliding_attention" in self.layer_types and self.window is not None:
            masks["sliding_attention"] = self._additive_mask(hidden_NQL | (behind_NQL >= self.window))
        return masks

    def _additive_mask(self, hidden_NQL: Tensor) -> Tensor:
        lowest = torch.finfo(self.dtype).min
        return torch.zeros_like(hidden_NQL, dtype=self.dtype).masked_fill_(hidden_NQL, lowest)[:, None]

    @torch.inference_mode()
    def _check(self) -> None:
        """Compare cached decoding of two uneven rows with one plain forward.

        Raises:
            ValueError: for an architecture that keeps or masks its past in a way of its own.
        """
        ids = [index % self.vocabulary for index in (3, 5, 7, 11, 13, 17)]
        cache = SlotCache(self.layers, self.dtype)
        cache.store(self.prefill([Prompt(tuple(ids[:2])), Prompt(tuple(ids[:5]))])[0], [0, 1], [0, 1])
        step_NQ = torch.tensor([[ids[2]], [ids[5]]], device=self.device)
        positions_NQ = torch.tensor([[2], [5]], device=self.device)
        cached_NV = self.extend(cache, step_NQ, positions_NQ, 6, np.zeros(2, np.int64))[:, 0].float()
        self.policy_weights.select(np.zeros(1, np.int64))
        plain_LV = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).logits[0].float()
        plain_NV = plain_LV[[2, 5]]
        spread = (plain_NV - plain_NV.mean(-1, keepdim=True)).norm()
        if not bool((cached_NV - plain_NV).norm() <= 0.1 * spread + 1e-3):
            raise ValueError(f"{_name(self.model)}: cached decoding disagrees with a plain forward; use another engine")


def policies_of(prompts: Iterable[Prompt]) -> NDArray[np.int64]:
    """Return the index of the policy that reads each prompt."""
    return np.array([prompt.policy for prompt in prompts], np.int64)


def _layers(model: Any) -> int:
    """Return the number of layers, all of which keep keys and values.

    Raises:
        ValueError: for an architecture without an ordinary attention cache.
    """
    takes = inspect.signature(model.forward).parameters
    absent = [name for name in ("past_key_values", "position_ids", "logits_to_keep") if name not in takes]
    if absent:
        raise ValueError(f"{_name(model)}: its forward takes no {', '.join(absent)}; cannot be decoded in slots")
    layers = DynamicCache(config=model.config).layers
    kinds = {type(layer).__name__ for layer in layers if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer)}
    if kinds:
        names = ", ".join(sorted(kinds))
        raise ValueError(f"{_name(model)}: keeps {names}; only ordinary attention caches can be held in slots")
    return len(layers)


def _name(model: Any) -> str:
    return type(model).__name__


def score_texts(network: Network, jobs: Sequence[SamplingJob], texts: Sequence[TokenIds]) -> list[tuple[float, ...]]:
    """Return, for each job, the log-probability of each token of its text after its prompt, in nats.

    They are those of the job's sampling distribution. Nothing is sampled, and each distinct prompt is read once.
    """
    scores: list[tuple[float, ...]] = [()] * len(jobs)
    prompts = list(dict.fromkeys(job.prompt for job in jobs))
    for batch in network.batches(prompts):
        together = [prompts[index] for index in batch]
        members = set(together)
        rows = [index for index, job in enumerate(jobs) if job.prompt in members]
        pairs = [(jobs[row], texts[row]) for row in rows]
        for index, row_scores in zip(rows, _scores_after(network, together, pairs), strict=True):
            scores[index] = row_scores
    return scores


Pairs = Sequence[tuple[SamplingJob, TokenIds]]


def _scores_after(network: Network, prompts: Sequence[Prompt], pairs: Pairs) -> list[tuple[float, ...]]:
    """Return the scores of texts after prompts that are read in one forward."""
    kv, logits_PV = network.prefill(prompts)
    rows = {prompt: row for row, prompt in enumerate(prompts)}
    order = sorted(range(len(pairs)), key=lambda index: len(pairs[index][1]))
    scores: list[tuple[float, ...]] = [()] * len(pairs)
    while order:
        # The longest decides how many fit beside it.
        longest = len(pairs[order[-1]][1])
        size = network.rows_at_once(max(len(prompt.ids) for prompt in prompts) + longest, longest)
        order, chunk = order[:-size], order[-size:]
        chosen = [pairs[index] for index in chunk]
        sources = [rows[job.prompt] for job, _ in chosen]
        cache = SlotCache(network.layers, network.dtype)
        cache.store(kv, sources, list(range(len(chosen))))
        logits_NTV = _text_logits(network, cache, chosen, logits_PV[sources])
        for index, row_scores in zip(chunk, _text_logprobs(logits_NTV, chosen), strict=True):
            scores[index] = row_scores
    return scores


def _text_logits(network: Network, cache: SlotCache, pairs: Pairs, first_NV: Tensor) -> Tensor:
    """Return logits [N, T, V]: the first token's come from the prompt, the others' from the tokens before."""
    longest = max(len(ids) for _, ids in pairs)
    if longest == 1:
        return first_NV[:, None]
    device = first_NV.device
    ids_NQ = torch.tensor([(*ids[:-1], *[0] * (longest - len(ids))) for _, ids in pairs], device=device)
    starts_N1 = torch.tensor([[len(job.prompt.ids)] for job, _ in pairs], device=device)
    positions_NQ = starts_N1 + torch.arange(longest - 1, device=device)
    length = max(len(job.prompt.ids) for job, _ in pairs) + longest - 1
    policies_N = policies_of(job.prompt for job, _ in pairs)
    return torch.cat([first_NV[:, None], network.extend(cache, ids_NQ, positions_NQ, length, policies_N)], 1)


def _text_logprobs(logits_NTV: Tensor, pairs: Pairs) -> list[tuple[float, ...]]:
    longest = logits_NTV.shape[1]
    shaping = Shaping.of([job.request.sampling for job, _ in pairs for _ in range(longest)], logits_NTV.device)
    logprobs_MV = log_distribution(logits_NTV.flatten(0, 1), shaping)
    tokens_M = torch.tensor([token for _, ids in pairs for token in (*ids, *[0] * (longest - len(ids)))])
    chosen_M1 = logprobs_MV.gather(1, tokens_M.to(logits_NTV.device)[:, None])
    rows = chosen_M1.view(-1, longest).tolist()
    return [tuple(row[: len(ids)]) for row, (_, ids) in zip(rows, pairs, strict=True)]
