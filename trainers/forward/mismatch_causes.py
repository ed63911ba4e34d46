"""Search for the reason why sampler and learner disagree: cheap tests on the worst turns, the most certain first."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from marl.core.config import Sampling
from marl.trainers.batching.planner import BatchPlanner
from marl.trainers.batching.rows import Row, TokenValues
from marl.trainers.forward.attention import has_dropout
from marl.trainers.forward.rounding_noise import read_logprobs

EXPLAINED_FRACTION = 0.1
"""Greatest remaining share of the difference at which an assumption counts as the cause."""
SAME_CAUSE_FACTOR = 4.0
"""Factor within which two random differences are taken to have the same cause."""
INDISTINCT = 1e-6
"""Mean difference (nats) below which settings cannot be told apart, as float32 rounds."""
TOP_P, TOP_K = (0.99, 0.95, 0.9, 0.8, 0.7, 0.5), (100, 64, 50, 40, 20, 10, 5, 2)
COLDEST, HOTTEST, HALVINGS = 0.1, 10.0, 20
UNKNOWN_CAUSE = (
    "other weights, most likely: neither versions, the sampling settings, the prompt's start, dropout nor precision "
    "explain it; was a file of weights, an adapter or a scaling left out on one side?"
)


def logprob_gaps(learner: Sequence[float], sampler: Sequence[float]) -> TokenValues:
    """Return the learner's log-probability minus the sampler's, of each token."""
    return tuple(ours - theirs for ours, theirs in zip(learner, sampler, strict=True))


@dataclass(frozen=True, slots=True)
class MismatchedTurns:
    """The turns that differ most, with the versions of their weights."""

    model: Any
    planner: BatchPlanner
    rows: list[Row]
    """One row for each sample."""
    update: int
    version: int
    """Version of the weights that sampled the turns."""
    previous_version: int | None
    """Version of the newest weights that sampled for the update before."""

    def mean_gap(self, changes: Mapping[str, Any]) -> float:
        """Return the mean size of the differences (nats) if the rows had the `changes` to their fields."""
        return self.mean_gap_of([replace(row, **changes) for row in self.rows])

    def mean_gap_of(self, rows: Sequence[Row]) -> float:
        """Return the mean size of the differences (nats) if `rows` had been sampled."""
        gaps: list[float] = []
        for row, logprobs in zip(rows, self.read(rows), strict=True):
            gaps += logprob_gaps(logprobs, row.samples[0].logprobs)
        return sum(map(abs, gaps)) / len(gaps)

    def read(self, rows: Sequence[Row], precision: AbstractContextManager[Any] | None = None) -> list[TokenValues]:
        """Return log-probabilities of each row's tokens, with the model in its present mode."""
        return read_logprobs(self.model, self.planner, rows, precision)


def find_cause(turns: MismatchedTurns) -> str:
    """Return the most likely cause in words, with the evidence for it."""
    training = turns.model.training
    turns.model.eval()
    cause = UNKNOWN_CAUSE
    for test in (_stale, _offset, _sampling, _prompt, _dropout, _precision):
        if evidence := test(turns):
            cause = evidence
            break
    turns.model.train(training)
    return cause


def _stale(turns: MismatchedTurns) -> str | None:
    if turns.update == 0 and turns.version > 0:
        return (
            f"other weights: the turns were sampled with version {turns.version}, but this learner has made no update"
        )
    if turns.previous_version is not None and turns.version <= turns.previous_version:
        return (
            f"stale weights: the sampler is still at version {turns.version}, as before the update that came last; "
            "what was published did not arrive"
        )
    return None


def _offset(turns: MismatchedTurns) -> str | None:
    aligned, later, earlier = [], [], []
    for row, ours in zip(turns.rows, turns.read(turns.rows), strict=True):
        theirs = row.samples[0].logprobs
        # The first token has no earlier one to be confused with.
        aligned += map(abs, logprob_gaps(ours, theirs)[1:])
        later += map(abs, logprob_gaps(ours[:-1], theirs[1:]))
        earlier += map(abs, logprob_gaps(ours[1:], theirs[:-1]))
    for word, shifted in (("later", later), ("earlier", earlier)):
        if shifted and sum(shifted) < EXPLAINED_FRACTION * sum(aligned):
            return f"the sampler's log-probabilities stand one token {word} than they belong"
    return None


def _sampling(turns: MismatchedTurns) -> str | None:
    stated = turns.rows[0].sampling
    trials = [Sampling(), Sampling(temperature=stated.temperature)]
    trials += [stated.model_copy(update={"top_p": p, "top_k": 0}) for p in TOP_P]
    trials += [stated.model_copy(update={"top_k": k, "top_p": 1.0}) for k in TOP_K]
    trials += [stated.model_copy(update={"temperature": _best_temperature(turns)})]
    now = turns.mean_gap_of(turns.rows)
    distances = [turns.mean_gap({"sampling": trial}) for trial in trials]
    # Settings that cut nothing off differ from the plain ones by rounding alone, so the first of those counts.
    limit = SAME_CAUSE_FACTOR * min(distances) + INDISTINCT
    remaining, best = next(pair for pair in zip(distances, trials, strict=True) if pair[0] <= limit)
    if remaining > EXPLAINED_FRACTION * now:
        return None
    return (
        f"the sampling settings: the sampler's log-probabilities are those of {_words(best)} (which leaves "
        f"{remaining:.1g} of {now:.1g} nats), but the turns are said to be sampled with {_words(stated)}"
    )


def _best_temperature(turns: MismatchedTurns) -> float:
    """Return the temperature with the least distance, by golden-section search over its logarithm."""

    def distance(log: float) -> float:
        # All rows have the same sampling settings.
        sampling = turns.rows[0].sampling.model_copy(update={"temperature": math.exp(log)})
        return turns.mean_gap({"sampling": sampling})

    low, high = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(HALVINGS):
        left, right = low + (high - low) * 0.382, low + (high - low) * 0.618
        low, high = (low, right) if distance(left) < distance(right) else (left, high)
    return math.exp((low + high) / 2)


def _words(sampling: Sampling) -> str:
    top_p = f", top_p {sampling.top_p:g}" if sampling.top_p < 1 else ""
    return f"temperature {sampling.temperature:.3g}{top_p}" + (f", top_k {sampling.top_k}" if sampling.top_k else "")


def _prompt(turns: MismatchedTurns) -> str | None:
    logprobs = turns.read(turns.rows)
    gaps = [logprob_gaps(ours, r.samples[0].logprobs) for r, ours in zip(turns.rows, logprobs, strict=True)]
    now = turns.mean_gap_of(turns.rows)
    variants = {
        "without the first token": [replace(r, prompt_ids=r.prompt_ids[1:] or r.prompt_ids) for r in turns.rows],
        "with the first token twice": [replace(r, prompt_ids=(r.prompt_ids[0], *r.prompt_ids)) for r in turns.rows],
        "without the last token": [replace(r, prompt_ids=r.prompt_ids[:-1] or r.prompt_ids) for r in turns.rows],
    }
    for words, rows in variants.items():
        if turns.mean_gap_of(rows) <= EXPLAINED_FRACTION * now:
            return f"the prompt or its template: the sampler read it {words}"
    first = [abs(row_gaps[0]) for row_gaps in gaps]
    later = [abs(gap) for row_gaps in gaps for gap in row_gaps[1:]]
    if later and sum(first) / len(first) > SAME_CAUSE_FACTOR * sum(later) / len(later):
        return "the prompt or its template: a completion's first token is off, those after it are hardly"
    return None


def _dropout(turns: MismatchedTurns) -> str | None:
    if not has_dropout(turns.model):
        return None
    without = turns.read(turns.rows)
    turns.model.train()
    with torch.random.fork_rng():
        dropped = turns.read(turns.rows)
    turns.model.eval()
    return _compare_noise(turns, without, dropped, "dropout: training mode")


def _precision(turns: MismatchedTurns) -> str | None:
    device = next(turns.model.parameters()).device.type
    coarse = turns.read(turns.rows, torch.autocast(device, torch.bfloat16))
    words = "precision: bfloat16 in place of the learner's own numbers"
    return _compare_noise(turns, turns.read(turns.rows), coarse, words)


def _compare_noise(
    turns: MismatchedTurns, rows: Sequence[TokenValues], noisy: Sequence[TokenValues], words: str
) -> str | None:
    """Return `words` as the cause if the difference is about as large as that between `rows` and `noisy`."""
    now = turns.mean_gap_of(turns.rows)
    gaps: list[float] = []
    for row, noisy_row in zip(rows, noisy, strict=True):
        gaps += map(abs, logprob_gaps(row, noisy_row))
    noise = sum(gaps) / len(gaps)
    if not (noise / SAME_CAUSE_FACTOR <= now <= noise * SAME_CAUSE_FACTOR and noise > 0):
        return None
    return f"{words} moves log-probabilities as much ({noise:.1g} nats)"
