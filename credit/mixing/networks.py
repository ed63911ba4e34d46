"""Networks: utilities of turns and how they mix into the value of a round (VDN, QMIX), and COMA's central critic.

Shapes in comments and docstrings: B rounds, A seats, K moves that a turn could have made, E width of a mixer, S size
of a round's state, W width of the critic, D numbers of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from credit.mixing.records import Kind, Layout, Record
    from marl.models.mixers import QmixMixer, VdnMixer

_MESSAGE = 32
"""Numbers in which an agent's completion reaches the value of another's."""


class RoundBatch:
    """Some rounds of a record, and where their turns of each kind stand."""

    def __init__(self, record: Record, rounds: Tensor | None = None) -> None:
        """`rounds`: their places; None: all."""
        self.record = record
        self.turns = record.turns if rounds is None else record.turns[rounds]
        self.state = record.state if rounds is None else record.state[rounds]
        self.present = self.turns >= 0
        flat = self.turns.flatten()
        kinds = torch.where(flat >= 0, record.kind[flat], -1)
        self.kinds: list[tuple[int, Tensor, Tensor]] = []
        """(kind, places in the flattened [B, A], rows of the kind), for each kind that is here."""
        for kind in range(len(record.prompts)):
            places = (kinds == kind).nonzero()[:, 0]
            if len(places):
                self.kinds.append((kind, places, record.row[flat[places]]))

    def spread(self, values: Sequence[Tensor]) -> Tensor:
        """Return [B, A, ...] from one tensor [turns of the kind, ...] for each of `kinds`; 0 at empty seats."""
        whole = torch.zeros(self.turns.numel(), *values[0].shape[1:])
        places = torch.cat([places for _, places, _ in self.kinds])
        return whole.index_put((places,), torch.cat(list(values))).unflatten(0, self.turns.shape)


class Networks(nn.Module):
    """Base of the networks that can be fitted."""

    def grow(self, kind: Kind) -> None:
        """Add what it takes to read turns of one more kind."""
        raise NotImplementedError

    def total(self, batch: RoundBatch) -> Tensor:
        """Return [B], the values of rounds with the moves that were made in them."""
        raise NotImplementedError

    def loss(self, batch: RoundBatch, targets: Tensor) -> Tensor:
        """Return the loss; `targets`: [B]."""
        raise NotImplementedError


class Mixture(Networks):
    """Utilities for each kind of turn, and a mixer."""

    def __init__(self, layout: Layout, mixer: VdnMixer | QmixMixer, width: int) -> None:
        super().__init__()
        self._layout, self._width, self.mixer = layout, width, mixer
        self._heads: list[nn.ModuleDict] = []
        """For each kind: Q of prompt and completion, V of the prompt alone."""

    def grow(self, kind: Kind) -> None:
        prompt, completion = self._layout.size(kind) + self._layout.place, self._layout.size(kind)
        head = nn.ModuleDict({"q": smooth(prompt + completion, self._width), "v": smooth(prompt, self._width)})
        self.add_module(f"head_{len(self._heads)}", head)
        self._heads.append(head)

    def utilities(self, batch: RoundBatch) -> tuple[Tensor, Tensor]:
        """Return Q and V of each turn, [B, A]; 0 at empty seats."""
        q, v = [], []
        for kind, _, rows in batch.kinds:
            prompts, completions = batch.record.prompts[kind][rows], batch.record.completions[kind][rows]
            q.append(self._heads[kind]["q"](torch.cat([prompts, completions], 1))[:, 0])
            v.append(self._heads[kind]["v"](prompts)[:, 0])
        return batch.spread(q), batch.spread(v)

    def move_utilities(self, batch: RoundBatch) -> Tensor:
        """Return [B, A, K], Q of each move that a turn could have made; -inf where there is none.

        For turns whose texts are read.
        """
        record, utilities = batch.record, []
        for kind, places, rows in batch.kinds:
            options = record.options[batch.turns.flatten()[places]]
            completions = record.choices[options.clamp(min=0)]
            prompts = record.prompts[kind][rows][:, None].expand(-1, options.shape[1], -1)
            q = self._heads[kind]["q"](torch.cat([prompts, completions], 2))[..., 0]
            utilities.append(q.masked_fill(options < 0, -torch.inf))
        return batch.spread(utilities)

    def total(self, batch: RoundBatch) -> Tensor:
        return self.mixer(self.utilities(batch)[0], batch.state)

    def loss(self, batch: RoundBatch, targets: Tensor) -> Tensor:
        """Return the mean over rounds of (target - Q_tot)^2, plus the mean over turns of (V - Q)^2.

        Q is held fixed in the latter, so that V is the mean of Q over what could have been said.
        """
        q, v = self.utilities(batch)
        error = (v - q.detach())[batch.present]
        return functional.mse_loss(self.mixer(q, batch.state), targets) + error.square().mean()

    def marginals(self, batch: RoundBatch) -> Tensor:
        """Return [B, A]: by how much each turn's utility, instead of its V, raises Q_tot."""
        return self.mixer.marginals(*self.utilities(batch), batch.state)


class CentralCritic(Networks):
    """COMA's critic: Q(s, a) from an agent's prompt and completion, the other completions and the round's state.

    Its first layer is linear in all of them, so that another completion is judged without reading the rest anew. Time
    grows with the number of seats, not with its square.
    """

    def __init__(self, layout: Layout, width: int) -> None:
        super().__init__()
        self._layout, self._width = layout, width
        self._state = nn.Linear(layout.state, width)
        # Modules are named as in checkpoints.
        self.add_module("_others", nn.Linear(len(layout.seats) * _MESSAGE, width, bias=False))
        self._tail = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self._readers: list[nn.ModuleDict] = []

    def grow(self, kind: Kind) -> None:
        size, width = self._layout.size(kind), self._width
        reader = nn.ModuleDict(
            {
                "asked": nn.Linear(size + self._layout.place, width),
                "said": nn.Linear(size, width, bias=False),
                "message": nn.Linear(size, _MESSAGE, bias=False),
            }
        )
        self.add_module(f"reader_{len(self._readers)}", reader)
        self._readers.append(reader)

    def context(self, batch: RoundBatch) -> Tensor:
        """Return [B, A, W], all that an agent's completion is judged with."""
        record = batch.record
        prompts = [self._readers[kind]["asked"](record.prompts[kind][rows]) for kind, _, rows in batch.kinds]
        messages = [self._readers[kind]["message"](record.completions[kind][rows]) for kind, _, rows in batch.kinds]
        weights = self.get_parameter("_others.weight").unflatten(1, (-1, _MESSAGE))
        from_each = torch.einsum("bad,wad->baw", batch.spread(messages), weights)
        from_peers = from_each.sum(1, keepdim=True) - from_each
        return batch.spread(prompts) + from_peers + self._state(batch.state)[:, None]

    def encode(self, kind: int, completions: Tensor) -> Tensor:
        """Return [..., W], what completions of a kind [..., size] add to the context."""
        return self._readers[kind]["said"](completions)

    def value(self, features: Tensor) -> Tensor:
        """Return [...], Q of contexts with completions [..., W]."""
        return self._tail(features)[..., 0]

    def values(self, batch: RoundBatch) -> Tensor:
        """Return [turns], Q of what was said, in the order of `batch.present`."""
        completions = [self.encode(kind, batch.record.completions[kind][rows]) for kind, _, rows in batch.kinds]
        return self.value((self.context(batch) + batch.spread(completions))[batch.present])

    def total(self, batch: RoundBatch) -> Tensor:
        """Return [B], the mean over the agents of each round."""
        return self.by_seat(batch).sum(1) / batch.present.sum(1)

    def by_seat(self, batch: RoundBatch) -> Tensor:
        """Return [B, A], Q of what was said; 0 at empty seats."""
        return torch.zeros(batch.present.shape).masked_scatter(batch.present, self.values(batch))

    def loss(self, batch: RoundBatch, targets: Tensor) -> Tensor:
        """Return the mean over turns of (target - Q)^2."""
        expanded = targets[:, None].expand(batch.turns.shape)
        return functional.mse_loss(self.values(batch), expanded[batch.present])


def counterfactual(chosen: Tensor, alternatives: Tensor, chances: Tensor) -> Tensor:
    """Return Q(s, a) - sum over a' of pi(a') Q(s, (a_-i, a')) (COMA, arXiv 1705.08926, equation 4).

    Args:
        chosen: [...] Q of what was done.
        alternatives: [..., K] Q with one agent's action replaced by each that it could have taken.
        chances: [..., K] how likely it is to take each; 0 for those that are not open. They sum to 1.
    """
    return chosen - (alternatives * chances).sum(-1)


def smooth(inputs: int, width: int) -> nn.Sequential:
    """Return a network with one hidden layer and one output.

    Not rectified: with few and much alike inputs, all units of a rectified layer may be on, and then the layer is
    linear and never learns that the same move is worth more at one seat than at another.
    """
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, 1))
