"""Verifiers and tools in worker processes that can be killed."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from marl.core.config import Sampling
from marl.core.errors import UserNotice
from marl.core.types import Completion, Message, Problem, Request, Verdict, VerifierCase
from marl.engines.workers.pool import WorkerPoolError
from marl.engines.workers.settings import Tools, Verifiers, WorkerPoolEngine
from marl.protocols import VerifierConfig
from marl.protocols.tasks import encode_verifier_state
from tests.support.misbehaving_verifiers import Broken, ObedientVerifier, UppercaseTool

PROBLEM = Problem("p", "What is 2+3?", "5")


def engine(timeout_s: float = 60.0, workers: int = 1, file: Path | str = "") -> WorkerPoolEngine:
    return WorkerPoolEngine(
        Verifiers(checks={"says": ObedientVerifier(timeout_s=timeout_s, file=str(file))}, workers=workers)
    )


def about(answer: str | None) -> Request:
    return Request(
        "verifier", (Message("user", f"I say {answer}"),), Sampling(), state=encode_verifier_state(PROBLEM, answer)
    )


def call(name: str, arguments: object) -> Request:
    return Request("tools", (), Sampling(), state=json.dumps({"name": name, "arguments": arguments}))


def answers(rules: WorkerPoolEngine, many: int) -> dict[int, str]:
    """Return the texts of `many` tickets; fails rather than waits for ever."""
    texts: dict[int, str] = {}
    until = time.monotonic() + 120
    while len(texts) < many:
        assert time.monotonic() < until, f"only {texts} came back"
        for ticket, completion in rules.step(1.0):
            assert isinstance(completion, Completion)
            texts[ticket] = completion.text
    return texts


def verdicts(rules: WorkerPoolEngine, *solutions: str | None) -> list[tuple[float, str]]:
    for ticket, answer in enumerate(solutions):
        rules.submit(ticket, about(answer))
    texts = answers(rules, len(solutions))
    parsed = [json.loads(texts[ticket]) for ticket in range(len(solutions))]
    return [(one["scores"]["says"], one["why"]["says"]) for one in parsed]


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie, which its parent has not reaped, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid: int) -> bool:
    until = time.monotonic() + 30
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


def test_the_text_is_json_with_a_score_and_a_reason_for_each_check() -> None:
    rules = WorkerPoolEngine(
        Verifiers.model_validate({"checks": {"right": "numeric", "tags": {"kind": "format", "requires": ["<a>"]}}})
    )
    rules.submit(7, about("5"))
    assert answers(rules, 1) == {
        7: '{"scores": {"right": 1.0, "tags": 0.0}, "why": {"right": "", "tags": "<a>: 0 times"}}'
    }


@pytest.mark.parametrize("hang", ["sleep 60", "sleep_in_c", "backtrack"])
def test_what_hangs_is_killed_even_in_c_and_the_next_question_gets_a_fresh_process(hang: str) -> None:
    late, fine = verdicts(engine(timeout_s=0.3), hang, "score 1")
    assert late == (0.0, "timed out after 0.3 s")
    assert fine == (1.0, "after score")


def test_a_tower_of_powers_fails_by_time_or_by_memory() -> None:
    tower, fine = verdicts(engine(timeout_s=0.5), "tower", "score 1")
    assert tower[0] == 0
    assert fine[0] == 1


def test_a_process_that_dies_of_its_own_doing_fails_one_answer_and_is_replaced() -> None:
    *died, fine = verdicts(engine(), "exit", "quit", "fault", "score 1")
    assert died == [(0.0, "the process that ran it died")] * 3
    assert fine == (1.0, "after score")


def test_a_process_that_dies_between_two_questions_costs_no_answer(tmp_path: Path) -> None:
    rules = engine(file=tmp_path / "pid")
    verdicts(rules, "pid")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert gone(int((tmp_path / "pid").read_text()))
    assert verdicts(rules, "score 1") == [(1.0, "after score")]


def test_whatever_a_verifier_raises_is_a_failure_with_a_reason() -> None:
    raised, unreadable, memory = verdicts(engine(), "raise here", None, "memory")
    assert raised == (0.0, "raised KeyError"), "the rest may quote the right answer"
    assert unreadable[0] == 0
    assert "AttributeError" in unreadable[1]
    assert memory == (0.0, "raised MemoryError")


def test_a_score_out_of_range_is_a_failure() -> None:
    for score, why in verdicts(engine(), "score nan", "score inf", "score 2", "score -1.5"):
        assert score == 0
        assert "scores lie between -1 and 1" in why


def test_what_a_verifier_prints_is_not_taken_for_its_verdict() -> None:
    assert verdicts(engine(), "print", "score 0.5") == [(0.0, "after print"), (0.5, "after score")]


def message(text: str, length: int | None = None) -> str:
    """Return a message of a worker, as hexadecimal digits."""
    return ((len(text) if length is None else length).to_bytes(8) + text.encode()).hex()


def test_what_is_no_result_fails_the_answer() -> None:
    written = [
        *("{}", "no JSON", '{"value": "of a tool"}', '{"value": [2, ""]}', '{"value": [NaN, ""]}'),
        *('{"value": [true, ""]}', "[" * 50_000),
    ]
    *forged, fine = verdicts(engine(), *(f"write {message(text)}" for text in written), "score 1")
    assert forged == [(0.0, "the process that ran it wrote what is no result")] * len(written)
    assert fine == (1.0, "after score")


def test_a_result_that_is_announced_too_long_is_not_read() -> None:
    assert verdicts(engine(), f"write {message('', 2**60)}")[0][1] == "the process that ran it wrote what is no result"


def test_half_a_result_is_waited_for_no_longer_than_a_whole_one() -> None:
    late, fine = verdicts(engine(timeout_s=0.2), f"write {message('{', 100)}", "score 1")
    assert late == (0.0, "timed out after 0.2 s")
    assert fine == (1.0, "after score")


def test_floods_of_output_are_thrown_away() -> None:
    assert verdicts(engine(), "flood") == [(1.0, "after flood")]


def test_a_reason_is_cut_and_well_formed() -> None:
    ((score, why),) = verdicts(engine(), "why abc")
    assert (score, len(why)) == (0.5, 1000)
    assert verdicts(engine(), "why \ud800")[0][1].startswith("\ufffd\ufffd")


def test_a_slow_check_holds_up_neither_the_others_nor_the_caller() -> None:
    rules = engine(workers=2)
    rules.submit(0, about("sleep 300"))
    began = time.monotonic()
    for ticket in range(1, 20):
        rules.submit(ticket, about(f"score {ticket / 100}"))
    assert rules.step(0.0) == []
    assert sorted(answers(rules, 19)) == list(range(1, 20))
    assert time.monotonic() - began < 60
    rules.cancel([0])


def test_a_check_that_takes_long_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marl.engines.workers.settings._SLOW_S", 0.2)
    rules = engine()
    rules.submit(0, about("sleep 300"))
    rules.submit(1, about("sleep 301"))
    until = time.monotonic() + 60
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        while not notices:
            assert time.monotonic() < until
            rules.step(0.1)
        rules.step(0.5)
    assert [(notice.category, str(notice.message)) for notice in notices] == [
        (
            UserNotice,
            "checks.says has been at work on one question for 0.2 s: it gets 60 s of CPU time or of sleep (timeout_s), "
            "then the answer fails",
        )
    ]
    rules.cancel([0, 1])


def test_a_step_waits_no_longer_than_it_is_told() -> None:
    rules = engine()
    verdicts(rules, "score 1")
    assert rules.step(60.0) == []  # nothing is open, so there is nothing to wait for
    rules.submit(0, about("sleep 300"))
    began = time.monotonic()
    assert rules.step(0.1) == []
    assert time.monotonic() - began < 30
    rules.cancel([0])


def test_what_is_cancelled_is_killed_and_never_answered(tmp_path: Path) -> None:
    rules = engine(file=tmp_path / "pids", timeout_s=300)
    rules.submit(0, about("child"))
    until = time.monotonic() + 60
    while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
        assert time.monotonic() < until
        rules.step(0.05)
    rules.submit(1, about("score 1"))
    rules.submit(2, about("score 0.5"))
    rules.cancel([0, 2])
    assert list(answers(rules, 1)) == [1]
    assert rules.step(0.1) == []
    assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_equal_questions_that_are_open_at_once_are_answered_once(tmp_path: Path) -> None:
    rules = engine(file=tmp_path / "count")
    rules.submit(-1, about("sleep 0.3"))
    assert verdicts(rules, *["count"] * 10)[0] == (1.0, "after count")
    assert (tmp_path / "count").read_text() == "x"


def test_cancelling_one_of_two_equal_questions_leaves_the_other() -> None:
    rules = engine()
    rules.submit(0, about("sleep 0.2"))
    rules.submit(1, about("sleep 0.2"))
    rules.cancel([0])
    assert list(answers(rules, 1)) == [1]


def test_a_worker_sees_no_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_KEY", "hunter2")
    assert verdicts(engine(), "secret") == [(0.0, "after secret")]


def test_no_process_remains_when_the_engine_is_forgotten(tmp_path: Path) -> None:
    rules = engine(file=tmp_path / "pid")
    verdicts(rules, "pid")
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    del rules
    gc.collect()
    assert gone(pid)


@pytest.mark.parametrize("end", ["", "import os; os.kill(os.getpid(), 9)"], ids=["it_exits", "it_is_killed"])
def test_no_process_remains_when_the_run_ends_in_the_middle_of_a_check(tmp_path: Path, end: str) -> None:
    file = tmp_path / "pids"
    code = f"""
import time, pathlib
from test_worker_processes import about, engine
rules = engine(file={str(file)!r}, timeout_s=300)
rules.submit(0, about("pid"))
while not rules.step(1.0): pass
rules.submit(1, about("sleep_in_c"))
time.sleep(0.2)
{end}
"""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), *filter(None, sys.path)])
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=not end, timeout=120)
    assert gone(int(file.read_text()))


def test_a_part_that_cannot_be_loaded_ends_the_run_and_says_why() -> None:
    rules = WorkerPoolEngine(Verifiers(checks={"broken": Broken()}))
    rules.submit(0, about("5"))
    with pytest.raises(WorkerPoolError, match=r"cannot run broken: ModuleNotFoundError.*a_module_that_is_not_there"):
        answers(rules, 1)


def test_a_fault_that_is_not_the_answers_ends_the_run_instead_of_failing_the_answer() -> None:
    with pytest.raises(WorkerPoolError, match="says raised RunError: no sandbox here"):
        verdicts(engine(), "refuse")


def test_a_part_that_no_worker_can_import_is_refused_before_the_run() -> None:
    class Local(VerifierConfig):
        kind: str = "local"

        def __call__(self, case: VerifierCase) -> Verdict:
            return Verdict(1.0)

    settings = Verifiers(checks={"mine": Local()})
    with pytest.raises(ValueError, match="put it into a module"):
        settings.build(None)
    assert next(iter(settings.unmet_requirements())).startswith("checks.mine: ")


def test_verifiers_have_no_weights_to_load() -> None:
    with pytest.raises(ValueError, match="'verifier' answers by rules"):
        engine().load_weights("verifier", [], 1)


def test_a_seat_that_verifies_must_be_asked_about_a_problem() -> None:
    with pytest.raises(ValueError, match="asked about no problem"):
        engine().submit(0, Request("verifier", (), Sampling(), state="a card"))


def test_a_tool_answers_calls_and_says_what_is_wrong_with_them() -> None:
    tools = WorkerPoolEngine(Tools(tools={"shout": UppercaseTool(timeout_s=0.2)}, workers=1))
    calls = [
        call("shout", {"text": "hello"}),
        call("whisper", {}),
        call("shout", {"volume": 3}),
        call("shout", [1]),
        Request("tools", (), Sampling(), state="no call"),
        call("shout", {"text": "hang"}),
        call("shout", {"text": "crash"}),
        call("shout", {"text": "raise"}),
        call("shout", {"text": "much"}),
        call("shout", {"text": "a\ud800"}),
        Request("tools", (), Sampling(), state='{"name": "shout", "arguments": {"text": ' + "[" * 100_000),
        call("x" * 1000, {}),
    ]
    for ticket, request in enumerate(calls):
        tools.submit(ticket, request)
    texts = answers(tools, len(calls))
    assert [texts[ticket] for ticket in range(len(calls))] == [
        "HELLO",
        "error: no tool 'whisper'; choices: shout",
        "error: text: must be a string",
        "error: the arguments of shout must be an object",
        "error: a call is written {'name': ..., 'arguments': {...}}",
        "error: timed out after 0.2 s",
        "error: the process that ran it died",
        "error: raised KeyError: 'key'",
        "error: gave 2,097,165 bytes; at most 1,048,576 are read",
        "A\ufffd",
        "error: a call is written {'name': ..., 'arguments': {...}}",
        "error: no tool '" + "x" * 76 + "...; choices: shout",
    ]


def test_a_recorded_answer_that_is_to_be_scored_is_not_worked_out_again() -> None:
    # 'spin' would be killed and scored 0.
    rules = engine()
    rules.submit(0, replace(about("spin"), forced="what was said"))
    assert answers(rules, 1) == {0: "what was said"}


def test_several_calls_of_one_answer_get_one_answer_with_the_results_in_order() -> None:
    tools = WorkerPoolEngine(Tools(tools={"shout": UppercaseTool(timeout_s=60)}, workers=2))
    calls = [{"name": "shout", "arguments": {"text": text}} for text in ("a", "b", "a")]
    calls.insert(1, {"name": "whisper", "arguments": {}})
    tools.submit(0, Request("tools", (), Sampling(), state=json.dumps(calls)))
    assert json.loads(answers(tools, 1)[0]) == ["A", "error: no tool 'whisper'; choices: shout", "B", "A"]
