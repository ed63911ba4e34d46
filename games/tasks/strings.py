"""Strings task: a text to be transformed step by step."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Annotated, Literal, get_args

from pydantic import Field

from marl.core.types import Problem
from marl.games.tasks.base import GeneratedTask, ProblemDraft, range_within, wrong_answers

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
    """Transforms to draw from."""
    depth: Annotated[tuple[int, int], range_within(1, 6)] = (1, 3)
    """Minimum and maximum number of transforms in a problem."""
    words: Annotated[tuple[int, int], range_within(1, 20)] = (1, 2)
    """Minimum and maximum number of words in a text."""
    letters: Annotated[tuple[int, int], range_within(1, 20)] = (3, 6)
    """Minimum and maximum number of letters of a word."""

    @property
    def secret_facts(self) -> frozenset[str]:
        return frozenset({"steps"})

    @property
    def posing_instructions(self) -> str:
        return (
            f"'Apply in order: A; B. Text: C': {self.depth[0]} to {self.depth[1]} of the transforms "
            f"{', '.join(self.transforms)}, each of which changes the text, of {self.words[0]} to {self.words[1]} "
            f"words of {self.letters[0]} to {self.letters[1]} small letters; the answer is worked out"
        )

    def draw(self, rng: random.Random) -> ProblemDraft:
        for _ in range(10_000):
            words = [_random_word(rng, rng.randint(*self.letters)) for _ in range(rng.randint(*self.words))]
            steps = [rng.choice(self.transforms) for _ in range(rng.randint(*self.depth))]
            if draft := _draft(steps, " ".join(words)):
                return draft
        raise ValueError(
            f"transforms: {list(self.transforms)} leave texts of these settings as they are; choose others"
        )

    def parse_problem(self, text: str) -> ProblemDraft | None:
        match = _QUESTION_PATTERN.fullmatch(text.strip())
        if match is None:
            return None
        steps, words = match[1].split("; "), match[2].split(" ")
        if not set(steps) <= set(self.transforms) or not self.depth[0] <= len(steps) <= self.depth[1]:
            return None
        if not self.words[0] <= len(words) <= self.words[1]:
            return None
        if not all(self.letters[0] <= len(word) <= self.letters[1] for word in words):
            return None
        return _draft(steps, match[2])


def _random_word(rng: random.Random, letters: int) -> str:
    """Return a pronounceable word of alternating consonants and vowels."""
    sounds = ("bdfgklmnprstvz", "aeiou")
    first = rng.randrange(2)
    return "".join([rng.choice(sounds[(first + i) % 2]) for i in range(letters)])


def apply_steps(steps: Sequence[str], text: str) -> list[str]:
    """Return the text and the result of each step."""
    return list(accumulate(steps, lambda text, step: TRANSFORMS[step](text), initial=text))


def _draft(steps: Sequence[str], text: str) -> ProblemDraft | None:
    """Return the draft of a problem, or None if a step leaves the text unchanged or empty."""
    results = apply_steps(steps, text)
    if not all(results) or any(before == after for before, after in pairwise(results)):
        return None
    question = f"Apply in order: {'; '.join(steps)}. Text: {text}"
    return ProblemDraft(question, 10 * len(steps) + len(text) / 10, partial(_write, question, tuple(steps), text))


def _write(question: str, steps: tuple[str, ...], text: str) -> Problem:
    results = apply_steps(steps, text)
    answer = results[-1]
    # Typical errors: the first step left out, the last step left out, the steps in reverse order.
    misread = [apply_steps(steps[1:], text)[-1], results[-2], apply_steps(steps[::-1], text)[-1]]
    typos = [answer[:-1], answer[1:] + answer[0], answer[:-2] + answer[-2:][::-1], answer + answer[-1], answer * 3]
    wrong = wrong_answers([*misread, *typos], answer)
    return Problem(question, question, answer, wrong, {"text": text, "transforms": list(steps), "steps": results[1:]})
