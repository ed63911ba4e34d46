"""Adversarial taboo: the attacker tries to make the defender say a target word (SPAG, arXiv 2404.10642)."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from games.base import TextGame, TextGameConfig
from marl.config import nearest
from marl.types import Findings

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
"""Twelve words with three hints each, which only together distinguish a word from the others."""
GUESS = "I know the word! It is {word}"
"""Form of the defender's guess."""

_GUESS = re.compile(r"\bi know the word\W+it(?:\s+is|['\u2019]s)\b[\W_]*(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_EDGE = r"[^\W_]"
"""A letter or digit, which must not touch a word."""
_UNKNOWN_HINTS = ("something",)
"""Hints of a word that has none."""


class TabooConfig(TextGameConfig):
    """Taboo between attacker and defender. A win is worth 1, a loss or an unreadable answer -1, a tie 0.

    The attacker knows the target word and loses if it says it. The defender loses if it says the word, unless as a
    guess, "I know the word! It is `apple`", which settles the game: right wins, wrong loses.
    """

    kind: str = "taboo"
    words: dict[str, tuple[str, ...]] | None = Field(default=None, min_length=1)
    """Target word -> hints; a list of words will do, as hints serve the `examples` of moves only. Default: twelve words
    of three hints each."""
    file: Path | None = None
    """A text file of target words, one per line, instead of `words`."""
    max_turns: PositiveInt = 5
    """Number of turns of each player, after which the game is a tie."""
    inflections: bool = True
    """Count inflected forms, too: with true, "apples" counts as "apple". Case never matters; "a-p-p-l-e" never
    counts."""

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
        """Target word -> hints; raises ValueError if there is no such file, or no word in it."""
        if self.file is None:
            return self.words or LEXICON
        if not self.file.is_file():
            raise ValueError(f"file: no such file: {self.file}; it should hold target words, one per line")
        lines = (" ".join(line.split()) for line in self.file.read_text(encoding="utf-8").splitlines())
        if not (words := dict.fromkeys(filter(None, lines), ())):
            raise ValueError(f"file: no word in {self.file}; it should hold target words, one per line")
        return words

    def build(self) -> Taboo:
        return Taboo(self)

    def default_seats(self) -> Mapping[str, str]:
        return {seat: seat for seat in SEATS}


class Taboo(TextGame):
    """The attacker speaks first. Observations hold the whole conversation, which both players hear.

    They hold moves alone; reasoning around a move is shown only to roles whose prompts use `heard`.
    """

    name = "taboo"
    zero_sum = True
    choices = ("word",)

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
            raise ValueError(f"taboo: option word: {self.word!r} is no target; {nearest(str(self.word), self.words)}")
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
        moves = [f"{SEATS[place % 2]} : {move}" for place, move in enumerate(self.conversation)]
        return "\n".join([f"turn {turn} of {self.max_turns} . {part}", *moves])

    def state_of(self, agent: str) -> str:
        return self.describe(agent)

    def examples(self, agent: str) -> tuple[str, ...]:
        """Return a few random sentences: true hints for the attacker, and for the defender some blind to the word."""
        draw = self.rng.choice
        if agent == ATTACKER:
            hints = self.targets[self.word] or _UNKNOWN_HINTS
            return f"it is {draw(hints)}", f"what is {draw(hints)}?"
        questions = (f"is it {draw(self.hints)}?", f"is it {draw(self.hints)}?")
        return *questions, f"maybe {draw(self.words)}", GUESS.format(word=draw(self.words))

    def move(self, action: str) -> str | Mapping[str, float]:
        mover, utterance = self.agent_selection, " ".join(action.split())
        self.conversation.append(utterance)
        other = SEATS[mover == ATTACKER]
        if winner := self._winner(mover, utterance):
            return {seat: 1.0 if seat == winner else -1.0 for seat in SEATS}
        return other if len(self.conversation) < 2 * self.max_turns else dict.fromkeys(SEATS, 0.0)

    def findings(self) -> Findings:
        """Return `attacker_win`, `defender_win` and `tie`, one of which is 1, and the number of `turns`."""
        gain = self.rewards[ATTACKER]
        won = {"attacker_win": gain > 0, "defender_win": gain < 0, "tie": gain == 0}
        return Findings({name: float(value) for name, value in won.items()} | {"turns": float(len(self.conversation))})

    def _winner(self, mover: str, utterance: str) -> str | None:
        uttered = self._uttered_pattern.search(utterance)
        if mover == ATTACKER:
            return DEFENDER if uttered else None
        if guess := _GUESS.search(utterance):
            return DEFENDER if self._guess_pattern.match(guess["rest"]) else ATTACKER
        return ATTACKER if uttered else None
