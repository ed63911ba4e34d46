"""Values of turns and rounds, and their temporal-difference targets and losses.

Shapes: N turns, M transitions, A actions, G seats.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from marl.models.decision_prompts import DecisionTokenizer, QNetworkInput
from marl.models.mixers import QmixMixer, VdnMixer
from marl.models.q_network import QNetworkModel
from marl.models.q_network_modules import encode_texts
from marl.protocols import TextEncoder
from marl.trainers.q_learning.options import QLearningOptions
from marl.trainers.q_learning.transitions import JointEpisode, Transition


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """Sampled episodes of a gradient step as tensors."""

    sequences: list[tuple[QNetworkInput, ...]]
    """Decisions in each distinct prompt."""
    decisions: list[QNetworkInput]
    """Decision of each turn."""
    prompt_index_N: Tensor
    """Index of each turn's prompt in `sequences`."""
    decision_index_N: Tensor
    """Index of each turn's decision among its prompt's decisions."""
    action_N: Tensor
    """Index of each turn's move among the actions."""
    legal_NA: Tensor
    """[N, A], True for the actions that are legal at each turn."""
    turns_MG: Tensor
    """Index of each transition's turn at each seat; -1 at an empty seat."""
    reward_M: Tensor
    next_index_M: Tensor
    """Index of the next transition of the same agents; -1 without a next transition."""
    has_target_M: Tensor
    """True if the transition's target is known: a next transition follows, or the episode terminated."""

    def values_by_seat(self, turn_values_N: Tensor) -> Tensor:
        """Return values of turns as [M, G], by transition and seat; 0 at an empty seat."""
        return torch.where(self.turns_MG >= 0, turn_values_N[self.turns_MG.clamp(min=0)], 0.0)


def collate_replay_batch(
    episodes: Sequence[tuple[JointEpisode, Sequence[Transition]]], tokenizer: DecisionTokenizer, action_count: int
) -> ReplayBatch:
    """Return episodes and their transitions as tensors; `action_count` is the number of actions of the Q-network."""
    prompt_indices: dict[tuple[int, ...], int] = {}
    decisions: list[QNetworkInput] = []
    turns: list[tuple[int, int, int]] = []
    turns_M: list[list[int]] = []
    reward_M: list[float] = []
    next_index_M: list[int] = []
    has_target_M: list[bool] = []
    for episode, transitions in episodes:
        # Indices within an episode are shifted to indices within the batch; -1 (none) stays.
        first_turn, first_transition = len(turns), len(turns_M)
        for turn in episode.turns:
            prompt = episode.prompts[turn.prompt_index]
            prompt_index = prompt_indices.setdefault(prompt, len(prompt_indices))
            turns.append((prompt_index, turn.decision_index, tokenizer.action_index_of_token_id(turn.action)))
            decisions.append(tokenizer.decisions(prompt)[turn.decision_index])
        for transition in transitions:
            turns_M.append([index + first_turn if index >= 0 else index for index in transition.turns])
            reward_M.append(transition.reward)
            following = transition.next_index
            next_index_M.append(following + first_transition if following >= 0 else following)
            has_target_M.append(transition.has_target)
    legal_NA = torch.zeros(len(decisions), action_count, dtype=torch.bool)
    for index, decision in enumerate(decisions):
        legal_NA[index, list(decision.legal)] = True
    return ReplayBatch(
        [tokenizer.decisions(prompt) for prompt in prompt_indices],
        decisions,
        *torch.tensor(turns).unbind(1),
        legal_NA=legal_NA,
        turns_MG=torch.tensor(turns_M),
        reward_M=torch.tensor(reward_M, dtype=torch.float32),
        next_index_M=torch.tensor(next_index_M),
        has_target_M=torch.tensor(has_target_M),
    )


class IndependentTransitionValue(nn.Module):
    """Independent Q-learning: each turn is a transition, and the turn's value is the transition's value."""

    def forward(self, values_MG: Tensor, batch: ReplayBatch) -> Tensor:
        """Return [M]: for each transition of one turn, the Q-value of this turn's action."""
        return values_MG[:, 0]


class VdnRoundValue(nn.Module):
    """Value of a round by VDN: the sum of its turns' values."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = VdnMixer()

    def forward(self, values_MG: Tensor, batch: ReplayBatch) -> Tensor:
        """Return [M], the values of rounds, from the values of their turns by seat."""
        return self.mixer(values_MG, values_MG)


class QmixRoundValue(nn.Module):
    """Value of a round by QMIX. The mixer's state: mean encoded observation, deciding agents, communication graph.

    Features of the graph are log(1 + edges), log(1 + deciding agents), and the density: edges divided by pairs of
    agents (Agent Q-Mix, arXiv 2604.00344). An edge leads to an agent from each turn that it heard.
    """

    def __init__(self, seats: int, model: QNetworkModel, settings: QLearningOptions) -> None:
        super().__init__()
        self.encoder: TextEncoder = model.encoder.build(model.width)
        self.mixer = QmixMixer(seats, model.width + seats + 3, settings.embed, settings.hypernet)

    def forward(self, values_MG: Tensor, batch: ReplayBatch) -> Tensor:
        """Return [M], the values of rounds, from the values of their turns by seat."""
        present_MG = (batch.turns_MG >= 0).float()
        count_M = present_MG.sum(1)
        texts_N = encode_texts(self.encoder, [decision.observation for decision in batch.decisions])
        weights_MG = present_MG / count_M[:, None]
        mean_M = (texts_N[batch.turns_MG.clamp(min=0)] * weights_MG[..., None]).sum(1)
        heard_N = torch.tensor([float(len(decision.heard)) for decision in batch.decisions])
        heard_M = batch.values_by_seat(heard_N).sum(1)
        density_M = heard_M / (count_M * (count_M - 1) / 2).clamp(min=1)
        graph_M3 = torch.stack([heard_M.log1p(), count_M.log1p(), density_M], 1)
        return self.mixer(values_MG, torch.cat([mean_M, present_MG, graph_M3], 1))


def td_targets(batch: ReplayBatch, target_values_M: Tensor, gamma: float) -> Tensor:
    """Return [M], the targets: reward + gamma * value of the next transition, or the reward alone without a next one.

    `target_values_M` [M] is the target network's value of each transition with the greedy moves.
    """
    following = target_values_M[batch.next_index_M.clamp(min=0)]
    return batch.reward_M + gamma * torch.where(batch.next_index_M >= 0, following, 0.0)


def target_values_of_greedy_moves(target_NA: Tensor, ranking_NA: Tensor, legal_NA: Tensor) -> Tensor:
    """Return [N], the target network's value of the legal move with the greatest `ranking_NA`.

    With the online network's values as `ranking_NA` this is double Q-learning (1509.06461), else the usual maximum.
    """
    best_N1 = ranking_NA.masked_fill(~legal_NA, -torch.inf).argmax(1, keepdim=True)
    return target_NA.gather(1, best_N1)[:, 0]


def td_loss(values_M: Tensor, targets_M: Tensor, has_target_M: Tensor, settings: QLearningOptions) -> Tensor:
    """Return the mean loss over transitions with a target; 0 if no transition has a target.

    A transition whose value is above its target counts `settings.overestimate_weight` times.
    """
    error_M = values_M - targets_M
    loss_M = error_M.square() / 2
    if settings.loss == "huber":
        loss_M = functional.huber_loss(values_M, targets_M, reduction="none")
    loss_M = torch.where(error_M > 0, settings.overestimate_weight * loss_M, loss_M)
    return torch.where(has_target_M, loss_M, 0.0).sum() / has_target_M.sum().clamp(min=1)
