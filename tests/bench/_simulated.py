"""Model, engine and learner that cost no arithmetic: answers come after a wait drawn from their seed.

What they return is as large as the real thing, so that everything around them has its real work to do.
"""

from __future__ import annotations

import heapq
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from marl.core.types import Completion, CompletionFailure, Metrics, Reading, Request, Sample, Ticket, Turn
from marl.protocols import (
    EngineConfig,
    LearnerBuildArguments,
    LearnerConfig,
    ModelConfig,
    ModelPreparation,
    ModelSource,
)

if TYPE_CHECKING:
    from torch import Tensor

WIDTH = 1024


class SimulatedModel(ModelConfig):
    """Matrices of made-up numbers."""

    kind: str = "simulated"
    parameters: int = 1024**2
    """Numbers in all, as whole matrices of 1024 by 1024; fewer than that are rows of one matrix."""

    def prepare(self, context: ModelPreparation) -> ModelSource:
        return Matrices(self.parameters)


class Matrices:
    """Where the matrices come from."""

    path, dtype, adapter = "", "float32", None

    def __init__(self, parameters: int) -> None:
        self._count = max(1, round(parameters / WIDTH**2))
        self._rows = min(WIDTH, max(1, parameters // WIDTH))

    def model(self) -> dict[str, Tensor]:
        import torch

        return {f"layers.{n}.weight": torch.full((self._rows, WIDTH), float(n)) for n in range(self._count)}

    def tokenizer(self) -> None:
        """Tokens are numbers drawn at random."""


class SimulatedEngine(EngineConfig):
    """Plays any legal move, after as long as a model on an accelerator of its own would take. Any number at once."""

    kind: str = "simulated"
    needs_model: ClassVar[bool] = True
    mean_s: float = 1.0
    """Mean time until an answer comes; each is drawn between half and one and a half times that."""
    prompt_tokens: int = 600
    answer_tokens: int = 200
    """Token ids of a prompt, and those of an answer, which have a log-probability each."""

    def build(self, source: ModelSource | None) -> WaitingEngine:
        assert source is not None
        return WaitingEngine(self, source.model())

    def wait_s(self, seed: int) -> float:
        """Return the time until the answer to a request with this seed comes, in seconds."""
        return self.mean_s * (0.5 + (seed // 64) % 1000 / 1000)


class WaitingEngine:
    """Sleeps until the next answer is due."""

    def __init__(self, settings: SimulatedEngine, weights: dict[str, Tensor]) -> None:
        self._settings, self._weights, self._version = settings, weights, 0
        self._due: list[tuple[float, Ticket, Request]] = []
        rng = np.random.default_rng(0)
        self._prompt = tuple(rng.integers(0, 50_000, settings.prompt_tokens).tolist())
        self._answer = tuple(rng.integers(0, 50_000, settings.answer_tokens).tolist())
        self._logprobs = tuple((-rng.exponential(0.5, settings.answer_tokens)).tolist())

    def submit(self, ticket: Ticket, request: Request) -> None:
        heapq.heappush(self._due, (time.monotonic() + self._settings.wait_s(request.seed), ticket, request))

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        if not self._due:
            return []
        time.sleep(min(wait_s, max(self._due[0][0] - time.monotonic(), 0.0)))
        now, answers = time.monotonic(), []
        while self._due and self._due[0][0] <= now:
            _, ticket, request = heapq.heappop(self._due)
            answers.append((ticket, self._completion(request)))
        return answers

    def _completion(self, request: Request) -> Completion:
        moves = list((request.options or {}).values())
        # New objects for each, as a real engine returns: otherwise pickle would send equal ones once.
        prompt, answer = ((request.seed % 50_000, *ids[1:]) for ids in (self._prompt, self._answer))
        logprobs = tuple([float(number) for number in np.array(self._logprobs)])
        return Completion(
            moves[request.seed % len(moves)], prompt, answer, logprobs, "stop", (self._version, self._version)
        )

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        gone = set(tickets)
        self._due = [each for each in self._due if each[1] not in gone]
        heapq.heapify(self._due)

    def load_weights(self, policy: str, weights: Any, version: int) -> None:
        for name, tensor in weights:
            self._weights[name].copy_(tensor)
        self._version = version

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Not needed here."""

    def remove_policy(self, policy: str) -> None:
        """Not needed here."""


class NoUpdate(LearnerConfig):
    """Publishes its weights after every step, and learns nothing."""

    kind: str = "no_update"

    def build(self, context: LearnerBuildArguments) -> FixedWeights:
        return FixedWeights(context.source.model())


class FixedWeights:
    """Weights that stay as they are."""

    needed_reading_fields: frozenset[str] = frozenset()

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self._weights, self.changes = weights, 0

    def read(self, turns: Sequence[Turn], reading_fields: frozenset[str]) -> list[Reading]:
        return [Reading(turn.completion.logprobs) for turn in turns]

    def update(self, samples: Sequence[Sample]) -> Metrics:
        return {"samples": float(len(samples)), "advantage": math.fsum(each.advantage.value for each in samples)}

    def publish(self) -> Iterable[tuple[str, Tensor]]:
        return self._weights.items()

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"matrices": len(self._weights)}))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing is kept."""
