"""Engines without weights: scripted players, and people at the terminal. Never imports torch."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field, field_validator

from marl.core.errors import RunError
from marl.core.types import Completion, Failure, Request, Ticket
from marl.host.outside import escape_for_terminal
from marl.protocols import Engine, EngineConfig, ModelSource, WeightlessEngine


class ScriptedConfig(EngineConfig):
    """Player defined by move probabilities. Games export equilibria and perfect players as subclasses."""

    @abstractmethod
    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        """Return the probability of each legal move in the information state `state`."""

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
    """Plays from a table of information states, and uniformly in states outside the table."""

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
    """Return equal probabilities. A move listed twice counts twice, so that repeated examples weigh more."""
    return {move: count / len(moves) for move, count in Counter(moves).items()}


class ScriptedEngine(WeightlessEngine):
    """Engine that answers at once. The move is drawn by inverse CDF from the request's seed."""

    reason = "is scripted: it has no weights to load"

    def __init__(self, script: ScriptedConfig) -> None:
        self._script = script
        self._answers: list[tuple[Ticket, Completion | Failure]] = []

    def submit(self, ticket: Ticket, request: Request) -> None:
        # An example listed twice is played twice as often, so `moves` keeps duplicates and `options` does not.
        moves = tuple(request.options or request.examples)
        options = request.options or {text: text for text in request.examples}
        if not options and request.forced is None:
            raise ValueError(
                f"policy {request.policy!r}: a scripted player needs a finite list of legal moves, or examples of moves"
            )
        probabilities = self._script.probabilities(request.state, moves) if moves else {}
        if request.forced is None:
            move = _sample(request.seed, list(options), probabilities)
        else:
            move = next((move for move, text in options.items() if text == request.forced), None)
        if move is None:
            # The id behind the last move stands for a text that is no legal move.
            text, token = request.forced or "", len(options)
        else:
            text, token = options[move], list(options).index(move)
        probability = probabilities.get(move, 0.0) if move else 0.0
        logprob = math.log(probability) if probability > 0 else -math.inf
        self._answers.append((ticket, Completion(text, (), (token,), (logprob,), "stop")))

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        answers, self._answers = self._answers, []
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        cancelled = set(tickets)
        self._answers = [answer for answer in self._answers if answer[0] not in cancelled]


def _sample(seed: int, moves: Sequence[str], probabilities: Mapping[str, float]) -> str:
    """Return a move drawn by inverse CDF. The uniform number is scaled by the sum, which may differ from 1."""
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


class InputEndedError(RunError):
    """The person at the terminal closed the input."""


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
        self._open = [entry for entry in self._open if entry[0] not in cancelled]


def _ask_person(request: Request) -> Completion:
    """Print the prompt; ask until the answer is a legal move, spelled as a move or as the text of the option."""
    for message in request.messages:
        # A model's text may hold control sequences, which the terminal would obey.
        sys.stdout.write(f"{escape_for_terminal(message.content)}\n")
    if request.options is None:
        return Completion(_read_line("you: "), (), (), (), "stop")
    texts: dict[str, str] = {}
    for move, text in request.options.items():
        texts[move.lower()] = texts[text.lower()] = text
    question = f"your move ({', '.join(request.options)}): "
    while (line := _read_line(question).lower()) not in texts:
        sys.stdout.write(f"{line!r} is no legal move\n")
    return Completion(texts[line], (), (), (), "stop")


def _read_line(question: str) -> str:
    try:
        return input(escape_for_terminal(question)).strip()
    except EOFError as error:
        raise InputEndedError("the input ended before the game did, so nobody speaks for this seat") from error
