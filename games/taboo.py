"""Adversarial taboo: the attacker induces the defender to say a target word (SPAG, arXiv 2404.10642)."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PositiveInt, ValidatorFunctionWrapHandler, field_validator, model_validator

from marl.core.config import choices_hint
from marl.core.types import EpisodeMeasuresAndNewStarts
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig

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
"""Target word -> its hints. Only all three hints together identify a word."""
GUESS = "I know the word! It is {word}"
"""Wording of the defender's guess."""

_GUESS = re.compile(r"\bi know the word\W+it(?:\s+is|['\u2019]s)\b[\W_]*(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_LOOK_ALIKES = str.maketrans("аеорсухіјѕһԁԛԝгкмтвнαβεικνορτυχ\u0131", "aeopcyxijshdqwrkmtbhabeiknoptuxi")
"""Small Cyrillic and Greek letters that look like Latin ones, whose words no other rule would find."""
_EDGE = r"[^\W_]"
"""Pattern of a letter or digit. A target word next to a letter or digit is part of another word."""
_UNKNOWN_HINTS = ("something",)
"""Hints that the game uses for a target word without hints."""


def normalize_letters(text: str) -> str:
    """Return `text` in small letters without accents, invisible characters and look-alikes of Latin letters."""
    letters: list[str] = []
    for character in unicodedata.normalize("NFKD", text).casefold().translate(_LOOK_ALIKES):
        # Unicode category Mn are combining accents; Cf are invisible characters, such as the zero-width space.
        if unicodedata.category(character) not in ("Mn", "Cf"):
            letters.append(character)
    return "".join(letters)


def _disguised_spellings(word_forms: Iterable[str]) -> Iterator[str]:
    """Yield patterns of each form spelled out (`c h e r r y`), broken (`che-rry`), and both of these backwards."""
    for form in word_forms:
        letters = [re.escape(letter) for letter in form if letter.isalnum()]
        for spelling in (letters, letters[::-1]):
            yield r"[\W_]+".join(spelling)
            yield r"(?:[^\w\s]|_)?".join(spelling)


class TabooConfig(TextGameConfig):
    """Taboo for an attacker and a defender. A win is worth 1, a loss or an illegal move -1, a tie 0.

    The attacker knows the target word and loses by saying the word. The defender loses by saying the word, except in a
    guess, "I know the word! It is `apple`": a right guess wins, a wrong guess loses.
    """

    kind: str = "taboo"
    words: dict[str, tuple[str, ...]] | None = Field(default=None, min_length=1)
    """Target words that the attacker may get, with hints for the game's example moves; or a list of words without hints
    (default: twelve words with three hints each)."""
    file: Path | None = None
    """Path of a text file with one target word per line, to use instead of `words`."""
    max_turns: PositiveInt = 5
    """Number of turns of each player, after which the game is a tie."""
    inflections: bool = True
    """True if inflected forms count as the target word ("apples" for "apple"). Case, accents and look-alike letters
    never matter, and a word that is spelled out ("a-p-p-l-e") or written backwards counts."""

    @field_validator("words", mode="wrap")
    @classmethod
    def _check_target_words(
        cls, words: Any, validate: ValidatorFunctionWrapHandler
    ) -> dict[str, tuple[str, ...]] | None:
        hints_of = validate(dict.fromkeys(words, ()) if isinstance(words, list | tuple) else words)
        for word in hints_of or ():
            if word != " ".join(word.split()) or not re.search(r"\w", word):
                raise ValueError(f"{word!r} is no word; choices: letters, one space between words")
        return hints_of

    @model_validator(mode="after")
    def _check_one_word_source(self) -> Self:
        if self.words is not None and self.file is not None:
            raise ValueError(f"file: {self.file} and words ({len(self.words)}) are both set; give one")
        return self

    @cached_property
    def hints_by_target_word(self) -> Mapping[str, tuple[str, ...]]:
        """Target word -> its hints; raises ValueError if `file` is missing or holds no word."""
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

    def default_role_of_agent(self) -> Mapping[str, str]:
        return {seat: seat for seat in SEATS}


class TabooGame(TextGame):
    """Taboo in turns; the attacker speaks first. Both players observe the full conversation.

    Observations hold only moves. An agent reads the reasoning around a move only if its role's prompt has `heard`.
    """

    name = "taboo"
    zero_sum = True
    reset_options = ("word",)

    def __init__(self, config: TabooConfig) -> None:
        super().__init__(SEATS, config.illegal)
        self.hints_by_target_word, self.max_turns, self.inflections = (
            config.hints_by_target_word,
            config.max_turns,
            config.inflections,
        )
        self.words = tuple(self.hints_by_target_word)
        self.rules = (
            "This is adversarial taboo. The attacker knows a secret word and talks with the defender about any topic. "
            "The attacker wins if the defender says the word unaware, and loses by saying it first. The defender may "
            f"guess once, by saying: {GUESS.format(word='...')} with the word for the dots, which wins if it is right "
            f"and loses if not. After {config.max_turns} turns of each it is a tie. You are told your part and the "
            "conversation so far. Your move is what you say next, in one or two sentences."
        )
        self.hints = (
            tuple(sorted({hint for hints in self.hints_by_target_word.values() for hint in hints})) or _UNKNOWN_HINTS
        )

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.word = options["word"] if "word" in options else rng.choice(self.words)
        if self.word not in self.words:
            raise ValueError(
                f"taboo: option word: {self.word!r} is no target; {choices_hint(str(self.word), self.words)}"
            )
        word = normalize_letters(self.word)
        forms = [word]
        if self.inflections:
            forms += [word + ending for ending in ("s", "es", "ed", "ing")]
            if word.endswith("y"):
                forms += [word[:-1] + ending for ending in ("ies", "ied")]
        form = f"(?:{'|'.join(map(re.escape, forms))})"
        # Words of one or two letters have no disguised spellings, because these would match ordinary text.
        is_long = sum(map(str.isalnum, word)) > 2
        said = "|".join([form, *_disguised_spellings(forms)] if is_long else [form])
        self._uttered_pattern = re.compile(rf"(?<!{_EDGE})(?:{said})(?!{_EDGE})")
        self._guess_pattern = re.compile(rf"(?:(?:an?|the)\W+)?(?<!{_EDGE}){form}(?!{_EDGE})")
        self.conversation: list[str] = []
        return ATTACKER

    def start_state_key(self) -> str:
        return self.word

    def describe_observation(self, agent: str) -> str:
        turn = min(len(self.conversation) // 2 + 1, self.max_turns)
        part = f"you attack . word {self.word}" if agent == ATTACKER else "you defend"
        moves = [f"{SEATS[index % 2]} : {move}" for index, move in enumerate(self.conversation)]
        return "\n".join([f"turn {turn} of {self.max_turns} . {part}", *moves])

    information_state = describe_observation

    def example_actions(self, agent: str) -> tuple[str, ...]:
        """Return random sentences: true hints for the attacker, random questions and guesses for the defender."""
        draw = self.rng.choice
        if agent == ATTACKER:
            hints = self.hints_by_target_word[self.word] or _UNKNOWN_HINTS
            return f"it is {draw(hints)}", f"what is {draw(hints)}?"
        questions = (f"is it {draw(self.hints)}?", f"is it {draw(self.hints)}?")
        return *questions, f"maybe {draw(self.words)}", GUESS.format(word=draw(self.words))

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        mover, utterance = self.agent_selection, " ".join(action.split())
        self.conversation.append(utterance)
        winner = None
        plain = normalize_letters(utterance)
        uttered = self._uttered_pattern.search(plain)
        guess = _GUESS.search(plain) if mover == DEFENDER else None
        if guess:
            # A guess may say the target word without losing.
            winner = DEFENDER if self._guess_pattern.match(guess["rest"]) else ATTACKER
        elif uttered:
            winner = SEATS[mover == ATTACKER]
        if winner:
            return {ATTACKER: 1.0, DEFENDER: -1.0} if winner == ATTACKER else {ATTACKER: -1.0, DEFENDER: 1.0}
        if len(self.conversation) == 2 * self.max_turns:
            return dict.fromkeys(SEATS, 0.0)
        return SEATS[mover == ATTACKER]

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        """Return the measures `attacker_win`, `defender_win` and `tie` (1 for the outcome, else 0), and `turns`."""
        gain = self.rewards[ATTACKER]
        measures = {"attacker_win": float(gain > 0), "defender_win": float(gain < 0), "tie": float(gain == 0)}
        return EpisodeMeasuresAndNewStarts(measures | {"turns": float(len(self.conversation))})
