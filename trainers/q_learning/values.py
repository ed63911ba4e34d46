"""Values of turns and rounds, and the temporal differences between them.

Shapes: N turns, M transitions, A actions, G seats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from marl.models.mixers import QmixMixer, VdnMixer
from marl.models.q_layers import read_texts
from trainers.q_learning.episodes import JointEpisode, Transition

if TYPE_CHECKING:
    from marl.models.decisions import DecisionInput, DecisionTokenizer
    from marl.models.q_network import QNetworkModel
    from marl.protocols import TextEncoder
    from trainers.settings.q_learning import QLearning

Split = Callable[[JointEpisode], list[Transition]]
"""Return what an episode teaches."""


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """Some episodes as tensors."""

    sequences: list[tuple[DecisionInput, ...]]
    """Decisions of each prompt; equal prompts are read once."""
    decisions: list[DecisionInput]
    """The decision of each turn."""
    sequence_N: Tensor
    place_N: Tensor
    action_N: Tensor
    """Places of the moves among the actions."""
    legal_NA: Tensor
    turns_MG: Tensor
    """The turn at each seat; -1 where there is none."""
    reward_M: Tensor
    following_M: Tensor
    """The next transition of the same agents; -1 if there is none."""
    known_M: Tensor
    """True if it is known what followed."""

    def seats(self, values_N: Tensor) -> Tensor:
        """Return [M, G], the values of the turns at each seat; 0 at an empty one."""
        return torch.where(self.turns_MG >= 0, values_N[self.turns_MG.clamp(min=0)], 0.0)


def replay_batch(
    episodes: Sequence[JointEpisode], split: Split, tokenizer: DecisionTokenizer, actions: int
) -> ReplayBatch:
    """Return the tensors of some episodes; `actions`: the number of actions."""
    places: dict[tuple[int, ...], int] = {}
    decisions: list[DecisionInput] = []
    turns: list[tuple[int, int, int]] = []
    transitions: list[tuple[tuple[int, ...], float, int, bool]] = []
    for episode in episodes:
        first_turn, first = len(turns), len(transitions)
        for turn in episode.turns:
            prompt = episode.prompts[turn.sequence]
            turns.append((places.setdefault(prompt, len(places)), turn.place, tokenizer.place(turn.action)))
            decisions.append(tokenizer.decisions(prompt)[turn.place])
        for each in split(episode):
            seats = tuple([_shift(turn, first_turn) for turn in each.turns])
            transitions.append((seats, each.reward, _shift(each.following, first), each.known))
    seats_M, reward_M, following_M, known_M = zip(*transitions, strict=True)
    return ReplayBatch(
        [tokenizer.decisions(prompt) for prompt in places],
        decisions,
        *torch.tensor(turns).unbind(1),
        legal_NA=_legal(decisions, actions),
        turns_MG=torch.tensor(seats_M),
        reward_M=torch.tensor(reward_M, dtype=torch.float32),
        following_M=torch.tensor(following_M),
        known_M=torch.tensor(known_M),
    )


def _legal(decisions: Sequence[DecisionInput], actions: int) -> Tensor:
    """Return [N, A], True for legal moves."""
    legal_NA = torch.zeros(len(decisions), actions, dtype=torch.bool)
    for row, decision in enumerate(decisions):
        legal_NA[row, list(decision.legal)] = True
    return legal_NA


def _shift(place: int, by: int) -> int:
    return place + by if place >= 0 else place


class SingleValue(nn.Module):
    """Values of turns by themselves, each a transition of its own (independent Q-learning)."""

    def forward(self, values_MG: Tensor, batch: ReplayBatch) -> Tensor:
        """Return [M] from the values of the turns."""
        return values_MG[:, 0]


class SumValue(nn.Module):
    """Values of rounds by VDN."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = VdnMixer()

    def forward(self, values_MG: Tensor, batch: ReplayBatch) -> Tensor:
        """Return [M] from the values of the turns at each seat."""
        return self.mixer(values_MG, values_MG)


class MonotoneValue(nn.Module):
    """Values of rounds by QMIX, whose state is the mean of what the agents observe, who decides, and the graph.

    The graph's numbers are the logarithms of 1 + the turns that are heard and 1 + the agents that decide, and the
    density, turns that are heard for each pair of agents (Agent Q-Mix, arXiv 2604.00344).
    """

    def __init__(self, seats: int, model: QNetworkModel, settings: QLearning) -> None:
        super().__init__()
        self.encoder: TextEncoder = model.encoder.build(model.width)
        self.mixer = QmixMixer(seats, model.width + seats + 3, settings.embed, settings.hypernet)

    def forward(self, values_MG: Tensor, batch: ReplayBatch) -> Tensor:
        """Return [M] from the values of the turns at each seat."""
        present_MG = (batch.turns_MG >= 0).float()
        count_M = present_MG.sum(1)
        texts_N = read_texts(self.encoder, [decision.observation for decision in batch.decisions])
        weights_MG = present_MG / count_M[:, None]
        mean_M = (texts_N[batch.turns_MG.clamp(min=0)] * weights_MG[..., None]).sum(1)
        heard_M = batch.seats(torch.tensor([float(len(decision.heard)) for decision in batch.decisions])).sum(1)
        density_M = heard_M / (count_M * (count_M - 1) / 2).clamp(min=1)
        graph_M3 = torch.stack([heard_M.log1p(), count_M.log1p(), density_M], 1)
        return self.mixer(values_MG, torch.cat([mean_M, present_MG, graph_M3], 1))


def temporal_difference_targets(batch: ReplayBatch, next_M: Tensor, gamma: float) -> Tensor:
    """Return [M]: r + gamma times the value of the transition that follows; r where none does.

    `next_M`: the target network's value of each transition with the moves that are best there.
    """
    following = next_M[batch.following_M.clamp(min=0)]
    return batch.reward_M + gamma * torch.where(batch.following_M >= 0, following, 0.0)


def best_values(target_NA: Tensor, chooser_NA: Tensor, legal_NA: Tensor) -> Tensor:
    """Return [N], the target network's value of the legal move that is best by `chooser_NA`.

    With the learning network's values there it is double Q-learning (1509.06461), else the usual maximum.
    """
    best_N1 = chooser_NA.masked_fill(~legal_NA, -torch.inf).argmax(1, keepdim=True)
    return target_NA.gather(1, best_N1)[:, 0]


def difference_loss(values_M: Tensor, targets_M: Tensor, known_M: Tensor, kind: str) -> Tensor:
    """Return the mean loss over transitions of which it is known what followed; 0 if there are none."""
    error_M = values_M - targets_M
    loss_M = error_M.square() / 2 if kind == "mse" else functional.huber_loss(values_M, targets_M, reduction="none")
    return torch.where(known_M, loss_M, 0.0).sum() / known_M.sum().clamp(min=1)
