"""Permutations in cycle notation, such as (1 2 3)(4 5)."""

from __future__ import annotations

import re

from marl.games.verifiers.latex_notation import GROUP_COMMAND, normalize_notation

_CYCLES = re.compile(r"(?:\(\s*[0-9]{1,3}(?:[\s,]+[0-9]{1,3})*\s*\)\s*)+|(?:\(\s*[1-9]{2,9}\s*\)\s*)+")
_MAX_LENGTH = 400


def read_permutation(text: str) -> dict[int, int] | None:
    """Return the image of each number that a product of cycles moves, or None if `text` is no such product.

    The right factor is applied first. A cycle without separators, such as (123), consists of single digits.
    """
    plain = (
        GROUP_COMMAND.sub(" ", normalize_notation(text)).replace("~", " ").strip() if len(text) < _MAX_LENGTH else ""
    )
    if not _CYCLES.fullmatch(plain):
        return None
    cycles = list[list[int]]()
    for content in re.findall(r"\(([^()]*)\)", plain):
        entries = re.findall(r"[0-9]+", content)
        cycle = [int(entry) for entry in (entries if len(entries) > 1 else entries[0])]
        if len(set(cycle)) < len(cycle):
            return None
        cycles.append(cycle)
    images = dict[int, int]()
    for number in {entry for cycle in cycles for entry in cycle}:
        image = number
        for cycle in reversed(cycles):
            image = cycle[(cycle.index(image) + 1) % len(cycle)] if image in cycle else image
        images[number] = image
    return {number: image for number, image in images.items() if image != number}
