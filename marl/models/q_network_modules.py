"""Modules of a Q-network: graph encoder, recurrent memory, output heads.

Shapes: S = sequences of decisions, T = decisions of the longest sequence, A = actions, V = texts, E = edges, W = width.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from marl.models.decision_prompts import DecisionTokenizer, Ids, QNetworkInput
from marl.protocols import TextEncoder, TextEncoderConfig


class GraphSageLayer(nn.Module):
    """Round of message passing: ReLU(W_1 x_v + W_2 (mean of x_u over edges u -> v) + b) (GraphSAGE, 1706.02216)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.here, self.there = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Return new node vectors [V, W]: along each edge, node `edges[1]` receives the vector of node `edges[0]`."""
        sources, readers = edges
        sums = torch.zeros_like(nodes).index_add(0, readers, nodes[sources])
        degrees = torch.bincount(readers, minlength=len(nodes)).clamp(min=1)
        return torch.relu(self.here(nodes) + self.there(sums / degrees[:, None]))


class QNetwork(nn.Module):
    """Network of action values: text encoder -> rounds of message passing -> GRU -> output heads.

    The nodes of a decision's graph are the agent's observation and the turns that the agent reads. Edges connect the
    observation with each turn in both directions.
    """

    epsilon: Tensor
    """Probability of a random move: a buffer of the module, which is published with the weights."""

    def __init__(
        self, actions: Sequence[str], encoder: TextEncoderConfig, width: int, rounds: int, memory: int
    ) -> None:
        super().__init__()
        # The modules' order decides their random initial weights, so it must not change.
        self.encoder: TextEncoder = encoder.build(width)
        self.tokenizer = DecisionTokenizer(actions, self.encoder)
        self.layers = nn.ModuleList([GraphSageLayer(width) for _ in range(rounds)])
        self.previous = nn.Embedding(len(actions) + 1, width)
        self.memory = nn.GRU(width, memory, batch_first=True)
        self.heads = nn.Sequential(nn.Linear(memory, width), nn.SiLU(), nn.Linear(width, len(actions)))
        self.register_buffer("epsilon", torch.ones(()))

    def forward(self, sequences: Sequence[Sequence[QNetworkInput]]) -> Tensor:
        """Return the action values [S, T, A] at each decision. Entries after the end of a sequence have no meaning."""
        decisions = list(chain.from_iterable(sequences))
        # Graph nodes: first the observations of all decisions, then the turns that these observations read.
        texts, previous, reader_indices = [decision.observation for decision in decisions], list[int](), list[int]()
        for index, decision in enumerate(decisions):
            previous.append(decision.previous + 1)
            texts += decision.heard
            reader_indices += [index] * len(decision.heard)
        nodes = encode_texts(self.encoder, texts)
        readers = torch.tensor(reader_indices, dtype=torch.int64)
        sources = torch.arange(len(decisions), len(nodes))
        edges = torch.stack([torch.cat([sources, readers]), torch.cat([readers, sources])])
        for layer in self.layers:
            nodes = layer(nodes, edges)
        seen = nodes[: len(decisions)] + self.previous(torch.tensor(previous))
        padded = pad_sequence(list(seen.split(list(map(len, sequences)))), batch_first=True)
        return self.heads(self.memory(padded)[0])


def encode_texts(encoder: TextEncoder, texts: Sequence[Ids]) -> Tensor:
    """Return the vectors [len(texts), W] of `texts`. Equal texts are encoded once."""
    indices: dict[Ids, int] = {}
    rows = [indices.setdefault(text, len(indices)) for text in texts]
    return encoder(list(indices))[torch.tensor(rows)]
