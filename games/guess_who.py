"""Guess who: each player has a secret character of a table; the first to name the other's wins."""

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

from games.base import TextGame, TextGameConfig
from marl.config import cut
from marl.engines.scripted import ScriptedConfig
from marl.protocols import EngineConfig, GameStart
from marl.types import Findings

AGENTS = ("player_0", "player_1")
GUESS = "guess"
NAMES = (
    *("ann", "ben", "cleo", "dan", "eve", "finn", "gina", "hugo", "ida", "jack", "kate", "leo"),
    *("mia", "nils", "olga", "paul", "rosa", "sam", "tess", "udo", "vera", "walt", "yara", "zoe"),
)
ATTRIBUTES = {
    **{"hair": ("black", "red", "blond"), "hat": ("cap", "hood"), "eyes": ("brown", "blue", "green")},
    **{"beard": ("long", "short"), "scarf": ("wool", "silk"), "mood": ("glad", "sad")},
}
"""Attributes of generated tables, and their values."""
LARGEST_TREE = 3
"""Most characters with which a game exports its deals, so that it can be walked whole."""
Table = dict[str, dict[str, str]]
"""Character -> attribute -> value."""


def answer(table: Table, move: str, secret: str) -> str:
    """Return the true answer to a move: the secret character's value of an attribute, or whether it was guessed."""
    verb, _, name = move.partition(" ")
    if verb == GUESS:
        return "yes" if name == secret else "no"
    return table[secret][move]


def remaining(table: Table, move: str, reply: str, possible: tuple[str, ...]) -> tuple[str, ...]:
    """Return the characters that are still possible after `reply` to `move`."""
    return tuple(name for name in possible if answer(table, move, name) == reply)


def useful_moves(table: Table, possible: tuple[str, ...]) -> tuple[str, ...]:
    """Return the questions whose answer is not known already, and the guesses that may be right."""
    attributes = table[possible[0]]
    questions = [attribute for attribute in attributes if len({table[name][attribute] for name in possible}) > 1]
    return (*questions, *(f"{GUESS} {name}" for name in possible))


def entropy(table: Table, move: str, possible: tuple[str, ...]) -> float:
    """Return the bits that the answer to a move is expected to tell, if all of `possible` are equally likely."""
    counts = Counter(answer(table, move, name) for name in possible).values()
    return math.log2(len(possible)) - sum(count * math.log2(count) for count in counts) / len(possible)


class EntropyQuestioner(ScriptedConfig):
    """Player of guess who that asks what tells it most, and guesses where that tells as much.

    It needs few turns, but does not look at the race: who is behind had better guess (Nica, arXiv 1509.03327).
    """

    kind: str = "guess_who_entropy"
    example = "table: {ann: {hair: red}, ben: {hair: black}}"
    table: Table
    """The table of the game: character -> attribute -> value."""

    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        possible = tuple(state.split(" / ")[1].split())
        # Rounded, as equal parts may add up to sums that differ in their last bits.
        merits = {move: (round(entropy(self.table, move, possible), 9), move.startswith(GUESS)) for move in moves}
        best = [move for move, merit in merits.items() if merit == max(merits.values())]
        return {move: 1 / len(best) if move in best else 0.0 for move in moves}


class GuessWhoConfig(TextGameConfig):
    """Guess who. The first right guess is worth 1 and -1 to the other; an illegal move costs 1.5 by default."""

    kind: str = "guess_who"
    characters: int = Field(default=8, ge=2, le=len(NAMES))
    """Number of characters of a generated table."""
    attributes: int = Field(default=4, ge=1, le=len(ATTRIBUTES))
    """Number of attributes of a generated table."""
    seed: int = 0
    """Seed of a generated table; no two characters are alike in it. Every game of a run has the same table."""
    table: Table | None = Field(default=None, min_length=2)
    """Character -> attribute -> value: a table in place of a generated one."""

    @field_validator("table")
    @classmethod
    def _check_table(cls, table: Table | None) -> Table | None:
        if table is None:
            return None
        attributes = next(iter(table.values())).keys()
        for name, values in table.items():
            if values.keys() != attributes or not attributes:
                raise ValueError(f"{name!r} has {sorted(values)}; all must have the same: {sorted(attributes)}")
            for word in (name, *values, *values.values()):
                if not re.fullmatch(r"[a-z0-9_]+", word) or word == GUESS:
                    raise ValueError(f"{word!r} is no name; choices: small letters and digits, and not {GUESS!r}")
        if len({tuple(values[each] for each in attributes) for values in table.values()}) < len(table):
            raise ValueError("two characters are alike, so that no question tells them apart")
        return table

    @model_validator(mode="after")
    def _are_different(self) -> Self:
        if self.table is None and self.characters > len(self._looks):
            raise ValueError(
                f"characters: {self.characters} cannot all be different with attributes: {self.attributes}; "
                f"choices: up to {len(self._looks)}, or more attributes"
            )
        return self

    @property
    def _looks(self) -> list[dict[str, str]]:
        """All that a character of a generated table can look like."""
        chosen = dict(list(ATTRIBUTES.items())[: self.attributes])
        return [dict(zip(chosen, values, strict=True)) for values in product(*chosen.values())]

    @cached_property
    def cast(self) -> Table:
        """The table that is played with."""
        looks = random.Random(self.seed).sample(self._looks, self.characters) if self.table is None else []
        return self.table or dict(zip(NAMES, looks, strict=False))

    def build(self) -> GuessWho:
        return GuessWho(self)

    def opponents(self) -> Mapping[str, EngineConfig]:
        return {"entropy": EntropyQuestioner(table=self.cast)}

    def starts(self) -> tuple[GameStart, ...] | None:
        if len(self.cast) > LARGEST_TREE:
            return None
        deals = [f"{first} {second}" for first, second in product(self.cast, repeat=2)]
        return tuple(GameStart(1 / len(deals), {"secrets": secrets}) for secrets in deals)

    def measured(self) -> tuple[str, ...]:
        return ("turns",)


class GuessWho(TextGame):
    """Players take turns; questions are answered by the game, truthfully, and both hear them. Zero-sum.

    A move that can tell nothing new is not legal, so that every turn rules a character out, and the game ends.
    """

    name = "guess_who"
    zero_sum = True
    foul = 1.5  # more than a loss, so that a lost game is no reason to break the rules
    choices = ("secrets",)

    def __init__(self, config: GuessWhoConfig) -> None:
        self.config = config
        attributes = next(iter(self.table.values()))
        rows = "; ".join(
            f"{name}: {', '.join(f'{attribute} {value}' for attribute, value in values.items())}"
            for name, values in self.table.items()
        )
        self.rules = (
            "This is guess who. Each of the two players has a secret character, any of these with equal probability: "
            f"{rows}. The players take turns. Your move is the name of an attribute, which asks for its value of your "
            f"opponent's character, or `{GUESS}` and a character. Both hear the question and its true answer. Who "
            "first guesses right wins; a wrong guess costs nothing but the turn. You are told your character, the "
            "characters that your opponent's may still be, and those that yours may be for all that your opponent "
            "knows."
        )
        super().__init__(AGENTS, config.illegal, (*attributes, *(f"{GUESS} {name}" for name in self.table)))

    @property
    def table(self) -> Table:
        """Return the table, which all copies of the game share."""
        return self.config.cast

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        names = tuple(self.table)
        dealt = options["secrets"] if "secrets" in options else f"{rng.choice(names)} {rng.choice(names)}"
        secrets = tuple(dealt.split(" ")) if isinstance(dealt, str) else ()
        if len(secrets) != 2 or not self.table.keys() >= {*secrets}:
            raise ValueError(
                f"guess_who: option secrets: {cut(repr(dealt))} are no two characters; choices: a name for player_0, "
                f"a blank, and one for player_1, of {', '.join(names)}"
            )
        self.secrets = secrets
        self.possible = (names, names)
        """Characters that the opponent's may be, for all that each player knows."""
        self.answers: tuple[str, ...] = ()
        """Moves so far with their answers."""
        return AGENTS[0]

    def start_key(self) -> str:
        return " ".join(self.secrets)

    def legal(self, agent: str) -> tuple[str, ...]:
        return useful_moves(self.table, self.possible[AGENTS.index(agent)])

    def describe(self, agent: str) -> str:
        """Return the agent's character, and what both players can still think of, as the real game's boards show it.

        It is all that counts of the answers so far, in fewer words, so that asking is learned and not book-keeping.
        """
        me = AGENTS.index(agent)
        theirs, mine = " ".join(self.possible[me]), " ".join(self.possible[1 - me])
        return f"you are {self.secrets[me]} . they may be {theirs} . you may be {mine}"

    def state_of(self, agent: str) -> str:
        """Return character / possible characters of the opponent / all moves of both with their answers."""
        me = AGENTS.index(agent)
        return f"{self.secrets[me]} / {' '.join(self.possible[me])} / {', '.join(self.answers)}"

    def move(self, action: str) -> str | Mapping[str, float]:
        me = AGENTS.index(self.agent_selection)
        reply = answer(self.table, action, self.secrets[1 - me])
        self.answers = (*self.answers, f"{action} {reply}")
        if action == f"{GUESS} {self.secrets[1 - me]}":
            return {AGENTS[me]: 1.0, AGENTS[1 - me]: -1.0}
        after = remaining(self.table, action, reply, self.possible[me])
        self.possible = (self.possible[0], after) if me else (after, self.possible[1])
        return AGENTS[1 - me]

    def findings(self) -> Findings:
        """Return the number of `turns`."""
        return Findings({"turns": float(len(self.answers))})
