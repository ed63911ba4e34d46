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
"""Number of features of an agent's encoded completion that the values of the other agents read."""


class RoundBatch:
    """Batch of rounds from a record, with the indices of the batch's turns by kind of turn."""

    def __init__(self, record: RoundTensors, rounds: Tensor | None = None) -> None:
        """`rounds`: indices of the rounds in `record`, or None for all rounds."""
        self.record = record
        self.turns = record.turns if rounds is None else record.turns[rounds]
        self.state = record.state if rounds is None else record.state[rounds]
        self.present = self.turns >= 0
        flat = self.turns.flatten()
        kinds = torch.where(flat >= 0, record.kind[flat], -1)
        self.kinds: list[tuple[int, Tensor, Tensor]] = []
        """For each kind of turns in the batch: (kind, indices of its turns in the flattened [B, A], their rows in the
        record's tensors of the kind)."""
        for kind in range(len(record.prompts)):
            cells = (kinds == kind).nonzero()[:, 0]
            if len(cells):
                self.kinds.append((kind, cells, record.row[flat[cells]]))

    def scatter_turn_values_to_seats(self, values_by_kind: Sequence[Tensor]) -> Tensor:
        """Return `values_by_kind` (per kind, a tensor [turns of the kind, ...]) as one tensor [B, A, ...]; 0 at empty
        seats."""
        zeros = torch.zeros(self.turns.numel(), *values_by_kind[0].shape[1:])
        cells = torch.cat([cells for _, cells, _ in self.kinds])
        return zeros.index_put((cells,), torch.cat(list(values_by_kind))).unflatten(0, self.turns.shape)


class UtilityNetworks(nn.Module):
    """VDN's and QMIX's networks: utilities Q and V of turns for each kind of turn, and a mixer."""

    def __init__(self, layout: FeatureLayout, mixer: VdnMixer | QmixMixer, width: int) -> None:
        super().__init__()
        self._layout, self._width, self.mixer = layout, width, mixer
        self._heads: list[nn.ModuleDict] = []
        """For each kind of turn: a head for Q of prompt and completion, and a head for V of the prompt alone."""

    def add_turn_kind_layers(self, kind: TurnKind) -> None:
        """Add the heads of one more kind of turn."""
        completion = self._layout.completion_feature_count(kind)
        prompt = completion + self._layout.position_feature_count
        head = nn.ModuleDict(
            {
                "q": two_layer_silu_network(prompt + completion, self._width),
                "v": two_layer_silu_network(prompt, self._width),
            }
        )
        self.add_module(f"head_{len(self._heads)}", head)
        self._heads.append(head)

    def q_and_v_utilities(self, batch: RoundBatch) -> tuple[Tensor, Tensor]:
        """Return Q and V of each turn, [B, A]; 0 at empty seats."""
        q, v = [], []
        for kind, _, rows in batch.kinds:
            prompts, completions = batch.record.prompts[kind][rows], batch.record.completions[kind][rows]
            q.append(self._heads[kind]["q"](torch.cat([prompts, completions], 1))[:, 0])
            v.append(self._heads[kind]["v"](prompts)[:, 0])
        return batch.scatter_turn_values_to_seats(q), batch.scatter_turn_values_to_seats(v)

    def legal_move_utilities(self, batch: RoundBatch) -> Tensor:
        """Return Q of each legal move, [B, A, K]; -inf pads turns with fewer than K moves.

        All turns must have text features.
        """
        record, utilities = batch.record, []
        for kind, cells, rows in batch.kinds:
            options = record.options[batch.turns.flatten()[cells]]
            completions = record.choices[options.clamp(min=0)]
            prompts = record.prompts[kind][rows][:, None].expand(-1, options.shape[1], -1)
            q = self._heads[kind]["q"](torch.cat([prompts, completions], 2))[..., 0]
            utilities.append(q.masked_fill(options < 0, -torch.inf))
        return batch.scatter_turn_values_to_seats(utilities)

    def round_values(self, batch: RoundBatch) -> Tensor:
        """Return Q_tot of each round with its recorded moves, [B]."""
        return self.mixer(self.q_and_v_utilities(batch)[0], batch.state)

    def loss(self, batch: RoundBatch, targets: Tensor) -> Tensor:
        """Return the mean over rounds of (target - Q_tot)^2, plus the mean over turns of (V - Q)^2.

        Q has no gradient in the second term, so that V is the mean of Q over the answers of the policy.
        """
        q, v = self.q_and_v_utilities(batch)
        error = (v - q.detach())[batch.present]
        return functional.mse_loss(self.mixer(q, batch.state), targets) + error.square().mean()

    def marginal_contributions(self, batch: RoundBatch) -> Tensor:
        """Return [B, A], each turn's marginal contribution: Q_tot minus Q_tot with the turn's Q replaced by its V."""
        return self.mixer.counterfactual_q_differences(*self.q_and_v_utilities(batch), batch.state)


class CentralCritic(nn.Module):
    """COMA's critic: Q(s, a) from an agent's prompt and completion, the other completions and the round's state.

    Its first layer is linear in all inputs, so that another completion is evaluated without encoding the other inputs
    again. Computing time is linear in the number of seats.
    """

    def __init__(self, layout: FeatureLayout, width: int) -> None:
        super().__init__()
        self._layout, self._width = layout, width
        self._state = nn.Linear(layout.round_state_feature_count, width)
        # The module is called `_others`, because existing checkpoints use this name.
        self.add_module("_others", nn.Linear(len(layout.seats) * _MESSAGE, width, bias=False))
        self._tail = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self._readers: list[nn.ModuleDict] = []

    def add_turn_kind_layers(self, kind: TurnKind) -> None:
        """Add the input layers of one more kind of turn."""
        size, width = self._layout.completion_feature_count(kind), self._width
        reader = nn.ModuleDict(
            {
                "asked": nn.Linear(size + self._layout.position_feature_count, width),
                "said": nn.Linear(size, width, bias=False),
                "message": nn.Linear(size, _MESSAGE, bias=False),
            }
        )
        self.add_module(f"reader_{len(self._readers)}", reader)
        self._readers.append(reader)

    def encode_contexts(self, batch: RoundBatch) -> Tensor:
        """Return the encoding of all inputs except the agent's own completion, [B, A, W]."""
        prompts: list[Tensor] = []
        messages: list[Tensor] = []
        for kind, _, rows in batch.kinds:
            prompts.append(self._readers[kind]["asked"](batch.record.prompts[kind][rows]))
            messages.append(self._readers[kind]["message"](batch.record.completions[kind][rows]))
        weights = self.get_parameter("_others.weight").unflatten(1, (-1, _MESSAGE))
        from_each = torch.einsum("bad,wad->baw", batch.scatter_turn_values_to_seats(messages), weights)
        # The sum over the other agents is the sum over all agents minus the agent's own term.
        from_peers = from_each.sum(1, keepdim=True) - from_each
        return batch.scatter_turn_values_to_seats(prompts) + from_peers + self._state(batch.state)[:, None]

    def encode_completions(self, kind_index: int, completions: Tensor) -> Tensor:
        """Return the encodings [..., W] of a kind's completions [..., size], to be added to contexts."""
        return self._readers[kind_index]["said"](completions)

    def q_values(self, features: Tensor) -> Tensor:
        """Return Q [...] of `features` [..., W]: encoded contexts plus encoded completions."""
        return self._tail(features)[..., 0]

    def recorded_q_values(self, batch: RoundBatch) -> Tensor:
        """Return Q of the recorded completions, [turns], in the order of `batch.present`."""
        completions = [
            self.encode_completions(kind, batch.record.completions[kind][rows]) for kind, _, rows in batch.kinds
        ]
        return self.q_values(
            (self.encode_contexts(batch) + batch.scatter_turn_values_to_seats(completions))[batch.present]
        )

    def round_values(self, batch: RoundBatch) -> Tensor:
        """Return the mean of Q over the agents of each round, [B]."""
        return self.recorded_q_by_seat(batch).sum(1) / batch.present.sum(1)

    def recorded_q_by_seat(self, batch: RoundBatch) -> Tensor:
        """Return Q of the recorded completions, [B, A]; 0 at empty seats."""
        return torch.zeros(batch.present.shape).masked_scatter(batch.present, self.recorded_q_values(batch))

    def loss(self, batch: RoundBatch, targets: Tensor) -> Tensor:
        """Return the mean over turns of (target - Q)^2."""
        expanded = targets[:, None].expand(batch.turns.shape)
        return functional.mse_loss(self.recorded_q_values(batch), expanded[batch.present])


Networks = UtilityNetworks | CentralCritic
"""Networks that a credit rule fits to rounds: both predict the value of each round."""


def counterfactual_advantage(chosen_q: Tensor, alternative_q: Tensor, probabilities: Tensor) -> Tensor:
    """Return Q(s, a) - sum over a' of pi(a') Q(s, (a_-i, a')) (COMA, arXiv 1705.08926, equation 4).

    Args:
        chosen_q: [...] Q of the recorded action.
        alternative_q: [..., K] Q with one agent's action replaced by each alternative.
        probabilities: [..., K] probabilities of the alternatives, which sum to 1; 0 for padding.
    """
    return chosen_q - (alternative_q * probabilities).sum(-1)


def two_layer_silu_network(input_size: int, hidden_size: int) -> nn.Sequential:
    """Return a network with one hidden layer, one output, and the activation SiLU.

    With few and similar inputs, all units of a ReLU layer may be on. Such a layer is linear, and never learns that the
    same move is worth more at one seat than at another.
    """
    return nn.Sequential(nn.Linear(input_size, hidden_size), nn.SiLU(), nn.Linear(hidden_size, 1))
