"""Verifiers in a real worker process: every text gets a verdict, soon, that does not tell the right answer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hostile_text import answers, texts, tried
from hypothesis import strategies as st

from marl.core.plugins import find_plugin, known_kinds
from marl.core.types import Problem, VerifierCase
from marl.engines.workers.pool import PluginJob, PluginJobResult, PluginWorker
from marl.engines.workers.settings import verifier_case_to_json
from marl.protocols import VerifierConfig

SETTINGS: dict[str, dict[str, Any]] = {
    "pattern": {"pattern": "{answer}"},
    "format": {"requires": ["<answer>", r"\\boxed\{"]},
    "length": {"soft": 5, "hard": 50},
    "json_schema": {"accepts": {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}},
}
RANGES = {"length": (-1.0, 0.0)}
"""Kind -> least and greatest score, where they are not 0 and 1."""
KINDS = [kind for kind in known_kinds("verifiers") if kind not in ("unit_tests", "reward_function")]
"""All but those that run code which a user or a model wrote."""
TIMEOUT = 5.0
GOLDS: dict[str, st.SearchStrategy[str]] = {
    "json": st.sampled_from(['{"a": 918273}', '[918273, "zqv"]', "{}", "[]"]),
    "new_papers": st.sampled_from(['{"papers": ["918273", "zqvx"]}', '{"papers": []}', "zqvx 918273"]),
    "choice": st.sampled_from(["A", "B", "C", "(B)", "A, C", "AC", "zqvx", r"\textbf{(B)}\ 918273"]),
    "numeric": st.sampled_from(
        ["918273", "-918.273", "918/273", "918273 km", "$918273", "91.8%", "1e918", "0.918273", "12:30"]
    ),
    "math": st.sampled_from(
        [
            *("918273", r"918\sqrt{273}", r"\frac{918}{273}", r"\{918, 273\}", "(918, 273)", r"[918, \infty)"),
            *("x^2 + 918x + 273", "y = 918x + 273", r"\begin{pmatrix} 918 & 2 \\ 7 & 3 \end{pmatrix}", r"918\pi"),
            *(r"\text{zqvx}", r"x \ne 918", "918i + 2"),
        ]
    ),
}
CANARIES = ("918273", "zqvx", "918", "273")
"""Parts of right answers that a reason must not hold, unless the text holds them."""


@pytest.fixture(scope="module")
def worker() -> Iterator[PluginWorker]:
    parts = {kind: made(kind) for kind in KINDS}
    parts |= {
        f"{kind} {read}": made(kind, read=read) for kind in KINDS for read in ("boxed", "last_line") if can_read(kind)
    }
    process = PluginWorker(parts, 4 * 2**30)
    yield process
    process.close()


def made(kind: str, **more: Any) -> VerifierConfig:
    part = find_plugin("verifiers", kind).model_validate(
        {"kind": kind, "timeout_s": TIMEOUT, **SETTINGS.get(kind, {}), **more}
    )
    assert isinstance(part, VerifierConfig)
    return part


def can_read(kind: str) -> bool:
    """Return whether a verifier can read a whole text, boxed or not."""
    return "read" in find_plugin("verifiers", kind).model_fields and kind not in ("json_schema", "json")


def verdict(worker: PluginWorker, name: str, case: VerifierCase) -> tuple[float, str]:
    """Return score and reason; an exception or a timeout in the worker fails the test."""
    result: PluginJobResult = worker.run(PluginJob(name, verifier_case_to_json(case), TIMEOUT))
    assert not result.error, (case.problem.answer, case.text[:500], result.error)
    score, why = result.value
    return score, why


FACTS = {"choices": ["918273", "zqv", "C", ""], "numbers": [3, 5, 7], "target": 22, "pattern": "x+"}


def cases(kind: str) -> st.SearchStrategy[VerifierCase]:
    """Return cases with a text and an answer that are hostile, or nearly right."""
    gold = st.one_of(GOLDS.get(kind, st.just("zqvx 918273")), texts(most=4).map(encodable))
    text = st.one_of(answers(likely=("918273", "A", "22", "3*5+7", "918", '{"a": 918273}')), texts()).map(encodable)
    question = st.sampled_from(["", "How long is it in metres?", "What is 918 + 273?", "Expand $(x+918)(x+273)$."])
    return st.builds(
        lambda g, t, q, parsed: VerifierCase(Problem("p", q, g, facts=FACTS), t, t if parsed else None),
        gold,
        text,
        question,
        st.booleans(),
    )


def encodable(text: str) -> str:
    """Return the text as it can be sent to a worker: texts are made well-formed where they enter."""
    return text.encode("utf-8", "replace").decode()


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_gets_a_verdict_that_does_not_tell_the_answer(kind: str, worker: PluginWorker, factor: int) -> None:
    low, high = RANGES.get(kind, (0.0, 1.0))
    reads = ["", " boxed", " last_line"] if can_read(kind) else [""]

    @tried(factor * 60, cases(kind), st.sampled_from(reads))
    def _(case: VerifierCase, read: str) -> None:
        score, why = verdict(worker, kind + read, case)
        assert low <= score <= high
        assert len(why) <= 1000
        gold, visible = case.problem.answer, case.text + case.problem.question
        for canary in CANARIES:
            assert canary not in why or canary in visible or canary not in gold, why


LONG = st.tuples(texts(most=3), texts(most=1), st.integers(1000, 100_000)).map(
    lambda parts: encodable(parts[0] + (parts[1] * parts[2])[:100_000])
)


@pytest.mark.parametrize("kind", KINDS)
def test_no_long_text_takes_longer_than_a_worker_may(kind: str, worker: PluginWorker, factor: int) -> None:
    @tried(factor * 8, LONG, GOLDS.get(kind, st.just("zqvx")))
    def _(text: str, gold: str) -> None:
        score, _ = verdict(worker, kind, VerifierCase(Problem("p", "?", gold, facts=FACTS), text, text))
        assert score <= 0 or kind in ("format", "json_schema")


def test_a_score_is_the_same_each_time(worker: PluginWorker, factor: int) -> None:
    @tried(factor * 40, st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), cases(kind))))
    def _(pair: tuple[str, VerifierCase]) -> None:
        kind, case = pair
        assert verdict(worker, kind, case) == verdict(worker, kind, case)


def test_a_verdict_takes_little_memory(worker: PluginWorker) -> None:
    """The worker's address space is bounded; a verdict that met the bound would be an error, not a score."""
    rng = random.Random(0)
    units = [
        *(r"\frac{", "(", "9", "1,", r"\sqrt{", "{", "[", "x^", "1 or ", "-", r"\{1, ", '{"a": [', "twenty ", "5 km "),
    ]
    for kind in KINDS:
        for unit in rng.sample(units, 3):
            text = unit * (100_000 // len(unit))
            gold = "918273" if kind != "json" else '{"a": 1}'
            score, _ = verdict(worker, kind, VerifierCase(Problem("p", "?", gold, facts=FACTS), text, text))
            assert score <= 0
