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
    """Sum of the vectors of a text's features, divided by the square root of their number."""

    def __init__(self, buckets: int, width: int) -> None:
        super().__init__()
        self.vocabulary = buckets
        self.table = nn.EmbeddingBag(buckets, width, mode="sum")

    def ids(self, text: str) -> list[int]:
        return list(_hashed(text, self.vocabulary))

    def forward(self, texts: Sequence[Sequence[int]]) -> Tensor:
        lengths = torch.tensor(list(map(len, texts)))
        flat = torch.tensor(list(chain.from_iterable(texts)), dtype=torch.int64)
        sums = self.table(flat, lengths.cumsum(0) - lengths)
        return sums / lengths.clamp(min=1).sqrt()[:, None]


@lru_cache(maxsize=65536)
def _hashed(text: str, buckets: int) -> tuple[int, ...]:
    """Return the bucket of each feature of `text`: its words, pairs of neighbouring words, and the full text."""
    words = _WORDS.findall(text.lower())
    # Line breaks, which no word has, keep the features of pairs and of full texts apart from words.
    features = [*words, *map("\n".join, pairwise(words))]
    if words:
        features.append("\n\n" + " ".join(words))
    ids: list[int] = []
    for feature in features:
        digest = blake2b(feature.encode(), digest_size=8).digest()
        ids.append(int.from_bytes(digest, "little") % buckets)
    return tuple(ids)


class FrozenStateReader:
    """Frozen language model with a cache of the states of recent texts."""

    def __init__(self, source: PretrainedSource, remembered: int) -> None:
        """`remembered` is the number of cached texts."""
        self.tokenizer, self._model = load_tokenizer(source), load_model(source).requires_grad_(False)
        self.vocabulary = int(self._model.get_input_embeddings().num_embeddings)
        self.size = int(self._model.config.get_text_config().hidden_size)
        self._state = lru_cache(maxsize=remembered)(self._read)

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """Return the standardised mean [H] of the last hidden states of one text."""
        return self._state(tuple(ids)) if ids else torch.zeros(self.size)

    @torch.no_grad()
    def _read(self, ids: tuple[int, ...]) -> Tensor:
        # Texts are read one by one: in a padded batch, a state would depend on the other texts by rounding.
        tokens = torch.tensor([ids], device=self._model.device)
        hidden = self._model(input_ids=tokens, output_hidden_states=True, use_cache=False).hidden_states[-1]
        # Models differ in the scale of their hidden states, which the trained layer should not see.
        return nn.functional.layer_norm(hidden[0].float().mean(0).cpu(), (self.size,))


@lru_cache(maxsize=4)
def frozen_reader(source: PretrainedSource, remembered: int) -> FrozenStateReader:
    """Return the reader of `source`, which all encoders of this process share."""
    return FrozenStateReader(source, remembered)


class HiddenStateEncoder(nn.Module):
    """Encoder with a trained linear layer on the states of a frozen reader."""

    def __init__(self, reader: FrozenStateReader, width: int) -> None:
        super().__init__()
        self._reader, self.vocabulary = reader, reader.vocabulary
        self.layer = nn.Linear(reader.size, width)

    def ids(self, text: str) -> list[int]:
        return list(self._reader.tokenizer(text, add_special_tokens=False)["input_ids"])

    def forward(self, texts: Sequence[Sequence[int]]) -> Tensor:
        return self.layer(torch.stack([self._reader(ids) for ids in texts]))
