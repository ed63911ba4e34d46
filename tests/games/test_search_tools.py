"""Tools `search` and `expand` over the documents of a task or a file."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from marl.core.types import Completion, Request, Sampling
from marl.engines.workers.settings import Tools
from marl.games.search_tools import CorpusFile, ExpandTool, SearchTool
from marl.games.tasks.arithmetic import ArithmeticTask
from marl.games.tasks.citations import CitationsTask
from marl.scenario.load import validate

pytest.importorskip("bm25s", reason="needs bm25s: pip install 'marl-llm[search]'")

DOCUMENTS = {
    "a-1": ("pruning for polar reefs", ["b-2", "lost-9"]),
    "b-2": ("sampling for polar oceans near polar reefs", []),
    "c-3": ("sampling for\n  quantum lattices", ["a-1"]),
    "d-4": ("pruning, sampling and pruning for quantum plasmas", ["c-3", "a-1"]),
}
LIBRARY = CitationsTask(papers=200, topic_papers=10, train=100, held_out=20)


def write_corpus(folder: Path, rows: list[dict[str, Any]] | None = None) -> CorpusFile:
    rows = rows or [{"id": name, "text": text, "references": cited} for name, (text, cited) in DOCUMENTS.items()]
    path = folder / "papers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return CorpusFile(path=path)


def bm25_order(query: str) -> list[str]:
    """Order by the formula of BM25 with Lucene's idf, ln(1 + (N - n + .5) / (n + .5)), k1 = 1.5 and b = .75."""
    texts = {name: text.replace(",", "").split() for name, (text, _) in DOCUMENTS.items()}
    mean_length = sum(map(len, texts.values())) / len(texts)
    scores: dict[str, float] = {}
    for name, words in texts.items():
        counts = Counter(words)
        for word in query.split():
            holders = sum(word in other for other in texts.values())
            idf = math.log(1 + (len(texts) - holders + 0.5) / (holders + 0.5))
            norm = 1.5 * (0.25 + 0.75 * len(words) / mean_length)
            scores[name] = scores.get(name, 0.0) + idf * counts[word] / (counts[word] + norm)
    return sorted((name for name, score in scores.items() if score), key=lambda name: -scores[name])


@pytest.mark.parametrize("query", ["polar reefs", "pruning", "sampling quantum", "polar", "plasmas pruning sampling"])
def test_search_lists_documents_in_the_order_of_bm25(tmp_path: Path, query: str) -> None:
    found = SearchTool(corpus=write_corpus(tmp_path), characters=0)({"query": query}).splitlines()
    assert found == bm25_order(query)


def test_results_are_bounded_and_have_one_line_each(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    assert SearchTool(corpus=corpus, results=1, characters=12)({"query": "Quantum LATTICES"}) == "c-3: sampling for"
    assert SearchTool(corpus=corpus)({"query": "zebra"}) == "no document has a word of the query"
    assert SearchTool(corpus=corpus)({"query": ""}) == "no document has a word of the query"


def test_of_equal_documents_the_first_come_first(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, [{"id": f"n-{number}", "text": "the same text"} for number in range(50)])
    assert SearchTool(corpus=corpus, results=3, characters=0)({"query": "text"}) == "n-0\nn-1\nn-2"


def test_expand_lists_references_also_those_outside_the_corpus(tmp_path: Path) -> None:
    expand = ExpandTool(corpus=write_corpus(tmp_path), characters=8)
    assert expand({"id": "a-1"}) == "b-2: sampling\nlost-9"
    assert expand({"id": "b-2"}) == "no references"
    with pytest.raises(ValueError, match="id: no document 'z-1'"):
        expand({"id": "z-1"})
    with pytest.raises(ValueError, match="must be called with id, a text, and nothing else"):
        expand({"paper": "a-1"})


def test_search_and_references_lead_to_the_answers_of_the_task() -> None:
    search, expand = SearchTool(task=LIBRARY, results=10), ExpandTool(task=LIBRARY, characters=0)
    source = LIBRARY.build()
    for index in range(source.problem_count("held_out")):
        facts = source.problem("held_out", index).facts
        found = [
            line.partition(":")[0] for line in search({"query": f"{facts['method']} {facts['topic']}"}).splitlines()
        ]
        assert {*facts["direct"]} <= {*found[: len(facts["direct"])]}
        cited = {line for paper in facts["direct"] for line in expand({"id": paper}).splitlines()}
        assert cited - {*facts["direct"], "no references"} == {*facts["cited"]}


@pytest.mark.parametrize(
    ("tool", "messages"),
    [
        (SearchTool(), ["corpus: 'task', but the scenario has no game with a task"]),
        (
            SearchTool(task=ArithmeticTask()),
            ["corpus: task 'arithmetic' has no documents; choices: task 'cit"],
        ),
        (ExpandTool(corpus=CorpusFile(path=Path("/none.jsonl"))), ["corpus.path: no such file: /none.jsonl"]),
        (SearchTool(task=LIBRARY), []),
    ],
)
def test_a_corpus_that_is_not_there_is_named_before_play(tool: SearchTool | ExpandTool, messages: list[str]) -> None:
    faults = list(tool.unmet_requirements())
    assert len(faults) == len(messages)
    assert all(map(str.startswith, faults, messages))


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}], r"line 2: id: 'a' is the id of an earlier document"),
        ([{"id": "a b", "text": "x"}], "line 1: a document has texts `id`, without blanks, and `text`"),
        ([{"id": 1, "text": "x"}], "line 1: a document has texts `id`"),
        ([{"id": "a", "text": "x", "references": "b"}], "line 1: references: 'b' is no list of ids"),
    ],
)
def test_rows_that_are_no_documents_are_named(tmp_path: Path, rows: list[dict[str, Any]], fault: str) -> None:
    [message] = SearchTool(corpus=write_corpus(tmp_path, rows)).unmet_requirements()
    assert message.startswith(f"corpus.path: {tmp_path / 'papers.jsonl'}, {fault}")


def test_worker_processes_answer_from_the_corpus_of_the_game() -> None:
    tools = {"search": "search", "expand": {"kind": "expand"}}
    scenario = validate(
        {
            "game": {
                "kind": "team",
                "task": LIBRARY.model_dump(mode="json"),
                "stages": [{"role": "scout", "tools": "library", "examples": ["{{ answer }}"]}],
                "rewards": {"scout": {"read": "own.readable"}},
            },
            "roles": {
                "scout": {"kind": "solver", "policy": "scout", "tools": [{"name": "search"}, {"name": "expand"}]},
                "library": {"kind": "toolbox", "policy": "library"},
            },
            "policies": {
                "scout": {"model": {"kind": "tiny"}, "learner": {"kind": "grpo", "lr": 1e-3}},
                "library": {"engine": {"kind": "tools", "workers": 1, "tools": tools}},
            },
            "schedule": {"steps": 1, "groups": 1, "group_size": 2},
        },
    )
    engine = scenario.policies["library"].engine
    assert isinstance(engine, Tools)
    assert engine.tools["search"].model_dump()["task"]["papers"] == 200
    # Settings that name another task, such as those of a test of a suite, replace the corpus.
    data = scenario.model_dump(mode="json")
    data["game"]["task"]["papers"] = 150
    other = validate(data).policies["library"].engine
    assert isinstance(other, Tools)
    assert other.tools["search"].model_dump()["task"]["papers"] == 150
    document = LIBRARY.documents()[5]
    pool = engine.build(None)
    state = json.dumps({"name": "expand", "arguments": {"id": document.id}})
    pool.submit(0, Request("library", (), Sampling(), state=state))
    answers: list[Any] = []
    while not answers:
        answers = pool.step(10.0)
    assert isinstance(answers[0][1], Completion)
    assert [line.partition(":")[0] for line in answers[0][1].text.splitlines()] == [*document.references]
