"""The share of a minibatch's rows that each of several processes computes. Pure."""

from collections.abc import Sequence

from trainers.batching.rows import Row, units_of


def share_of(rows: Sequence[Row], rank: int, size: int) -> list[Row]:
    """Return the rows of process `rank` of `size`: whole units, with about as many tokens as any other process has.

    Rows are dealt out sorted by their tokens, because neighbours share prefixes, which are best computed once.
    """
    if size == 1:
        return list(rows)
    units = sorted(units_of(rows), key=lambda unit: (unit[0].prompt_ids, unit[0].token_ids))
    lengths = [sum(row.length for row in unit) for unit in units]
    before, total = 0, sum(lengths)
    share: list[Row] = []
    for unit, length in zip(units, lengths, strict=True):
        # A unit is of the process in whose part of all tokens its middle lies.
        if (2 * before + length) * size // (2 * total) == rank:
            share += unit
        before += length
    return share
