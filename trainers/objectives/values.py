"""Critics: heads that estimate values, and the loss that they learn by, a part of other losses. In units of rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from marl.protocols import LearnerContext
from marl.types import Sample
from trainers.batching.batches import Batch
from trainers.batching.rows import ABSENT, Floats, Row, mean_of, per_token
from trainers.forward.attention import has_dropout, packing_obstacle
from trainers.forward.model_inputs import HiddenStates, hidden_states, prepare_layers
from trainers.forward.token_outputs import TokenOutputs
from trainers.losses.aggregation import Totals, masked_sum, widened
from trainers.losses.policy import value_loss
from trainers.objectives.objective import LossTerms

if TYPE_CHECKING:
    from trainers.settings.critics import CriticSettings
    from trainers.settings.optimisation import Optimisation

TARGETS, OLD_VALUES = "targets", "values"


class ValueHead(nn.Module):
    """A linear value head on last hidden states: the policy's, or those of a separate body.

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
        return self.head(widened(states_XH)).squeeze(-1)

    def values(self, policy_states: HiddenStates, batch: Batch) -> Tensor:
        """Return [B, T], the value of the state before each completion token."""
        states_NH = self._states(policy_states, batch).tokens_NH
        return batch.spread(self(states_NH.detach() if self._detach else states_NH))

    @torch.no_grad()
    def read(self, policy_states: HiddenStates, batch: Batch) -> dict[str, Tensor]:
        """Return `values` [B, T] and `next_value` [B] of a batch that is laid out with its ends; without dropout."""
        self.eval()
        states = self._states(policy_states, batch)
        self.train()
        assert states.ends_B2H is not None
        return {"values": batch.spread(self(states.tokens_NH)), "next_value": self(states.ends_B2H[:, 1])}

    def packs(self) -> bool:
        """Return whether its body, if it has one, can read packed sequences with shared prefixes."""
        return self.body is None or not (packing_obstacle(self.body) or has_dropout(self.body))

    def _states(self, policy_states: HiddenStates, batch: Batch) -> HiddenStates:
        return policy_states if self.body is None else hidden_states(self.body, batch.inputs)


def build_critic(critic: CriticSettings, settings: Optimisation, context: LearnerContext, model: Any) -> ValueHead:
    """Return the critic of the policy `model`; a separate body runs with the policy's `settings` for layers.

    Raises:
        ValueError: if other weights than the policy's have another tokenizer.
    """
    source = context.source
    if critic.where == "trunk":
        return ValueHead(model, detach=critic.detach)
    if (other := critic.model) is not None:
        source = other.source(context.policy, other.path, trust_remote_code=other.trust_remote_code)
        if source.tokenizer().get_vocab() != context.source.tokenizer().get_vocab():
            raise ValueError(
                f"policy {context.policy!r}: critic.model: {other.path!r} has another tokenizer than the policy; "
                "choices: a model with the same one, or none: the policy's own weights"
            )
    body = source.model()
    prepare_layers(body, settings)
    return ValueHead(model, body)


class ValueLoss:
    """A critic's part of a loss: coefficient * mean over tokens with a target of 1/2 max((v - R)^2, (v_near - R)^2).

    The mean is over the whole minibatch's samples. During the critic's warm-up the policy has no gradient at all.
    """

    parts = ("value_loss", "value_clip_fraction")

    def __init__(self, settings: CriticSettings, critic: ValueHead, lr: float) -> None:
        """`lr`: the policy's learning rate."""
        self.critic, self._settings = critic, settings
        self.needs = frozenset({"values"} if settings.clip is not None else ())
        self.lr_scale = {"critic": (settings.lr or lr) / lr}
        self._warming_up = False

    @classmethod
    def of(cls, critic: CriticSettings, settings: Optimisation, context: LearnerContext, model: Any) -> ValueLoss:
        """Return the loss of a new critic of the policy `model`, which learns with `settings`.

        Raises:
            ValueError: as `build_critic`.
        """
        return cls(critic, build_critic(critic, settings, context, model), settings.lr)

    def modules(self) -> Mapping[str, nn.Module]:
        return {"critic": self.critic}

    def start(self, update: int) -> None:
        self._warming_up = update < self._settings.warm_up

    def policy_gradient(self) -> AbstractContextManager[Any]:
        """Return a context for the policy's own pass: during the warm-up without gradient."""
        return torch.set_grad_enabled(torch.is_grad_enabled() and not self._warming_up)

    def alike(self, sample: Sample) -> Floats:
        """Return the value targets, which a row has once."""
        return sample.advantage.returns

    def with_targets(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows with the value targets of their tokens.

        Raises:
            ValueError: if no sample has a value target, or if one has neither one for each token nor a single one.
        """
        samples = [sample for row in rows for sample in row.samples]
        if samples and not any(sample.advantage.returns for sample in samples):
            raise ValueError(
                f"a critic learns from value targets, but credit gave none of {len(samples)} turns any, such as turn "
                f"{samples[0].id}; choices: credit.assign: gae or chain_gae, credit.baseline: value"
            )
        return [self._add_targets(row) for row in rows]

    def added(self, terms: LossTerms, outputs: TokenOutputs, batch: Batch, totals: Totals) -> LossTerms:
        """Return a loss with the critic's added."""
        targets_BT = batch.columns[TARGETS]
        mask_BT = batch.loss_mask_BT & ~targets_BT.isnan()
        values_BT = self.critic.values(outputs.states, batch)
        old_BT = batch.columns.get(OLD_VALUES, targets_BT)
        loss_BT, clipped_BT = value_loss(values_BT, targets_BT, old_BT, mask_BT, self._settings.clip)
        scale_B = batch.counts_B / max(totals.columns[TARGETS], 1)
        value_B, clipped_B = scale_B * masked_sum(loss_BT, mask_BT), scale_B * masked_sum(clipped_BT, mask_BT)
        parts = {**terms.parts, "value_loss": value_B.sum(), "value_clip_fraction": clipped_B.sum()}
        return replace(terms, loss_B=terms.loss_B + self._settings.coefficient * value_B, parts=parts)

    def read(self, outputs: TokenOutputs, batch: Batch, wanted: frozenset[str]) -> dict[str, Tensor]:
        """Return `values` and `next_value` if they are wanted."""
        return self.critic.read(outputs.states, batch) if "values" in wanted else {}

    def _add_targets(self, row: Row) -> Row:
        """Return the row with the value targets of its tokens in the loss, which merged samples have in common, and
        with the values read before the update if they bound the new ones."""
        sample, returns = row.samples[0], row.samples[0].advantage.returns
        if len(returns) > 1:
            per_token(sample, returns, "advantage.returns")
        mask = enumerate(row.loss_mask or (True,) * len(row.token_ids))
        columns = {TARGETS: tuple(returns[t] if in_loss and t < len(returns) else ABSENT for t, in_loss in mask)}
        if self._settings.clip is not None:
            columns[OLD_VALUES] = mean_of([_read_values(sample) for sample in row.samples])
        return replace(row, columns={**row.columns, **columns})


def _read_values(sample: Sample) -> Floats:
    if sample.reading is None or sample.reading.values is None:
        raise ValueError(f"critic.clip needs the values read of turn {sample.id}, got none")
    return per_token(sample, sample.reading.values, "reading.values")
