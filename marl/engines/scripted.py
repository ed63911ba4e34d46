"""Engines without weights: scripted players, and people at the terminal. This module does not import torch."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field, field_validator

from marl.core.errors import RunError
from marl.core.types import Completion, CompletionFailure, Request, Ticket
from marl.host.untrusted_text import escape_for_terminal
from marl.protocols import Engine, EngineConfig, ModelSource, WeightlessEngine


class ScriptedConfig(EngineConfig):
    """Settings of a player with given move probabilities. Games export equilibria and perfect players as subclasses."""

    @abstractmethod
    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        """Return the probability of each legal move in the information state `state`."""

    def build(self, source: ModelSource | None) -> Engine:
        return ScriptedEngine(self)


class Random(ScriptedConfig):
    """Plays every legal move with the same probability."""

    kind: str = "random"

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        return _uniform_probabilities(moves)


class Always(ScriptedConfig):
    """Plays one move wherever it is legal, and every legal move with the same probability elsewhere."""

    kind: str = "always"
    example = "move: pass"
    move: str
    """Text of the move to play."""

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        return {self.move: 1.0} if self.move in moves else _uniform_probabilities(moves)


class Tabular(ScriptedConfig):
    """Plays from a table of information states, and uniformly in states outside the table."""

    kind: str = "tabular"
    table: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Information state -> move -> probability of the move."""

    @field_validator("table")
    @classmethod
    def _check_probabilities(cls, table: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        for state, row in table.items():
            if min(row.values(), default=0.0) < 0 or not math.isclose(math.fsum(row.values()), 1, abs_tol=1e-6):
                raise ValueError(f"state {state!r}: {row} are no probabilities: they must sum to 1")
        return table

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        row = self.table.get(state) or _uniform_probabilities(moves)
        if unknown := set(row) - set(moves):
            raise ValueError(f"tabular: state {state!r} gives {sorted(unknown)}, but the legal moves are {list(moves)}")
        return row


def _uniform_probabilities(moves: tuple[str, ...]) -> Mapping[str, float]:
    """Return equal probabilities for all entries of `moves`. A move that is listed twice is twice as probable."""
    return {move: count / len(moves) for move, count in Counter(moves).items()}


class ImmediateEngine(WeightlessEngine):
    """Base of engines that answer a request at once, when it is submitted."""

    def __init__(self) -> None:
        self._answers: dict[Ticket, Completion] = {}

    @abstractmethod
    def answer(self, request: Request) -> Completion:
        """Return the answer to `request`."""

    def submit(self, ticket: Ticket, request: Request) -> None:
        """Answer the request; `step` returns the answer. Errors of `answer` are raised here."""
        self._answers[ticket] = self.answer(request)

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        answers, self._answers = self._answers, {}
        return [*answers.items()]

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._answers.pop(ticket, None)


class ScriptedEngine(ImmediateEngine):
    """Engine of scripted players. A move is drawn by inverse CDF from the request's seed."""

    reason = "is scripted: it has no weights to load"

    def __init__(self, script: ScriptedConfig) -> None:
        super().__init__()
        self._script = script

    def answer(self, request: Request) -> Completion:
        # `moves` keeps duplicates, because an example that is listed twice is played twice as often.
        moves = tuple(request.options or request.examples)
        options = request.options or {text: text for text in request.examples}
        if not options and request.forced is None:
            raise ValueError(
                f"policy {request.policy!r}: a scripted player needs a finite list of legal moves, or examples of moves"
            )
        probabilities = self._script.move_probabilities(request.state, moves) if moves else {}
        if request.forced is None:
            move = _draw_move(request.seed, list(options), probabilities)
        else:
            move = next((move for move, text in options.items() if text == request.forced), None)
        if move is None:
            # A text that is no legal move gets the first token id after those of the moves.
            text, token = request.forced or "", len(options)
        else:
            text, token = options[move], list(options).index(move)
        probability = probabilities.get(move, 0.0) if move else 0.0
        logprob = math.log(probability) if probability > 0 else -math.inf
        return Completion(text, (), (token,), (logprob,), "stop")


def _draw_move(seed: int, moves: Sequence[str], probabilities: Mapping[str, float]) -> str:
    """Return one of `moves`, drawn by inverse CDF from `seed`."""
    # The uniform number is scaled by the sum of the probabilities, which may differ from 1 by rounding.
    remaining = (seed % 2**53) / 2**53 * math.fsum(probabilities.values())
    chosen = moves[-1]
    for move in moves:
        probability = probabilities.get(move, 0.0)
        if probability > 0:
            chosen = move
            remaining -= probability
            if remaining < 0:
                break
    return chosen


class EchoEngine(ImmediateEngine):
    """Engine that answers with the text of the last message, in place of a role that only passes on what it reads."""

    reason = "passes on what it reads: it has no weights to load"

    def answer(self, request: Request) -> Completion:
        text = request.messages[-1].content if request.messages else ""
        return Completion(text, (), (), (), "stop")


class TerminalInputEndedError(RunError):
    """The person at the terminal closed the input."""


class Human(EngineConfig):
    """Asks a person at the terminal."""

    kind: str = "human"

    def build(self, source: ModelSource | None) -> Engine:
        return TerminalEngine()


class TerminalEngine(WeightlessEngine):
    """Engine that prints each prompt and waits until a person at the terminal types a legal move."""

    reason = "is a person: it has no weights to load"

    def __init__(self) -> None:
        self._open: dict[Ticket, Request] = {}

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._open[ticket] = request

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        requests, self._open = self._open, {}
        answers: list[tuple[Ticket, Completion | CompletionFailure]] = []
        for ticket, request in requests.items():
            for message in request.messages:
                # A model's text may hold control sequences that the terminal would obey.
                sys.stdout.write(f"{escape_for_terminal(message.content)}\n")
            if request.options is None:
                answers.append((ticket, Completion(_read_line("you: "), (), (), (), "stop")))
                continue
            texts: dict[str, str] = {}
            for move, text in request.options.items():
                texts[move.lower()] = texts[text.lower()] = text
            question = f"your move ({', '.join(request.options)}): "
            while (line := _read_line(question).lower()) not in texts:
                sys.stdout.write(f"{line!r} is no legal move\n")
            answers.append((ticket, Completion(texts[line], (), (), (), "stop")))
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._open.pop(ticket, None)


def _read_line(question: str) -> str:
    try:
        return input(escape_for_terminal(question)).strip()
    except EOFError as error:
        raise TerminalInputEndedError("the input ended before the game did, so nobody speaks for this seat") from error
