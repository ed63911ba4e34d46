"""Why a sampler and a learner disagree: cheap tests on the worst turns, the surest first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from marl.config import Sampling
from marl.types import Sample
from trainers.batching.planner import Planner
from trainers.batching.rows import Floats, Row
from trainers.forward.model_inputs import drops_out
from trainers.forward.token_outputs import said

EXPLAINED = 0.1
"""What may be left of the difference if the assumption that removed it is the cause."""
LIKE = 4.0
"""How many times another random difference may be as large, and still be the same thing."""
TOP_P, TOP_K = (0.99, 0.95, 0.9, 0.8, 0.7, 0.5), (100, 64, 50, 40, 20, 10, 5, 2)
COLDEST, HOTTEST, HALVINGS = 0.1, 10.0, 20


@dataclass(frozen=True, slots=True)
class Case:
    """The turns that disagree most, and what is known of their weights."""

    model: Any
    plan: Planner
    samples: Sequence[Sample]
    update: int
    newest: int
    """Version of the weights that sampled them."""
    before: int | None
    """Version of the newest that sampled for the update before."""
    rows: list[Row] = field(init=False)

    def __post_init__(self) -> None:
        rows = [Row(s.prompt_ids, s.token_ids, s.sampling, samples=(s,)) for s in self.samples]
        object.__setattr__(self, "rows", rows)

    @torch.no_grad()
    def distance(self, rows: Sequence[Row], numbers: AbstractContextManager[Any] | None = None) -> float:
        """Mean size of the differences (nats) if the rows were what was sampled."""
        found = [gap for row, own in zip(rows, self.read(rows, numbers), strict=True) for gap in _gaps(row, own)]
        return sum(map(abs, found)) / len(found)

    @torch.no_grad()
    def read(self, rows: Sequence[Row], numbers: AbstractContextManager[Any] | None = None) -> list[Floats]:
        """Log-probabilities of each row's tokens, with the model in the mode it is in."""
        found: dict[int, Floats] = {}
        with numbers or nullcontext():
            for chunk, batch in self.plan.batches(rows):
                for row, values in zip(chunk, said(self.model, batch).logprobs_BT.tolist(), strict=True):
                    found[id(row)] = tuple(values[: len(row.token_ids)])
        return [found[id(row)] for row in rows]


def cause(case: Case) -> str:
    """In words, with what gave it away."""
    training = case.model.training
    case.model.eval()
    found = (suspect(case) for suspect in (_stale, _shifted, _sampling, _prompt, _dropout, _precision))
    told = next((words for words in found if words), OTHER)
    case.model.train(training)
    return told


OTHER = (
    "other weights, most likely: neither versions, the sampling settings, the prompt's start, dropout nor precision "
    "explain it; was a file of weights, an adapter or a scaling left out on one side?"
)


def _stale(case: Case) -> str | None:
    if case.update == 0 and case.newest > 0:
        return f"other weights: the turns were sampled with version {case.newest}, but this learner has made no update"
    if case.before is not None and case.newest <= case.before:
        return (
            f"stale weights: the sampler is still at version {case.newest}, as before the update that came last; "
            "what was published did not arrive"
        )
    return None


def _shifted(case: Case) -> str | None:
    pairs = list(zip(case.rows, case.read(case.rows), strict=True))
    here = [abs(gap) for row, own in pairs for gap in _gaps(row, own)[1:]]
    for words, moved in (("later", _later), ("earlier", _earlier)):
        there = [abs(gap) for row, own in pairs for gap in moved(row.samples[0].logprobs, own)]
        if there and sum(there) < EXPLAINED * sum(here):
            return f"the sampler's log-probabilities stand one token {words} than they belong"
    return None


def _later(sampled: Floats, own: Floats) -> Iterator[float]:
    return (theirs - ours for theirs, ours in zip(sampled[1:], own[:-1], strict=True))


def _earlier(sampled: Floats, own: Floats) -> Iterator[float]:
    return (theirs - ours for theirs, ours in zip(sampled[:-1], own[1:], strict=True))


def _sampling(case: Case) -> str | None:
    said_to_be = case.samples[0].sampling
    trials = [Sampling(), Sampling(temperature=said_to_be.temperature)]
    trials += [said_to_be.model_copy(update={"top_p": p, "top_k": 0}) for p in TOP_P]
    trials += [said_to_be.model_copy(update={"top_k": k, "top_p": 1.0}) for k in TOP_K]
    trials += [said_to_be.model_copy(update={"temperature": _temperature(case)})]
    now = case.distance(case.rows)
    tried = [(case.distance([replace(row, sampling=trial) for row in case.rows]), trial) for trial in trials]
    left, best = min(tried, key=lambda pair: pair[0])
    if left > EXPLAINED * now:
        return None
    return (
        f"the sampling settings: the sampler's log-probabilities are those of {_words(best)} (which leaves {left:.1g} "
        f"of {now:.1g} nats), but the turns are said to be sampled with {_words(said_to_be)}"
    )


def _temperature(case: Case) -> float:
    """Which explains the worst turns best."""

    def distance(log: float) -> float:
        rows = [replace(r, sampling=r.sampling.model_copy(update={"temperature": math.exp(log)})) for r in case.rows]
        return case.distance(rows)

    return math.exp(_lowest(distance, math.log(COLDEST), math.log(HOTTEST)))


def _lowest(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one valley is least."""
    for _ in range(HALVINGS):
        left, right = low + (high - low) * 0.382, low + (high - low) * 0.618
        low, high = (low, right) if function(left) < function(right) else (left, high)
    return (low + high) / 2


def _words(sampling: Sampling) -> str:
    kept = f", top_p {sampling.top_p:g}" if sampling.top_p < 1 else ""
    return f"temperature {sampling.temperature:.3g}{kept}" + (f", top_k {sampling.top_k}" if sampling.top_k else "")


def _prompt(case: Case) -> str | None:
    now = case.distance(case.rows)
    variants = {
        "without the first token": [replace(r, prompt_ids=r.prompt_ids[1:] or r.prompt_ids) for r in case.rows],
        "with the first token twice": [replace(r, prompt_ids=(r.prompt_ids[0], *r.prompt_ids)) for r in case.rows],
        "without the last token": [replace(r, prompt_ids=r.prompt_ids[:-1] or r.prompt_ids) for r in case.rows],
    }
    for words, rows in variants.items():
        if case.distance(rows) <= EXPLAINED * now:
            return f"the prompt or its template: the sampler read it {words}"
    gaps = [_gaps(row, own) for row, own in zip(case.rows, case.read(case.rows), strict=True)]
    first, later = [abs(g[0]) for g in gaps], [abs(gap) for g in gaps for gap in g[1:]]
    if later and sum(first) / len(first) > LIKE * sum(later) / len(later):
        return "the prompt or its template: a completion's first token is off, those after it are hardly"
    return None


def _dropout(case: Case) -> str | None:
    if not drops_out(case.model):
        return None
    quiet, now = case.read(case.rows), case.distance(case.rows)
    case.model.train()
    with torch.random.fork_rng():
        loud = case.read(case.rows)
    case.model.eval()
    noise = _mean_gap(quiet, loud)
    return f"dropout: training mode moves log-probabilities as much ({noise:.1g} nats)" if _alike(now, noise) else None


def _precision(case: Case) -> str | None:
    device = next(case.model.parameters()).device.type
    coarse = case.read(case.rows, torch.autocast(device, torch.bfloat16))
    noise, now = _mean_gap(case.read(case.rows), coarse), case.distance(case.rows)
    if not _alike(now, noise):
        return None
    return (
        f"precision: bfloat16 in place of the learner's own numbers moves log-probabilities as much ({noise:.1g} nats)"
    )


def _alike(gap: float, noise: float) -> bool:
    return noise / LIKE <= gap <= noise * LIKE and noise > 0


def _mean_gap(one: Sequence[Floats], other: Sequence[Floats]) -> float:
    gaps = [abs(a - b) for row, copy in zip(one, other, strict=True) for a, b in zip(row, copy, strict=True)]
    return sum(gaps) / len(gaps)


def _gaps(row: Row, own: Floats) -> list[float]:
    """The learner's log-probability less the sampler's, of each token."""
    return [ours - theirs for ours, theirs in zip(own, row.samples[0].logprobs, strict=True)]
