"""Mixers of value decomposition: they combine the agents' utilities into the value of the joint action.

Shapes: B = rounds, A = seats, E = embedding width of a mixer, S = size of a round's state.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class VdnMixer(nn.Module):
    """VDN mixer (arXiv 1706.05296): Q_tot is the sum of the utilities."""

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Return Q_tot [B] for the utilities `q` [B, A]."""
        return q.sum(1)

    def counterfactual_gaps(self, q: Tensor, v: Tensor, state: Tensor) -> Tensor:
        """Return [B, A]: Q_tot(q) minus Q_tot with one agent's utility replaced by that agent's `v`."""
        return q - v


class QmixMixer(nn.Module):
    """QMIX mixer (arXiv 1803.11485): hidden = ELU(q |W1(s)| + b1(s)), Q_tot = hidden |w2(s)| + V(s).

    Hypernetworks compute W1, w2 and V (Linear-ReLU-Linear) and b1 (Linear). The absolute values make Q_tot increase
    with every utility. Time and memory grow linearly with the number of seats.
    """

    def __init__(self, seats: int, state: int, embed: int, width: int) -> None:
        super().__init__()
        self.w1, self.b1 = two_layer_relu(state, width, seats * embed), nn.Linear(state, embed)
        self.w2, self.bias = two_layer_relu(state, width, embed), two_layer_relu(state, embed)

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Return Q_tot [B] for the utilities `q` [B, A] and states [B, S]."""
        w1, b1, w2, bias = self._weights(q, state)
        hidden = functional.elu((q[:, None] @ w1)[:, 0] + b1)
        return (hidden * w2).sum(1) + bias

    def counterfactual_gaps(self, q: Tensor, v: Tensor, state: Tensor) -> Tensor:
        """Return [B, A]: Q_tot(q) minus Q_tot with one agent's utility replaced by that agent's `v`."""
        w1, b1, w2, _ = self._weights(q, state)
        hidden = (q[:, None] @ w1)[:, 0] + b1
        without = hidden[:, None] + (v - q)[..., None] * w1
        return ((functional.elu(hidden)[:, None] - functional.elu(without)) * w2[:, None]).sum(2)

    def _weights(self, q: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return W1 [B, A, E], b1 [B, E], w2 [B, E] and V [B]."""
        # An empty seat has utility 0, so its row of W1 does not matter.
        w1 = self.w1(state).abs().unflatten(1, (q.shape[1], -1))
        return w1, self.b1(state), self.w2(state).abs(), self.bias(state)[:, 0]


def two_layer_relu(inputs: int, width: int, outputs: int = 1) -> nn.Sequential:
    """Return a network with one hidden ReLU layer of `width` units, as in QMIX's hypernetworks."""
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))
