"""Engine that plays by the values of a Q-network. Its answers follow from request and weights alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from marl.engines.transformers.policy_weights import SinglePolicy
from marl.types import Completion, Failure, Request, Ticket

if TYPE_CHECKING:
    from marl.models.decisions import Ids
    from marl.models.q_network import QNetworkSource
    from marl.protocols import ModelSource, Weights


class EpsilonGreedyEngine:
    """Engine that answers all that waits in one forward pass, in which equal prompts are read once.

    It remembers nothing of an episode: what an agent has seen before stands in its prompt. So forks, replays and
    resumed runs need nothing of their own.
    """

    def __init__(self, source: QNetworkSource) -> None:
        self._network = source.model()
        self._tokenizer = self._network.tokenizer
        self._weights = SinglePolicy(self._network, source)
        self._open: dict[Ticket, tuple[Request, Ids]] = {}

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._open[ticket] = request, self._tokenizer.prompt(request)

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        waiting, self._open = self._open, {}
        if not waiting:
            return []
        values = self._values(list(dict.fromkeys(prompt for _, prompt in waiting.values())))
        return [(ticket, self._answer(*question, values[question[1]])) for ticket, question in waiting.items()]

    @torch.no_grad()
    def _values(self, prompts: Sequence[Ids]) -> dict[Ids, list[float]]:
        """Return prompt -> the value of every action at its last decision."""
        sequences = [self._tokenizer.decisions(prompt) for prompt in prompts]
        values = self._network(sequences).tolist()
        rows = zip(prompts, sequences, values, strict=True)
        return {prompt: row[len(sequence) - 1] for prompt, sequence, row in rows}

    def _answer(self, request: Request, prompt: Ids, values: Sequence[float]) -> Completion:
        options = request.options or {}
        numbers = [self._tokenizer.id(move) for move in options]
        greedy = request.purpose == "eval" or request.sampling.temperature == 0
        epsilon = 0.0 if greedy else float(self._network.epsilon)
        chances = epsilon_greedy([values[self._tokenizer.place(number)] for number in numbers], epsilon)
        version = self._weights.versions[0]
        texts = list(options.values())
        if request.forced is None:
            chosen = draw(chances, (request.seed % 2**53) / 2**53)
        elif request.forced in texts:
            chosen = texts.index(request.forced)
        else:
            return Completion(request.forced, prompt, (), (-math.inf,), "stop", (version, version))
        logprob = math.log(chances[chosen]) if chances[chosen] else -math.inf
        return Completion(texts[chosen], prompt, (numbers[chosen],), (logprob,), "stop", (version, version))

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._open.pop(ticket, None)

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        self._weights.load(policy, weights, version)

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        self._weights.add(policy, source)

    def remove_policy(self, policy: str) -> None:
        if open_policies := {request.policy for request, _ in self._open.values()} & {policy}:
            raise ValueError(f"policy {open_policies.pop()!r} has requests in flight; cancel them first")
        self._weights.remove(policy)


def epsilon_greedy(values: Sequence[float], epsilon: float) -> list[float]:
    """Return the probability of each move: epsilon / n, and 1 - epsilon more for the first of the highest value."""
    best = max(range(len(values)), key=values.__getitem__)
    return [epsilon / len(values) + (1 - epsilon) * (place == best) for place in range(len(values))]


def draw(chances: Sequence[float], uniform: float) -> int:
    """Return a place, drawn by inverse CDF from a number in [0, 1)."""
    for place, chance in enumerate(chances):
        uniform -= chance
        if uniform < 0 and chance > 0:
            return place
    return max(range(len(chances)), key=chances.__getitem__)
