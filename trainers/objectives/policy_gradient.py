"""Policy gradients: GRPO (2402.03300) and its relatives, with KL anchors, an entropy bonus and mismatch correction."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from marl.types import Metrics, Sample
from trainers.batching.batches import Batch
from trainers.batching.rows import Row, by_episode, policy_rows, units_of
from trainers.batching.sequences import Sequences
from trainers.forward.token_outputs import OutputSpec, TokenOutputs, token_outputs
from trainers.losses.aggregation import Totals, masked_sum, row_scale
from trainers.losses.mismatch import geometric, icepop, mis, opsm, rejected, tis
from trainers.losses.penalties import sampled_kl, sampler_kl
from trainers.objectives.objective import LossTerms, Objective
from trainers.optim.regularizers import Anchors, EntropyBonus

if TYPE_CHECKING:
    from trainers.settings.policy_gradient import Grpo, Mismatch


class Surrogate(Objective):
    """Loss of one token: w L(r, A) + Σ_k β_k KL(π ‖ anchor_k) - c H: L is the settings' `loss`, w corrects a mismatch.

    Anchors and entropy are over the whole vocabulary at the sampling temperature, without top-p and top-k. A learner
    with more to minimise adds to `policy_terms`. Losses, weights and means over sequences see those of `unit`.
    """

    parts = ("policy_loss",)

    def __init__(self, settings: Grpo, model: nn.Module, steps: int) -> None:
        self.settings, self.loss = settings, settings.policy_loss
        self.anchors = Anchors(settings.anchors, model, steps)
        self.entropy_bonus = EntropyBonus(settings.entropy, settings.entropy_control)
        self.needs = frozenset({"logprobs"} if settings.old == "read" else ())
        penalties = self.anchors.penalties
        exact = frozenset(name for name in penalties if settings.anchors[name].estimator == "exact")
        has_bonus = bool(settings.entropy) or settings.entropy_control is not None
        self._spec = OutputSpec(entropy=True, differentiable=has_bonus, kl=exact)
        self._leaves_out = settings.filter_cut or (settings.mismatch and settings.mismatch.denominator == "kept")
        self._update, self._tokens, self._learned = 0, 0, 0
        corrected = ("weight", "rejected") if settings.mismatch or settings.opsm is not None else ()
        kl = (f"kl_{name}" for name in penalties)
        self.stats = ("clip_fraction", "ratio_mean", "entropy", "kl_sampler", *corrected, *kl)

    def start(self, update: int) -> None:
        self._update, self._tokens, self._learned = update, 0, 0

    def sample_units(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return the samples one by one, or an agent's of an episode together."""
        return by_episode(samples) if self.settings.unit == "episode" else super().sample_units(samples)

    def alike(self, sample: Sample) -> Hashable:
        """Return what samples that merge have in common, other than what the policy's loss asks for."""
        return None

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Return rows of samples with equal tokens and equal signs. Filtered samples are in no denominator either."""
        settings = self.settings
        whole = [s for s in samples if s.finish != "length"] if settings.filter_cut else samples
        by_row = self.loss.by_row or settings.opsm is not None
        merge = settings.merge and self.loss.linear
        rows = policy_rows(whole, settings.old, merge, by_row, settings.unit, self.alike)
        if settings.mismatch and settings.old == "read":
            rows = add_weights(rows, settings.mismatch)
        self._tokens += sum(len(sample.token_ids) for sample in samples)
        self._learned += sum(row.count * row.loss_tokens for row in rows)
        return rows

    def terms(self, model: nn.Module, batch: Batch, totals: Totals) -> LossTerms:
        return self.policy_terms(self.forward(model, batch), batch, totals)

    def forward(self, model: nn.Module, batch: Batch) -> TokenOutputs:
        """Return all outputs of the model that the loss needs."""
        return token_outputs(model, batch, self._spec, self.anchors.penalties)

    def policy_terms(self, outputs: TokenOutputs, batch: Batch, totals: Totals) -> LossTerms:
        """Return the policy's loss, with its penalties."""
        logprobs_BT, mask_BT, old_BT = outputs.logprobs_BT, batch.loss_mask_BT, batch.columns["old"]
        sequences = Sequences(batch)
        policy_BT, clipped_BT = self._policy_loss(logprobs_BT, batch, sequences)
        corrected: tuple[Tensor, ...] = ()
        if (weights_BT := self._weights(logprobs_BT.detach(), batch, sequences)) is not None:
            policy_BT, corrected = policy_BT * weights_BT, (weights_BT, (weights_BT == 0).float())
        whole = replace(totals, samples=totals.units)
        scale_B = row_scale(self.settings.aggregation, sequences.lengths(), whole, self.settings.norm)
        policy_B = scale_B * masked_sum(policy_BT, mask_BT)
        kl: dict[str, Tensor] = {}
        for name, kl_BT in (outputs.anchors or {}).items():
            if (anchor := self.settings.anchors[name]).estimator != "exact":  # then it is the anchor's log-probability
                kl_BT = sampled_kl(logprobs_BT, kl_BT, old_BT, mask_BT, anchor.estimator, anchor.clamp)
            kl[name] = kl_BT
        loss_B = policy_B + scale_B * batch.counts_B * self._penalty(outputs, kl, mask_BT)
        assert outputs.entropy_BT is not None
        sampler_kl_BT = sampler_kl(batch.columns["sampled"], logprobs_BT, mask_BT)
        ratio_BT = (logprobs_BT.detach() - old_BT).exp()
        stats = (clipped_BT.float(), ratio_BT, outputs.entropy_BT, sampler_kl_BT, *corrected, *kl.values())
        tokens = logprobs_BT.detach(), outputs.entropy_BT.detach()
        return LossTerms(loss_B, {"policy_loss": policy_B.sum()}, stats, tokens)

    def read(self, outputs: TokenOutputs, batch: Batch, wanted: frozenset[str]) -> dict[str, Tensor]:
        """Return `reference`: its log-probabilities of the tokens, for KL in the reward."""
        if "reference" not in wanted:
            return {}
        return {"reference": token_outputs(self.anchors.models["reference"], batch).logprobs_BT}

    def finish(self, done: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """Steer coefficients by the measured figures, and refresh the anchors that are due."""
        more = {"left_out": 1 - self._learned / self._tokens if self._tokens else 0.0} if self._leaves_out else {}
        if metrics["rows"]:
            more |= self.anchors.steer(metrics) | self.entropy_bonus.steer(metrics["entropy"])
        self.anchors.refresh(done, model)
        return more

    def state_dict(self) -> dict[str, Any]:
        steered = {"anchors": dict(self.anchors.steered), "entropy": self.entropy_bonus.state_dict()}
        return {"anchors": self.anchors.state_dict(), "steered": steered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.anchors.load_state_dict(state["anchors"], state["steered"]["anchors"])
        self.entropy_bonus.load_state_dict(state["steered"]["entropy"])

    def _policy_loss(self, logprobs_BT: Tensor, batch: Batch, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Return [B, T], the loss of each token, not corrected for mismatch, and where a bound changed it."""
        columns = logprobs_BT, batch.columns["old"], batch.columns["advantages"], batch.loss_mask_BT
        logprobs, old, advantages, mask = map(sequences.join, columns)
        loss = self.loss(logprobs, old, advantages, mask)
        loss, clipped = loss if isinstance(loss, tuple) else (loss, torch.zeros_like(mask))
        if loss.shape != mask.shape:
            shapes = f"{list(loss.shape)}, must be [B, T], here {list(mask.shape)}"
            raise ValueError(f"loss {self.loss.kind!r} returned a tensor of shape {shapes}")
        return sequences.split(loss), sequences.split(clipped)

    def _weights(self, logprobs_BT: Tensor, batch: Batch, sequences: Sequences) -> Tensor | None:
        """Return [B, T], the mismatch's weights times the off-policy mask; None if there is neither."""
        mismatch, delta = self.settings.mismatch, self.settings.opsm
        columns = logprobs_BT, batch.columns["sampled"], batch.columns["advantages"], batch.loss_mask_BT
        weights_BT = batch.columns.get("weights")
        if delta is None and (weights_BT is not None or mismatch is None):
            return weights_BT
        logprobs, sampled, advantages, mask = map(sequences.join, columns)
        if mismatch and weights_BT is None:
            weights_BT = sequences.split(mismatch_weights(mismatch, logprobs, sampled, mask))
        if delta is None:
            return weights_BT
        left_BT = sequences.split(opsm(logprobs, sampled, advantages, mask, delta))
        return left_BT.float() if weights_BT is None else weights_BT * left_BT

    def _penalty(self, outputs: TokenOutputs, kl: Mapping[str, Tensor], mask_BT: Tensor) -> Tensor:
        """Return [B], of a single sample: weighted KL divergences less the entropy bonus, summed over tokens."""
        penalty_B = mask_BT.new_zeros(len(mask_BT), dtype=outputs.logprobs_BT.dtype)
        for name, kl_BT in kl.items():
            penalty_B = penalty_B + self.anchors.coefficient(name, self._update) * masked_sum(kl_BT, mask_BT)
        if self.entropy_bonus.coefficient and outputs.entropy_BT is not None:
            penalty_B = penalty_B - self.entropy_bonus.coefficient * masked_sum(outputs.entropy_BT, mask_BT)
        return penalty_B


def mismatch_weights(settings: Mismatch, old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [B, T], a constant factor of each token's loss, which corrects `old_BT` over `sampled_BT`; 0 rejects."""
    tensors, bounds = (old_BT, sampled_BT, mask_BT), settings.bounds
    if settings.kind == "reject":
        return rejected(*tensors, settings.divergence or "k3", settings.span or "token", bounds).float()
    if settings.kind in ("icepop", "geometric"):
        return (icepop if settings.kind == "icepop" else geometric)(*tensors, bounds)
    return (tis if settings.kind == "tis" else mis)(*tensors, settings.level or "token", bounds)


def add_weights(rows: Sequence[Row], settings: Mismatch) -> list[Row]:
    """Return rows with a column `weights`, from the readings before the update: however a minibatch is split.

    With `denominator: kept`, tokens of weight 0 are not in the loss, and rows without any other are left out.
    """
    weighted = [row for unit in units_of(rows) for row in _weighted(unit, settings)]
    if settings.denominator == "all":
        return weighted
    masked = [replace(row, loss_mask=_left_in_loss(row)) for row in weighted]
    return [row for row in masked if row.loss_tokens]


def _left_in_loss(row: Row) -> tuple[bool, ...]:
    """Return the mask of a row without its tokens of weight 0."""
    mask = row.loss_mask or (True,) * len(row.token_ids)
    return tuple(in_loss and weight != 0 for in_loss, weight in zip(mask, row.columns["weights"], strict=True))


def _weighted(unit: Sequence[Row], settings: Mismatch) -> list[Row]:
    """Return the rows of a unit, which is one sequence, with their weights."""
    old_1T, sampled_1T = (torch.tensor([[*chain(*(row.columns[n] for row in unit))]]) for n in ("old", "sampled"))
    weights_1T = mismatch_weights(settings, old_1T, sampled_1T, torch.ones_like(old_1T, dtype=torch.bool))
    # Numbers that are not finite stay so: a weight of 0 would hide them from the error that names them.
    weights = iter(torch.where((old_1T - sampled_1T).isfinite(), weights_1T, torch.nan)[0].tolist())
    columns = [{**row.columns, "weights": tuple(islice(weights, len(row.token_ids)))} for row in unit]
    return [replace(row, columns=each) for row, each in zip(unit, columns, strict=True)]
