"""Critics: heads that estimate values, and the value loss added to other losses. Values are in units of rewards."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from marl.core.types import Sample
from marl.protocols import LearnerContext
from marl.trainers.batching.aggregation import MinibatchTotals, masked_difference, masked_sum, to_float32
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import MISSING_VALUE, Row, TokenValues, check_per_token, column_means
from marl.trainers.forward.attention import has_dropout, packing_obstacle
from marl.trainers.forward.model_inputs import HiddenStates, enable_checkpointing_and_compile, hidden_states
from marl.trainers.forward.token_outputs import TokenOutputs
from marl.trainers.objective import LossTerms
from marl.trainers.optim.settings import GradientLearnerConfig
from marl.trainers.policy_gradient.critic_settings import CriticConfig

TARGETS_COLUMN, OLD_VALUES = "targets", "values"


class ValueHead(nn.Module):
    """Linear value head on last hidden states: the policy's, or those of a separate body.

    Its weights start as zeros, so that the first advantages are the rewards themselves, and the first gradients leave
    the states below unchanged.
    """

    def __init__(self, model: Any, body: Any | None = None, *, detach: bool = False) -> None:
        """`model` is the policy, whose states are read unless there is a `body`."""
        super().__init__()
        embeddings = (model if body is None else body).get_output_embeddings().weight
        # At least float32, as the loss is.
        dtype = torch.promote_types(embeddings.dtype, torch.float32)
        self.head = nn.Linear(embeddings.shape[1], 1, device=embeddings.device, dtype=dtype)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)
        self.body, self._detach = body, detach
        if body is not None:
            # It never generates: an output layer as large as its vocabulary would only take up memory.
            body.set_output_embeddings(nn.Identity())
        self.train()

    def forward(self, states_XH: Tensor) -> Tensor:
        """Return [X], values of states."""
        return self.head(to_float32(states_XH)).squeeze(-1)

    def values(self, policy_states: HiddenStates, batch: Batch) -> Tensor:
        """Return [B, T], the value of the state before each completion token."""
        states = policy_states if self.body is None else hidden_states(self.body, batch.inputs)
        states_NH = states.tokens_NH.detach() if self._detach else states.tokens_NH
        return batch.scatter_tokens(self(states_NH))

    @torch.no_grad()
    def read(self, policy_states: HiddenStates, batch: Batch) -> dict[str, Tensor]:
        """Return `values` [B, T] and `next_value` [B] without dropout, for a batch laid out with `ends_B2`."""
        self.eval()
        states = policy_states if self.body is None else hidden_states(self.body, batch.inputs)
        self.train()
        assert states.ends_B2H is not None
        return {"values": batch.scatter_tokens(self(states.tokens_NH)), "next_value": self(states.ends_B2H[:, 1])}

    def supports_packing(self) -> bool:
        """Return True unless a separate body cannot read packed sequences with shared prefixes."""
        return self.body is None or not (packing_obstacle(self.body) or has_dropout(self.body))


def value_loss(
    values_BT: Tensor, targets_BT: Tensor, old_BT: Tensor, mask_BT: Tensor, clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return loss_BT = ½ max((v - R)², (v_near - R)²), and True where the second term, without gradient, is greater.

    v_near is v brought within `clip` of `old_BT` (as in OpenAI's `baselines`); without `clip`, the loss is ½ (v - R)².
    """
    square_BT = masked_difference(values_BT, targets_BT, mask_BT).square()
    if clip is None:
        return square_BT / 2, torch.zeros_like(mask_BT)
    with torch.no_grad():
        old_BT = to_float32(old_BT)
        # v is bounded, not its distance from `old_BT`, which is rounded: within the bounds v_near is v itself.
        near_BT = to_float32(values_BT).clamp(old_BT - clip, old_BT + clip)
        near_square_BT = masked_difference(near_BT, targets_BT, mask_BT).square()
        clipped_BT = near_square_BT > square_BT
    return torch.where(clipped_BT, near_square_BT, square_BT) / 2, clipped_BT


class ValueLoss:
    """The critic's term of a loss: coefficient * mean over tokens with a target of 1/2 max((v - R)^2, (v_near - R)^2).

    The mean is over the samples of the whole minibatch. During the critic's warm-up the policy has no gradient at all.
    """

    loss_term_names = ("value_loss", "value_clip_fraction")

    def __init__(self, settings: CriticConfig, critic: ValueHead, lr: float) -> None:
        """`lr` is the policy's learning rate."""
        self.critic, self._settings = critic, settings
        self.needs = frozenset({"values"} if settings.clip is not None else ())
        self.lr_scale = {"critic": (settings.lr or lr) / lr}
        self.modules = {"critic": critic}
        self._warming_up = False

    @classmethod
    def from_config(
        cls, critic: CriticConfig, settings: GradientLearnerConfig, context: LearnerContext, model: Any
    ) -> Self:
        """Return the loss of a new critic of the policy `model`; a separate body runs with the policy's `settings`.

        Raises:
            ValueError: if weights other than the policy's have another tokenizer.
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

    def before_update(self, update: int) -> None:
        self._warming_up = update < self._settings.warm_up

    def policy_gradient(self) -> AbstractContextManager[Any]:
        """Return a context for the policy's own forward pass: without gradient during the critic's warm-up."""
        return torch.set_grad_enabled(torch.is_grad_enabled() and not self._warming_up)

    def merge_key(self, sample: Sample) -> TokenValues:
        """Return the value targets of `sample`: samples with other targets cannot share a row."""
        return sample.advantage.returns

    def add_value_targets(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows with the value targets of their tokens in the loss.

        Where `clip` bounds new values, rows also get the values read before the update.

        Raises:
            ValueError: if no sample has a value target, or if one has neither one for each token nor a single one.
        """
        samples = [sample for row in rows for sample in row.samples]
        if samples and not any(sample.advantage.returns for sample in samples):
            raise ValueError(
                f"a critic learns from value targets, but credit gave none of {len(samples)} turns any, such as turn "
                f"{samples[0].id}; choices: credit.assign: gae or chain_gae, credit.baseline: value"
            )
        valued_rows: list[Row] = []
        for row in rows:
            # Merged samples have equal targets, see `merge_key`.
            sample, returns = row.samples[0], row.samples[0].advantage.returns
            if len(returns) > 1:
                check_per_token(sample, returns, "advantage.returns")
            targets = [MISSING_VALUE] * len(row.token_ids)
            for t, in_loss in enumerate(row.loss_mask or (True,) * len(row.token_ids)):
                if in_loss and t < len(returns):
                    targets[t] = returns[t]
            columns = {**row.columns, TARGETS_COLUMN: tuple(targets)}
            if self._settings.clip is not None:
                columns[OLD_VALUES] = column_means([_read_values(sample) for sample in row.samples])
            valued_rows.append(replace(row, columns=columns))
        return valued_rows

    def add_value_loss(
        self, terms: LossTerms, outputs: TokenOutputs, batch: Batch, totals: MinibatchTotals
    ) -> LossTerms:
        """Return `terms` with the critic's loss added."""
        targets_BT = batch.columns[TARGETS_COLUMN]
        mask_BT = batch.loss_mask_BT & ~targets_BT.isnan()
        values_BT = self.critic.values(outputs.states, batch)
        old_BT = batch.columns.get(OLD_VALUES, targets_BT)
        loss_BT, clipped_BT = value_loss(values_BT, targets_BT, old_BT, mask_BT, self._settings.clip)
        scale_B = batch.counts_B / max(totals.column_counts[TARGETS_COLUMN], 1)
        value_B, clipped_B = scale_B * masked_sum(loss_BT, mask_BT), scale_B * masked_sum(clipped_BT, mask_BT)
        figures = {**terms.loss_terms, "value_loss": value_B.sum(), "value_clip_fraction": clipped_B.sum()}
        return replace(terms, loss_B=terms.loss_B + self._settings.coefficient * value_B, loss_terms=figures)


def _read_values(sample: Sample) -> TokenValues:
    if sample.reading is None or sample.reading.values is None:
        raise ValueError(f"critic.clip needs the values read of turn {sample.id}, got none")
    return check_per_token(sample, sample.reading.values, "reading.values")
