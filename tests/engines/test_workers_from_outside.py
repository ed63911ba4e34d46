"""Worker processes that something outside ends, stops or starves: asked once more, and never the answer's fault."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from marl.core.config import Sampling
from marl.core.types import Completion, CompletionFailure, Message, Problem, Request, VerifierCase
from marl.engines.workers.jobs import PluginJob, PluginJobResult
from marl.engines.workers.settings import Tools, Verifiers, WorkerPoolEngine, verifier_case_to_json
from marl.engines.workers.worker import PluginWorker, WorkerPoolError
from marl.games.verifiers.text_verifiers import FormatVerifier
from marl.protocols.tasks import encode_verifier_state
from tests.support.misbehaving_verifiers import ObedientVerifier, SlowToLoad, UppercaseTool, Waits

PROBLEM = Problem("p", "What is 2+3?", "5")
MEMORY = 4 * 2**30


def job(answer: str, timeout_s: float = 60.0) -> PluginJob:
    return PluginJob("says", verifier_case_to_json(VerifierCase(PROBLEM, answer, answer)), timeout_s)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "written"


@pytest.fixture
def worker(file: Path):
    worker = PluginWorker({"says": ObedientVerifier(file=str(file)), "shout": UppercaseTool()}, MEMORY)
    yield worker
    worker.close()


def written(file: Path, lines: int = 1) -> list[int]:
    """Return the numbers of processes that were written, as soon as there are so many."""
    until = time.monotonic() + 60
    while not file.exists() or len(found := file.read_text().split()) < lines:
        assert time.monotonic() < until
        time.sleep(0.01)
    return [int(number) for number in found]


def meanwhile(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_an_answer_whose_process_is_killed_from_outside_is_judged_in_a_fresh_one(
    worker: PluginWorker, file: Path, name: str
) -> None:
    killer = meanwhile(lambda: os.kill(written(file)[0], signal.Signals[name]))
    assert worker.run(job("first_waits 1")) == PluginJobResult(value=(1.0, "after first_waits"))
    killer.join()


def test_an_answer_whose_processes_are_all_killed_is_not_judged(worker: PluginWorker, file: Path) -> None:
    def kill() -> None:
        for lines in (1, 2):
            os.kill(written(file, lines)[-1], signal.SIGKILL)

    killer = meanwhile(kill)
    result = worker.run(job("always_waits"))
    assert result == PluginJobResult(error="the process that ran it died by SIGKILL from outside", blame="machine")
    killer.join()
    assert worker.run(job("score 1")).value == (1.0, "after score")


def test_an_answer_whose_process_is_stopped_is_judged_in_a_fresh_one(worker: PluginWorker, file: Path) -> None:
    worker.run(job("score 1"))
    stopper = meanwhile(lambda: os.kill(written(file)[0], signal.SIGSTOP))
    assert worker.run(job("first_waits 1", timeout_s=0.2)).value == (1.0, "after first_waits")
    stopper.join()


def test_a_process_that_is_stopped_between_two_jobs_costs_no_answer(worker: PluginWorker, file: Path) -> None:
    worker.run(job("pid"))
    os.kill(written(file)[0], signal.SIGSTOP)
    assert worker.run(job("score 1", timeout_s=0.2)).value == (1.0, "after score")


def test_a_slow_machine_gives_an_answer_more_time_on_the_clock(worker: PluginWorker) -> None:
    """The job needs 0.3 of its 0.5 s of processor time, and gets a third of a processor."""
    worker.run(job("score 1"))
    pid = worker._process.pid  # type: ignore[union-attr]
    done = threading.Event()

    def starve() -> None:
        with suppress(ProcessLookupError):
            while not done.is_set():
                os.kill(pid, signal.SIGSTOP)
                done.wait(0.06)
                os.kill(pid, signal.SIGCONT)
                done.wait(0.03)

    starving = meanwhile(starve)
    began = time.monotonic()
    result = worker.run(job("compute 0.3", timeout_s=0.5))
    done.set()
    starving.join()
    assert result.value == (1.0, "after compute")
    assert time.monotonic() - began > 0.5, "or this test shows nothing"


def test_an_answer_that_takes_much_memory_and_is_killed_for_it_fails(file: Path) -> None:
    worker = PluginWorker({"says": ObedientVerifier(file=str(file))}, 2**29)
    killer = meanwhile(lambda: os.kill(written(file)[0], signal.SIGKILL))
    assert worker.run(job("fill_and_wait 300")) == PluginJobResult(error="took too much memory")
    killer.join()
    worker.close()


def test_an_answer_that_hangs_fails_whether_it_computes_or_sleeps(worker: PluginWorker) -> None:
    for hang in ("sleep 60", "backtrack"):
        assert worker.run(job(hang, timeout_s=0.3)) == PluginJobResult(error="timed out after 0.3 s")


def test_children_of_a_job_use_its_processor_time(worker: PluginWorker) -> None:
    assert worker.run(job("computing_child", timeout_s=0.3)) == PluginJobResult(error="timed out after 0.3 s")


def test_a_verifier_that_cannot_tell_is_asked_twice_and_then_does_not_judge(worker: PluginWorker, file: Path) -> None:
    result = worker.run(job("cannot_tell"))
    assert (result.error, result.detail, result.blame) == (
        "raised InfrastructureError",
        "the service is down",
        "machine",
    )
    assert file.read_text() == "xx"


def start_under_fire(file: Path, killed: int) -> PluginJobResult:
    """Run a job while the first `killed` processes are killed as they start."""
    worker = PluginWorker({"says": SlowToLoad(file=str(file), waiting=killed)}, MEMORY)

    def kill() -> None:
        for lines in range(1, killed + 1):
            os.kill(written(file, lines)[-1], signal.SIGKILL)

    killer = meanwhile(kill)
    try:
        return worker.run(job("any"))
    finally:
        killer.join()
        worker.close()


def test_a_process_that_is_killed_while_it_starts_is_started_again(file: Path) -> None:
    assert start_under_fire(file, 2).value == (1.0, "")


def test_the_third_process_in_a_row_that_does_not_start_ends_the_run(file: Path) -> None:
    with pytest.raises(WorkerPoolError, match="cannot run says: it died while it started, and so did 2 more"):
        start_under_fire(file, 3)


def test_a_call_of_a_tool_that_is_killed_twice_has_no_answer(tmp_path: Path) -> None:
    tools = WorkerPoolEngine(Tools(tools={"wait": Waits(file=str(tmp_path / "written"))}, workers=1))
    tools.submit(3, Request("tools", (), Sampling(), state=json.dumps({"name": "wait", "arguments": {}})))
    for lines in (1, 2):
        os.kill(written(tmp_path / "written", lines)[-1], signal.SIGKILL)
    assert tools.step(60.0) == [
        (3, CompletionFailure("unjudged", "wait the process that ran it died by SIGKILL from outside"))
    ]


def test_one_check_that_does_not_judge_leaves_the_whole_answer_unjudged(file: Path) -> None:
    rules = WorkerPoolEngine(
        Verifiers(checks={"says": ObedientVerifier(file=str(file)), "tags": FormatVerifier(requires=("x",))})
    )
    state = encode_verifier_state(PROBLEM, "cannot_tell")
    rules.submit(0, Request("verifier", (Message("user", "x"),), Sampling(), state=state))
    answers: list[tuple[int, Completion | CompletionFailure]] = []
    while not answers:
        answers = rules.step(60.0)
    assert answers == [(0, CompletionFailure("unjudged", "says raised InfrastructureError: the service is down"))]
