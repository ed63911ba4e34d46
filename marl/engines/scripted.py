"""Engines without weights: scripted players, and people at the terminal. Never imports torch."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pydantic import Field, field_validator

from marl.errors import RunError
from marl.protocols import Engine, EngineConfig, ModelSource, WeightlessEngine
from marl.text import for_terminal
from marl.types import Completion, Failure, Request, Ticket


class ScriptedConfig(EngineConfig):
    """Player given by its move probabilities. Games export their equilibria and perfect players as such."""

    @abstractmethod
    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        """Return legal move -> probability, in an information state of the game."""

    def build(self, source: ModelSource | None) -> Engine:
        return ScriptedEngine(self)


class Random(ScriptedConfig):
    """Plays every legal move with the same probability."""

    kind: str = "random"

    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        return _uniform(moves)


class Always(ScriptedConfig):
    """Plays one move wherever it is legal, and every legal move with the same probability elsewhere."""

    kind: str = "always"
    example = "move: pass"
    move: str
    """The move."""

    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        return {self.move: 1.0} if self.move in moves else _uniform(moves)


class Tabular(ScriptedConfig):
    """Plays from a table of information states; uniformly in states that it lacks."""

    kind: str = "tabular"
    table: dict[str, dict[str, float]] = Field(default_factory=dict)
    """State -> move -> probability."""

    @field_validator("table")
    @classmethod
    def _sums_to_one(cls, table: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        for state, row in table.items():
            if min(row.values(), default=0.0) < 0 or not math.isclose(math.fsum(row.values()), 1, abs_tol=1e-6):
                raise ValueError(f"state {state!r}: {row} are no probabilities: they must sum to 1")
        return table

    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        row = self.table.get(state) or _uniform(moves)
        if unknown := set(row) - set(moves):
            raise ValueError(f"tabular: state {state!r} gives {sorted(unknown)}, but the legal moves are {list(moves)}")
        return row


def _uniform(moves: tuple[str, ...]) -> Mapping[str, float]:
    """Return the same probability for each move; one that is listed twice has it twice."""
    return {move: count / len(moves) for move, count in Counter(moves).items()}


class ScriptedEngine(WeightlessEngine):
    """Engine that answers at once. The move is drawn by inverse CDF from the request's own seed."""

    reason = "is scripted: it has no weights to load"

    def __init__(self, script: ScriptedConfig) -> None:
        self._script = script
        self._answers: list[tuple[Ticket, Completion | Failure]] = []

    def submit(self, ticket: Ticket, request: Request) -> None:
        # An example that is listed twice is played twice as often.
        moves = tuple(request.options or request.examples)
        if not request.options and request.examples:
            request = replace(request, options={text: text for text in request.examples})
        if not request.options and request.forced is None:
            raise ValueError(
                f"policy {request.policy!r}: a scripted player needs a finite list of legal moves, or examples of moves"
            )
        probabilities = self._script.probabilities(request.state, moves) if moves else {}
        answer = _sample(request, probabilities) if request.forced is None else _score(request, probabilities)
        self._answers.append((ticket, answer))

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        answers, self._answers = self._answers, []
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        cancelled = set(tickets)
        self._answers = [answer for answer in self._answers if answer[0] not in cancelled]


def _sample(request: Request, probabilities: Mapping[str, float]) -> Completion:
    remaining = (request.seed % 2**53) / 2**53 * math.fsum(probabilities.values())
    moves = list(request.options or ())
    chosen = moves[-1]
    for move in moves:
        probability = probabilities.get(move, 0.0)
        if probability > 0:
            chosen = move
            remaining -= probability
            if remaining < 0:
                break
    return _completion(request, chosen, probabilities[chosen])


def _score(request: Request, probabilities: Mapping[str, float]) -> Completion:
    move = next((move for move, text in (request.options or {}).items() if text == request.forced), None)
    return _completion(request, move, probabilities.get(move, 0.0) if move else 0.0)


def _completion(request: Request, move: str | None, probability: float) -> Completion:
    options = request.options or {}
    text = options[move] if move is not None else request.forced or ""
    ids = (list(options).index(move),) if move is not None else (len(options),)
    return Completion(text, (), ids, (math.log(probability) if probability > 0 else -math.inf,), "stop")


class InputEndedError(RunError):
    """The person at the terminal has closed the input."""


class Human(EngineConfig):
    """Asks a person at the terminal."""

    kind: str = "human"

    def build(self, source: ModelSource | None) -> Engine:
        return TerminalEngine()


class TerminalEngine(WeightlessEngine):
    """Engine that prints each prompt and waits for a legal answer."""

    reason = "is a person: it has no weights to load"

    def __init__(self) -> None:
        self._open: list[tuple[Ticket, Request]] = []

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._open.append((ticket, request))

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        requests, self._open = self._open, []
        return [(ticket, _ask_person(request)) for ticket, request in requests]

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        cancelled = set(tickets)
        self._open = [(ticket, request) for ticket, request in self._open if ticket not in cancelled]


def _ask_person(request: Request) -> Completion:
    for message in request.messages:
        sys.stdout.write(f"{for_terminal(message.content)}\n")
    if request.options is None:
        return Completion(_read_line("you: "), (), (), (), "stop")
    texts = {spelling.lower(): text for move, text in request.options.items() for spelling in (move, text)}
    question = f"your move ({', '.join(request.options)}): "
    while (line := _read_line(question).lower()) not in texts:
        sys.stdout.write(f"{line!r} is no legal move\n")
    return Completion(texts[line], (), (), (), "stop")


def _read_line(question: str) -> str:
    try:
        return input(for_terminal(question)).strip()
    except EOFError as error:
        raise InputEndedError("the input ended before the game did, so nobody speaks for this seat") from error
