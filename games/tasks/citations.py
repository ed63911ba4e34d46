"""Citations task: a library of papers with references, made from a seed, and questions whose answers are sets."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from math import ceil, sqrt
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from marl.core.config import DistinctValues
from marl.core.seeds import hash_to_seed
from marl.core.types import Problem
from marl.games.tasks.base import (
    LazyProblem,
    TaskWithHeldOutSplit,
    TrainAndHeldOutProblems,
    first_distinct_wrong_answers,
    validate_range_within,
)
from marl.protocols.tasks import Document

QuestionForm = Literal["direct", "cited", "both"]
_TOPIC_ADJECTIVES = """
    acoustic adaptive aerial ambient arctic binary causal cellular coastal convex digital dynamic elastic fluid formal
    fuzzy genetic global hybrid linear lunar marine medical modular nuclear optical organic passive polar quantum radial
    robust seismic solar spatial stellar tidal urban viral visual
"""
_TOPIC_NOUNS = """
    alloys anatomy antennas bridges circuits climates compilers crystals currents dialects economies embryos enzymes
    forecasts forests galaxies glaciers harbours heuristics kernels languages lattices markets membranes memories
    motions networks neurons oceans orbits phonemes plasmas polymers proteins proteomes reefs sensors soils tissues
    vaccines
"""
_METHODS = """
    annealing bootstrapping boosting clustering compression diffusion distillation filtering hashing imitation
    interpolation kriging masking mining parsing pruning quantization ranking regression relaxation sampling sketching
    smoothing sorting tracing
"""
_AUTHORS = """
    abe adams bauer bell chen cruz diaz dubois eriksen evans fischer fox garcia green haas hughes ito ivanov jansen
    jones kaya khan kim kowalski lee lopez martin meyer moreau nguyen novak oliveira ono park patel peters quinn ramos
    reid rossi sato schmidt silva singh smith sokolov tanaka torres ueda usman vargas vogel wang weber wood xu yamada
    yilmaz young zhang zhou ziegler zimmer zola
"""


@dataclass(frozen=True, slots=True)
class _Paper:
    id: str
    topic: str
    method: str
    references: tuple[str, ...]
    """Ids of the papers that it cites, older papers on the same topic."""


class CitationsTask(TaskWithHeldOutSplit):
    """Questions about a library of papers, such as the papers that use a method for a topic, and those they cite.

    A paper `lee-7` has a topic, a method and references to older papers on its topic. No topic is in both splits. The
    answer is the JSON object `{"papers": [id, ...]}`, whose order is of no importance.
    """

    kind: str = "citations"
    papers: int = Field(default=2000, ge=10, le=30_000)
    """Number of papers in the library."""
    topic_papers: int = Field(default=20, ge=2, le=1000)
    """Number of papers on a topic."""
    references: Annotated[tuple[int, int], validate_range_within(1, 20)] = (1, 3)
    """Minimum and maximum number of references of a paper. The first papers on a topic have fewer older ones to cite.
    """
    asks: DistinctValues[QuestionForm] = Field(default=("direct", "cited", "both"), min_length=1)
    """Forms of questions: the papers that use a method for a topic (`direct`), the other papers that these cite
    (`cited`), or all of them (`both`)."""
    train: int = Field(default=1000, ge=1, le=1_000_000)
    """Number of training problems."""
    held_out: int = Field(default=200, ge=0, le=1_000_000)
    """Number of held-out problems, never used in training. Their topics occur in no training problem."""
    seed: int = 0
    """Seed of the library and of the split."""

    @model_validator(mode="after")
    def _check_topic_count(self) -> Self:
        most = len(_topic_names())
        if self.papers > most * self.topic_papers:
            raise ValueError(
                f"topic_papers: {self.papers} papers, {self.topic_papers} on each topic, need more than the {most} "
                f"topics that have names; choices: {-(-self.papers // most)} or more"
            )
        return self

    @property
    def secret_fact_names(self) -> frozenset[str]:
        return frozenset({"direct", "cited"})

    def documents(self) -> Sequence[Document]:
        papers = _library(self.seed, self.papers, self.topic_papers, self.references)
        return [Document(p.id, f"{p.method.capitalize()} for {p.topic}", p.references) for p in papers]

    def train_and_held_out_problems(self) -> TrainAndHeldOutProblems:
        papers_by_topic: dict[str, list[_Paper]] = {}
        for paper in _library(self.seed, self.papers, self.topic_papers, self.references):
            papers_by_topic.setdefault(paper.topic, []).append(paper)
        shuffled = sorted(papers_by_topic, key=lambda topic: hash_to_seed("split", self.seed, topic))
        splits: TrainAndHeldOutProblems = ([], [])
        for topic in shuffled:
            questions = splits[len(splits[1]) < self.held_out]
            questions += self._questions_about_topic(topic, papers_by_topic[topic])
        for name, questions, count in zip(("train", "held_out"), splits, (self.train, self.held_out), strict=True):
            if len(questions) < count:
                raise ValueError(
                    f"{name}: {self.train} training and {self.held_out} held-out questions on different topics, but "
                    f"{self.papers} papers leave {len(splits[0])} and {len(splits[1])}; choices: fewer questions, more "
                    "papers, more forms of questions (`asks`)"
                )
            questions.sort(key=lambda draft: hash_to_seed("question", self.seed, draft.key))
            del questions[count:]
        return splits

    def _questions_about_topic(self, topic: str, papers: Sequence[_Paper]) -> Iterator[LazyProblem]:
        """Yield the questions about `topic`, whose papers are `papers`. Every question has a non-empty answer."""
        for method in dict.fromkeys(paper.method for paper in papers):
            users = [paper for paper in papers if paper.method == method]
            direct = {paper.id for paper in users}
            cited = {reference for paper in users for reference in paper.references} - direct
            facts = {"topic": topic, "method": method, "direct": sorted(direct), "cited": sorted(cited)}
            use = f"use {method} for {topic}"
            questions: dict[QuestionForm, tuple[str, set[str]]] = {"direct": (f"Which papers {use}?", direct)}
            if cited:
                questions["cited"] = (f"Which other papers are cited by the papers that {use}?", cited)
                questions["both"] = (f"Which papers {use}, and which papers do they cite?", direct | cited)
            for form, (question, right) in questions.items():
                if form not in self.asks:
                    continue
                others = [paper.id for paper in papers if paper.id not in right]
                build = partial(_build_problem, question, sorted(right), others, facts)
                yield LazyProblem(question, len(right), build)


def _topic_names(most: int = 1600) -> list[str]:
    """Return at least `most` names of topics, or all 1,600, from few words: most words occur in several names."""
    adjectives = _TOPIC_ADJECTIVES.split()[: ceil(sqrt(most))]
    nouns = _TOPIC_NOUNS.split()[: ceil(sqrt(most))]
    return list(map(" ".join, product(adjectives, nouns)))


@lru_cache(maxsize=4)
def _library(seed: int, count: int, topic_size: int, reference_range: tuple[int, int]) -> Sequence[_Paper]:
    """Return the papers of a library, ordered by topic and, within a topic, from the oldest to the newest."""
    rng = random.Random(hash_to_seed("citations", seed))
    topic_count = -(-count // topic_size)
    topics = rng.sample(_topic_names(2 * topic_count), topic_count)
    # As with topics, ids of held-out papers consist of words that occur in training.
    authors, methods = _AUTHORS.split()[: ceil(sqrt(count))], _METHODS.split()
    # Ids are shuffled, so that they say nothing about a paper's topic.
    ids = [f"{authors[index % len(authors)]}-{index // len(authors)}" for index in range(count)]
    rng.shuffle(ids)
    papers: list[_Paper] = []
    for number, topic in enumerate(topics):
        older: list[str] = []
        for paper_id in ids[number * topic_size : (number + 1) * topic_size]:
            reference_count = min(rng.randint(*reference_range), len(older))
            references = tuple(rng.sample(older, reference_count))
            papers.append(_Paper(paper_id, topic, rng.choice(methods), references))
            older.append(paper_id)
    return papers


def _build_problem(question: str, right: Sequence[str], others: Sequence[str], facts: dict[str, object]) -> Problem:
    """Return the problem. Wrong answers lack a paper, or name one of `others`, papers on the topic outside `right`."""
    candidates = [[*right, *others[:1]], [*right[1:], *others[:1]], [*right[1:], *others[1:2]], [*right, *others[1:2]]]
    candidates += [right[:-1], [*right, "none-0"], ["none-0"]]
    wrong = [_answer_text(sorted(papers)) for papers in candidates if papers]
    answer = _answer_text(right)
    return Problem(question, question, answer, first_distinct_wrong_answers(wrong, answer), facts)


def _answer_text(papers: Sequence[str]) -> str:
    return json.dumps({"papers": [*papers]}, separators=(",", ":"))
