"""PPO (arXiv 1707.06347): a policy gradient, and a critic that learns beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from marl.types import Sample
from trainers.batching.batches import Batch
from trainers.batching.rows import ABSENT, Floats, Row, checked, mean_of
from trainers.forward.critic import Critic
from trainers.forward.token_outputs import Said
from trainers.losses.aggregation import Totals, masked_sum
from trainers.losses.policy import value_loss
from trainers.objectives.objective import Terms
from trainers.objectives.policy_gradient import Surrogate

if TYPE_CHECKING:
    from trainers.settings import Ppo

TARGETS, OLD_VALUES = "targets", "values"


class ActorCritic(Surrogate):
    """The policy's loss + coefficient * mean over all tokens with a target of 1/2 max((v - R)^2, (v_near - R)^2).

    The mean is over the whole minibatch's samples. During the critic's warm-up the policy has no gradient at all.
    """

    def __init__(self, settings: Ppo, model: nn.Module, critic: Critic, steps: int) -> None:
        super().__init__(settings, model, steps)
        self.critic, self._settings = critic, settings.critic
        self.parts = (*self.parts, "value_loss", "value_clip_fraction")
        if self._settings.clip is not None:
            self.needs |= {"values"}
        self.lr_scale = {"critic": (self._settings.lr or settings.lr) / settings.lr}
        self._warming = False

    def modules(self) -> Mapping[str, nn.Module]:
        """The critic."""
        return {"critic": self.critic}

    def start(self, update: int) -> None:
        """The warm-up ends after so many updates."""
        super().start(update)
        self._warming = update < self._settings.warm_up

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Samples with equal tokens, signs and value targets become one row.

        Raises:
            ValueError: if no sample has a value target, or one has neither one a token nor a single one.
        """
        if samples and not any(sample.advantage.returns for sample in samples):
            raise ValueError(
                f"a critic learns from value targets, but credit gave none of {len(samples)} turns any, such as turn "
                f"{samples[0].id}; choices: credit.assign: gae or chain_gae, credit.baseline: value"
            )
        alike: dict[Floats, list[Sample]] = {}
        for sample in samples:
            alike.setdefault(sample.advantage.returns, []).append(sample)
        return [self._valued(row) for members in alike.values() for row in super(ActorCritic, self).rows(members)]

    def spoken(self, model: nn.Module, batch: Batch) -> Said:
        """The forward pass; through which no gradient flows in the warm-up, neither the policy's nor the values'."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._warming):
            return super().spoken(model, batch)

    def judged(self, spoken: Said, batch: Batch, totals: Totals) -> Terms:
        """The policy's loss and the critic's."""
        terms = super().judged(spoken, batch, totals)
        value_B, clipped_B = self._value_loss(spoken, batch, totals)
        parts = {**terms.parts, "value_loss": value_B.sum(), "value_clip_fraction": clipped_B.sum()}
        return Terms(terms.loss_B + self._settings.coefficient * value_B, parts, terms.stats)

    def read(self, spoken: Said, batch: Batch, wanted: frozenset[str]) -> dict[str, Tensor]:
        """Values, if they are wanted."""
        found = super().read(spoken, batch, wanted)
        return found | (self.critic.read(spoken.states, batch) if "values" in wanted else {})

    def _valued(self, row: Row) -> Row:
        """With value targets, absent where there is none, and the values read before the update."""
        columns = {TARGETS: tuple(_targets(row))}
        if self._settings.clip is not None:
            columns[OLD_VALUES] = mean_of([_read_values(sample) for sample in row.samples])
        return replace(row, columns={**row.columns, **columns})

    def _value_loss(self, spoken: Said, batch: Batch, totals: Totals) -> tuple[Tensor, Tensor]:
        """[B] each row's share of the mean loss, and of the mean of what was clipped."""
        targets_BT = batch.columns[TARGETS]
        mask_BT = batch.counted_BT & ~targets_BT.isnan()
        values_BT = self.critic.before(spoken.states, batch)
        old_BT = batch.columns.get(OLD_VALUES, targets_BT)
        loss_BT, clipped_BT = value_loss(values_BT, targets_BT, old_BT, mask_BT, self._settings.clip)
        scale_B = batch.counts_B / max(totals.columns[TARGETS], 1)
        return scale_B * masked_sum(loss_BT, mask_BT), scale_B * masked_sum(clipped_BT, mask_BT)


def _targets(row: Row) -> Iterator[float]:
    """One number a token that the loss looks at, where there is one. Merged samples have the same."""
    sample = row.samples[0]
    returns = sample.advantage.returns
    if len(returns) > 1:
        checked(sample, returns, "advantage.returns")
    for t, counted in enumerate(row.counted or (True,) * len(row.token_ids)):
        yield returns[t] if counted and t < len(returns) else ABSENT


def _read_values(sample: Sample) -> Floats:
    """Raises:
    ValueError: if the sample was read without values.
    """
    if sample.reading is None or sample.reading.values is None:
        raise ValueError(f"critic.clip needs the values read of turn {sample.id}, got none")
    return checked(sample, sample.reading.values, "reading.values")
