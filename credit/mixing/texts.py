"""Texts as fixed vectors of numbers: hashed words and pairs of words. Nothing is learnt, so equal texts stay equal."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from marl.types import Turn

_WORDS = re.compile(r"\w+|[^\w\s]+")
_PLACES = 4
"""Numbers that a word changes. With several, two words that meet in one place still differ in the others."""


@lru_cache(maxsize=8192)
def hashed(text: str, dimensions: int) -> np.ndarray:
    """A float32 vector of length 1 (0 for a text without words), not to be written to: the sum of a signed pattern for
    each word and each pair of neighbouring words, upper and lower case alike (feature hashing, arXiv 0902.2206)."""
    words = _WORDS.findall(text.lower())
    sums = [0.0] * dimensions
    for token in (*words, *map("\n".join, pairwise(words))):
        for place, sign in _pattern(token, dimensions):
            sums[place] += sign
    vector = np.array(sums)
    return (vector / max(np.linalg.norm(vector), 1e-9)).astype(np.float32)


@lru_cache(maxsize=65536)
def _pattern(token: str, dimensions: int) -> tuple[tuple[int, float], ...]:
    digest = blake2b(token.encode(), digest_size=4 * _PLACES).digest()
    numbers = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, len(digest), 4)]
    return tuple([((number >> 1) % dimensions, 1.0 if number & 1 else -1.0) for number in numbers])


def situation(turn: Turn) -> str:
    """What the agent knew: its information state, or its prompt where the game names no state."""
    request = turn.request
    return request.state or "\n".join(message.content for message in request.messages)


def said(turn: Turn) -> str:
    """What the agent did: the text that says its move where the moves are listed, else all that it said."""
    options = turn.request.options
    return options.get(turn.action, "") if options and turn.action else turn.completion.text
