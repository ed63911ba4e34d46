"""Guess who: each player has a secret character of a table; the first to name the opponent's character wins."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from itertools import product
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from marl.core.config import shorten
from marl.core.types import Findings
from marl.engines.scripted import ScriptedConfig
from marl.games.base import TextGame, TextGameConfig
from marl.games.two_player import AGENTS, uniform_over
from marl.protocols import EngineConfig, GameStart

GUESS = "guess"
NAMES = (
    *("ann", "ben", "cleo", "dan", "eve", "finn", "gina", "hugo", "ida", "jack", "kate", "leo"),
    *("mia", "nils", "olga", "paul", "rosa", "sam", "tess", "udo", "vera", "walt", "yara", "zoe"),
)
ATTRIBUTES = {
    **{"hair": ("black", "red", "blond"), "hat": ("cap", "hood"), "eyes": ("brown", "blue", "green")},
    **{"beard": ("long", "short"), "scarf": ("wool", "silk"), "mood": ("glad", "sad")},
}
"""Attribute -> values, for generated tables."""
LARGEST_TREE = 3
"""Maximum number of characters of a game whose deals are exported for exact evaluation."""
CharacterTable = dict[str, dict[str, str]]
"""Character -> attribute -> value."""


def answer(table: CharacterTable, move: str, secret: str) -> str:
    """Return the answer to a move: the secret character's value of an attribute, or "yes" or "no" to a guess."""
    verb, _, name = move.partition(" ")
    if verb == GUESS:
        return "yes" if name == secret else "no"
    return table[secret][move]


def remaining(table: CharacterTable, move: str, reply: str, possible: tuple[str, ...]) -> tuple[str, ...]:
    """Return the characters of `possible` consistent with `reply` to `move`."""
    return tuple(name for name in possible if answer(table, move, name) == reply)


def useful_moves(table: CharacterTable, possible: tuple[str, ...]) -> tuple[str, ...]:
    """Return the questions with an uncertain answer, and the guesses of possible characters."""
    moves: list[str] = []
    for attribute in table[possible[0]]:
        values = {table[name][attribute] for name in possible}
        if len(values) > 1:
            moves.append(attribute)
    return (*moves, *(f"{GUESS} {name}" for name in possible))


def information_gain(table: CharacterTable, move: str, possible: tuple[str, ...]) -> float:
    """Return the expected information of the answer to `move` (bits) if all of `possible` are equally likely."""
    counts = Counter(answer(table, move, name) for name in possible).values()
    return math.log2(len(possible)) - sum(count * math.log2(count) for count in counts) / len(possible)


class InformationGainPlayer(ScriptedConfig):
    """Player of guess who that maximizes information gain and prefers a guess to a question of equal gain.

    This greedy player ignores the race: a player who is behind does better to guess (Nica, arXiv 1509.03327).
    """

    kind: str = "guess_who_entropy"
    example = "table: {ann: {hair: red}, ben: {hair: black}}"
    table: CharacterTable
    """The table of the game: character -> attribute -> value."""

    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        possible = tuple(state.split(" / ")[1].split())
        merits: dict[str, tuple[float, bool]] = {}
        for move in moves:
            # Rounded: equal gains summed in another order may differ in their last bits, and ties must stay ties.
            merits[move] = round(information_gain(self.table, move, possible), 9), move.startswith(GUESS)
        highest = max(merits.values())
        best = [move for move, merit in merits.items() if merit == highest]
        return uniform_over(best, moves)


class GuessWhoConfig(TextGameConfig):
    """Guess who. The first right guess wins 1, the opponent gets -1; by default an illegal move costs 1.5."""

    kind: str = "guess_who"
    characters: int = Field(default=8, ge=2, le=len(NAMES))
    """Number of characters of a generated table."""
    attributes: int = Field(default=4, ge=1, le=len(ATTRIBUTES))
    """Number of attributes of a generated table."""
    seed: int = 0
    """Seed of a generated table of distinct characters. Every game of a run has the same table."""
    table: CharacterTable | None = Field(default=None, min_length=2)
    """Character -> attribute -> value: a table to use instead of a generated table."""

    @field_validator("table")
    @classmethod
    def _check_table(cls, table: CharacterTable | None) -> CharacterTable | None:
        if table is None:
            return None
        attributes = next(iter(table.values())).keys()
        for name, values in table.items():
            if values.keys() != attributes or not attributes:
                raise ValueError(f"{name!r} has {sorted(values)}; all must have the same: {sorted(attributes)}")
            for word in (name, *values, *values.values()):
                if not re.fullmatch(r"[a-z0-9_]+", word) or word == GUESS:
                    raise ValueError(f"{word!r} is no name; choices: small letters and digits, and not {GUESS!r}")
        if len({frozenset(values.items()) for values in table.values()}) < len(table):
            raise ValueError("two characters are alike, so that no question tells them apart")
        return table

    @model_validator(mode="after")
    def _check_distinct(self) -> Self:
        if self.table is None and self.characters > len(self._looks):
            raise ValueError(
                f"characters: {self.characters} cannot all be different with attributes: {self.attributes}; "
                f"choices: up to {len(self._looks)}, or more attributes"
            )
        return self

    @property
    def _looks(self) -> list[dict[str, str]]:
        """All combinations of attribute values of a generated table, as attribute -> value."""
        chosen = dict(list(ATTRIBUTES.items())[: self.attributes])
        return [dict(zip(chosen, values, strict=True)) for values in product(*chosen.values())]

    @cached_property
    def character_table(self) -> CharacterTable:
        """Table of the game: the setting `table`, or a generated table."""
        looks = random.Random(self.seed).sample(self._looks, self.characters) if self.table is None else []
        return self.table or dict(zip(NAMES, looks, strict=False))

    def build(self) -> GuessWho:
        return GuessWho(self)

    def opponents(self) -> Mapping[str, EngineConfig]:
        return {"entropy": InformationGainPlayer(table=self.character_table)}

    def starts(self) -> tuple[GameStart, ...] | None:
        if len(self.character_table) > LARGEST_TREE:
            return None
        deals = [f"{first} {second}" for first, second in product(self.character_table, repeat=2)]
        return tuple(GameStart(1 / len(deals), {"secrets": secrets}) for secrets in deals)

    def measure_names(self) -> tuple[str, ...]:
        return ("turns",)


class GuessWho(TextGame):
    """Guess who in turns. The game answers every question truthfully, and both players hear question and answer.

    Moves without new information are illegal, so every turn rules out a character and the game ends.
    """

    name = "guess_who"
    zero_sum = True
    default_penalty = 1.5  # more than a loss, so that a lost game is no reason to break the rules
    reset_options = ("secrets",)

    def __init__(self, config: GuessWhoConfig) -> None:
        self.config = config
        attributes = next(iter(self.table.values()))
        rows: list[str] = []
        for name, values in self.table.items():
            rows.append(f"{name}: {', '.join(map(' '.join, values.items()))}")
        self.rules = (
            "This is guess who. Each of the two players has a secret character, any of these with equal probability: "
            f"{'; '.join(rows)}. The players take turns. Your move is the name of an attribute, which asks for its "
            f"value of your opponent's character, or `{GUESS}` and a character. Both hear the question and its true "
            "answer. Who first guesses right wins; a wrong guess costs nothing but the turn. You are told your "
            "character, the characters that your opponent's may still be, and those that yours may be for all that "
            "your opponent knows."
        )
        super().__init__(AGENTS, config.illegal, (*attributes, *(f"{GUESS} {name}" for name in self.table)))

    @property
    def table(self) -> CharacterTable:
        """Table of characters, shared by all copies of the game."""
        return self.config.character_table

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        names = tuple(self.table)
        dealt = options["secrets"] if "secrets" in options else f"{rng.choice(names)} {rng.choice(names)}"
        secrets = tuple(dealt.split(" ")) if isinstance(dealt, str) else ()
        if len(secrets) != 2 or not self.table.keys() >= {*secrets}:
            raise ValueError(
                f"guess_who: option secrets: {shorten(repr(dealt))} are no two characters; choices: a name for "
                f"player_0, a blank, and one for player_1, of {', '.join(names)}"
            )
        self.secrets = secrets
        self.possible = (names, names)
        """For each player, the possible characters of the opponent given the answers so far."""
        self.answers: tuple[str, ...] = ()
        """Moves so far with their answers, of both players."""
        return AGENTS[0]

    def start_key(self) -> str:
        return " ".join(self.secrets)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return useful_moves(self.table, self.possible[AGENTS.index(agent)])

    def describe(self, agent: str) -> str:
        """Return the agent's character and both players' possible characters, as the boards of the real game show."""
        # This sums up all answers in few words, so a model learns to ask and not to keep books.
        me = AGENTS.index(agent)
        theirs, mine = " ".join(self.possible[me]), " ".join(self.possible[1 - me])
        return f"you are {self.secrets[me]} . they may be {theirs} . you may be {mine}"

    def information_state(self, agent: str) -> str:
        """Return "own character / possible characters of the opponent / all moves with their answers"."""
        me = AGENTS.index(agent)
        return f"{self.secrets[me]} / {' '.join(self.possible[me])} / {', '.join(self.answers)}"

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        me = AGENTS.index(self.agent_selection)
        reply = answer(self.table, action, self.secrets[1 - me])
        self.answers = (*self.answers, f"{action} {reply}")
        if action == f"{GUESS} {self.secrets[1 - me]}":
            return {AGENTS[me]: 1.0, AGENTS[1 - me]: -1.0}
        after = remaining(self.table, action, reply, self.possible[me])
        self.possible = (self.possible[0], after) if me else (after, self.possible[1])
        return AGENTS[1 - me]

    def findings(self) -> Findings:
        """Return the measure `turns`, the number of moves of both players."""
        return Findings({"turns": float(len(self.answers))})
