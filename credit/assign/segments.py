"""Segments of turns: steps inside an answer, which credit rules with `level: segment` credit one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise, repeat
from statistics import fmean

from marl.core.types import Advantage, Turn


def last_tokens_of_segments(turn: Turn) -> tuple[int, ...]:
    """Return the index of the last token of each segment of `turn`; a turn without marked segments is one segment."""
    completion = turn.completion
    return completion.segments or ((len(completion.token_ids) - 1,) if completion.token_ids else ())


def segment_advantage(turn: Turn, values: Sequence[float], returns: Sequence[float] = ()) -> Advantage:
    """Return the advantage of a turn in which all tokens of segment k have the advantage `values[k]`.

    The turn's own value is the mean over its tokens. `returns[k]`: value target of the tokens of segment k, or () for
    no targets. A turn without tokens has a single value.
    """
    ends = last_tokens_of_segments(turn)
    if not ends:
        return Advantage(values[0], (), tuple(returns))
    lengths = [end - begin for begin, end in pairwise((-1, *ends))]
    tokens = tuple(chain.from_iterable(map(repeat, values, lengths)))
    return Advantage(fmean(tokens), tokens, tuple(chain.from_iterable(map(repeat, returns, lengths))))
