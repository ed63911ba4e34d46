"""Modules of a Q-network: graph encoder, recurrent memory, output heads.

Shapes: S = sequences, T = decisions of the longest sequence, A = actions, V = texts, E = edges, W = width.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from marl.models.decision_prompts import DecisionInput, DecisionTokenizer, Ids
from marl.protocols import TextEncoder, TextEncoderConfig


class GraphLayer(nn.Module):
    """Round of message passing: ReLU(W_1 x_v + W_2 mean of x_u over the edges u -> v + b) (GraphSAGE, 1706.02216)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.here, self.there = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Return new nodes [V, W] from `nodes` [V, W] and `edges` [2, E], whose rows are source and reader indices."""
        sources, readers = edges
        sums = torch.zeros_like(nodes).index_add(0, readers, nodes[sources])
        degrees = torch.bincount(readers, minlength=len(nodes)).clamp(min=1)
        return torch.relu(self.here(nodes) + self.there(sums / degrees[:, None]))


class QNetwork(nn.Module):
    """Network of action values: text encoder -> rounds of message passing -> GRU -> output heads.

    The graph of a decision is local to the agent: its observation and the heard turns, with edges in both directions.
    """

    epsilon: Tensor
    """Probability of a random move. It is a buffer, because it is published with the weights that it belongs to."""

    def __init__(
        self, actions: Sequence[str], encoder: TextEncoderConfig, width: int, rounds: int, memory: int
    ) -> None:
        super().__init__()
        # The order of the modules is the order of their random initial weights.
        self.encoder: TextEncoder = encoder.build(width)
        self.tokenizer = DecisionTokenizer(actions, self.encoder)
        self.layers = nn.ModuleList([GraphLayer(width) for _ in range(rounds)])
        self.previous = nn.Embedding(len(actions) + 1, width)
        self.memory = nn.GRU(width, memory, batch_first=True)
        self.heads = nn.Sequential(nn.Linear(memory, width), nn.SiLU(), nn.Linear(width, len(actions)))
        self.register_buffer("epsilon", torch.ones(()))

    def forward(self, sequences: Sequence[Sequence[DecisionInput]]) -> Tensor:
        """Return action values [S, T, A] at each decision. Entries after a sequence's end have no meaning."""
        decisions = list(chain.from_iterable(sequences))
        previous = torch.tensor([decision.previous + 1 for decision in decisions])
        seen = self._observe(decisions) + self.previous(previous)
        padded = pad_sequence(list(seen.split(list(map(len, sequences)))), batch_first=True)
        return self.heads(self.memory(padded)[0])

    def _observe(self, decisions: Sequence[DecisionInput]) -> Tensor:
        """Return the vector [decisions, W] of each observation after message passing."""
        texts, reader_indices = [decision.observation for decision in decisions], list[int]()
        for index, decision in enumerate(decisions):
            texts += decision.heard
            reader_indices += [index] * len(decision.heard)
        nodes = read_texts(self.encoder, texts)
        readers = torch.tensor(reader_indices, dtype=torch.int64)
        sources = torch.arange(len(decisions), len(nodes))
        edges = torch.stack([torch.cat([sources, readers]), torch.cat([readers, sources])])
        for layer in self.layers:
            nodes = layer(nodes, edges)
        return nodes[: len(decisions)]


def read_texts(encoder: TextEncoder, texts: Sequence[Ids]) -> Tensor:
    """Return the vectors [texts, W]. Equal texts are encoded once."""
    indices = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    return encoder(list(indices))[torch.tensor([indices[text] for text in texts])]


def seeded_network(
    seed: int, actions: Sequence[str], encoder: TextEncoderConfig, width: int, rounds: int, memory: int
) -> QNetwork:
    """Return a network with initial weights drawn from `seed`; torch's own random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return QNetwork(actions, encoder, width, rounds, memory)
