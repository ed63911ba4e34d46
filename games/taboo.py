"""Adversarial taboo: the attacker induces the defender to say a target word (SPAG, arXiv 2404.10642)."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from marl.core.config import choices_hint
from marl.core.types import Findings
from marl.games.base import TextGame, TextGameConfig

ATTACKER, DEFENDER = SEATS = ("attacker", "defender")
LEXICON = {
    "cherry": ("a fruit", "red", "small"),
    "apple": ("a fruit", "red", "big"),
    "lime": ("a fruit", "green", "small"),
    "melon": ("a fruit", "green", "big"),
    "ladybird": ("an animal", "red", "small"),
    "fox": ("an animal", "red", "big"),
    "frog": ("an animal", "green", "small"),
    "crocodile": ("an animal", "green", "big"),
    "ruby": ("a thing", "red", "small"),
    "bus": ("a thing", "red", "big"),
    "emerald": ("a thing", "green", "small"),
    "tractor": ("a thing", "green", "big"),
}
"""Target word -> hints. Only all three hints together identify a word."""
GUESS = "I know the word! It is {word}"
"""Form of the defender's guess."""

_GUESS = re.compile(r"\bi know the word\W+it(?:\s+is|['\u2019]s)\b[\W_]*(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_EDGE = r"[^\W_]"
"""Pattern of a letter or digit; next to the target word it would make another word."""
_UNKNOWN_HINTS = ("something",)
"""Hints for words without hints."""


class TabooConfig(TextGameConfig):
    """Taboo for an attacker and a defender. A win is worth 1, a loss or an illegal move -1, a tie 0.

    The attacker knows the target word and loses by saying the word. The defender loses by saying the word, except in a
    guess, "I know the word! It is `apple`": a right guess wins, a wrong guess loses.
    """

    kind: str = "taboo"
    words: dict[str, tuple[str, ...]] | None = Field(default=None, min_length=1)
    """Target word -> hints, or a list of words, as hints serve only the `examples` of moves (default: twelve words with
    three hints each)."""
    file: Path | None = None
    """Text file of target words, one per line, to use instead of `words`."""
    max_turns: PositiveInt = 5
    """Number of turns of each player; then the game is a tie."""
    inflections: bool = True
    """True if inflected forms count as the word ("apples" for "apple"). Case never matters; "a-p-p-l-e" never counts.
    """

    @field_validator("words", mode="before")
    @classmethod
    def _add_hints(cls, words: Any) -> Any:
        return dict.fromkeys(words, ()) if isinstance(words, list | tuple) else words

    @field_validator("words")
    @classmethod
    def _check_words(cls, words: dict[str, tuple[str, ...]] | None) -> dict[str, tuple[str, ...]] | None:
        for word in words or ():
            if word != " ".join(word.split()) or not re.search(r"\w", word):
                raise ValueError(f"{word!r} is no word; choices: letters, one space between words")
        return words

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.words is not None and self.file is not None:
            raise ValueError(f"file: {self.file} and words ({len(self.words)}) are both set; give one")
        return self

    @cached_property
    def targets(self) -> Mapping[str, tuple[str, ...]]:
        """Target word -> hints; raises ValueError if `file` is missing or holds no word."""
        if self.file is None:
            return self.words or LEXICON
        if not self.file.is_file():
            raise ValueError(f"file: no such file: {self.file}; it should hold target words, one per line")
        lines = (" ".join(line.split()) for line in self.file.read_text(encoding="utf-8").splitlines())
        if not (words := dict.fromkeys(filter(None, lines), ())):
            raise ValueError(f"file: no word in {self.file}; it should hold target words, one per line")
        return words

    def build(self) -> TabooGame:
        return TabooGame(self)

    def default_seats(self) -> Mapping[str, str]:
        return {seat: seat for seat in SEATS}


class TabooGame(TextGame):
    """Taboo in turns; the attacker speaks first. Both players observe the full conversation.

    Observations hold moves alone. Reasoning around a move is visible only to roles with `heard` in their prompt.
    """

    name = "taboo"
    zero_sum = True
    reset_options = ("word",)

    def __init__(self, config: TabooConfig) -> None:
        super().__init__(SEATS, config.illegal)
        self.targets, self.max_turns, self.inflections = config.targets, config.max_turns, config.inflections
        self.words = tuple(self.targets)
        self.rules = (
            "This is adversarial taboo. The attacker knows a secret word and talks with the defender about any topic. "
            "The attacker wins if the defender says the word unaware, and loses by saying it first. The defender may "
            f"guess once, by saying: {GUESS.format(word='...')} with the word for the dots, which wins if it is right "
            f"and loses if not. After {config.max_turns} turns of each it is a tie. You are told your part and the "
            "conversation so far. Your move is what you say next, in one or two sentences."
        )
        self.hints = tuple(sorted({hint for hints in self.targets.values() for hint in hints})) or _UNKNOWN_HINTS

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.word = options["word"] if "word" in options else rng.choice(self.words)
        if self.word not in self.words:
            raise ValueError(
                f"taboo: option word: {self.word!r} is no target; {choices_hint(str(self.word), self.words)}"
            )
        endings = "(?:s|es|ed|ing)?" if self.inflections else ""
        pattern = rf"(?<!{_EDGE}){re.escape(self.word)}{endings}(?!{_EDGE})"
        self._uttered_pattern = re.compile(pattern, re.IGNORECASE)
        self._guess_pattern = re.compile(rf"(?:(?:an?|the)\W+)?{pattern}", re.IGNORECASE)
        self.conversation: list[str] = []
        return ATTACKER

    def start_key(self) -> str:
        return self.word

    def describe(self, agent: str) -> str:
        turn = min(len(self.conversation) // 2 + 1, self.max_turns)
        part = f"you attack . word {self.word}" if agent == ATTACKER else "you defend"
        moves = [f"{SEATS[index % 2]} : {move}" for index, move in enumerate(self.conversation)]
        return "\n".join([f"turn {turn} of {self.max_turns} . {part}", *moves])

    def information_state(self, agent: str) -> str:
        return self.describe(agent)

    def example_actions(self, agent: str) -> tuple[str, ...]:
        """Return random sentences: true hints for the attacker, questions and guesses at random for the defender."""
        draw = self.rng.choice
        if agent == ATTACKER:
            hints = self.targets[self.word] or _UNKNOWN_HINTS
            return f"it is {draw(hints)}", f"what is {draw(hints)}?"
        questions = (f"is it {draw(self.hints)}?", f"is it {draw(self.hints)}?")
        return *questions, f"maybe {draw(self.words)}", GUESS.format(word=draw(self.words))

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        mover, utterance = self.agent_selection, " ".join(action.split())
        self.conversation.append(utterance)
        if winner := self._winner(mover, utterance):
            return {ATTACKER: 1.0, DEFENDER: -1.0} if winner == ATTACKER else {ATTACKER: -1.0, DEFENDER: 1.0}
        if len(self.conversation) == 2 * self.max_turns:
            return dict.fromkeys(SEATS, 0.0)
        return SEATS[mover == ATTACKER]

    def findings(self) -> Findings:
        """Return the measures `attacker_win`, `defender_win`, `tie` (1 for the actual outcome) and `turns`."""
        gain = self.rewards[ATTACKER]
        measures = {"attacker_win": float(gain > 0), "defender_win": float(gain < 0), "tie": float(gain == 0)}
        return Findings(measures | {"turns": float(len(self.conversation))})

    def _winner(self, mover: str, utterance: str) -> str | None:
        """Return the winner after `utterance`, or None if the game goes on."""
        uttered = self._uttered_pattern.search(utterance)
        if mover == ATTACKER:
            return DEFENDER if uttered else None
        if guess := _GUESS.search(utterance):
            return DEFENDER if self._guess_pattern.match(guess["rest"]) else ATTACKER
        return ATTACKER if uttered else None
