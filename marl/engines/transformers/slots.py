"""Rows being decoded: plain arrays on the host, always packed at the front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from marl.engines.transformers.sampling import stream_keys, uniforms
from marl.models.chat_template import Prompt
from marl.types import Request, Ticket


@dataclass(slots=True)
class Job:
    """A request on its way to a completion."""

    ticket: Ticket
    request: Request
    prompt: Prompt
    limit: int
    """Most tokens that it may say."""
    version: int = 0
    """Weights that read the prompt."""
    logits_V: Tensor | None = None
    """Of the first token, so that a later request with the same prompt need not read it again."""


class Slots:
    """Rows [0, len(jobs)) are active."""

    def __init__(self, slots: int) -> None:
        self.size = slots
        self.jobs: list[Job] = []
        self.lengths_S = np.zeros(slots, np.int64)
        """Tokens in the cache, which is where the next one is written."""
        self.counts_S = np.zeros(slots, np.int64)
        """Tokens said."""
        self.limits_S = np.zeros(slots, np.int64)
        self.voices_S = np.zeros(slots, np.int64)
        """Whose weights speak."""
        self.keys_S = np.zeros(slots, np.uint64)
        self.tokens_ST = np.zeros((slots, 64), np.int64)
        self.logprobs_ST = np.zeros((slots, 64), np.float32)

    @property
    def free(self) -> int:
        return self.size - len(self.jobs)

    def admit(self, jobs: Sequence[Job]) -> None:
        """Append rows whose prompts are in the cache."""
        rows = slice(len(self.jobs), len(self.jobs) + len(jobs))
        self.jobs.extend(jobs)
        self.lengths_S[rows] = [len(job.prompt.ids) for job in jobs]
        self.counts_S[rows] = 0
        self.limits_S[rows] = [job.limit for job in jobs]
        self.voices_S[rows] = [job.prompt.voice for job in jobs]
        self.keys_S[rows] = stream_keys([job.request.seed for job in jobs])

    def last(self, rows: int) -> NDArray[np.int64]:
        """The last token said by each of the first `rows` rows."""
        return self.tokens_ST[np.arange(rows), self.counts_S[:rows] - 1]

    def uniforms(self) -> NDArray[np.float32]:
        """The random number that picks each row's next token."""
        rows = len(self.jobs)
        return uniforms(self.keys_S[:rows], self.counts_S[:rows])

    def record(self, tokens_N: NDArray[np.int64], logprobs_N: NDArray[np.float32]) -> None:
        """One more token for every row."""
        counts_N = self.counts_S[: len(self.jobs)]
        if counts_N.max() >= self.tokens_ST.shape[1]:
            self.tokens_ST = np.concatenate([self.tokens_ST, np.zeros_like(self.tokens_ST)], 1)
            self.logprobs_ST = np.concatenate([self.logprobs_ST, np.zeros_like(self.logprobs_ST)], 1)
        rows = np.arange(len(counts_N))
        self.tokens_ST[rows, counts_N] = tokens_N
        self.logprobs_ST[rows, counts_N] = logprobs_N
        counts_N += 1

    def remove(self, rows: Sequence[int]) -> tuple[list[int], list[int]]:
        """Free rows; rows from the back take their places. Returns (moved from, moved to)."""
        keep = len(self.jobs) - len(rows)
        gone = set(rows)
        holes = [row for row in rows if row < keep]
        tails = [row for row in range(keep, len(self.jobs)) if row not in gone]
        for hole, tail in zip(holes, tails, strict=True):
            self.jobs[hole] = self.jobs[tail]
        del self.jobs[keep:]
        if holes:
            for array in (self.lengths_S, self.counts_S, self.limits_S, self.voices_S, self.keys_S):
                array[holes] = array[tails]
            said = int(self.counts_S[holes].max())
            for table in (self.tokens_ST, self.logprobs_ST):
                table[holes, :said] = table[tails, :said]
        return tails, holes
