"""Word count for prices and limits, which joining words cannot evade."""

from __future__ import annotations

import re

MAX_WORD = 20
"""Maximum length of a word that counts as one word; the longest common English words are shorter."""
_IDEOGRAPH = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]")
"""Character of a script that is written without spaces (Chinese, Japanese, Korean)."""


def count_words(text: str) -> int:
    """Return the number of words in `text`, where a long word counts as one per `MAX_WORD` characters begun.

    Chinese, Japanese and Korean characters count as a word each.
    """
    words = 0
    for word in text.split():
        rest, ideographs = _IDEOGRAPH.subn("", word)
        words += ideographs + -(-len(rest) // MAX_WORD)
    return words
