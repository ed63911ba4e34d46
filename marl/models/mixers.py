"""Mixers of value decomposition: utilities of agents -> the value of what they do together.

Shapes: B rounds, A seats, E width of a mixer, S size of a round's state.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class VdnMixer(nn.Module):
    """VDN (arXiv 1706.05296): Q_tot = sum of the utilities."""

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Return [B] from utilities [B, A]."""
        return q.sum(1)

    def marginals(self, q: Tensor, v: Tensor, state: Tensor) -> Tensor:
        """Return [B, A]: Q_tot(q) minus Q_tot with one agent's utility replaced by its `v`."""
        return q - v


class QmixMixer(nn.Module):
    """QMIX (arXiv 1803.11485): hidden = ELU(q |W1(s)| + b1(s)), Q_tot = hidden |w2(s)| + V(s).

    W1 and w2 come from hypernetworks Linear-ReLU-Linear, b1 from a Linear, V from Linear-ReLU-Linear. Their absolute
    values make Q_tot rise with every utility. Time and memory grow with the number of seats, not with its square.
    """

    def __init__(self, seats: int, state: int, embed: int, width: int) -> None:
        super().__init__()
        self.w1, self.b1 = rectified(state, width, seats * embed), nn.Linear(state, embed)
        self.w2, self.bias = rectified(state, width, embed), rectified(state, embed)

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Return [B] from utilities [B, A] and states [B, S]."""
        w1, b1, w2, bias = self._weights(q, state)
        hidden = functional.elu((q[:, None] @ w1)[:, 0] + b1)
        return (hidden * w2).sum(1) + bias

    def marginals(self, q: Tensor, v: Tensor, state: Tensor) -> Tensor:
        """Return [B, A]: Q_tot(q) minus Q_tot with one agent's utility replaced by its `v`."""
        w1, b1, w2, _ = self._weights(q, state)
        now = (q[:, None] @ w1)[:, 0] + b1
        without = now[:, None] + (v - q)[..., None] * w1
        return ((functional.elu(now)[:, None] - functional.elu(without)) * w2[:, None]).sum(2)

    def _weights(self, q: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return [B, A, E], [B, E], [B, E] and [B]; an empty seat's utility is 0, so its weights do not matter."""
        w1 = self.w1(state).abs().unflatten(1, (q.shape[1], -1))
        return w1, self.b1(state), self.w2(state).abs(), self.bias(state)[:, 0]


def rectified(inputs: int, width: int, outputs: int = 1) -> nn.Sequential:
    """Return a network with one hidden layer, as in QMIX's hypernetworks."""
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))
