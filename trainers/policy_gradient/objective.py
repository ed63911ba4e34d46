"""Objective of policy gradients such as GRPO (2402.03300) and PPO (1707.06347): loss, KL penalties, entropy, critic."""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from marl.core.types import Metrics, Sample
from marl.trainers.batching.aggregation import MinibatchTotals, masked_sum, row_loss_weights
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import BatchRow, group_by_agent_episode, policy_gradient_rows
from marl.trainers.batching.unit_sequences import UnitSequenceConverter
from marl.trainers.distillation.teachers import TEACHER, Teachers
from marl.trainers.forward.divergences import exact_kl, sampled_kl, sampler_kl
from marl.trainers.forward.token_outputs import DivergenceFunction, TokenOutputRequest, TokenOutputs, token_outputs
from marl.trainers.objective import LossTerms, Objective
from marl.trainers.optim.anchors import KlAnchors
from marl.trainers.policy_gradient.critic import ValueLoss
from marl.trainers.policy_gradient.entropy_bonus import EntropyBonus
from marl.trainers.policy_gradient.mismatch import add_mismatch_weights, mismatch_weights, off_policy_sequence_mask
from marl.trainers.policy_gradient.options import PolicyGradientOptions

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/policy_loss | loss | part of the loss that follows advantages
policy/POLICY/clip_fraction | share of tokens | tokens whose ratio was clipped or masked by the loss
policy/POLICY/ratio_mean | ratio | mean of new / old probability of the sampled tokens
policy/POLICY/ratio_change | ratio | mean of abs(new / old probability - 1) of the sampled tokens, over all epochs; 0
    before an update's first optimizer step, hence in the first epoch with a single minibatch
policy/POLICY/entropy | nats a token | entropy of the policy at the sampling temperature, whole vocabulary
policy/POLICY/kl_sampler | nats a token | KL from the sampler to the learner on the sampled tokens, in the first
    optimizer step; not 0: sampler and learner disagree
policy/POLICY/kl_reference, kl_magnet, kl_proximal | nats a token | KL to an anchor that is in the loss
policy/POLICY/kl_update | nats a token | KL from the policy before the update, or with `old: sampler` from the sampler,
    to the policy before the update's last optimizer step; only with several optimizer steps in an update
policy/POLICY/weight | ratio | mean mismatch weight of a token (`mismatch`, `opsm`)
policy/POLICY/rejected | share of tokens | mismatch weight is 0
policy/POLICY/left_out | share of tokens | in no denominator either (`filter_cut`, `mismatch.denominator: kept`)
"""


class PolicyGradientObjective(Objective):
    """Loss of a token: w L(r, A) + Σ_k β_k KL(π ‖ anchor_k) - c H, with the loss L and the mismatch's weight w.

    KL and entropy H are over the whole vocabulary at the sampling temperature, without top-p and top-k. Sequences are
    turns, or an agent's turns of an episode (`unit`). With a critic, the value loss is added.
    """

    def __init__(
        self,
        settings: PolicyGradientOptions,
        model: nn.Module,
        steps: int,
        values: ValueLoss | None = None,
        teachers: Teachers | None = None,
    ) -> None:
        self.settings, self.loss, self._values, self._teachers = settings, settings.loss.build(), values, teachers
        self.anchors = KlAnchors(settings.anchors, model, steps)
        self.entropy_bonus = EntropyBonus(settings.entropy, settings.entropy_control)
        divergences: dict[str, DivergenceFunction] = {}
        for name in self.anchors.loss_models:
            if settings.anchors[name].estimator == "exact":
                divergences[name] = exact_kl
        if teachers:
            divergences[TEACHER], self.supports_packing = teachers.divergence, teachers.support_packing
        has_bonus = bool(settings.entropy) or settings.entropy_control is not None
        self._spec = TokenOutputRequest(entropy=True, differentiable_entropy=has_bonus, divergences=divergences)
        self._drops_tokens = settings.filter_cut or (settings.mismatch and settings.mismatch.denominator == "kept")
        self._update, self._token_count, self._loss_token_count = 0, 0, 0
        corrected = ("weight", "rejected") if settings.mismatch or settings.opsm is not None else ()
        kl = [f"kl_{name}" for name in (*self.anchors.loss_models, *([TEACHER] if teachers else ()))]
        ratios = ("clip_fraction", "ratio_mean", "ratio_change")
        moved = ("kl_update",) if settings.has_several_optimizer_steps else ()
        self.step_limit = ("kl_update", settings.stop_at_kl) if settings.stop_at_kl is not None else None
        self.token_stat_names = (*ratios, "entropy", "kl_sampler", *moved, *corrected, *kl)
        self.loss_term_names = ("policy_loss",)
        self.needed_reading_fields = frozenset({"logprobs"} if settings.old == "read" else ())
        if values:
            self.loss_term_names += values.loss_term_names
            self.needed_reading_fields |= values.needed_reading_fields
            self.lr_scale, self.modules = values.lr_scale, values.modules
            self.supports_packing = self.supports_packing and values.critic.supports_packing()

    def prepare_update(self, update_index: int) -> None:
        self._update, self._token_count, self._loss_token_count = update_index, 0, 0
        if self._values:
            self._values.prepare_update(update_index)

    def indivisible_sample_groups(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return units of one sample, or with `unit: episode` of an agent's samples of an episode."""
        return (
            group_by_agent_episode(samples)
            if self.settings.unit == "episode"
            else super().indivisible_sample_groups(samples)
        )

    def rows(self, samples: Sequence[Sample]) -> list[BatchRow]:
        """Return rows of merged samples. Samples cut off at the length limit are dropped if `filter_cut` is set.

        Raises:
            ValueError: as `ValueLoss.add_value_targets`.
        """
        settings, loss = self.settings, self.settings.loss
        remaining = [sample for sample in samples if sample.finish != "length"] if settings.filter_cut else samples
        by_row = loss.by_row or settings.opsm is not None
        # Merging sums advantages, which is correct only for a loss that is linear in them.
        merge = settings.merge and loss.linear
        rows = policy_gradient_rows(remaining, settings.old, merge, by_row, settings.unit, self._merge_key)
        if self._teachers:
            rows = self._teachers.add_index(rows)
        if settings.mismatch and settings.old == "read":
            rows = add_mismatch_weights(rows, settings.mismatch)
        self._token_count += sum(len(sample.token_ids) for sample in samples)
        self._loss_token_count += sum(row.count * row.loss_token_count for row in rows)
        return self._values.add_value_targets(rows) if self._values else rows

    def forward_key(self, row: BatchRow) -> Hashable:
        """Return the index of the row's teacher; equal for all rows without teachers."""
        return row.scalars.get(TEACHER)

    def forward_loss(self, model: nn.Module, batch: Batch, totals: MinibatchTotals) -> LossTerms:
        """Return the policy's loss with its penalties, plus the critic's loss if the learner has a critic."""
        with self._values.no_policy_gradient_in_warm_up() if self._values else nullcontext():
            outputs = token_outputs(model, batch, self._spec, self._anchor_models(batch))
        logprobs_BT, mask_BT, old_BT = outputs.logprobs_BT, batch.loss_mask_BT, batch.columns["old"]
        sequences = UnitSequenceConverter(batch)
        columns = map(sequences.concatenate_rows_of_units, (logprobs_BT, old_BT, batch.columns["advantages"], mask_BT))
        logprobs_UT, old_UT, advantages_UT, mask_UT = columns
        loss_UT = self.loss(logprobs_UT, old_UT, advantages_UT, mask_UT)
        loss_UT, clipped_UT = loss_UT if isinstance(loss_UT, tuple) else (loss_UT, torch.zeros_like(mask_UT))
        if loss_UT.shape != mask_UT.shape:
            shapes = f"{list(loss_UT.shape)}, must be [B, T], here {list(mask_UT.shape)}"
            raise ValueError(f"loss {self.settings.loss.kind!r} returned a tensor of shape {shapes}")
        policy_BT, clipped_BT = sequences.split_units_into_rows(loss_UT), sequences.split_units_into_rows(clipped_UT)
        corrected: tuple[Tensor, ...] = ()
        if (weights_BT := self._mismatch_and_mask_weights(logprobs_BT.detach(), batch, sequences)) is not None:
            policy_BT, corrected = policy_BT * weights_BT, (weights_BT, (weights_BT == 0).float())
        unit_totals = replace(totals, samples=totals.units)
        scale_B = row_loss_weights(
            self.settings.aggregation, sequences.loss_tokens_in_unit_of_each_row(), unit_totals, self.settings.norm
        )
        policy_B = scale_B * masked_sum(policy_BT, mask_BT)
        kl: dict[str, Tensor] = {}
        for name, kl_BT in (outputs.anchors or {}).items():
            if name != TEACHER and (anchor := self.settings.anchors[name]).estimator != "exact":
                # For a sampled estimator, `kl_BT` holds the anchor's log-probabilities until this line.
                kl_BT = sampled_kl(logprobs_BT, kl_BT, old_BT, mask_BT, anchor.estimator, anchor.clamp)
            kl[name] = kl_BT
        assert outputs.entropy_BT is not None
        penalty_B = mask_BT.new_zeros(len(mask_BT), dtype=logprobs_BT.dtype)
        for name, kl_BT in kl.items():
            penalty_B = penalty_B + self._kl_coefficient(name) * masked_sum(kl_BT, mask_BT)
        if self.entropy_bonus.coefficient:
            penalty_B = penalty_B - self.entropy_bonus.coefficient * masked_sum(outputs.entropy_BT, mask_BT)
        # A row stands for `counts_B` equal samples: its advantage is their sum, so its penalty is multiplied.
        loss_B = policy_B + scale_B * batch.counts_B * penalty_B
        sampler_kl_BT = sampler_kl(batch.columns["sampled"], logprobs_BT, mask_BT)
        moved = (sampler_kl(old_BT, logprobs_BT, mask_BT),) if self.settings.has_several_optimizer_steps else ()
        ratio_BT = (logprobs_BT.detach() - old_BT).exp()
        ratios = (ratio_BT, (ratio_BT - 1).abs())
        stats = (clipped_BT.float(), *ratios, outputs.entropy_BT, sampler_kl_BT, *moved, *corrected, *kl.values())
        figures = logprobs_BT.detach(), outputs.entropy_BT.detach()
        terms = LossTerms(loss_B, {"policy_loss": policy_B.sum()}, stats, figures)
        return self._values.add_value_loss(terms, outputs, batch, totals) if self._values else terms

    def read(self, outputs: TokenOutputs, batch: Batch, fields: frozenset[str]) -> dict[str, Tensor]:
        """Return the reference policy's log-probabilities, for KL in the reward, and the critic's values, if
        requested."""
        readings: dict[str, Tensor] = {}
        if "reference" in fields:
            readings["reference"] = token_outputs(self.anchors.models["reference"], batch).logprobs_BT
        if self._values and "values" in fields:
            readings |= self._values.critic.read_values(outputs.states, batch)
        return readings

    def finish_update(self, update_count: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """Adapt the adaptive coefficients (KL, entropy bonus) to the update's metrics, and refresh the reference models
        that are due."""
        figures: Metrics = {}
        if self._drops_tokens:
            figures["left_out"] = 1 - self._loss_token_count / self._token_count if self._token_count else 0.0
        if metrics["rows"]:
            figures |= self.anchors.adapt_coefficients(metrics) | self.entropy_bonus.adapt_coefficients(
                metrics["entropy"]
            )
        self.anchors.refresh_due_anchor_models(update_count, model)
        return figures

    def state_dict(self) -> dict[str, Any]:
        steered = {"anchors": dict(self.anchors.steered), "entropy": self.entropy_bonus.state_dict()}
        return {"anchors": self.anchors.state_dict(), "steered": steered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.anchors.load_state_dict(state["anchors"], state["steered"]["anchors"])
        self.entropy_bonus.load_state_dict(state["steered"]["entropy"])

    def _merge_key(self, sample: Sample) -> Hashable:
        """Return a key that is equal for samples with the same value targets and the same teacher."""
        values = self._values.value_targets_of_sample(sample) if self._values else None
        return values, self._teachers.index_of_sample(sample) if self._teachers else 0

    def _anchor_models(self, batch: Batch) -> dict[str, nn.Module]:
        """Return the models of the KL terms in the loss, by name, with the batch's teacher last."""
        models = dict(self.anchors.loss_models)
        return models | {TEACHER: self._teachers.model_of_batch(batch)} if self._teachers else models

    def _kl_coefficient(self, name: str) -> float:
        if name == TEACHER and self._teachers:
            return self._teachers.coefficient(self._update)
        return self.anchors.coefficient(name, self._update)

    def _mismatch_and_mask_weights(
        self, logprobs_BT: Tensor, batch: Batch, sequences: UnitSequenceConverter
    ) -> Tensor | None:
        """Return [B, T], mismatch weights times the off-policy sequence mask, or None if neither is set."""
        mismatch, delta = self.settings.mismatch, self.settings.opsm
        weights_BT = batch.columns.get("weights")
        if delta is None and (weights_BT is not None or mismatch is None):
            return weights_BT
        columns = logprobs_BT, batch.columns["sampled"], batch.columns["advantages"], batch.loss_mask_BT
        logprobs, sampled, advantages, mask = map(sequences.concatenate_rows_of_units, columns)
        if mismatch and weights_BT is None:
            weights_BT = sequences.split_units_into_rows(mismatch_weights(mismatch, logprobs, sampled, mask))
        if delta is None:
            return weights_BT
        remaining_BT = sequences.split_units_into_rows(
            off_policy_sequence_mask(logprobs, sampled, advantages, mask, delta)
        )
        return remaining_BT.float() if weights_BT is None else weights_BT * remaining_BT
