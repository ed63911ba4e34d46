"""Networks: utilities of turns with a mixer for the value of a round (VDN, QMIX), and COMA's central critic.

Shapes in comments and docstrings: B rounds, A seats, K legal moves of a turn, E width of a mixer, S size
of a round's state, W width of the critic, D numbers of a message.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from marl.credit.mixing.round_tensors import FeatureLayout, RoundTensors, TurnKind
from marl.models.mixers import QmixMixer, VdnMixer

_MESSAGE = 32
"""Number of features of an agent's completion in the values of the other agents."""


class RoundBatch:
    """Some rounds of a record, with the positions of their turns by kind."""

    def __init__(self, record: RoundTensors, rounds: Tensor | None = None) -> None:
        """`rounds`: indices of the rounds; None: all rounds."""
        self.record = record
        self.turns = record.turns if rounds is None else record.turns[rounds]
        self.state = record.state if rounds is None else record.state[rounds]
        self.present = self.turns >= 0
        flat = self.turns.flatten()
        kinds = torch.where(flat >= 0, record.kind[flat], -1)
        self.kinds: list[tuple[int, Tensor, Tensor]] = []
        """(kind, indices in the flattened [B, A], rows of the kind), for each kind that occurs."""
        for kind in range(len(record.prompts)):
            cells = (kinds == kind).nonzero()[:, 0]
            if len(cells):
                self.kinds.append((kind, cells, record.row[flat[cells]]))

    def spread(self, values: Sequence[Tensor]) -> Tensor:
        """Return [B, A, ...] from one tensor [turns of the kind, ...] for each of `kinds`; 0 at empty seats."""
        zeros = torch.zeros(self.turns.numel(), *values[0].shape[1:])
        cells = torch.cat([cells for _, cells, _ in self.kinds])
        return zeros.index_put((cells,), torch.cat(list(values))).unflatten(0, self.turns.shape)


class Networks(nn.Module):
    """Base of fitted networks."""

    def grow(self, kind: TurnKind) -> None:
        """Add input layers for one more kind of turns."""
        raise NotImplementedError

    def total(self, batch: RoundBatch) -> Tensor:
        """Return the values of rounds with their recorded moves, [B]."""
        raise NotImplementedError

    def loss(self, batch: RoundBatch, targets: Tensor) -> Tensor:
        """Return the loss; `targets`: [B]."""
        raise NotImplementedError


class UtilityNetworks(Networks):
    """Utilities for each kind of turn, and a mixer."""

    def __init__(self, layout: FeatureLayout, mixer: VdnMixer | QmixMixer, width: int) -> None:
        super().__init__()
        self._layout, self._width, self.mixer = layout, width, mixer
        self._heads: list[nn.ModuleDict] = []
        """For each kind: Q of prompt and completion, V of the prompt alone."""

    def grow(self, kind: TurnKind) -> None:
        prompt, completion = self._layout.size(kind) + self._layout.position_size, self._layout.size(kind)
        head = nn.ModuleDict({"q": mlp(prompt + completion, self._width), "v": mlp(prompt, self._width)})
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
        """Return Q of each legal move, [B, A, K]; -inf pads turns with fewer moves. Only for turns with text
        features."""
        record, utilities = batch.record, []
        for kind, cells, rows in batch.kinds:
            options = record.options[batch.turns.flatten()[cells]]
            completions = record.choices[options.clamp(min=0)]
            prompts = record.prompts[kind][rows][:, None].expand(-1, options.shape[1], -1)
            q = self._heads[kind]["q"](torch.cat([prompts, completions], 2))[..., 0]
            utilities.append(q.masked_fill(options < 0, -torch.inf))
        return batch.spread(utilities)

    def total(self, batch: RoundBatch) -> Tensor:
        return self.mixer(self.utilities(batch)[0], batch.state)

    def loss(self, batch: RoundBatch, targets: Tensor) -> Tensor:
        """Return the mean over rounds of (target - Q_tot)^2, plus the mean over turns of (V - Q)^2.

        Q has no gradient in the second term, so that V is the mean of Q over the answers of the policy.
        """
        q, v = self.utilities(batch)
        error = (v - q.detach())[batch.present]
        return functional.mse_loss(self.mixer(q, batch.state), targets) + error.square().mean()

    def marginals(self, batch: RoundBatch) -> Tensor:
        """Return the increase of Q_tot by each turn's utility in place of its V, [B, A]."""
        return self.mixer.counterfactual_gaps(*self.utilities(batch), batch.state)


class CentralCritic(Networks):
    """COMA's critic: Q(s, a) from an agent's prompt and completion, the other completions and the round's state.

    Its first layer is linear in all inputs, so that another completion is evaluated without encoding the other inputs
    again. Time grows with the number of seats, not with its square.
    """

    def __init__(self, layout: FeatureLayout, width: int) -> None:
        super().__init__()
        self._layout, self._width = layout, width
        self._state = nn.Linear(layout.state_size, width)
        # Modules are named as in checkpoints.
        self.add_module("_others", nn.Linear(len(layout.seats) * _MESSAGE, width, bias=False))
        self._tail = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self._readers: list[nn.ModuleDict] = []

    def grow(self, kind: TurnKind) -> None:
        size, width = self._layout.size(kind), self._width
        reader = nn.ModuleDict(
            {
                "asked": nn.Linear(size + self._layout.position_size, width),
                "said": nn.Linear(size, width, bias=False),
                "message": nn.Linear(size, _MESSAGE, bias=False),
            }
        )
        self.add_module(f"reader_{len(self._readers)}", reader)
        self._readers.append(reader)

    def context(self, batch: RoundBatch) -> Tensor:
        """Return the encoding of all inputs except the agent's own completion, [B, A, W]."""
        record = batch.record
        prompts = [self._readers[kind]["asked"](record.prompts[kind][rows]) for kind, _, rows in batch.kinds]
        messages = [self._readers[kind]["message"](record.completions[kind][rows]) for kind, _, rows in batch.kinds]
        weights = self.get_parameter("_others.weight").unflatten(1, (-1, _MESSAGE))
        from_each = torch.einsum("bad,wad->baw", batch.spread(messages), weights)
        from_peers = from_each.sum(1, keepdim=True) - from_each
        return batch.spread(prompts) + from_peers + self._state(batch.state)[:, None]

    def encode(self, kind: int, completions: Tensor) -> Tensor:
        """Return the encoding of completions [..., size] of a kind, [..., W], which is added to the context."""
        return self._readers[kind]["said"](completions)

    def value(self, features: Tensor) -> Tensor:
        """Return [...], Q of contexts with completions [..., W]."""
        return self._tail(features)[..., 0]

    def values(self, batch: RoundBatch) -> Tensor:
        """Return Q of the recorded completions, [turns], in the order of `batch.present`."""
        completions = [self.encode(kind, batch.record.completions[kind][rows]) for kind, _, rows in batch.kinds]
        return self.value((self.context(batch) + batch.spread(completions))[batch.present])

    def total(self, batch: RoundBatch) -> Tensor:
        """Return the mean of Q over the agents of each round, [B]."""
        return self.by_seat(batch).sum(1) / batch.present.sum(1)

    def by_seat(self, batch: RoundBatch) -> Tensor:
        """Return Q of the recorded completions, [B, A]; 0 at empty seats."""
        return torch.zeros(batch.present.shape).masked_scatter(batch.present, self.values(batch))

    def loss(self, batch: RoundBatch, targets: Tensor) -> Tensor:
        """Return the mean over turns of (target - Q)^2."""
        expanded = targets[:, None].expand(batch.turns.shape)
        return functional.mse_loss(self.values(batch), expanded[batch.present])


def counterfactual(chosen: Tensor, alternatives: Tensor, chances: Tensor) -> Tensor:
    """Return Q(s, a) - sum over a' of pi(a') Q(s, (a_-i, a')) (COMA, arXiv 1705.08926, equation 4).

    Args:
        chosen: [...] Q of the recorded action.
        alternatives: [..., K] Q with one agent's action replaced by each alternative.
        chances: [..., K] probabilities of the alternatives, which sum to 1; 0 for padding.
    """
    return chosen - (alternatives * chances).sum(-1)


def mlp(inputs: int, width: int) -> nn.Sequential:
    """Return a network with one hidden layer and one output.

    Not rectified: with few and much alike inputs, all units of a rectified layer may be on, and then the layer is
    linear and never learns that the same move is worth more at one seat than at another.
    """
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, 1))
