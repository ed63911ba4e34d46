"""Strings task: a text to be transformed step by step."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Annotated, Literal, get_args

from pydantic import Field

from marl.core.config import DistinctValues
from marl.core.types import Problem
from marl.games.tasks.base import GeneratedTask, LazyProblem, first_distinct_wrong_answers, validate_range_within

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
_SOUNDS = ("bdfgklmnprstvz", "aeiou")
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
    transforms: DistinctValues[Transform] = Field(default=get_args(Transform), min_length=1)
    """Transforms from which the transforms of a problem are drawn."""
    depth: Annotated[tuple[int, int], validate_range_within(1, 6)] = (1, 3)
    """Minimum and maximum number of transforms in a problem."""
    words: Annotated[tuple[int, int], validate_range_within(1, 20)] = (1, 2)
    """Minimum and maximum number of words in a text."""
    letters: Annotated[tuple[int, int], validate_range_within(1, 20)] = (3, 6)
    """Minimum and maximum number of letters in a word of the text."""

    @property
    def secret_fact_names(self) -> frozenset[str]:
        return frozenset({"steps"})

    @property
    def problem_posing_instructions(self) -> str:
        return (
            f"'Apply in order: A; B. Text: C': {self.depth[0]} to {self.depth[1]} of the transforms "
            f"{', '.join(self.transforms)}, each of which changes the text, of {self.words[0]} to {self.words[1]} "
            f"words of {self.letters[0]} to {self.letters[1]} small letters; the answer is worked out"
        )

    @property
    def max_draws(self) -> int:
        letter_count = self.words[1] * self.letters[1]
        return min(400_000, 10_000_000 // (letter_count * self.depth[1]))

    @property
    def no_problem_fits_message(self) -> str:
        return f"transforms: {list(self.transforms)} leave texts of these settings as they are; choose others"

    def draw_problem(self, rng: random.Random) -> LazyProblem | None:
        words = list[str]()
        for _ in range(rng.randint(*self.words)):
            # Words can be pronounced: consonants and vowels alternate.
            letters, first = rng.randint(*self.letters), rng.randrange(2)
            words.append("".join([rng.choice(_SOUNDS[(first + i) % 2]) for i in range(letters)]))
        steps = [rng.choice(self.transforms) for _ in range(rng.randint(*self.depth))]
        return _make_lazy_problem(steps, " ".join(words))

    def read_posed_problem(self, text: str) -> LazyProblem | None:
        match = _QUESTION_PATTERN.fullmatch(text.strip())
        if match is None:
            return None
        steps, words = match[1].split("; "), match[2].split(" ")
        if not set(steps) <= set(self.transforms) or not self.depth[0] <= len(steps) <= self.depth[1]:
            return None
        lengths = sorted(map(len, words))
        if not self.words[0] <= len(words) <= self.words[1]:
            return None
        if lengths[0] < self.letters[0] or lengths[-1] > self.letters[1]:
            return None
        return _make_lazy_problem(steps, match[2])


def intermediate_texts(transforms: Sequence[str], text: str) -> list[str]:
    """Return `text`, followed by the result of each step, such as "reverse"."""
    return list(accumulate(transforms, lambda text, step: TRANSFORMS[step](text), initial=text))


def _make_lazy_problem(transforms: Sequence[str], text: str) -> LazyProblem | None:
    """Return the draft of a problem, or None if a step leaves the text unchanged or empty."""
    results = intermediate_texts(transforms, text)
    if not all(results) or any(before == after for before, after in pairwise(results)):
        return None
    question = f"Apply in order: {'; '.join(transforms)}. Text: {text}"
    return LazyProblem(
        question, 10 * len(transforms) + len(text) / 10, partial(_build_problem, question, tuple(transforms), text)
    )


def _build_problem(question: str, transforms: tuple[str, ...], text: str) -> Problem:
    results = intermediate_texts(transforms, text)
    answer = results[-1]
    # Typical errors: the first or the last step is left out, or the steps are applied in reverse order.
    misread = [
        intermediate_texts(transforms[1:], text)[-1],
        results[-2],
        intermediate_texts(transforms[::-1], text)[-1],
    ]
    typos = [answer[:-1], answer[1:] + answer[0], answer[:-2] + answer[-2:][::-1], answer + answer[-1], answer * 3]
    wrong = first_distinct_wrong_answers([*misread, *typos], answer)
    facts = {"text": text, "transforms": list(transforms), "steps": results[1:]}
    return Problem(question, question, answer, wrong, facts)
