"""Strings task: a text to be transformed step by step."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Annotated, Literal, get_args

from pydantic import Field

from games.tasks.base import Draft, GeneratedTask, within, wrong_answers
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
_QUESTION_PATTERN = re.compile(r"Apply in order: ([a-z0-9 ;-]+)\. Text: ([a-z]+(?: [a-z]+)*)", re.ASCII)

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


class StringsTask(GeneratedTask):
    """A text and one or more transforms of it: `Apply in order: reverse; uppercase. Text: tamo` -> `OMAT`."""

    kind: str = "strings"
    transforms: tuple[Transform, ...] = Field(get_args(Transform), min_length=1)
    """Transforms that problems are made of."""
    depth: Annotated[tuple[int, int], within(1, 6)] = (1, 3)
    """Fewest and most transforms in a problem."""
    words: Annotated[tuple[int, int], within(1, 20)] = (1, 2)
    """Fewest and most words in a text."""
    letters: Annotated[tuple[int, int], within(1, 20)] = (3, 6)
    """Fewest and most letters of a word."""

    @property
    def secret_facts(self) -> frozenset[str]:
        return frozenset({"steps"})

    @property
    def posing(self) -> str:
        return (
            f"'Apply in order: A; B. Text: C': {self.depth[0]} to {self.depth[1]} of the transforms "
            f"{', '.join(self.transforms)}, each of which changes the text, of {self.words[0]} to {self.words[1]} "
            f"words of {self.letters[0]} to {self.letters[1]} small letters; the answer is worked out"
        )

    def draw(self, rng: random.Random) -> Draft:
        for _ in range(10_000):
            text = " ".join([_random_word(rng, rng.randint(*self.letters)) for _ in range(rng.randint(*self.words))])
            steps = [rng.choice(self.transforms) for _ in range(rng.randint(*self.depth))]
            if draft := _draft(steps, text):
                return draft
        raise ValueError(
            f"transforms: {list(self.transforms)} leave texts of these settings as they are; choose others"
        )

    def read(self, text: str) -> Draft | None:
        match = _QUESTION_PATTERN.fullmatch(text.strip())
        if match is None:
            return None
        steps, words = match[1].split("; "), match[2].split(" ")
        known = all(step in self.transforms for step in steps) and self.depth[0] <= len(steps) <= self.depth[1]
        sized = all(self.letters[0] <= len(word) <= self.letters[1] for word in words)
        fits = known and sized and self.words[0] <= len(words) <= self.words[1]
        return _draft(steps, match[2]) if fits else None


def _random_word(rng: random.Random, letters: int) -> str:
    """Return a pronounceable word, in which consonants and vowels alternate."""
    sounds = ("bdfgklmnprstvz", "aeiou")
    first = rng.randrange(2)
    return "".join([rng.choice(sounds[(first + i) % 2]) for i in range(letters)])


def apply_steps(steps: Sequence[str], text: str) -> list[str]:
    """Return the text and the result of each step."""
    return list(accumulate(steps, lambda text, step: TRANSFORMS[step](text), initial=text))


def _draft(steps: Sequence[str], text: str) -> Draft | None:
    """Return a problem; None if a step changes nothing or leaves nothing."""
    results = apply_steps(steps, text)
    if not all(results) or any(before == after for before, after in pairwise(results)):
        return None
    question = f"Apply in order: {'; '.join(steps)}. Text: {text}"
    return Draft(question, 10 * len(steps) + len(text) / 10, partial(_write, question, tuple(steps), text))


def _write(question: str, steps: tuple[str, ...], text: str) -> Problem:
    results = apply_steps(steps, text)
    answer = results[-1]
    misread = [apply_steps(steps[1:], text)[-1], results[-2], apply_steps(steps[::-1], text)[-1]]
    typos = [answer[:-1], answer[1:] + answer[0], answer[:-2] + answer[-2:][::-1], answer + answer[-1], answer * 3]
    wrong = wrong_answers([*misread, *typos], answer)
    return Problem(question, question, answer, wrong, {"text": text, "transforms": list(steps), "steps": results[1:]})
