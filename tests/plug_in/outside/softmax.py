"""Weights, engine and learner from outside: a table of logits, without any language model."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from marl.core.types import Completion, CompletionFailure, Metrics, Reading, Request, Sample, Ticket, Turn
from marl.protocols import (
    EngineConfig,
    LearnerBuildArguments,
    LearnerConfig,
    ModelConfig,
    ModelPreparation,
    ModelSource,
)

Logits = dict[str, dict[str, float]]
"""State -> move -> logit; what is missing is 0."""


def chances(logits: Logits, state: str, moves: Sequence[str]) -> dict[str, float]:
    """Softmax over the legal moves."""
    row = logits.get(state, {})
    weights = {move: math.exp(row.get(move, 0.0)) for move in moves}
    return {move: weight / math.fsum(weights.values()) for move, weight in weights.items()}


class TableModel(ModelConfig):
    """A table of logits that begins empty: every move is as likely."""

    kind: str = "table"

    def prepare(self, context: ModelPreparation) -> ModelSource:
        return Empty()


class Empty:
    """Where the table comes from."""

    path, dtype, adapter = "", "float32", None

    def model(self) -> Logits:
        return {}

    def tokenizer(self) -> None:
        """Moves are their own tokens."""


class Softmax(EngineConfig):
    """Speaks for a table of logits."""

    kind: str = "softmax"
    needs_model: ClassVar[bool] = True

    def build(self, source: ModelSource | None) -> SoftmaxEngine:
        assert source is not None
        return SoftmaxEngine(source.model())


class SoftmaxEngine:
    """Answers at once. The prompt's ids are the bytes of state and legal moves; the token is the move's number."""

    def __init__(self, logits: Logits) -> None:
        self._logits, self._version = logits, 0
        self._answers: list[tuple[Ticket, Completion | CompletionFailure]] = []

    def submit(self, ticket: Ticket, request: Request) -> None:
        moves = list(request.options or ())
        chance = chances(self._logits, request.state, moves)
        left, chosen = (request.seed % 2**53) / 2**53, 0
        while chosen < len(moves) - 1 and left >= chance[moves[chosen]]:
            left -= chance[moves[chosen]]
            chosen += 1
        prompt = tuple(json.dumps([request.state, moves]).encode())
        text, logprob = (request.options or {})[moves[chosen]], math.log(chance[moves[chosen]])
        answer = Completion(text, prompt, (chosen,), (logprob,), "stop", (self._version, self._version))
        self._answers.append((ticket, answer))

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        answers, self._answers = self._answers, []
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        gone = set(tickets)
        self._answers = [answer for answer in self._answers if answer[0] not in gone]

    def load_weights(self, policy: str, weights: Iterable[tuple[str, dict[str, float]]], version: int) -> None:
        self._logits, self._version = {state: dict(row) for state, row in weights}, version


class Reinforce(LearnerConfig):
    """The plain policy gradient on a table of logits."""

    kind: str = "table_reinforce"
    lr: float = 1.0

    def build(self, context: LearnerBuildArguments) -> Gradient:
        return Gradient(self.lr, context.source.model())


class Gradient:
    """Adds to each logit what it owes the advantages of its state, on average."""

    needed_reading_fields: frozenset[str] = frozenset()

    def __init__(self, lr: float, logits: Logits) -> None:
        self._lr, self._logits = lr, logits

    def read(self, turns: Sequence[Turn], reading_fields: frozenset[str]) -> list[Reading]:
        return [Reading(turn.completion.logprobs) for turn in turns]

    def update(self, samples: Sequence[Sample]) -> Metrics:
        slopes: dict[str, list[dict[str, float]]] = defaultdict(list)
        for sample in samples:
            state, moves = json.loads(bytes(sample.prompt_ids))
            chance, played = chances(self._logits, state, moves), moves[sample.token_ids[0]]
            slopes[state].append({m: sample.advantage.value * ((m == played) - chance[m]) for m in moves})
        for state, gradients in slopes.items():
            row = self._logits.setdefault(state, {})
            for move in gradients[0]:
                row[move] = row.get(move, 0.0) + self._lr * math.fsum(slope[move] for slope in gradients) / len(
                    gradients
                )
        return {"samples": float(len(samples))}

    def publish(self) -> Any:
        return list(self._logits.items())

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.json").write_text(json.dumps(self._logits))

    def state_dict(self) -> dict[str, Any]:
        return {"logits": self._logits}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._logits = {key: dict(row) for key, row in state["logits"].items()}
