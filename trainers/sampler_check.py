"""Gate between sampler and learner: both must compute the same log-probabilities, or what is learned is wrong.

Where they do not, cheap tests on the worst turns look for the cause, the most certain ones first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from marl.config import Sampling
from marl.errors import Gap, NonFinite, Unfaithful
from marl.types import Metrics, Sample
from trainers.batching.planner import BatchPlanner
from trainers.batching.rows import Floats, Row, per_token
from trainers.forward.attention import has_dropout
from trainers.rounding import Noise, coarsest_unit, read_rows, rounding_noise

if TYPE_CHECKING:
    from trainers.settings.optimisation import Fidelity

FINE = Noise(1e-4, math.inf)
"""Greatest difference of one token, and greatest mean (nats), with weights in float32 or wider."""
ROUNDINGS = 3.0
"""With narrower weights, how many times the learner's own noise of rounding the differences may be. Our engine is at
once or less, one that rounds all that it computes at 1.6 (trainers/README.md), vLLM on one kind of processor at 2.6."""
SUSPECTS = 8
"""Turns on which the cause is looked for."""
EXPLAINED = 0.1
"""Share of the difference that may be left if the assumption that removed the rest is the cause."""
LIKE = 4.0
"""Factor within which two random differences are taken to have the same cause."""
INDISTINCT = 1e-6
"""Mean difference (nats) that says nothing, as float32 rounds."""
TOP_P, TOP_K = (0.99, 0.95, 0.9, 0.8, 0.7, 0.5), (100, 64, 50, 40, 20, 10, 5, 2)
COLDEST, HOTTEST, HALVINGS = 0.1, 10.0, 20
OTHER = (
    "other weights, most likely: neither versions, the sampling settings, the prompt's start, dropout nor precision "
    "explain it; was a file of weights, an adapter or a scaling left out on one side?"
)


class FidelityGate:
    """Compares readings with the sampler's log-probabilities, and stops the run where they are too far apart."""

    def __init__(self, settings: Fidelity, policy: str, model: Any, planner: BatchPlanner) -> None:
        self._every, self._policy, self._model, self._planner = settings.every, policy, model, planner
        self._settings, self._is_coarse = settings, coarsest_unit(model) > torch.finfo(torch.float32).eps
        self._newest: int | None = None
        """Version of the newest weights that sampled for the last update."""

    def due(self, update: int) -> bool:
        """Return whether samples are compared before `update` (counted from 0)."""
        return update % self._every == 0

    def check(self, samples: Sequence[Sample], update: int) -> Metrics:
        """Return the differences on samples of the newest weights that were read; nothing if there are none.

        Stale samples are left out: other weights than the learner's have other log-probabilities.

        Raises:
            Unfaithful: if the log-probabilities are too far apart.
            NonFinite: if one is not finite.
        """
        if not samples:
            return {}
        newest, before = max(sample.versions[1] for sample in samples), self._newest
        self._newest = newest
        fresh = [sample for sample in samples if sample.versions == (newest, newest) and not sample.staleness]
        read = [sample for sample in fresh if sample.reading and sample.reading.logprobs]
        if not read or not self.due(update):
            return {}
        gaps = [_sample_gaps(sample) for sample in read]
        if bad := [sample for sample, row in zip(read, gaps, strict=True) if not math.isfinite(sum(row))]:
            raise NonFinite(self._policy, "log-probability", bad)
        worst = sorted(zip(gaps, read, strict=True), key=lambda pair: max(map(abs, pair[0])), reverse=True)
        gap, rows = _summary(worst), [Row(s.prompt_ids, s.token_ids, s.sampling, samples=(s,)) for _, s in worst]
        limits, noise = self._limits(rows)
        if gap.max > limits.max or gap.mean > limits.mean:
            alike = [row for row in rows if row.sampling == rows[0].sampling]
            turns = WorstTurns(self._model, self._planner, alike[:SUSPECTS], update, newest, before)
            named = {"max": limits.max, "mean": limits.mean}
            allowed = ", ".join(f"{name} {limit:.3g}" for name, limit in named.items() if limit < math.inf)
            raise Unfaithful(self._policy, gap, allowed, find_cause(turns))
        return {"fidelity_max": gap.max, "fidelity_mean": gap.mean, "fidelity_ratio": gap.ratio, **noise}

    def _limits(self, rows: Sequence[Row]) -> tuple[Noise, Metrics]:
        """Return the greatest differences that are allowed, and what they follow from where that is measured."""
        settings, limits, metrics = self._settings, FINE, {}
        if self._is_coarse and not (settings.max and settings.mean):
            noise = rounding_noise(self._model, self._planner, rows)
            limits = Noise(ROUNDINGS * noise.max, ROUNDINGS * noise.mean)
            metrics = {"fidelity_rounding_max": noise.max, "fidelity_rounding_mean": noise.mean}
        return Noise(settings.max or limits.max, settings.mean or limits.mean), metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the version of the newest weights seen."""
        return {"newest": self._newest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back."""
        self._newest = state.get("newest")


def _sample_gaps(sample: Sample) -> Floats:
    assert sample.reading is not None
    learner = per_token(sample, sample.reading.logprobs, "reading.logprobs")
    return _gaps(learner, per_token(sample, sample.logprobs, "logprobs"))


def _gaps(learner: Sequence[float], sampler: Sequence[float]) -> Floats:
    """Return the learner's log-probability minus the sampler's, of each token."""
    return tuple(ours - theirs for ours, theirs in zip(learner, sampler, strict=True))


def _summary(worst: Sequence[tuple[Floats, Sample]]) -> Gap:
    every = [gap for gaps, _ in worst for gap in gaps]
    mean = sum(map(abs, every)) / len(every)
    ratio = math.fsum(math.exp(min(gap, 700.0)) for gap in every) / len(every)
    return Gap(max(map(abs, worst[0][0])), mean, ratio, worst[0][1].id)


@dataclass(frozen=True, slots=True)
class WorstTurns:
    """The turns that differ most, with the versions of their weights."""

    model: Any
    planner: BatchPlanner
    rows: list[Row]
    """One for each sample."""
    update: int
    newest: int
    """Version of the weights that sampled them."""
    before: int | None
    """Version of the newest weights that sampled for the update before."""

    def distance(self, rows: Sequence[Row]) -> float:
        """Return the mean size of the differences (nats) if `rows` were what was sampled."""
        read = zip(rows, self.read(rows), strict=True)
        gaps = [gap for row, logprobs in read for gap in _gaps(logprobs, row.samples[0].logprobs)]
        return sum(map(abs, gaps)) / len(gaps)

    def read(self, rows: Sequence[Row], precision: AbstractContextManager[Any] | None = None) -> list[Floats]:
        """Return log-probabilities of each row's tokens, with the model in its present mode."""
        return read_rows(self.model, self.planner, rows, precision)


def find_cause(turns: WorstTurns) -> str:
    """Return the most likely cause in words, with the evidence for it."""
    training = turns.model.training
    turns.model.eval()
    causes = (test(turns) for test in (_stale, _offset, _sampling, _prompt, _dropout, _precision))
    cause = next((words for words in causes if words), OTHER)
    turns.model.train(training)
    return cause


def _stale(turns: WorstTurns) -> str | None:
    if turns.update == 0 and turns.newest > 0:
        return f"other weights: the turns were sampled with version {turns.newest}, but this learner has made no update"
    if turns.before is not None and turns.newest <= turns.before:
        return (
            f"stale weights: the sampler is still at version {turns.newest}, as before the update that came last; "
            "what was published did not arrive"
        )
    return None


def _offset(turns: WorstTurns) -> str | None:
    pairs = [(row.samples[0].logprobs, ours) for row, ours in zip(turns.rows, turns.read(turns.rows), strict=True)]
    here = sum(abs(gap) for theirs, ours in pairs for gap in _gaps(ours, theirs)[1:])
    moved = {
        "later": [abs(gap) for theirs, ours in pairs for gap in _gaps(ours[:-1], theirs[1:])],
        "earlier": [abs(gap) for theirs, ours in pairs for gap in _gaps(ours[1:], theirs[:-1])],
    }
    for word, there in moved.items():
        if there and sum(there) < EXPLAINED * here:
            return f"the sampler's log-probabilities stand one token {word} than they belong"
    return None


def _sampling(turns: WorstTurns) -> str | None:
    stated = turns.rows[0].sampling
    trials = [Sampling(), Sampling(temperature=stated.temperature)]
    trials += [stated.model_copy(update={"top_p": p, "top_k": 0}) for p in TOP_P]
    trials += [stated.model_copy(update={"top_k": k, "top_p": 1.0}) for k in TOP_K]
    trials += [stated.model_copy(update={"temperature": _best_temperature(turns)})]
    now = turns.distance(turns.rows)
    distances = [(turns.distance([replace(row, sampling=trial) for row in turns.rows]), trial) for trial in trials]
    least = min(distance for distance, _ in distances)
    # Settings that cut nothing off differ from the plain ones by rounding alone, so the first of those counts.
    left, best = next((distance, trial) for distance, trial in distances if distance <= LIKE * least + INDISTINCT)
    if left > EXPLAINED * now:
        return None
    return (
        f"the sampling settings: the sampler's log-probabilities are those of {_words(best)} (which leaves {left:.1g} "
        f"of {now:.1g} nats), but the turns are said to be sampled with {_words(stated)}"
    )


def _best_temperature(turns: WorstTurns) -> float:
    """Return the temperature with the least distance, by golden-section search over its logarithm."""

    def distance(log: float) -> float:
        rows = [replace(r, sampling=r.sampling.model_copy(update={"temperature": math.exp(log)})) for r in turns.rows]
        return turns.distance(rows)

    low, high = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(HALVINGS):
        left, right = low + (high - low) * 0.382, low + (high - low) * 0.618
        low, high = (low, right) if distance(left) < distance(right) else (left, high)
    return math.exp((low + high) / 2)


def _words(sampling: Sampling) -> str:
    top_p = f", top_p {sampling.top_p:g}" if sampling.top_p < 1 else ""
    return f"temperature {sampling.temperature:.3g}{top_p}" + (f", top_k {sampling.top_k}" if sampling.top_k else "")


def _prompt(turns: WorstTurns) -> str | None:
    now = turns.distance(turns.rows)
    variants = {
        "without the first token": [replace(r, prompt_ids=r.prompt_ids[1:] or r.prompt_ids) for r in turns.rows],
        "with the first token twice": [replace(r, prompt_ids=(r.prompt_ids[0], *r.prompt_ids)) for r in turns.rows],
        "without the last token": [replace(r, prompt_ids=r.prompt_ids[:-1] or r.prompt_ids) for r in turns.rows],
    }
    for words, rows in variants.items():
        if turns.distance(rows) <= EXPLAINED * now:
            return f"the prompt or its template: the sampler read it {words}"
    read = zip(turns.rows, turns.read(turns.rows), strict=True)
    gaps = [_gaps(logprobs, row.samples[0].logprobs) for row, logprobs in read]
    first, later = [abs(g[0]) for g in gaps], [abs(gap) for g in gaps for gap in g[1:]]
    if later and sum(first) / len(first) > LIKE * sum(later) / len(later):
        return "the prompt or its template: a completion's first token is off, those after it are hardly"
    return None


def _dropout(turns: WorstTurns) -> str | None:
    if not has_dropout(turns.model):
        return None
    without, now = turns.read(turns.rows), turns.distance(turns.rows)
    turns.model.train()
    with torch.random.fork_rng():
        dropped = turns.read(turns.rows)
    turns.model.eval()
    return _compare_noise(now, without, dropped, "dropout: training mode")


def _precision(turns: WorstTurns) -> str | None:
    device = next(turns.model.parameters()).device.type
    coarse = turns.read(turns.rows, torch.autocast(device, torch.bfloat16))
    now, words = turns.distance(turns.rows), "precision: bfloat16 in place of the learner's own numbers"
    return _compare_noise(now, turns.read(turns.rows), coarse, words)


def _compare_noise(now: float, rows: Sequence[Floats], noisy: Sequence[Floats], words: str) -> str | None:
    """Return `words` as the cause if the difference `now` is about as large as that of rows read in another way."""
    gaps = [abs(gap) for row, other in zip(rows, noisy, strict=True) for gap in _gaps(row, other)]
    noise = sum(gaps) / len(gaps)
    if not (noise / LIKE <= now <= noise * LIKE and noise > 0):
        return None
    return f"{words} moves log-probabilities as much ({noise:.1g} nats)"
