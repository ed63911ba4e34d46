"""COMA's central critic.

Shapes: B rounds, A seats, W width, D numbers of a message, n turns of one kind, K alternatives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from credit.mixing.networks import Batch, Networks

if TYPE_CHECKING:
    from credit.mixing.record import Kind, Layout

_MESSAGE = 32
"""Numbers in which an agent's action reaches the judgement of another's."""


class _Reader(nn.Module):
    """How turns of one kind enter the critic: as what is judged, and as what others did meanwhile."""

    def __init__(self, layout: Layout, kind: Kind, width: int) -> None:
        super().__init__()
        size = layout.size(kind)
        self.asked, self.said = nn.Linear(size + layout.place, width), nn.Linear(size, width, bias=False)
        self.message = nn.Linear(size, _MESSAGE, bias=False)


class Critic(Networks):
    """Q(s, a) as each agent of a round sees it: its own question and answer, what the others said, the round's state.

    Its first layer is linear in all of them, so that another answer is judged without reading the rest anew. Time
    grows with the number of seats, not with its square.
    """

    def __init__(self, layout: Layout, width: int) -> None:
        super().__init__()
        self._layout, self._width = layout, width
        seats = len(layout.seats)
        self._state = nn.Linear(layout.state, width)
        self._others = nn.Linear(seats * _MESSAGE, width, bias=False)
        self._tail = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self._readers: list[_Reader] = []

    def grow(self, kind: Kind) -> None:
        """Understand turns of one more kind."""
        reader = _Reader(self._layout, kind, self._width)
        self.add_module(f"reader_{len(self._readers)}", reader)
        self._readers.append(reader)

    def given(self, batch: Batch) -> Tensor:
        """[B, A, W] all that an agent's answer is judged with."""
        record = batch.record
        asked = [self._readers[kind].asked(record.asked[kind][rows]) for kind, _, rows in batch.kinds]
        messages = [self._readers[kind].message(record.said[kind][rows]) for kind, _, rows in batch.kinds]
        heard = torch.einsum("bad,wad->baw", batch.spread(messages), self._others.weight.unflatten(1, (-1, _MESSAGE)))
        others = heard.sum(1, keepdim=True) - heard
        return batch.spread(asked) + others + self._state(batch.state)[:, None]

    def answers(self, kind: int, said: Tensor) -> Tensor:
        """[..., W] what an answer of a kind [..., size] adds to what is given."""
        return self._readers[kind].said(said)

    def judged(self, given: Tensor) -> Tensor:
        """[...] Q of what is given [..., W], an answer included."""
        return self._tail(given)[..., 0]

    def values(self, batch: Batch) -> Tensor:
        """[turns] Q of what was said, in the order of `batch.present`."""
        said = [self.answers(kind, batch.record.said[kind][rows]) for kind, _, rows in batch.kinds]
        return self.judged((self.given(batch) + batch.spread(said))[batch.present])

    def total(self, batch: Batch) -> Tensor:
        """[B] the mean over the agents of each round."""
        return self.each(batch).sum(1) / batch.present.sum(1)

    def each(self, batch: Batch) -> Tensor:
        """[B, A] Q of what was said; 0 where nobody spoke."""
        return torch.zeros(batch.present.shape).masked_scatter(batch.present, self.values(batch))

    def loss(self, batch: Batch, targets: Tensor) -> Tensor:
        """Mean over turns of (target - Q)^2."""
        wanted = targets[:, None].expand(batch.turns.shape)
        return functional.mse_loss(self.values(batch), wanted[batch.present])
