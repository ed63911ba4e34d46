"""Policy gradients: GRPO (2402.03300) and its relatives, with KL anchors, an entropy bonus, mismatch correction, and a
critic where the learner has one (PPO, 1707.06347)."""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from marl.core.types import Metrics, Sample
from marl.trainers.batching.aggregation import MinibatchTotals, masked_sum, row_weights
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import Row, group_by_agent_episode, policy_rows
from marl.trainers.batching.unit_sequences import UnitSequences
from marl.trainers.forward.divergences import sampled_kl, sampler_kl
from marl.trainers.forward.token_outputs import OutputSpec, TokenOutputs, token_outputs
from marl.trainers.objective import LossTerms, Objective
from marl.trainers.optim.anchors import KlAnchors
from marl.trainers.policy_gradient.critic import ValueLoss
from marl.trainers.policy_gradient.entropy_bonus import EntropyBonus
from marl.trainers.policy_gradient.mismatch import add_mismatch_weights, mismatch_weights, off_policy_sequence_mask
from marl.trainers.policy_gradient.options import PolicyGradientOptions


class PolicyGradientObjective(Objective):
    """Loss of one token: w L(r, A) + Σ_k β_k KL(π ‖ anchor_k) - c H: L is the settings' `loss`, w corrects a mismatch.

    Anchors and entropy are over the whole vocabulary at the sampling temperature, without top-p and top-k. Losses,
    weights and means over sequences are of the sequences of `unit`. With a critic, the value loss is added.
    """

    def __init__(
        self, settings: PolicyGradientOptions, model: nn.Module, steps: int, values: ValueLoss | None = None
    ) -> None:
        self.settings, self.loss, self._values = settings, settings.loss.build(), values
        self.anchors = KlAnchors(settings.anchors, model, steps)
        self.entropy_bonus = EntropyBonus(settings.entropy, settings.entropy_control)
        exact = frozenset(n for n in self.anchors.loss_models if settings.anchors[n].estimator == "exact")
        has_bonus = bool(settings.entropy) or settings.entropy_control is not None
        self._spec = OutputSpec(entropy=True, differentiable_entropy=has_bonus, exact_kl_anchors=exact)
        self._leaves_out = settings.filter_cut or (settings.mismatch and settings.mismatch.denominator == "kept")
        self._update, self._token_count, self._loss_token_count = 0, 0, 0
        corrected = ("weight", "rejected") if settings.mismatch or settings.opsm is not None else ()
        kl = (f"kl_{name}" for name in self.anchors.loss_models)
        self.token_stat_names = ("clip_fraction", "ratio_mean", "entropy", "kl_sampler", *corrected, *kl)
        self.loss_term_names = ("policy_loss",)
        self.needs = frozenset({"logprobs"} if settings.old == "read" else ())
        if values:
            self.loss_term_names += values.loss_term_names
            self.needs |= values.needs
            self.lr_scale, self.modules = values.lr_scale, values.modules
            self.supports_packing = values.critic.supports_packing()

    def before_update(self, update: int) -> None:
        self._update, self._token_count, self._loss_token_count = update, 0, 0
        if self._values:
            self._values.before_update(update)

    def sample_units(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return the samples one by one, or with `unit: episode` an agent's samples of an episode together."""
        return group_by_agent_episode(samples) if self.settings.unit == "episode" else super().sample_units(samples)

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Return rows of samples with equal tokens, equal signs and, with a critic, equal value targets.

        Filtered samples are in no denominator either.

        Raises:
            ValueError: as `ValueLoss.add_value_targets`.
        """
        settings, loss = self.settings, self.settings.loss
        remaining = [sample for sample in samples if sample.finish != "length"] if settings.filter_cut else samples
        by_row = loss.by_row or settings.opsm is not None
        # Advantages of merged samples are summed, so a loss that is not linear in them must see each sample alone.
        merge = settings.merge and loss.linear
        merge_key = self._values.merge_key if self._values else _no_key
        rows = policy_rows(remaining, settings.old, merge, by_row, settings.unit, merge_key)
        if settings.mismatch and settings.old == "read":
            rows = add_mismatch_weights(rows, settings.mismatch)
        self._token_count += sum(len(sample.token_ids) for sample in samples)
        self._loss_token_count += sum(row.count * row.loss_tokens for row in rows)
        return self._values.add_value_targets(rows) if self._values else rows

    def terms(self, model: nn.Module, batch: Batch, totals: MinibatchTotals) -> LossTerms:
        """Return the policy's loss with its penalties, and the critic's loss if there is one."""
        with self._values.policy_gradient() if self._values else nullcontext():
            outputs = token_outputs(model, batch, self._spec, self.anchors.loss_models)
        logprobs_BT, mask_BT, old_BT = outputs.logprobs_BT, batch.loss_mask_BT, batch.columns["old"]
        sequences = UnitSequences(batch)
        policy_BT, clipped_BT = self._policy_loss(logprobs_BT, batch, sequences)
        corrected: tuple[Tensor, ...] = ()
        if (weights_BT := self._weights(logprobs_BT.detach(), batch, sequences)) is not None:
            policy_BT, corrected = policy_BT * weights_BT, (weights_BT, (weights_BT == 0).float())
        unit_totals = replace(totals, samples=totals.units)
        scale_B = row_weights(self.settings.aggregation, sequences.lengths(), unit_totals, self.settings.norm)
        policy_B = scale_B * masked_sum(policy_BT, mask_BT)
        kl: dict[str, Tensor] = {}
        for name, kl_BT in (outputs.anchors or {}).items():
            if (anchor := self.settings.anchors[name]).estimator != "exact":
                # `kl_BT` is then the anchor's log-probability of the token.
                kl_BT = sampled_kl(logprobs_BT, kl_BT, old_BT, mask_BT, anchor.estimator, anchor.clamp)
            kl[name] = kl_BT
        assert outputs.entropy_BT is not None
        penalty_B = mask_BT.new_zeros(len(mask_BT), dtype=logprobs_BT.dtype)
        for name, kl_BT in kl.items():
            penalty_B = penalty_B + self.anchors.coefficient(name, self._update) * masked_sum(kl_BT, mask_BT)
        if self.entropy_bonus.coefficient:
            penalty_B = penalty_B - self.entropy_bonus.coefficient * masked_sum(outputs.entropy_BT, mask_BT)
        # A penalty is of one sample, while the advantages of the samples of a row are summed already.
        loss_B = policy_B + scale_B * batch.counts_B * penalty_B
        sampler_kl_BT = sampler_kl(batch.columns["sampled"], logprobs_BT, mask_BT)
        ratio_BT = (logprobs_BT.detach() - old_BT).exp()
        stats = (clipped_BT.float(), ratio_BT, outputs.entropy_BT, sampler_kl_BT, *corrected, *kl.values())
        figures = logprobs_BT.detach(), outputs.entropy_BT.detach()
        terms = LossTerms(loss_B, {"policy_loss": policy_B.sum()}, stats, figures)
        return self._values.add_value_loss(terms, outputs, batch, totals) if self._values else terms

    def read(self, outputs: TokenOutputs, batch: Batch, fields: frozenset[str]) -> dict[str, Tensor]:
        """Return the `reference`'s log-probabilities, for KL in the reward, and the critic's values."""
        readings: dict[str, Tensor] = {}
        if "reference" in fields:
            readings["reference"] = token_outputs(self.anchors.models["reference"], batch).logprobs_BT
        if self._values and "values" in fields:
            readings |= self._values.critic.read(outputs.states, batch)
        return readings

    def after_update(self, updates: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """Steer coefficients by the measured figures, and refresh the anchors that are due."""
        figures: Metrics = {}
        if self._leaves_out:
            figures["left_out"] = 1 - self._loss_token_count / self._token_count if self._token_count else 0.0
        if metrics["rows"]:
            figures |= self.anchors.steer(metrics) | self.entropy_bonus.steer(metrics["entropy"])
        self.anchors.refresh(updates, model)
        return figures

    def state_dict(self) -> dict[str, Any]:
        steered = {"anchors": dict(self.anchors.steered), "entropy": self.entropy_bonus.state_dict()}
        return {"anchors": self.anchors.state_dict(), "steered": steered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.anchors.load_state_dict(state["anchors"], state["steered"]["anchors"])
        self.entropy_bonus.load_state_dict(state["steered"]["entropy"])

    def _policy_loss(self, logprobs_BT: Tensor, batch: Batch, sequences: UnitSequences) -> tuple[Tensor, Tensor]:
        """Return [B, T], the loss of each token, not corrected for mismatch, and True where a bound changed it."""
        columns = logprobs_BT, batch.columns["old"], batch.columns["advantages"], batch.loss_mask_BT
        logprobs, old, advantages, mask = map(sequences.join, columns)
        loss = self.loss(logprobs, old, advantages, mask)
        loss, clipped = loss if isinstance(loss, tuple) else (loss, torch.zeros_like(mask))
        if loss.shape != mask.shape:
            shapes = f"{list(loss.shape)}, must be [B, T], here {list(mask.shape)}"
            raise ValueError(f"loss {self.settings.loss.kind!r} returned a tensor of shape {shapes}")
        return sequences.split(loss), sequences.split(clipped)

    def _weights(self, logprobs_BT: Tensor, batch: Batch, sequences: UnitSequences) -> Tensor | None:
        """Return [B, T], the mismatch's weights times the off-policy mask, or None if there is neither."""
        mismatch, delta = self.settings.mismatch, self.settings.opsm
        weights_BT = batch.columns.get("weights")
        if delta is None and (weights_BT is not None or mismatch is None):
            return weights_BT
        columns = logprobs_BT, batch.columns["sampled"], batch.columns["advantages"], batch.loss_mask_BT
        logprobs, sampled, advantages, mask = map(sequences.join, columns)
        if mismatch and weights_BT is None:
            weights_BT = sequences.split(mismatch_weights(mismatch, logprobs, sampled, mask))
        if delta is None:
            return weights_BT
        remaining_BT = sequences.split(off_policy_sequence_mask(logprobs, sampled, advantages, mask, delta))
        return remaining_BT.float() if weights_BT is None else weights_BT * remaining_BT


def _no_key(_: Sample) -> Hashable:
    return None
