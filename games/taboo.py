"""Adversarial taboo: one knows a word and wants the other to say it without noticing (SPAG, arXiv 2404.10642)."""

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
"""Twelve words, each told from the others by three hints and by no two."""
GUESS = "I know the word! It is {word}"
"""How the defender guesses."""

_GUESS = re.compile(r"\bi know the word\W+it(?:\s+is|['\u2019]s)\b[\W_]*(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_EDGE = r"[^\W_]"
"""A letter or digit: what a word must not touch, to be that word."""


def utterance(word: str, *, inflections: bool) -> str:
    """A pattern of `word` where it stands alone; with `inflections` also +s, +es, +ed and +ing."""
    return rf"(?<!{_EDGE}){re.escape(word)}{'(?:s|es|ed|ing)?' if inflections else ''}(?!{_EDGE})"


class TabooConfig(TextGameConfig):
    """Taboo between attacker and defender. A win is worth 1, a loss or an unreadable answer -1, a tie 0.

    The attacker knows the target word and loses if it says it. The defender loses if it says the word, unless as a
    guess, "I know the word! It is `apple`", which settles the game: right wins, wrong loses.
    """

    kind: str = "taboo"
    words: dict[str, tuple[str, ...]] | None = Field(default=None, min_length=1)
    """Target word -> what is true of it; a list of words will do, for only `examples` are made of these hints.
    Default: twelve words of three hints each."""
    file: Path | None = None
    """A text file of target words, one a line, instead."""
    max_turns: PositiveInt = 5
    """How often each of the two speaks before it is a tie."""
    inflections: bool = True
    """Whether apples are apple. Case never matters; spelled out ("a-p-p-l-e"), a word is not said."""

    @field_validator("words", mode="before")
    @classmethod
    def _without_hints(cls, words: Any) -> Any:
        return dict.fromkeys(words, ()) if isinstance(words, list | tuple) else words

    @field_validator("words")
    @classmethod
    def _are_words(cls, words: dict[str, tuple[str, ...]] | None) -> dict[str, tuple[str, ...]] | None:
        for word in words or ():
            if word != " ".join(word.split()) or not re.search(r"\w", word):
                raise ValueError(f"{word!r} is no word that can be said; choices: letters, one space between words")
        return words

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.words is not None and self.file is not None:
            raise ValueError(f"file: {self.file} and words ({len(self.words)}) both say what the targets are; give one")
        return self

    @cached_property
    def targets(self) -> Mapping[str, tuple[str, ...]]:
        """Target word -> what is true of it.

        Raises:
            ValueError: if there is no such file, or no word in it.
        """
        if self.file is None:
            return self.words or LEXICON
        if not self.file.is_file():
            raise ValueError(f"file: no such file: {self.file}; it should hold target words, one a line")
        lines = (" ".join(line.split()) for line in self.file.read_text(encoding="utf-8").splitlines())
        if not (words := dict.fromkeys(filter(None, lines), ())):
            raise ValueError(f"file: no word in {self.file}; it should hold target words, one a line")
        return words

    def build(self) -> Taboo:
        return Taboo(self)

    def casting(self) -> Mapping[str, str]:
        return {seat: seat for seat in SEATS}


class Taboo(TextGame):
    """The attacker speaks first. What either says can be heard by both, so observations hold the whole conversation.

    Observations hold moves alone; a role that thinks aloud shows its thoughts only to prompts that use `heard`.
    """

    name = "taboo"
    zero_sum = True
    choices = ("word",)

    def __init__(self, config: TabooConfig) -> None:
        super().__init__(SEATS, config.illegal)
        self.targets, self.max_turns, self.inflections = config.targets, config.max_turns, config.inflections
        self.words = tuple(self.targets)
        self.hints = tuple(sorted({hint for hints in self.targets.values() for hint in hints})) or _ANYTHING

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.word = options["word"] if "word" in options else rng.choice(self.words)
        if self.word not in self.words:
            raise ValueError(f"taboo: option word: {self.word!r} is no target; {nearest(str(self.word), self.words)}")
        pattern = utterance(self.word, inflections=self.inflections)
        self._said = re.compile(pattern, re.IGNORECASE)
        self._guessed = re.compile(rf"(?:(?:an?|the)\W+)?{pattern}", re.IGNORECASE)
        self.talk: list[str] = []
        return ATTACKER

    def start_key(self) -> str:
        return self.word

    def describe(self, agent: str) -> str:
        turn = min(len(self.talk) // 2 + 1, self.max_turns)
        part = f"you attack . word {self.word}" if agent == ATTACKER else "you defend"
        said = [f"{SEATS[place % 2]} : {move}" for place, move in enumerate(self.talk)]
        return "\n".join([f"turn {turn} of {self.max_turns} . {part}", *said])

    def state_of(self, agent: str) -> str:
        return self.describe(agent)

    def examples(self, agent: str) -> tuple[str, ...]:
        """A few sentences, drawn anew each time. The attacker's are true; the defender's know nothing of the word."""
        draw = self.rng.choice
        if agent == ATTACKER:
            hints = self.targets[self.word] or _ANYTHING
            return f"it is {draw(hints)}", f"what is {draw(hints)}?"
        asks = (f"is it {draw(self.hints)}?", f"is it {draw(self.hints)}?")
        return *asks, f"maybe {draw(self.words)}", GUESS.format(word=draw(self.words))

    def move(self, action: str) -> str | Mapping[str, float]:
        mover, said = self.agent_selection, " ".join(action.split())
        self.talk.append(said)
        other = SEATS[mover == ATTACKER]
        if winner := self._winner(mover, said):
            return {seat: 1.0 if seat == winner else -1.0 for seat in SEATS}
        return other if len(self.talk) < 2 * self.max_turns else dict.fromkeys(SEATS, 0.0)

    def findings(self) -> Findings:
        """Who won (one of three is 1), and how many statements it took."""
        gain = self.rewards[ATTACKER]
        won = {"attacker_win": gain > 0, "defender_win": gain < 0, "tie": gain == 0}
        return Findings({name: float(value) for name, value in won.items()} | {"turns": float(len(self.talk))})

    def _winner(self, mover: str, said: str) -> str | None:
        uttered = self._said.search(said)
        if mover == ATTACKER:
            return DEFENDER if uttered else None
        if guess := _GUESS.search(said):
            return DEFENDER if self._guessed.match(guess["rest"]) else ATTACKER
        return ATTACKER if uttered else None


_ANYTHING = ("something",)
"""What can be said of a word of which nothing is known."""
