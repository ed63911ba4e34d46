"""What is fitted: utilities of turns, and how they mix into one value of a round.

Shapes in comments and docstrings: B rounds, A seats, K moves that a turn could have made, E width of a mixer, S size
of a round's state, N turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from credit.mixing.record import Kind, Layout, Record


class Networks(nn.Module):
    """What can be fitted."""

    def grow(self, kind: Kind) -> None:
        """Understand turns of one more kind."""
        raise NotImplementedError

    def total(self, batch: Batch) -> Tensor:
        """[B] what rounds are worth, with what was said in them."""
        raise NotImplementedError

    def loss(self, batch: Batch, targets: Tensor) -> Tensor:
        """What is minimised; `targets`: [B]."""
        raise NotImplementedError


class Batch:
    """Some rounds of a record, and where their turns of each kind stand."""

    def __init__(self, record: Record, rounds: Tensor | None = None) -> None:
        """`rounds`: which; None: all."""
        self.record = record
        self.turns = record.turns if rounds is None else record.turns[rounds]
        self.state = record.state if rounds is None else record.state[rounds]
        self.present = self.turns >= 0
        flat = self.turns.flatten()
        kinds = torch.where(flat >= 0, record.kind[flat], -1)
        self.kinds: list[tuple[int, Tensor, Tensor]] = []
        """(kind, places in the flattened [B, A], rows of the kind), for each kind that is here."""
        for kind in range(len(record.asked)):
            places = (kinds == kind).nonzero()[:, 0]
            if len(places):
                self.kinds.append((kind, places, record.row[flat[places]]))

    def spread(self, values: Sequence[Tensor]) -> Tensor:
        """[B, A, ...] from one tensor [turns of the kind, ...] for each of `kinds`; 0 at empty seats."""
        whole = torch.zeros(self.turns.numel(), *values[0].shape[1:])
        places = torch.cat([places for _, places, _ in self.kinds])
        return whole.index_put((places,), torch.cat(list(values))).unflatten(0, self.turns.shape)


class Utility(nn.Module):
    """What turns of one kind add: Q of what was asked and said, V of what was asked alone."""

    def __init__(self, layout: Layout, kind: Kind, width: int) -> None:
        super().__init__()
        asked, said = layout.size(kind) + layout.place, layout.size(kind)
        self.q, self.v = smooth(asked + said, width), smooth(asked, width)


class Sum(nn.Module):
    """VDN (arXiv 1706.05296): Q_tot = sum of the utilities."""

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """[B] from utilities [B, A]."""
        return q.sum(1)

    def marginals(self, q: Tensor, v: Tensor, state: Tensor) -> Tensor:
        """[B, A]: Q_tot(q) minus Q_tot with one agent's utility replaced by its `v`."""
        return q - v


class Monotonic(nn.Module):
    """QMIX (arXiv 1803.11485): hidden = ELU(q |W1(s)| + b1(s)), Q_tot = hidden |w2(s)| + V(s).

    W1 and w2 come from hypernetworks Linear-ReLU-Linear, b1 from a Linear, V from Linear-ReLU-Linear. Their absolute
    values make Q_tot rise with every utility. Time and memory grow with the number of seats, not with its square.
    """

    def __init__(self, seats: int, state: int, embed: int, width: int) -> None:
        super().__init__()
        self.w1, self.b1 = rectified(state, width, seats * embed), nn.Linear(state, embed)
        self.w2, self.bias = rectified(state, width, embed), rectified(state, embed)

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """[B] from utilities [B, A] and states [B, S]."""
        w1, b1, w2, bias = self._weights(q, state)
        hidden = functional.elu((q[:, None] @ w1)[:, 0] + b1)
        return (hidden * w2).sum(1) + bias

    def marginals(self, q: Tensor, v: Tensor, state: Tensor) -> Tensor:
        """[B, A]: Q_tot(q) minus Q_tot with one agent's utility replaced by its `v`."""
        w1, b1, w2, _ = self._weights(q, state)
        now = (q[:, None] @ w1)[:, 0] + b1
        without = now[:, None] + (v - q)[..., None] * w1
        return ((functional.elu(now)[:, None] - functional.elu(without)) * w2[:, None]).sum(2)

    def _weights(self, q: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[B, A, E], [B, E], [B, E] and [B]; an empty seat's utility is 0, so that its weights do not matter."""
        w1 = self.w1(state).abs().unflatten(1, (q.shape[1], -1))
        return w1, self.b1(state), self.w2(state).abs(), self.bias(state)[:, 0]


class Mixture(Networks):
    """Utilities for each kind of turn, and a mixer."""

    def __init__(self, layout: Layout, mixer: Sum | Monotonic, width: int) -> None:
        super().__init__()
        self._layout, self._width, self.mixer = layout, width, mixer
        self._heads: list[Utility] = []

    def grow(self, kind: Kind) -> None:
        """Have utilities for one more kind."""
        head = Utility(self._layout, kind, self._width)
        self.add_module(f"head_{len(self._heads)}", head)
        self._heads.append(head)

    def utilities(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Q and V of each turn, [B, A]; 0 at empty seats."""
        q, v = [], []
        for kind, _, rows in batch.kinds:
            asked, said = batch.record.asked[kind][rows], batch.record.said[kind][rows]
            q.append(self._heads[kind].q(torch.cat([asked, said], 1))[:, 0])
            v.append(self._heads[kind].v(asked)[:, 0])
        return batch.spread(q), batch.spread(v)

    def possible(self, batch: Batch) -> Tensor:
        """[B, A, K] Q of each move that a turn could have made; -inf where there is none. For turns whose texts are
        read."""
        record, found = batch.record, []
        for kind, places, rows in batch.kinds:
            options = record.options[batch.turns.flatten()[places]]
            said = record.choices[options.clamp(min=0)]
            asked = record.asked[kind][rows][:, None].expand(-1, options.shape[1], -1)
            q = self._heads[kind].q(torch.cat([asked, said], 2))[..., 0]
            found.append(q.masked_fill(options < 0, -torch.inf))
        return batch.spread(found)

    def total(self, batch: Batch) -> Tensor:
        """[B] Q_tot of what was said."""
        return self.mixer(self.utilities(batch)[0], batch.state)

    def loss(self, batch: Batch, targets: Tensor) -> Tensor:
        """Mean over rounds of (target - Q_tot)^2, plus mean over turns of (V - Q)^2 with Q held fixed, so that V is
        the mean of Q over what could have been said."""
        q, v = self.utilities(batch)
        behind = (v - q.detach())[batch.present]
        return functional.mse_loss(self.mixer(q, batch.state), targets) + behind.square().mean()

    def marginals(self, batch: Batch) -> Tensor:
        """[B, A]: by how much each turn's utility, instead of its V, raises Q_tot."""
        return self.mixer.marginals(*self.utilities(batch), batch.state)


def smooth(inputs: int, width: int) -> nn.Sequential:
    """One hidden layer, one number. Not rectified: with few and much alike inputs, all units of a rectified layer may
    be on, and then the layer is linear and never learns that the same move is worth more at one seat than at another.
    """
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, 1))


def rectified(inputs: int, width: int, outputs: int = 1) -> nn.Sequential:
    """One hidden layer, as in QMIX's hypernetworks."""
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))
