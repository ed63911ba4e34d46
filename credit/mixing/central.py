"""COMA at work.

Shapes: M rounds, A seats, n turns of one kind, K alternatives, W width of the critic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from credit.mixing.advantages import counterfactual
from credit.mixing.alternatives import Texts, listed, resampled, siblings
from credit.mixing.critic import Critic
from credit.mixing.encoding import LOUD
from credit.mixing.fitted import Fitted, FittedRule, Plan
from credit.mixing.networks import Batch
from credit.mixing.targets import Returns

if TYPE_CHECKING:
    from credit.assign.coma import Coma
    from credit.mixing.record import Layout, Record
    from marl.protocols import Evidence, Simulator
    from marl.types import Metrics, Turn

_AT_ONCE = 65536
"""Alternatives that are judged in one pass."""

Weighed = Sequence[tuple[int, float]]
"""A turn's alternatives: (place in a table of answers, probability)."""


class Central(FittedRule[Critic]):
    """A turn is worth what it adds to what its agent would have said otherwise, by a critic that was fitted to its step
    before."""

    def __init__(self, settings: Coma) -> None:
        def networks(layout: Layout) -> Critic:
            return Critic(layout, settings.fit.width)

        super().__init__(Plan(settings, networks, Returns(settings.gamma, settings.lam)))
        self._settings = settings
        self._alone = 0.0

    @torch.no_grad()
    def judge(self, fitted: Fitted[Critic], evidence: Evidence, record: Record, turns: Sequence[Turn]) -> Tensor:
        batch, critic = Batch(record), fitted.networks
        texts = self._texts(evidence, turns)
        given = critic.given(batch).flatten(0, 1)
        worth, alone = torch.zeros(len(given)), 0
        for kind, places, rows in batch.kinds:
            here = [turns[place] for place in batch.turns.flatten()[places].tolist()]
            answers = critic.answers(kind, record.said[kind])
            new, weighed = self._weighed(here, rows.tolist(), texts)
            if new:
                answers = torch.cat([answers, critic.answers(kind, LOUD * fitted.encoder.texts(new))])
            worth[places] = _advantages(critic, given[places], answers, rows, weighed)
            alone += sum(not others for others in weighed)
        self._alone = alone / len(turns)
        return worth.unflatten(0, batch.turns.shape)

    def explained(self, fitted: Fitted[Critic], record: Record) -> Tensor:
        return fitted.networks.each(Batch(record))

    def _texts(self, evidence: Evidence, turns: Sequence[Turn]) -> Texts:
        """What turns could have said that nobody said in this step."""
        distinct = {turn.id: turn for turn in turns}.values()
        finite = [turn for turn in distinct if turn.request.options]
        texts = dict(listed(finite, _simulator(evidence))) if finite else {}
        free = [turn for turn in distinct if not turn.request.options]
        if free and self._settings.alternatives == "resample":
            texts |= resampled(free, _simulator(evidence), self._settings.samples, evidence.seed)
        return texts

    def _weighed(
        self, turns: Sequence[Turn], rows: Sequence[int], texts: Texts
    ) -> tuple[Sequence[str], Sequence[Weighed]]:
        """New texts, and each turn's alternatives: places among the answers of the kind, which the new texts follow."""
        row = {turn.id: row for turn, row in zip(turns, rows, strict=True)}
        free = [turn for turn in turns if not turn.request.options]
        like = siblings(free, self._settings.samples) if self._settings.alternatives == "siblings" else {}
        new: dict[str, int] = {}
        weighed: list[Weighed] = []
        for turn in turns:
            if turn.id in texts:
                chances = texts[turn.id].items()
                weighed.append([(len(rows) + new.setdefault(t, len(new)), chance) for t, chance in chances])
            else:
                others = like.get(turn.id, ())
                weighed.append([(row[other], 1 / len(others)) for other in others])
        return list(new), weighed

    def metrics(self) -> Metrics:
        """Those of the fit, and the share of turns that had no alternative."""
        return super().metrics() | ({"credit/coma/alone": self._alone} if self._fitted else {})


def _simulator(evidence: Evidence) -> Simulator:
    if evidence.simulator is None:
        raise ValueError("coma asks policies what else they could have said, and nobody is there to be asked")
    return evidence.simulator


def _advantages(critic: Critic, given: Tensor, answers: Tensor, rows: Tensor, weighed: Sequence[Weighed]) -> Tensor:
    """[n] from what their answers are judged with [n, W], all answers of the kind, their own and the alternatives."""
    wide = max(1, *map(len, weighed))
    padded = [[*others, *[(0, 0.0)] * (wide - len(others))] for others in weighed]
    places = torch.tensor([[place for place, _ in others] for others in padded])
    chances = torch.tensor([[chance for _, chance in others] for others in padded])
    found = []
    for part in torch.arange(len(given)).split(max(1, _AT_ONCE // wide)):
        taken = critic.judged(given[part] + answers[rows[part]])
        others = critic.judged(given[part][:, None] + answers[places[part]])
        found.append(counterfactual(taken, others, chances[part]))
    return torch.where(chances.sum(1) > 0, torch.cat(found), 0.0)
