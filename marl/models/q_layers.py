"""Layers of a Q-network: graph encoder, memory, heads.

Shapes: S sequences, T decisions of the longest, A actions, V texts, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from marl.models.decisions import DecisionTokenizer

if TYPE_CHECKING:
    from marl.models.decisions import DecisionInput, Ids
    from marl.models.q_network import QNetworkModel
    from marl.protocols import TextEncoder


class GraphLayer(nn.Module):
    """A round of message passing: ReLU(W_1 x_v + W_2 mean of x_u over the edges u -> v + b) (GraphSAGE, 1706.02216)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.here, self.there = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Return [V, W] from nodes [V, W] and edges [2, E], which hold the place of a source above that of a reader."""
        sources, readers = edges
        sums = torch.zeros_like(nodes).index_add(0, readers, nodes[sources])
        degrees = torch.bincount(readers, minlength=len(nodes)).clamp(min=1)
        return torch.relu(self.here(nodes) + self.there(sums / degrees[:, None]))


class QNetwork(nn.Module):
    """Values of actions by what an agent has seen so far: encoder -> rounds of message passing -> GRU -> heads.

    The graph of a decision is the part that a decentralised agent knows: its own observation and the turns that it
    hears, with edges both ways.
    """

    epsilon: Tensor
    """Share of moves that are drawn at random: it is published with the weights, since it changes as they do."""

    def __init__(self, settings: QNetworkModel) -> None:
        super().__init__()
        width, memory, actions = settings.width, settings.memory, len(settings.actions)
        self.encoder: TextEncoder = settings.encoder.build(width)
        self.tokenizer = DecisionTokenizer(settings.actions, self.encoder)
        self.layers = nn.ModuleList([GraphLayer(width) for _ in range(settings.rounds)])
        self.previous = nn.Embedding(actions + 1, width)
        self.memory = nn.GRU(width, memory, batch_first=True)
        self.heads = nn.Sequential(nn.Linear(memory, width), nn.SiLU(), nn.Linear(width, actions))
        self.register_buffer("epsilon", torch.ones(()))

    def forward(self, sequences: Sequence[Sequence[DecisionInput]]) -> Tensor:
        """Return [S, T, A], the values of all actions at each decision; what follows a sequence's end means nothing."""
        decisions = [decision for sequence in sequences for decision in sequence]
        seen = self._observe(decisions) + self.previous(torch.tensor([decision.previous + 1 for decision in decisions]))
        padded = pad_sequence(list(seen.split([len(sequence) for sequence in sequences])), batch_first=True)
        return self.heads(self.memory(padded)[0])

    def _observe(self, decisions: Sequence[DecisionInput]) -> Tensor:
        """Return [decisions, W], each observation after what was heard has reached it."""
        heard = [(place, text) for place, decision in enumerate(decisions) for text in decision.heard]
        texts = [*(decision.observation for decision in decisions), *(text for _, text in heard)]
        nodes = read_texts(self.encoder, texts)
        readers = torch.tensor([place for place, _ in heard], dtype=torch.int64)
        sources = torch.arange(len(decisions), len(nodes))
        edges = torch.stack([torch.cat([sources, readers]), torch.cat([readers, sources])])
        for layer in self.layers:
            nodes = layer(nodes, edges)
        return nodes[: len(decisions)]


def read_texts(encoder: TextEncoder, texts: Sequence[Ids]) -> Tensor:
    """Return [texts, W]; equal texts are read once."""
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return encoder(list(places))[torch.tensor([places[text] for text in texts])]
