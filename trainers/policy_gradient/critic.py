"""Critics: value heads, and the value loss that is added to a policy's loss. Values are in units of rewards."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn

from marl.core.types import Sample
from marl.protocols import LearnerBuildArguments
from marl.trainers.batching.aggregation import MinibatchTotals, masked_difference, masked_sum, to_float32_or_wider
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import MISSING_VALUE, BatchRow, TokenValues, checked_token_values, column_means
from marl.trainers.forward.attention import has_dropout, reason_packing_is_unsupported
from marl.trainers.forward.model_inputs import HiddenStates, enable_checkpointing_and_compile, hidden_states
from marl.trainers.forward.token_outputs import TokenOutputs
from marl.trainers.objective import LossTerms
from marl.trainers.optim.settings import GradientLearnerConfig
from marl.trainers.policy_gradient.critic_settings import CriticConfig

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/value_loss | loss | of the critic (`ppo`, `awr`, `sft` with a `critic`), before its coefficient
policy/POLICY/value_clip_fraction | share of tokens | the clipped value error was the greater one
"""

TARGETS_COLUMN, OLD_VALUES = "targets", "values"


class ValueHead(nn.Module):
    """Linear value head on the last hidden states of the policy, or of a separate model (`body`).

    The head's initial weights are zeros, so that all initial values are 0, and the first gradients do not reach the
    hidden states.
    """

    def __init__(self, model: Any, body: Any | None = None, *, detach: bool = False) -> None:
        """`model` is the policy, whose hidden states are used unless a `body` is given. `detach`: stop their
        gradient."""
        super().__init__()
        embeddings = (model if body is None else body).get_output_embeddings().weight
        # The critic's head computes in float32 or wider, as its loss does.
        dtype = torch.promote_types(embeddings.dtype, torch.float32)
        self.head = nn.Linear(embeddings.shape[1], 1, device=embeddings.device, dtype=dtype)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)
        self.body, self._detach = body, detach
        if body is not None:
            # The critic's body never generates text, so its output layer is removed to save memory.
            body.set_output_embeddings(nn.Identity())
        self.train()

    def forward(self, states_XH: Tensor) -> Tensor:
        """Return [X], the values of hidden states."""
        return self.head(to_float32_or_wider(states_XH)).squeeze(-1)

    def values(self, policy_states: HiddenStates, batch: Batch) -> Tensor:
        """Return [B, T], the value of the state from which each completion token was sampled."""
        states = policy_states if self.body is None else hidden_states(self.body, batch.inputs)
        states_NH = states.tokens_NH.detach() if self._detach else states.tokens_NH
        return batch.scatter_token_values(self(states_NH))

    @torch.no_grad()
    def read_values(self, policy_states: HiddenStates, batch: Batch) -> dict[str, Tensor]:
        """Return `values` [B, T] and the value after the last token, `next_value` [B]; without gradient and dropout."""
        self.eval()
        states = policy_states if self.body is None else hidden_states(self.body, batch.inputs)
        self.train()
        assert states.ends_B2H is not None
        return {"values": batch.scatter_token_values(self(states.tokens_NH)), "next_value": self(states.ends_B2H[:, 1])}

    def supports_packing(self) -> bool:
        """Return True unless a separate body cannot read packed sequences with shared prefixes."""
        return self.body is None or not (reason_packing_is_unsupported(self.body) or has_dropout(self.body))


def value_loss(
    values_BT: Tensor, targets_BT: Tensor, old_values_BT: Tensor, mask_BT: Tensor, clip_range: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return loss_BT = ½ max((v - R)², (v_clipped - R)²) of values v and targets R, and clipped_BT.

    v_clipped is v clamped to `old_values_BT` ± `clip_range` (as in OpenAI's `baselines`). Without `clip_range`, the
    loss is ½ (v - R)². clipped_BT is True where the second term is greater: there the loss has no gradient.
    """
    square_BT = masked_difference(values_BT, targets_BT, mask_BT).square()
    if clip_range is None:
        return square_BT / 2, torch.zeros_like(mask_BT)
    with torch.no_grad():
        old_values_BT = to_float32_or_wider(old_values_BT)
        # v is clamped itself: adding a rounded distance to `old_values_BT` could change a v that is within bounds.
        bounded_BT = to_float32_or_wider(values_BT).clamp(old_values_BT - clip_range, old_values_BT + clip_range)
        bounded_square_BT = masked_difference(bounded_BT, targets_BT, mask_BT).square()
        clipped_BT = bounded_square_BT > square_BT
    return torch.where(clipped_BT, bounded_square_BT, square_BT) / 2, clipped_BT


class ValueLoss:
    """Critic's term of a policy's loss: coefficient * mean of `value_loss` over the minibatch's tokens with a target.

    During the critic's warm-up the policy has no gradient.
    """

    loss_term_names = ("value_loss", "value_clip_fraction")

    def __init__(self, settings: CriticConfig, critic: ValueHead, lr: float) -> None:
        """`lr` is the policy's learning rate."""
        self.critic, self._settings = critic, settings
        self.needed_reading_fields = frozenset({"values"} if settings.clip is not None else ())
        self.lr_scale = {"critic": (settings.lr or lr) / lr}
        self.modules = {"critic": critic}
        self._warming_up = False

    @classmethod
    def from_config(
        cls, critic: CriticConfig, settings: GradientLearnerConfig, context: LearnerBuildArguments, model: Any
    ) -> Self:
        """Build a critic of the policy `model`, and return its loss. `settings` are the policy's learner settings.

        Raises:
            ValueError: if the critic's initial weights have another tokenizer than the policy.
        """
        source = context.source
        if critic.where == "trunk":
            return cls(critic, ValueHead(model, detach=critic.detach), settings.lr)
        if (other := critic.model) is not None:
            source = other.source(context.policy, other.path, trust_remote_code=other.trust_remote_code)
            if source.tokenizer().get_vocab() != context.source.tokenizer().get_vocab():
                raise ValueError(
                    f"policy {context.policy!r}: critic.model: {other.path!r} has another tokenizer than the policy; "
                    "choices: a model with the same one, or none: the policy's own weights"
                )
        body = source.model()
        enable_checkpointing_and_compile(body, settings)
        return cls(critic, ValueHead(model, body), settings.lr)

    def prepare_update(self, update_index: int) -> None:
        self._warming_up = update_index < self._settings.warm_up

    def no_policy_gradient_in_warm_up(self) -> AbstractContextManager[Any]:
        """Return the context of the policy's forward pass: without gradient during the critic's warm-up."""
        return torch.set_grad_enabled(torch.is_grad_enabled() and not self._warming_up)

    def value_targets_of_sample(self, sample: Sample) -> TokenValues:
        """Return the value targets of `sample`, since only samples with equal targets may share a row."""
        return sample.advantage.returns

    def add_value_targets(self, rows: Sequence[BatchRow]) -> list[BatchRow]:
        """Return rows with a column of value targets and, if the loss clips, a column of values read before the update.

        Raises:
            ValueError: if no sample has a value target, or if a sample has more than one, but not one per token.
        """
        samples = list(chain.from_iterable(row.samples for row in rows))
        if samples and not any(sample.advantage.returns for sample in samples):
            raise ValueError(
                f"a critic learns from value targets, but credit gave none of {len(samples)} turns any, such as turn "
                f"{samples[0].id}; choices: credit.assign: gae or chain_gae, credit.baseline: value"
            )
        valued_rows: list[BatchRow] = []
        for row in rows:
            # `value_targets_of_sample` is part of the merge key, so merged samples have equal targets.
            sample, returns = row.samples[0], row.samples[0].advantage.returns
            if len(returns) > 1:
                checked_token_values(sample, returns, "advantage.returns")
            targets = [MISSING_VALUE] * len(row.token_ids)
            for t, in_loss in enumerate(row.loss_mask or (True,) * len(row.token_ids)):
                # A turn's single target is for the state before its first token, even if that token was inserted.
                if t < len(returns) and (in_loss or len(returns) == 1):
                    targets[t] = returns[t]
            columns = {**row.columns, TARGETS_COLUMN: tuple(targets)}
            if self._settings.clip is not None:
                read_values: list[TokenValues] = []
                for merged in row.samples:
                    if merged.reading is None or merged.reading.values is None:
                        raise ValueError(f"critic.clip needs the values read of turn {merged.id}, got none")
                    read_values.append(checked_token_values(merged, merged.reading.values, "reading.values"))
                columns[OLD_VALUES] = column_means(read_values)
            valued_rows.append(replace(row, columns=columns))
        return valued_rows

    def add_value_loss(
        self, terms: LossTerms, outputs: TokenOutputs, batch: Batch, totals: MinibatchTotals
    ) -> LossTerms:
        """Return the policy's `terms` with the value loss added, for the forward pass with `outputs`."""
        targets_BT = batch.columns[TARGETS_COLUMN]
        mask_BT = batch.mask_BT & ~targets_BT.isnan()
        values_BT = self.critic.values(outputs.states, batch)
        old_BT = batch.columns.get(OLD_VALUES, targets_BT)
        loss_BT, clipped_BT = value_loss(values_BT, targets_BT, old_BT, mask_BT, self._settings.clip)
        scale_B = batch.counts_B / max(totals.column_counts[TARGETS_COLUMN], 1)
        value_B, clipped_B = scale_B * masked_sum(loss_BT, mask_BT), scale_B * masked_sum(clipped_BT, mask_BT)
        figures = {**terms.loss_terms, "value_loss": value_B.sum(), "value_clip_fraction": clipped_B.sum()}
        return replace(terms, loss_B=terms.loss_B + self._settings.coefficient * value_B, loss_terms=figures)
