"""Engine for Q-networks: samples actions epsilon-greedily. An answer depends on the request and the weights alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from marl.core.types import Completion, CompletionFailure, Request, Ticket
from marl.engines.transformers.policy_weights import FullWeights
from marl.models.decision_prompts import Ids, QNetworkInput
from marl.models.q_network import QNetworkSource
from marl.protocols import ModelSource, Weights


class EpsilonGreedyEngine:
    """Engine for Q-networks that answers all open requests in one forward pass. Equal prompts share a row of the batch.

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
    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        open_requests, self._open = self._open, {}
        if not open_requests:
            return []
        decisions: dict[Ids, list[QNetworkInput]] = {}
        for _, prompt in open_requests.values():
            decisions.setdefault(prompt, self._tokenizer.decisions(prompt))
        values = dict(zip(decisions, self._network(list(decisions.values())).tolist(), strict=True))
        answers: list[tuple[Ticket, Completion | CompletionFailure]] = []
        versions = (self._weights.versions[0], self._weights.versions[0])
        for ticket, (request, prompt) in open_requests.items():
            # The action is chosen for the prompt's last decision; values after it are padding.
            last_values = values[prompt][len(decisions[prompt]) - 1]
            options = request.options or {}
            tokens, texts = list(map(self._tokenizer.token_id_of_action, options)), list(options.values())
            is_greedy = request.purpose == "eval" or request.sampling.temperature == 0
            epsilon = 0.0 if is_greedy else float(self._network.epsilon)
            option_values = [last_values[self._tokenizer.action_index_of_token_id(token)] for token in tokens]
            probabilities = epsilon_greedy_probabilities(option_values, epsilon)
            if request.forced is not None and request.forced not in texts:
                answers.append((ticket, Completion(request.forced, prompt, (), (-math.inf,), "stop", versions)))
                continue
            if request.forced is None:
                # A float's mantissa has 53 bits, so the uniform number uses 53 bits of the seed.
                index = draw_index(probabilities, (request.seed % 2**53) / 2**53)
            else:
                index = texts.index(request.forced)
            logprob = math.log(probabilities[index]) if probabilities[index] else -math.inf
            completion = Completion(texts[index], prompt, (tokens[index],), (logprob,), "stop", versions)
            answers.append((ticket, completion))
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._open.pop(ticket, None)

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        self._weights.load_weights(policy, weights, version)

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        self._weights.add_policy(policy, source)

    def remove_policy(self, policy: str) -> None:
        if any(request.policy == policy for request, _ in self._open.values()):
            raise ValueError(f"policy {policy!r} has requests in flight; cancel them first")
        self._weights.remove_policy(policy)


def epsilon_greedy_probabilities(action_values: Sequence[float], epsilon: float) -> list[float]:
    """Return the probability of each move: epsilon / n, plus 1 - epsilon for the first move of the highest value.

    `action_values` are the values of the n legal moves.
    """
    best = max(range(len(action_values)), key=action_values.__getitem__)
    return [epsilon / len(action_values) + (1 - epsilon) * (index == best) for index in range(len(action_values))]


def draw_index(probabilities: Sequence[float], uniform_number: float) -> int:
    """Return an index of `probabilities`, drawn by inverse CDF from `uniform_number`, a number in [0, 1)."""
    for index, probability in enumerate(probabilities):
        uniform_number -= probability
        if uniform_number < 0 and probability > 0:
            return index
    # If rounding leaves a remainder after the last index, the most probable index is chosen.
    return max(range(len(probabilities)), key=probabilities.__getitem__)
