"""Players without weights: a rule gives each legal move a probability. Never imports torch."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from marl.errors import RunError
from marl.protocols import Engine, EngineConfig, Source
from marl.types import Completion, Failure, Request, Ticket

if TYPE_CHECKING:
    from marl.protocols import Weights


class ScriptedConfig(EngineConfig):
    """A player given by its move probabilities. Games export their equilibria and perfect players as such."""

    @abstractmethod
    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        """Legal move -> probability, in an information state of the game."""

    def build(self, source: Source | None) -> Engine:
        return ScriptedEngine(self)


class Random(ScriptedConfig):
    """Plays every legal move with the same probability."""

    kind: str = "random"

    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        return _evenly(moves)


class Tabular(ScriptedConfig):
    """Plays from a table of information states; uniformly where the table says nothing."""

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
        row = self.table.get(state) or _evenly(moves)
        if unknown := set(row) - set(moves):
            raise ValueError(f"tabular: state {state!r} gives {sorted(unknown)}, but the legal moves are {list(moves)}")
        return row


def _evenly(moves: tuple[str, ...]) -> Mapping[str, float]:
    """The same probability for each; a move that is listed twice has it twice."""
    return {move: many / len(moves) for move, many in Counter(moves).items()}


class Left(RunError):  # noqa: N818 (says what happened)
    """The person at the terminal has gone."""


class Human(EngineConfig):
    """A person at the terminal."""

    kind: str = "human"

    def build(self, source: Source | None) -> Engine:
        return Terminal()


class Terminal:
    """Shows each question and waits for a legal answer."""

    def __init__(self) -> None:
        self._asked: list[tuple[Ticket, Request]] = []

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._asked.append((ticket, request))

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        asked, self._asked = self._asked, []
        return [(ticket, self._answer(request)) for ticket, request in asked]

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        gone = set(tickets)
        self._asked = [question for question in self._asked if question[0] not in gone]

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        raise ValueError(f"policy {policy!r} is a person: it has no weights to load")

    def _answer(self, request: Request) -> Completion:
        for message in request.messages:
            sys.stdout.write(f"{message.content}\n")
        if request.options is None:
            return Completion(_read("you: "), (), (), (), "stop")
        moves = {spelling.lower(): text for move, text in request.options.items() for spelling in (move, text)}
        question = f"your move ({', '.join(request.options)}): "
        while (said := _read(question).lower()) not in moves:
            sys.stdout.write(f"{said!r} is no legal move\n")
        return Completion(moves[said], (), (), (), "stop")


def _read(question: str) -> str:
    try:
        return input(question).strip()
    except EOFError as error:
        raise Left("the input ended before the game did, so nobody speaks for this seat") from error


class ScriptedEngine:
    """Answers at once. The move is drawn by inverse CDF from the request's own seed."""

    def __init__(self, script: ScriptedConfig) -> None:
        self._script = script
        self._answers: list[tuple[Ticket, Completion | Failure]] = []

    def submit(self, ticket: Ticket, request: Request) -> None:
        # An example that is given twice is played twice as often.
        moves = tuple(request.options or request.examples)
        if not request.options and request.examples:
            request = replace(request, options={text: text for text in request.examples})
        if not request.options and request.forced is None:
            raise ValueError(
                f"policy {request.policy!r}: a scripted player needs a finite list of legal moves, or examples of moves"
            )
        chances = self._script.probabilities(request.state, moves) if moves else {}
        self._answers.append(
            (ticket, _score(request, chances) if request.forced is not None else _say(request, chances))
        )

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        answers, self._answers = self._answers, []
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        gone = set(tickets)
        self._answers = [answer for answer in self._answers if answer[0] not in gone]

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        raise ValueError(f"policy {policy!r} is scripted: it has no weights to load")


def _say(request: Request, chances: Mapping[str, float]) -> Completion:
    left = (request.seed % 2**53) / 2**53 * math.fsum(chances.values())
    moves = list(request.options or ())
    chosen = moves[-1]
    for move in moves:
        chance = chances.get(move, 0.0)
        if chance > 0:
            chosen = move
            left -= chance
            if left < 0:
                break
    return _completion(request, chosen, chances[chosen])


def _score(request: Request, chances: Mapping[str, float]) -> Completion:
    said = next((move for move, text in (request.options or {}).items() if text == request.forced), None)
    return _completion(request, said, chances.get(said, 0.0) if said else 0.0)


def _completion(request: Request, move: str | None, chance: float) -> Completion:
    options = request.options or {}
    text = options[move] if move is not None else request.forced or ""
    ids = (list(options).index(move),) if move is not None else (len(options),)
    return Completion(text, (), ids, (math.log(chance) if chance > 0 else -math.inf,), "stop")
