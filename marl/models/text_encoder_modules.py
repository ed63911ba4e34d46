"""Text encoders as torch modules, which map the ids of texts to vectors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, pairwise

import torch
from torch import Tensor, nn

from marl.models.pretrained import PretrainedSource
from marl.models.weights import load_model, load_tokenizer

_WORDS = re.compile(r"\w+|[^\w\s]+")


class HashedWordEncoder(nn.Module):
    """Encoder of a text as the sum of its features' vectors, divided by the square root of their number."""

    def __init__(self, buckets: int, width: int, features: tuple[str, ...]) -> None:
        """`features`: kinds of features of a text, of `words`, `pairs` and `text`."""
        super().__init__()
        self.vocabulary, self._features = buckets, features
        self.table = nn.EmbeddingBag(buckets, width, mode="sum")

    def encode(self, text: str) -> list[int]:
        return list(_feature_buckets(text, self.vocabulary, self._features))

    def forward(self, texts: Sequence[Sequence[int]]) -> Tensor:
        lengths = torch.tensor(list(map(len, texts)))
        flat = torch.tensor(list(chain.from_iterable(texts)), dtype=torch.int64)
        sums = self.table(flat, lengths.cumsum(0) - lengths)
        return sums / lengths.clamp(min=1).sqrt()[:, None]


@lru_cache(maxsize=65536)
def _feature_buckets(text: str, bucket_count: int, kinds: tuple[str, ...]) -> tuple[int, ...]:
    """Return the hash bucket of each feature of `text`: `words`, `pairs` of neighbouring words, and the full `text`."""
    words = _WORDS.findall(text.lower())
    # Line breaks tell features of pairs and of full texts from words, which contain none.
    features_by_kind = {
        "words": words,
        "pairs": list(map("\n".join, pairwise(words))),
        "text": ["\n\n" + " ".join(words)] if words else [],
    }
    ids: list[int] = []
    for feature in chain.from_iterable(features for kind, features in features_by_kind.items() if kind in kinds):
        digest = blake2b(feature.encode(), digest_size=8).digest()
        ids.append(int.from_bytes(digest, "little") % bucket_count)
    return tuple(ids)


class FrozenModelTextEncoder:
    """Frozen language model that encodes texts, with a cache of recent results."""

    def __init__(self, source: PretrainedSource, cached_texts: int) -> None:
        """`cached_texts`: maximum number of texts in the cache."""
        self.tokenizer, self._model = load_tokenizer(source), load_model(source).requires_grad_(False)
        self.vocabulary = int(self._model.get_input_embeddings().num_embeddings)
        self.size = int(self._model.config.get_text_config().hidden_size)
        self._cached_state = lru_cache(maxsize=cached_texts)(self._standardised_mean_hidden_state)

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """Return the mean [H] of the last hidden states of the text with token ids `ids`, standardised over H."""
        return self._cached_state(tuple(ids)) if ids else torch.zeros(self.size)

    @torch.no_grad()
    def _standardised_mean_hidden_state(self, ids: tuple[int, ...]) -> Tensor:
        # Each text is read in a batch of its own, because padding to other lengths would change its rounding.
        tokens = torch.tensor([ids], device=self._model.device)
        hidden = self._model(input_ids=tokens, output_hidden_states=True, use_cache=False).hidden_states[-1]
        # The mean is standardised, because models differ in the scale of their hidden states.
        return nn.functional.layer_norm(hidden[0].float().mean(0).cpu(), (self.size,))


cached_frozen_text_encoder = lru_cache(maxsize=4)(FrozenModelTextEncoder)
"""Constructor of `FrozenModelTextEncoder`s that returns the same object for equal arguments, within this process."""


class HiddenStateEncoder(nn.Module):
    """Encoder that maps the hidden states of a frozen language model by a trained linear layer."""

    def __init__(self, reader: FrozenModelTextEncoder, width: int) -> None:
        super().__init__()
        self._reader, self.vocabulary = reader, reader.vocabulary
        self.layer = nn.Linear(reader.size, width)

    def encode(self, text: str) -> list[int]:
        return list(self._reader.tokenizer(text, add_special_tokens=False)["input_ids"])

    def forward(self, texts: Sequence[Sequence[int]]) -> Tensor:
        return self.layer(torch.stack([self._reader(ids) for ids in texts]))
