"""Text encoders at work: torch modules that turn the ids of texts into vectors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from marl.models.weights import load_model, load_tokenizer

if TYPE_CHECKING:
    from marl.models.pretrained import PretrainedSource

_WORDS = re.compile(r"\w+|[^\w\s]+")


class HashedWordEncoder(nn.Module):
    """Sum of the vectors of a text's words, pairs of words and whole, over the root of their number."""

    def __init__(self, buckets: int, width: int) -> None:
        super().__init__()
        self.vocabulary = buckets
        self.table = nn.EmbeddingBag(buckets, width, mode="sum")

    def ids(self, text: str) -> list[int]:
        return list(_hashed(text, self.vocabulary))

    def forward(self, texts: Sequence[Sequence[int]]) -> Tensor:
        lengths = torch.tensor([len(ids) for ids in texts])
        flat = torch.tensor([number for ids in texts for number in ids], dtype=torch.int64)
        sums = self.table(flat, lengths.cumsum(0) - lengths)
        return sums / lengths.clamp(min=1).sqrt()[:, None]


@lru_cache(maxsize=65536)
def _hashed(text: str, buckets: int) -> tuple[int, ...]:
    words = _WORDS.findall(text.lower())
    # Signs that no word holds keep pairs and whole texts apart from words.
    features = [*words, *map("\n".join, pairwise(words)), *(["\n\n" + " ".join(words)] if words else [])]
    digests = (blake2b(feature.encode(), digest_size=8).digest() for feature in features)
    return tuple([int.from_bytes(digest, "little") % buckets for digest in digests])


class FrozenReader:
    """A language model that learns nothing here, and what it made of the texts that it read last."""

    def __init__(self, source: PretrainedSource, remembered: int) -> None:
        """`remembered`: number of texts."""
        self.tokenizer, self._model = load_tokenizer(source), load_model(source).requires_grad_(False)
        self.vocabulary = int(self._model.get_input_embeddings().num_embeddings)
        self.size = int(self._model.config.get_text_config().hidden_size)
        self._state = lru_cache(maxsize=remembered)(self._read)

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """Return [H], the mean of the last hidden states, standardised; it depends on nothing but this text."""
        return self._state(tuple(ids)) if ids else torch.zeros(self.size)

    @torch.no_grad()
    def _read(self, ids: tuple[int, ...]) -> Tensor:
        tokens = torch.tensor([ids], device=self._model.device)
        hidden = self._model(input_ids=tokens, output_hidden_states=True, use_cache=False).hidden_states[-1]
        # Models differ in the scale of their states; here they do not.
        return nn.functional.layer_norm(hidden[0].float().mean(0).cpu(), (self.size,))


@lru_cache(maxsize=4)
def frozen_reader(source: PretrainedSource, remembered: int) -> FrozenReader:
    """Return a reader of these weights, which all that read with it in this process share."""
    return FrozenReader(source, remembered)


class HiddenStateEncoder(nn.Module):
    """Reads texts by a frozen reader and a learnt linear layer."""

    def __init__(self, reader: FrozenReader, width: int) -> None:
        super().__init__()
        self._reader, self.vocabulary = reader, reader.vocabulary
        self.layer = nn.Linear(reader.size, width)

    def ids(self, text: str) -> list[int]:
        return list(self._reader.tokenizer(text, add_special_tokens=False)["input_ids"])

    def forward(self, texts: Sequence[Sequence[int]]) -> Tensor:
        return self.layer(torch.stack([self._reader(ids) for ids in texts]))
