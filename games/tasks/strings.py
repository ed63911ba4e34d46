"""Text to be transformed, step by step."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal, get_args

from pydantic import Field, field_validator

from games.tasks.base import Draft, Generated, distinct, ordered
from marl.types import Problem

Transform = Literal[
    "reverse",
    "uppercase",
    "rotate left by 1",
    "rotate left by 2",
    "remove vowels",
    "sort letters",
    "double letters",
    "repeat twice",
    "reverse words",
    "join with -",
    "initials",
]
_VOWELS = frozenset("aeiouAEIOU")
_ASKED = re.compile(r"Apply in order: ([a-z0-9 ;-]+)\. Text: ([a-z]+(?: [a-z]+)*)", re.ASCII)

TRANSFORMS: Mapping[str, Callable[[str], str]] = {
    "reverse": lambda text: text[::-1],
    "uppercase": str.upper,
    "rotate left by 1": lambda text: text[1:] + text[:1],
    "rotate left by 2": lambda text: text[2:] + text[:2],
    "remove vowels": lambda text: "".join([letter for letter in text if letter not in _VOWELS]),
    "sort letters": lambda text: "".join(sorted(text.replace(" ", ""))),
    "double letters": lambda text: "".join([letter * (1 + letter.isalpha()) for letter in text]),
    "repeat twice": lambda text: text + text,
    "reverse words": lambda text: " ".join(reversed(text.split(" "))),
    "join with -": lambda text: text.replace(" ", "-"),
    "initials": lambda text: "".join([word[0] for word in text.split()]),
}


class Strings(Generated):
    """A text and one or more transforms of it: `Apply in order: reverse; uppercase. Text: tamo` -> `OMAT`."""

    kind: str = "strings"
    transforms: tuple[Transform, ...] = Field(get_args(Transform), min_length=1)
    depth: tuple[int, int] = (1, 3)
    """Fewest and most transforms in a problem."""
    words: tuple[int, int] = (1, 2)
    """Fewest and most words in a text."""
    letters: tuple[int, int] = (3, 6)
    """Fewest and most letters of a word."""

    @field_validator("depth")
    @classmethod
    def _short(cls, depth: tuple[int, int]) -> tuple[int, int]:
        return ordered(depth, "depth", 1, 6)

    @field_validator("words", "letters")
    @classmethod
    def _some(cls, values: tuple[int, int]) -> tuple[int, int]:
        return ordered(values, "words and letters", 1, 20)

    def draw(self, rng: random.Random) -> Draft:
        for _ in range(10_000):
            text = " ".join([_word(rng, rng.randint(*self.letters)) for _ in range(rng.randint(*self.words))])
            steps = [rng.choice(self.transforms) for _ in range(rng.randint(*self.depth))]
            if draft := _draft(steps, text):
                return draft
        raise ValueError(
            f"transforms: {list(self.transforms)} leave texts of these settings as they are; choose others"
        )

    def read(self, text: str) -> Draft | None:
        asked = _ASKED.fullmatch(text.strip())
        if asked is None:
            return None
        steps, words = asked[1].split("; "), asked[2].split(" ")
        known = all(step in self.transforms for step in steps) and self.depth[0] <= len(steps) <= self.depth[1]
        sized = all(self.letters[0] <= len(word) <= self.letters[1] for word in words)
        fits = known and sized and self.words[0] <= len(words) <= self.words[1]
        return _draft(steps, asked[2]) if fits else None


def _word(rng: random.Random, letters: int) -> str:
    """One that can be said: consonants and vowels take turns."""
    sounds = ("bdfgklmnprstvz", "aeiou")
    first = rng.randrange(2)
    return "".join([rng.choice(sounds[(first + i) % 2]) for i in range(letters)])


def applied(steps: Sequence[str], text: str) -> list[str]:
    """The text and what each step makes of it."""
    made = [text]
    for step in steps:
        made.append(TRANSFORMS[step](made[-1]))
    return made


def _draft(steps: Sequence[str], text: str) -> Draft | None:
    """None if a step has nothing to do or leaves nothing."""
    made = applied(steps, text)
    if not all(made) or any(before == after for before, after in pairwise(made)):
        return None
    question = f"Apply in order: {'; '.join(steps)}. Text: {text}"
    return Draft(question, 10 * len(steps) + len(text) / 10, partial(_write, question, tuple(steps), text))


def _write(question: str, steps: tuple[str, ...], text: str) -> Problem:
    made = applied(steps, text)
    answer = made[-1]
    hasty = [applied(steps[1:], text)[-1], made[-2], applied(steps[::-1], text)[-1]]
    slips = [answer[:-1], answer[1:] + answer[0], answer[:-2] + answer[-2:][::-1], answer + answer[-1], answer * 3]
    wrong = distinct([*hasty, *slips], answer)
    return Problem(question, question, answer, wrong, {"text": text, "transforms": list(steps), "steps": made[1:]})
