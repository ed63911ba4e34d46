"""Task `citations`: its library, its questions, and the verifiers of sets of papers."""

from __future__ import annotations

import json
import re
from typing import get_args

import pytest

from marl.core.types import Problem, VerifierCase
from marl.games.tasks.citations import CitationsTask
from marl.games.verifiers.paper_sets import NewPapersVerifier, PrecisionVerifier, RecallVerifier
from marl.protocols import Split, VerifierConfig
from marl.protocols.tasks import overall_score

TASK = CitationsTask(papers=400, topic_papers=10, references=(1, 3), train=300, held_out=80)


def problems(split: Split, task: CitationsTask = TASK) -> list[Problem]:
    source = task.build()
    return [source.problem(split, index) for index in range(source.problem_count(split))]


def test_a_paper_cites_one_to_three_earlier_papers_on_its_topic() -> None:
    documents = TASK.documents()
    topics = {document.id: document.text.partition(" for ")[2] for document in documents}
    assert len(topics) == 400
    assert documents[0].references == ()
    seen: set[str] = set()
    for document in documents:
        seen.add(document.id)
        assert {*document.references} < seen
        assert all(topics[reference] == topics[document.id] for reference in document.references)
        assert len(document.references) <= 3
    without = sum(not document.references for document in documents)
    assert without == len({*topics.values()}) == 40


def test_no_topic_is_in_both_splits_and_no_answer_either() -> None:
    by_split = {split: problems(split) for split in get_args(Split)}
    for facts in ("topic", "direct"):
        train, held_out = ({json.dumps(p.facts[facts]) for p in by_split[split]} for split in get_args(Split))
        assert not train & held_out
    answers = [{paper for p in by_split[split] for paper in json.loads(p.answer)["papers"]} for split in by_split]
    assert not answers[0] & answers[1]


def test_words_of_held_out_questions_and_answers_occur_in_training() -> None:
    words: dict[str, set[str]] = {}
    for split in get_args(Split):
        texts = [f"{problem.question} {problem.answer}" for problem in problems(split)]
        words[split] = {*re.findall(r"\w+", " ".join(texts))}
    assert words["held_out"] <= words["train"]


def test_answers_follow_from_the_titles_and_references_of_the_library() -> None:
    documents = TASK.documents()
    for problem in problems("train"):
        title = f"{problem.facts['method'].capitalize()} for {problem.facts['topic']}"
        direct = {document.id for document in documents if document.text == title}
        cited = {reference for document in documents if document.id in direct for reference in document.references}
        right = {*json.loads(problem.answer)["papers"]}
        if problem.question.startswith("Which other papers"):
            assert right == cited - direct
        elif problem.question.endswith("do they cite?"):
            assert right == direct | cited
        else:
            assert right == direct


def test_forms_of_questions_can_be_chosen() -> None:
    both = problems("train", TASK.model_copy(update={"asks": ("both",), "train": 200, "held_out": 40}))
    assert all(problem.question.endswith("which papers do they cite?") for problem in both)


def test_impossible_sizes_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"train: 9000 training and 80 held-out .* 400 papers leave \d+ and \d+; choices"
    ):
        TASK.model_copy(update={"train": 9000}).build()
    with pytest.raises(ValueError, match=r"topic_papers: 30000 papers, 2 on each topic, .* choices: 19 or more"):
        CitationsTask(papers=30_000, topic_papers=2)


def grade(verifier: VerifierConfig, answer: str | None) -> float:
    problem = Problem("p", "Which?", '{"papers":["a-1","b-2","c-3","d-4"]}')
    verdict = verifier(VerifierCase(problem, answer or "", answer))
    return overall_score(verdict.score)


@pytest.mark.parametrize(
    ("answer", "recall", "precision"),
    [
        ('{"papers": ["d-4", "a-1", "c-3", "b-2"]}', 1.0, 1.0),
        ('["a-1", "b-2"]', 0.5, 1.0),
        ('{"papers": ["a-1", "x-1", "a-1"]}', 0.25, 0.5),
        ('I found {"papers": ["a-1", " b-2 ", "x-9", "y-9"]}', 0.5, 0.5),
        ('{"papers": ["x-1"]}', 0.0, 0.0),
        *((text, 0.0, 0.0) for text in ("", "a-1", '{"papers": []}', '{"papers": "a-1"}', '{"papers": [1]}', "{}")),
        (None, 0.0, 0.0),
    ],
)
def test_recall_and_precision_compare_sets(answer: str | None, recall: float, precision: float) -> None:
    assert grade(RecallVerifier(), answer) == recall
    assert grade(PrecisionVerifier(), answer) == precision


def test_a_result_is_paid_for_right_papers_that_no_earlier_result_listed() -> None:
    problem = Problem("p", "Which?", '{"papers":["a-1","b-2","c-3","d-4"]}')
    results = ["a-1: Pruning for polar reefs\nx-1: Sampling for polar reefs", "b-2\na-1\nc-3", "error: a-1", "d-44"]
    scores = []
    for number, text in enumerate(results):
        scores.append(NewPapersVerifier()(VerifierCase(problem, text, text, tuple(results[:number]))).score)
    assert scores == [0.25, 0.5, 0.0, 0.0]
