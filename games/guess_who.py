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
from marl.core.types import EpisodeMeasuresAndNewStarts
from marl.engines.scripted import ScriptedConfig
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig, equiprobable_starts
from marl.games.two_player import AGENTS, uniform_over_best_moves
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
"""Attribute -> its possible values, from which tables of characters are generated."""
LARGEST_TREE = 3
"""Maximum number of characters of a game whose start states are listed, so that evaluation can enumerate the game."""
CharacterTable = dict[str, dict[str, str]]
"""Table of a game: character -> attribute -> value of this attribute."""


def answer_about_character(table: CharacterTable, move: str, secret_name: str) -> str:
    """Return the answer to `move` about the character `secret_name`: the attribute's value, or yes or no to a guess."""
    verb, _, name = move.partition(" ")
    if verb == GUESS:
        return "yes" if name == secret_name else "no"
    return table[secret_name][move]


def moves_with_uncertain_answer(table: CharacterTable, possible_names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the moves with an uncertain answer: questions that divide `possible_names`, and a guess of each."""
    moves: list[str] = []
    for attribute in table[possible_names[0]]:
        values = {table[name][attribute] for name in possible_names}
        if len(values) > 1:
            moves.append(attribute)
    return (*moves, *(f"{GUESS} {name}" for name in possible_names))


def information_gain(table: CharacterTable, move: str, possible_names: tuple[str, ...]) -> float:
    """Return the expected information [bits] of the answer to `move` if all `possible_names` are equally likely."""
    counts = Counter(answer_about_character(table, move, name) for name in possible_names).values()
    return math.log2(len(possible_names)) - sum(count * math.log2(count) for count in counts) / len(possible_names)


class InformationGainPlayer(ScriptedConfig):
    """Player of guess who that maximizes information gain, and prefers a guess to a question of equal gain.

    This greedy player is not optimal: a player who is behind should guess earlier (Nica, arXiv 1509.03327).
    """

    kind: str = "guess_who_entropy"
    example = "table: {ann: {hair: red}, ben: {hair: black}}"
    table: CharacterTable
    """Table of characters in the game: character -> attribute -> value."""

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        possible_names = tuple(state.split(" / ")[1].split())
        merits: dict[str, tuple[float, bool]] = {}
        for move in moves:
            # Gains are rounded, because equal gains may differ in their last bits if summed in another order.
            merits[move] = round(information_gain(self.table, move, possible_names), 9), move.startswith(GUESS)
        highest = max(merits.values())
        return uniform_over_best_moves([move for move, merit in merits.items() if merit == highest], moves)


class GuessWhoConfig(TextGameConfig):
    """Guess who. The first right guess wins 1, the opponent gets -1; by default an illegal move costs 1.5."""

    kind: str = "guess_who"
    characters: int = Field(default=8, ge=2, le=len(NAMES))
    """Number of characters of a generated table (unused if `table` is given)."""
    attributes: int = Field(default=4, ge=1, le=len(ATTRIBUTES))
    """Number of attributes of a generated table (unused if `table` is given)."""
    seed: int = 0
    """Seed from which the table of distinct characters is generated. Every game of a run has the same table."""
    table: CharacterTable | None = Field(default=None, min_length=2)
    """Table of characters: character -> attribute -> value (default: a generated table)."""

    @field_validator("table")
    @classmethod
    def _check_character_table(cls, table: CharacterTable | None) -> CharacterTable | None:
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
    def _check_enough_distinct_characters(self) -> Self:
        combinations = math.prod(map(len, list(ATTRIBUTES.values())[: self.attributes]))
        if self.table is None and self.characters > combinations:
            raise ValueError(
                f"characters: {self.characters} cannot all be different with attributes: {self.attributes}; "
                f"choices: up to {combinations}, or more attributes"
            )
        return self

    @cached_property
    def character_table(self) -> CharacterTable:
        """Table of the game's characters: the setting `table`, or a generated table."""
        if self.table is not None:
            return self.table
        attributes = list(ATTRIBUTES)[: self.attributes]
        combinations = list(product(*list(ATTRIBUTES.values())[: self.attributes]))
        table: CharacterTable = {}
        for name, values in zip(NAMES, random.Random(self.seed).sample(combinations, self.characters), strict=False):
            table[name] = dict(zip(attributes, values, strict=True))
        return table

    def build(self) -> GuessWho:
        return GuessWho(self)

    def reference_players(self) -> Mapping[str, EngineConfig]:
        return {"entropy": InformationGainPlayer(table=self.character_table)}

    def all_start_states(self) -> tuple[GameStart, ...] | None:
        if len(self.character_table) > LARGEST_TREE:
            return None
        return equiprobable_starts("secrets", list(map(" ".join, product(self.character_table, repeat=2))))

    def measure_names(self) -> tuple[str, ...]:
        return ("turns",)


class GuessWho(TextGame):
    """Guess who in turns. The game answers every question truthfully, and both players read question and answer.

    Moves whose answer is already known are illegal, so that every game ends.
    """

    name = "guess_who"
    zero_sum = True
    # An illegal move costs more than a loss, so that a lost game is no reason to break the rules.
    default_penalty = 1.5
    reset_options = ("secrets",)

    def __init__(self, config: GuessWhoConfig) -> None:
        self.config, table = config, config.character_table
        attributes = next(iter(table.values()))
        rows: list[str] = []
        for name, values in table.items():
            rows.append(f"{name}: {', '.join(map(' '.join, values.items()))}")
        self.rules = (
            "This is guess who. Each of the two players has a secret character, any of these with equal probability: "
            f"{'; '.join(rows)}. The players take turns. Your move is the name of an attribute, which asks for its "
            f"value of your opponent's character, or `{GUESS}` and a character. Both hear the question and its true "
            "answer. Who first guesses right wins; a wrong guess costs nothing but the turn. You are told your "
            "character, the characters that your opponent's may still be, and those that yours may be for all that "
            "your opponent knows."
        )
        super().__init__(AGENTS, config.illegal, (*attributes, *(f"{GUESS} {name}" for name in table)))

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        names = tuple(self.config.character_table)
        dealt = options["secrets"] if "secrets" in options else f"{rng.choice(names)} {rng.choice(names)}"
        secrets = tuple(dealt.split(" ")) if isinstance(dealt, str) else ()
        if len(secrets) != 2 or not {*secrets} <= {*names}:
            raise ValueError(
                f"guess_who: option secrets: {shorten(repr(dealt))} are no two characters; choices: a name for "
                f"player_0, a blank, and one for player_1, of {', '.join(names)}"
            )
        self.secrets = secrets
        self.possible = (names, names)
        """For each player, the characters that the opponent may have according to the answers so far."""
        self.answers: tuple[str, ...] = ()
        """Moves of both players so far, each with its answer."""
        return AGENTS[0]

    def start_state_key(self) -> str:
        return " ".join(self.secrets)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return moves_with_uncertain_answer(self.config.character_table, self.possible[AGENTS.index(agent)])

    def describe_observation(self, agent: str) -> str:
        """Return the agent's character and the characters that each player may have, as the real game's boards show."""
        # The observation sums up all answers, so that a model learns to ask rather than to remember answers.
        me = AGENTS.index(agent)
        theirs, mine = " ".join(self.possible[me]), " ".join(self.possible[1 - me])
        return f"you are {self.secrets[me]} . they may be {theirs} . you may be {mine}"

    def redeal(self, agent: str, rng: random.Random) -> bool:
        me = AGENTS.index(agent)
        theirs = rng.choice(self.possible[me])
        self.secrets = (theirs, self.secrets[1]) if me else (self.secrets[0], theirs)
        return True

    def information_state(self, agent: str) -> str:
        """Return "own character / possible characters of the opponent / all moves with their answers"."""
        me = AGENTS.index(agent)
        return f"{self.secrets[me]} / {' '.join(self.possible[me])} / {', '.join(self.answers)}"

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        me = AGENTS.index(self.agent_selection)
        table = self.config.character_table
        reply = answer_about_character(table, action, self.secrets[1 - me])
        self.answers = (*self.answers, f"{action} {reply}")
        if action == f"{GUESS} {self.secrets[1 - me]}":
            return {AGENTS[me]: 1.0, AGENTS[1 - me]: -1.0}
        left = tuple(name for name in self.possible[me] if answer_about_character(table, action, name) == reply)
        self.possible = (self.possible[0], left) if me else (left, self.possible[1])
        return AGENTS[1 - me]

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        """Return the measure `turns`: the number of moves of both players."""
        return EpisodeMeasuresAndNewStarts({"turns": float(len(self.answers))})
