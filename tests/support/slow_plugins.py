"""Parts that take their time, as large models and real verifiers do: an engine, a verifier and a loss."""

from __future__ import annotations

import heapq
import math
import random
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from marl.core.types import Completion, CompletionFailure, Problem, Request, Ticket, Verdict
from marl.engines.transformers.settings import Transformers
from marl.games.verifiers.text_verifiers import ExactVerifier
from marl.protocols import Engine, LossConfig, ModelSource

Answer = tuple[Ticket, Completion | CompletionFailure]


class SlowDecoding(Transformers):
    """The engine of Transformers, which rests before every token."""

    kind: str = "tests.support.slow_plugins:SlowDecoding"
    pause_s: NonNegativeFloat = 0.02
    """Seconds before each token."""

    def build(self, source: ModelSource | None) -> Engine:
        return PausingEngine(super().build(source), self.pause_s)


class LateAnswers(Transformers):
    """The engine of Transformers, whose answers are held back: for times of a log-normal distribution, by seed.

    So long an answer occupies one of a few places, as in the batch of a large model.
    """

    kind: str = "tests.support.slow_plugins:LateAnswers"
    median_s: PositiveFloat = 0.5
    """Median time of an answer in seconds."""
    sigma: NonNegativeFloat = 1.0
    """Standard deviation of the time's logarithm: with 1, one answer in a hundred takes ten times the median."""
    places: PositiveInt = 16
    """Answers that are made at the same time."""

    def build(self, source: ModelSource | None) -> Engine:
        return LateEngine(super().build(source), self)


class WrappedEngine:
    """Engine that passes on to another what it does not do itself."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._engine.submit(ticket, request)

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        self._engine.cancel(tickets)

    def load_weights(self, policy: str, weights: Any, version: int) -> None:
        self._engine.load_weights(policy, weights, version)

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        self._engine.add_policy(policy, source)

    def remove_policy(self, policy: str) -> None:
        self._engine.remove_policy(policy)


class PausingEngine(WrappedEngine):
    """Engine that rests before each step of another."""

    def __init__(self, engine: Any, pause_s: float) -> None:
        super().__init__(engine)
        self._pause_s = pause_s

    def step(self, wait_s: float) -> list[Answer]:
        time.sleep(self._pause_s)
        return self._engine.step(wait_s)


class LateEngine(WrappedEngine):
    """Engine that holds the answers of another back, without computing meanwhile."""

    def __init__(self, engine: Any, settings: LateAnswers) -> None:
        super().__init__(engine)
        self._settings = settings
        self._queue: deque[tuple[Ticket, Request]] = deque()
        self._due: dict[Ticket, float] = {}
        """Ticket of an answer that has a place -> the time at which it is given."""
        self._held: list[tuple[float, Ticket, Completion | CompletionFailure]] = []

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._queue.append((ticket, request))

    def step(self, wait_s: float) -> list[Answer]:
        while self._queue and len(self._due) < self._settings.places:
            ticket, request = self._queue.popleft()
            self._due[ticket] = time.monotonic() + self._takes_s(request)
            self._engine.submit(ticket, request)
        if len(self._held) < len(self._due):
            for ticket, answer in self._engine.step(0.0):
                heapq.heappush(self._held, (self._due[ticket], ticket, answer))
        elif self._held:
            time.sleep(min(wait_s, max(self._held[0][0] - time.monotonic(), 0.0)))
        answers: list[Answer] = []
        while self._held and self._held[0][0] <= time.monotonic():
            _, ticket, answer = heapq.heappop(self._held)
            del self._due[ticket]
            answers.append((ticket, answer))
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        cancelled = set(tickets)
        self._queue = deque(entry for entry in self._queue if entry[0] not in cancelled)
        self._held = [entry for entry in self._held if entry[1] not in cancelled]
        heapq.heapify(self._held)
        for ticket in cancelled & self._due.keys():
            del self._due[ticket]
        self._engine.cancel(cancelled)

    def _takes_s(self, request: Request) -> float:
        """Return how long an answer takes; a text that is only scored takes no time."""
        if request.forced is not None:
            return 0.0
        normal = random.Random(request.seed).gauss(math.log(self._settings.median_s), self._settings.sigma)
        return math.exp(normal)


class SlowExact(ExactVerifier):
    """Accepts the right answer, after a while."""

    kind: str = "tests.support.slow_plugins:SlowExact"
    seconds: NonNegativeFloat = 0.1
    """Time of a verdict."""

    def grade(self, answer: str, problem: Problem) -> Verdict:
        time.sleep(self.seconds)
        return super().grade(answer, problem)


class SlowLoss(LossConfig):
    """Minus the log-probability times the advantage, after a while."""

    kind: str = "tests.support.slow_plugins:SlowLoss"
    seconds: NonNegativeFloat = 0.5
    """Time of each call."""

    def __call__(self, logprobs_BT: Any, old_logprobs_BT: Any, advantages_BT: Any, mask_BT: Any) -> Any:
        time.sleep(self.seconds)
        return -logprobs_BT * advantages_BT
