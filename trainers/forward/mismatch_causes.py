"""Search for the cause of a mismatch between sampler and learner: tests on the worst turns, most certain first."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from marl.core.config import Sampling
from marl.trainers.batching.planner import BatchPlanner
from marl.trainers.batching.rows import BatchRow, TokenValues
from marl.trainers.forward.attention import has_dropout
from marl.trainers.forward.rounding_noise import read_logprobs

EXPLAINED_FRACTION = 0.1
"""Maximum share of the mean difference that remains if the supposed cause is the true cause."""
SAME_CAUSE_FACTOR = 4.0
"""Two mean differences within this factor of each other are taken to have the same cause."""
INDISTINGUISHABLE_GAP = 1e-6
"""Mean difference (nats) below which sampling settings cannot be told apart, because float32 rounds."""
TOP_P, TOP_K = (0.99, 0.95, 0.9, 0.8, 0.7, 0.5), (100, 64, 50, 40, 20, 10, 5, 2)
"""Values of top-p and of top-k that are tried as the sampler's settings."""
MIN_TEMPERATURE, MAX_TEMPERATURE, SEARCH_STEPS = 0.1, 10.0, 20
"""Range and steps of the search for the sampler's temperature."""
UNKNOWN_CAUSE = (
    "other weights, most likely: neither versions, the sampling settings, the prompt's start, dropout nor precision "
    "explain it; was a file of weights, an adapter or a scaling left out on one side?"
)


def logprob_gaps(learner_logprobs: Sequence[float], sampler_logprobs: Sequence[float]) -> TokenValues:
    """Return, for each token, the learner's log-probability minus the sampler's, in nats."""
    return tuple(ours - theirs for ours, theirs in zip(learner_logprobs, sampler_logprobs, strict=True))


@dataclass(frozen=True, slots=True)
class MismatchedTurns:
    """Turns with the greatest difference of log-probabilities, the learner's model, and the versions of weights."""

    model: Any
    planner: BatchPlanner
    rows: list[BatchRow]
    """One row for each turn."""
    update: int
    """Number of updates that the learner has made."""
    version: int
    """Version of the weights that sampled the turns."""
    previous_version: int | None
    """Version of the newest weights that sampled for the previous update. None: there was no update."""

    def mean_logprob_gap_with_sampling(self, sampling: Sampling) -> float:
        """Return the mean absolute difference (nats) of the rows if their sampling settings were `sampling`."""
        return self.mean_logprob_gap([replace(row, sampling=sampling) for row in self.rows])

    def mean_logprob_gap(self, rows: Sequence[BatchRow]) -> float:
        """Return the mean absolute difference (nats) between the learner's `rows` and the sampler's
        log-probabilities."""
        gaps: list[float] = []
        for row, logprobs in zip(rows, self.learner_logprobs(rows), strict=True):
            gaps += logprob_gaps(logprobs, row.samples[0].logprobs)
        return sum(map(abs, gaps)) / len(gaps)

    def learner_logprobs(
        self, rows: Sequence[BatchRow], precision: AbstractContextManager[Any] | None = None
    ) -> list[TokenValues]:
        """Return the learner's log-probabilities of each row's tokens, with the model in its current mode."""
        return read_logprobs(self.model, self.planner, rows, precision)


def describe_likely_mismatch_cause(turns: MismatchedTurns) -> str:
    """Return a description of the most likely cause of the mismatch, with its evidence."""
    training = turns.model.training
    turns.model.eval()
    cause = UNKNOWN_CAUSE
    tests = (
        _explain_by_stale_weights,
        _explain_by_shifted_logprobs,
        _explain_by_other_sampling_settings,
        _explain_by_other_prompt,
    )
    for find_evidence in (*tests, _explain_by_dropout_or_precision):
        if evidence := find_evidence(turns):
            cause = evidence
            break
    turns.model.train(training)
    return cause


def _explain_by_stale_weights(turns: MismatchedTurns) -> str | None:
    """Return a description if the sampler's weights have another version than the learner's, else None."""
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


def _explain_by_shifted_logprobs(turns: MismatchedTurns) -> str | None:
    """Return a description if the sampler's log-probabilities are shifted by one token, else None."""
    aligned, later, earlier = [], [], []
    for row, ours in zip(turns.rows, turns.learner_logprobs(turns.rows), strict=True):
        theirs = row.samples[0].logprobs
        # The first token has no predecessor to compare a shifted log-probability with, so it is left out.
        aligned += map(abs, logprob_gaps(ours, theirs)[1:])
        later += map(abs, logprob_gaps(ours[:-1], theirs[1:]))
        earlier += map(abs, logprob_gaps(ours[1:], theirs[:-1]))
    for word, shifted in (("later", later), ("earlier", earlier)):
        if shifted and sum(shifted) < EXPLAINED_FRACTION * sum(aligned):
            return f"the sampler's log-probabilities stand one token {word} than they belong"
    return None


def _explain_by_other_sampling_settings(turns: MismatchedTurns) -> str | None:
    """Return a description if other sampling settings explain the sampler's log-probabilities, else None."""
    stated = turns.rows[0].sampling
    trials = [Sampling(), Sampling(temperature=stated.temperature)]
    trials += [stated.model_copy(update={"top_p": p, "top_k": 0}) for p in TOP_P]
    trials += [stated.model_copy(update={"top_k": k, "top_p": 1.0}) for k in TOP_K]
    # Golden-section search over the logarithm finds the temperature that fits best.
    low, high = math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE)
    for _ in range(SEARCH_STEPS):
        left, right = low + (high - low) * 0.382, low + (high - low) * 0.618
        left_gap, right_gap = (
            turns.mean_logprob_gap_with_sampling(stated.model_copy(update={"temperature": math.exp(log)}))
            for log in (left, right)
        )
        low, high = (low, right) if left_gap < right_gap else (left, high)
    trials.append(stated.model_copy(update={"temperature": math.exp((low + high) / 2)}))
    now = turns.mean_logprob_gap(turns.rows)
    distances = list(map(turns.mean_logprob_gap_with_sampling, trials))
    # Trials that truncate no token are equal up to rounding, so the first one within a small margin is reported.
    limit = SAME_CAUSE_FACTOR * min(distances) + INDISTINGUISHABLE_GAP
    remaining, best = next(pair for pair in zip(distances, trials, strict=True) if pair[0] <= limit)
    if remaining > EXPLAINED_FRACTION * now:
        return None
    return (
        f"the sampling settings: the sampler's log-probabilities are those of {_describe_sampling(best)} (which leaves "
        f"{remaining:.1g} of {now:.1g} nats), but the turns are said to be sampled with "
        f"{_describe_sampling(stated)}"
    )


def _describe_sampling(sampling: Sampling) -> str:
    top_p = f", top_p {sampling.top_p:g}" if sampling.top_p < 1 else ""
    return f"temperature {sampling.temperature:.3g}{top_p}" + (f", top_k {sampling.top_k}" if sampling.top_k else "")


def _explain_by_other_prompt(turns: MismatchedTurns) -> str | None:
    """Return a description if the sampler read another prompt than the learner, else None."""
    now = turns.mean_logprob_gap(turns.rows)
    variants: dict[str, list[BatchRow]] = {
        "without the first token": [],
        "with the first token twice": [],
        "without the last token": [],
    }
    first: list[float] = []
    later: list[float] = []
    for row, logprobs in zip(turns.rows, turns.learner_logprobs(turns.rows), strict=True):
        prompt_ids = row.prompt_ids
        changed_prompts = (prompt_ids[1:] or prompt_ids, (prompt_ids[0], *prompt_ids), prompt_ids[:-1] or prompt_ids)
        for changed_rows, changed_prompt in zip(variants.values(), changed_prompts, strict=True):
            changed_rows.append(replace(row, prompt_ids=changed_prompt))
        first_gap, *later_gaps = map(abs, logprob_gaps(logprobs, row.samples[0].logprobs))
        first.append(first_gap)
        later += later_gaps
    for words, rows in variants.items():
        if turns.mean_logprob_gap(rows) <= EXPLAINED_FRACTION * now:
            return f"the prompt or its template: the sampler read it {words}"
    if later and sum(first) / len(first) > SAME_CAUSE_FACTOR * sum(later) / len(later):
        return "the prompt or its template: a completion's first token is off, those after it are hardly"
    return None


def _explain_by_dropout_or_precision(turns: MismatchedTurns) -> str | None:
    """Return a description if dropout or bfloat16 changes log-probabilities by about the mismatch, else None."""
    exact, noisy_readings = turns.learner_logprobs(turns.rows), dict[str, list[TokenValues]]()
    if has_dropout(turns.model):
        turns.model.train()
        with torch.random.fork_rng():
            noisy_readings["dropout: training mode"] = turns.learner_logprobs(turns.rows)
        turns.model.eval()
    autocast = torch.autocast(next(turns.model.parameters()).device.type, torch.bfloat16)
    noisy_readings["precision: bfloat16 in place of the learner's own numbers"] = turns.learner_logprobs(
        turns.rows, autocast
    )
    now = turns.mean_logprob_gap(turns.rows)
    for words, noisy in noisy_readings.items():
        gaps: list[float] = []
        for exact_logprobs, noisy_logprobs in zip(exact, noisy, strict=True):
            gaps += map(abs, logprob_gaps(exact_logprobs, noisy_logprobs))
        noise = sum(gaps) / len(gaps)
        if noise / SAME_CAUSE_FACTOR <= now <= noise * SAME_CAUSE_FACTOR and noise > 0:
            return f"{words} moves log-probabilities as much ({noise:.1g} nats)"
    return None
