"""Mixers of value decomposition, which combine the agents' utilities into the value of the joint action.

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

    def counterfactual_q_differences(self, q: Tensor, v: Tensor, state: Tensor) -> Tensor:
        """Return, for each agent [B, A], Q_tot(q) minus Q_tot with the agent's utility replaced by its entry in `v`."""
        return q - v


class QmixMixer(nn.Module):
    """QMIX mixer (arXiv 1803.11485): hidden = ELU(q |W1(s)| + b1(s)), Q_tot = hidden |w2(s)| + V(s).

    Hypernetworks compute W1, w2 and V (Linear-ReLU-Linear) and b1 (Linear). The absolute values make Q_tot increase
    with every utility. Time and memory grow linearly with the number of seats.
    """

    def __init__(self, agent_count: int, state: int, embedding_size: int, width: int) -> None:
        super().__init__()
        self.w1, self.b1 = (
            two_layer_relu_network(state, width, agent_count * embedding_size),
            nn.Linear(state, embedding_size),
        )
        self.w2, self.bias = (
            two_layer_relu_network(state, width, embedding_size),
            two_layer_relu_network(state, embedding_size),
        )

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Return Q_tot [B] for the utilities `q` [B, A] and states [B, S]."""
        w1, b1, w2, bias = self._mixing_weights(q, state)
        hidden = functional.elu((q[:, None] @ w1)[:, 0] + b1)
        return (hidden * w2).sum(1) + bias

    def counterfactual_q_differences(self, q: Tensor, v: Tensor, state: Tensor) -> Tensor:
        """Return, for each agent [B, A], Q_tot(q) minus Q_tot with the agent's utility replaced by its entry in `v`."""
        w1, b1, w2, _ = self._mixing_weights(q, state)
        hidden = (q[:, None] @ w1)[:, 0] + b1
        without = hidden[:, None] + (v - q)[..., None] * w1
        return ((functional.elu(hidden)[:, None] - functional.elu(without)) * w2[:, None]).sum(2)

    def _mixing_weights(self, q: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the outputs of the hypernetworks for each state: W1 [B, A, E], b1 [B, E], w2 [B, E] and V [B]."""
        # The rows of W1 for empty seats have no effect, because the utility of an empty seat is 0.
        w1 = self.w1(state).abs().unflatten(1, (q.shape[1], -1))
        return w1, self.b1(state), self.w2(state).abs(), self.bias(state)[:, 0]


def two_layer_relu_network(input_width: int, hidden_width: int, output_width: int = 1) -> nn.Sequential:
    """Return a network from `input_width` to `output_width` units with a hidden ReLU layer of `hidden_width`."""
    return nn.Sequential(nn.Linear(input_width, hidden_width), nn.ReLU(), nn.Linear(hidden_width, output_width))
