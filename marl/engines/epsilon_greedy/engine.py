"""Engine for Q-networks: samples actions epsilon-greedily. An answer depends on the request and the weights alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from marl.core.types import Completion, Failure, Request, Ticket
from marl.engines.transformers.policy_weights import FullWeights
from marl.models.decision_prompts import Ids
from marl.models.q_network import QNetworkSource
from marl.protocols import ModelSource, Weights


class EpsilonGreedyEngine:
    """Engine that answers all open requests in one forward pass. Equal prompts take one row of the batch.

    The engine keeps no state of an episode: a prompt holds everything that the agent observed before. Forks, replays
    and resumed runs therefore need no special handling.
    """

    def __init__(self, source: QNetworkSource) -> None:
        self._network = source.model()
        self._tokenizer = self._network.tokenizer
        self._weights = FullWeights(self._network, source)
        self._open: dict[Ticket, tuple[Request, Ids]] = {}

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._open[ticket] = request, self._tokenizer.prompt(request)

    @torch.no_grad()
    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        open_requests, self._open = self._open, {}
        if not open_requests:
            return []
        prompts = list(dict.fromkeys(prompt for _, prompt in open_requests.values()))
        decisions = [self._tokenizer.decisions(prompt) for prompt in prompts]
        values = self._network(decisions).tolist()
        last_values: dict[Ids, list[float]] = {}
        for prompt, sequence, rows in zip(prompts, decisions, values, strict=True):
            # Rows are padded behind the last decision, for which the action is chosen.
            last_values[prompt] = rows[len(sequence) - 1]
        answers: list[tuple[Ticket, Completion | Failure]] = []
        for ticket, (request, prompt) in open_requests.items():
            answers.append((ticket, self._choose(request, prompt, last_values[prompt])))
        return answers

    def _choose(self, request: Request, prompt: Ids, values: Sequence[float]) -> Completion:
        """Return the completion of `request`, given the value of every action of the network."""
        options = request.options or {}
        tokens = [self._tokenizer.action_token(move) for move in options]
        greedy = request.purpose == "eval" or request.sampling.temperature == 0
        epsilon = 0.0 if greedy else float(self._network.epsilon)
        option_values = [values[self._tokenizer.action_index(token)] for token in tokens]
        probabilities = epsilon_greedy(option_values, epsilon)
        version = self._weights.versions[0]
        texts = list(options.values())
        if request.forced is None:
            # 53 bits of the seed: as many as a float's mantissa holds.
            index = draw(probabilities, (request.seed % 2**53) / 2**53)
        elif request.forced in texts:
            index = texts.index(request.forced)
        else:
            return Completion(request.forced, prompt, (), (-math.inf,), "stop", (version, version))
        logprob = math.log(probabilities[index]) if probabilities[index] else -math.inf
        return Completion(texts[index], prompt, (tokens[index],), (logprob,), "stop", (version, version))

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._open.pop(ticket, None)

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        self._weights.load(policy, weights, version)

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        self._weights.add(policy, source)

    def remove_policy(self, policy: str) -> None:
        if any(request.policy == policy for request, _ in self._open.values()):
            raise ValueError(f"policy {policy!r} has requests in flight; cancel them first")
        self._weights.remove(policy)


def epsilon_greedy(values: Sequence[float], epsilon: float) -> list[float]:
    """Return the probability of each move: epsilon / n, plus 1 - epsilon for the first move of the highest value."""
    best = max(range(len(values)), key=values.__getitem__)
    return [epsilon / len(values) + (1 - epsilon) * (index == best) for index in range(len(values))]


def draw(probabilities: Sequence[float], uniform: float) -> int:
    """Return an index drawn by inverse CDF from `uniform`, a number in [0, 1)."""
    for index, probability in enumerate(probabilities):
        uniform -= probability
        if uniform < 0 and probability > 0:
            return index
    # Rounding may leave a remainder behind the last index.
    return max(range(len(probabilities)), key=probabilities.__getitem__)
