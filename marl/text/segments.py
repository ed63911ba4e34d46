"""Segments of a text: lines, sentences, or parts that end with a closing tag."""

from __future__ import annotations

import re

from marl.core.config import Segments

_LINE = re.compile(r"\n")
_SENTENCE = re.compile(r"[.!?][\"')\]\u201d\u2019]*(?=\s)|[\u3002\uff01\uff1f]|\n")
"""End of a sentence: `.`, `!` or `?` before a blank (`3.14` is no end), a full-width mark, or a line break."""


def segment_end_offsets(text: str, segments: Segments) -> list[int]:
    """Return the offset after each segment of `text`, in ascending order; the last one is the length of `text`.

    Blank text belongs to the segment before it, or at the beginning to the first segment. With `by: tokens` the text is
    one segment.
    """
    pattern = {"line": _LINE, "sentence": _SENTENCE, "tag": re.compile(re.escape(f"</{segments.tag}>"))}
    found = [match.end() for match in pattern[segments.by].finditer(text)] if segments.by in pattern else []
    ends: list[int] = []
    begin = 0
    for end in (*found, len(text)):
        if text[begin:end].strip():
            ends.append(end)
        elif ends:
            ends[-1] = end
        begin = end
    return ends or [len(text)]
