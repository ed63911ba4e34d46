"""The engine `program`: real processes that are started, fail, are killed, are late, and are cancelled."""

from __future__ import annotations

import gc
import json
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marl.core.config import Sampling
from marl.core.errors import EngineError
from marl.core.types import Completion, CompletionFailure, Message, Request
from marl.engines.program.settings import Program
from marl.protocols import IneffectiveCallsNotice, ProgramModelCall
from marl.protocols.programs import encode_program_state, parse_program_answer
from tests.support.calling_programs import ASK


def request(question: str = "2 + 2") -> Request:
    callers = {name: {"agent": name, "match": {}} for name in ("planner", "solver")}
    state = encode_program_state({"question": question}, callers)
    return Request("crew", (Message("user", question),), Sampling(), state=state)


def written(folder: Path, source: str, name: str = "agents_here") -> Path:
    (folder / f"{name}.py").write_text(ASK + textwrap.dedent(source))
    return folder


Say = Callable[[ProgramModelCall], str | None]
"""Answer to a call, or None to leave the call open."""


def drive(engine: Any, tickets: list[int], say: Say, wait_s: float = 20.0) -> tuple[dict[int, Any], list[Any]]:
    """Answer an engine's calls until the requests `tickets` are answered; return answers and events."""
    answers: dict[int, Any] = {}
    events: list[Any] = []
    end = time.monotonic() + wait_s
    while len(answers) < len(tickets) and time.monotonic() < end:
        answers.update(engine.step(0.5))
        for event in engine.take_model_calls_and_notices():
            events.append(event)
            if isinstance(event, ProgramModelCall) and (text := say(event)) is not None:
                engine.deliver_model_call_answer(event.id, Completion(text, (1,), (2,), (-0.5,), "stop"))
    return answers, events


def outcome(folder: Path, source: str, say: Say = lambda call: "4", **settings: Any) -> Any:
    """Answer of one run of a program, with the events of its engine."""
    if "run" not in settings:
        settings |= {"call": "agents_here:main"}
    engine: Any = Program(folder=written(folder, source), workers=1, **settings).build(None)
    engine.submit(0, request())
    answers, events = drive(engine, [0], say)
    engine.close()
    answer = answers[0]
    return (parse_program_answer(answer.text) if isinstance(answer, Completion) else answer), events


def test_a_function_is_called_with_the_task_and_its_calls_are_raised(tmp_path: Path) -> None:
    answer, events = outcome(tmp_path, "def main(task): return ask(task['question'])")
    assert (answer.answer, answer.failed) == ("4", False)
    [call] = events
    assert (call.agent, call.parent, *call.messages) == ("solver", 0, Message("user", "2 + 2"))


def test_a_coroutine_function_may_report_rewards(tmp_path: Path) -> None:
    source = """
        async def main(task):
            print("not an answer")
            return {"answer": {"sum": 4}, "rewards": {"solver": {"brief": 1}}}
    """
    answer, _ = outcome(tmp_path, source)
    assert json.loads(answer.answer) == {"sum": 4}
    assert answer.callers["solver"].reported == {"brief": 1.0}


def test_a_command_reads_the_task_and_its_last_line_is_the_answer(tmp_path: Path) -> None:
    source = """
        import sys
        if __name__ == "__main__":
            task = json.loads(sys.stdin.readline())
            print("working")
            print(json.dumps({"answer": ask(task["question"])}))
    """
    answer, events = outcome(tmp_path, source, run=["python", "agents_here.py"])
    assert answer.answer == "4"
    assert len(events) == 1


def test_the_answer_of_a_command_may_be_long_and_hold_separators_of_lines(tmp_path: Path) -> None:
    source = r"""
        import sys
        sys.stdout.reconfigure(encoding="utf-8")
        print(json.dumps({"answer": "a\u2028b\x85" * 50_000}, ensure_ascii=False))
    """
    answer, _ = outcome(tmp_path, source, run=["python", "agents_here.py"])
    assert answer.answer == "a\u2028b\x85" * 50_000


@pytest.mark.parametrize(
    ("source", "run", "why"),
    [
        ("def main(task): raise KeyError('plan')", (), "KeyError: 'plan'"),
        ("def main(task): raise SystemExit(3)", (), "SystemExit: 3"),
        ("def main(task): os._exit(3)", (), "exit code 3"),
        ("def main(task): return object()", (), "not JSON serializable"),
        ("raise ValueError('no')", ("python", "agents_here.py"), "ValueError: no"),
    ],
)
def test_a_program_that_raises_has_failed_and_is_not_started_again(
    tmp_path: Path, source: str, run: tuple[str, ...], why: str
) -> None:
    settings: dict[str, Any] = {"run": run} if run else {}
    answer, events = outcome(tmp_path, source, **settings)
    assert answer.failed
    assert why in answer.why
    assert events == []


def test_a_killed_program_starts_again_and_its_first_attempt_is_void(tmp_path: Path) -> None:
    source = """
        import pathlib
        def main(task):
            text = ask("first")
            mark = pathlib.Path("killed")
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), 9)
            return ask("second")
    """
    answer, events = outcome(tmp_path, source)
    assert answer.answer == "4"
    asked = [event.messages[0].content if isinstance(event, ProgramModelCall) else event for event in events]
    assert asked == ["first", IneffectiveCallsNotice(0), "first", "second"]


def test_a_program_that_is_always_killed_leaves_the_episode_unjudged(tmp_path: Path) -> None:
    answer, _ = outcome(tmp_path, "def main(task): os.kill(os.getpid(), 9)", attempts=2)
    assert isinstance(answer, CompletionFailure)
    assert answer.finish == "unjudged"
    assert "2 attempts" in answer.reason


def test_a_reply_above_the_maximum_size_leaves_the_episode_unjudged(tmp_path: Path) -> None:
    answer, _ = outcome(tmp_path, "def main(task): return 'x' * 20_000_000", attempts=1)
    assert isinstance(answer, CompletionFailure)
    assert "more than 16,777,216 bytes" in answer.reason


@pytest.mark.skipif(sys.platform != "linux", reason="signals without a name are sent")
def test_a_program_killed_by_a_signal_without_a_name_leaves_the_episode_unjudged(tmp_path: Path) -> None:
    answer, _ = outcome(tmp_path, "def main(task): os.kill(os.getpid(), 35)", attempts=1)
    assert isinstance(answer, CompletionFailure)
    assert "killed by signal 35" in answer.reason


def test_a_late_program_is_killed_with_its_descendants(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = """
        import subprocess, time
        def main(task):
            child = subprocess.Popen(["sleep", "600"])
            open("child", "w").write(str(child.pid))
            time.sleep(600)
    """
    answer, _ = outcome(tmp_path, source, attempts=1, timeout_s=1.0)
    assert isinstance(answer, CompletionFailure)
    assert "timeout_s" in answer.reason
    time.sleep(0.2)
    assert not is_running(int((tmp_path / "child").read_text()))
    # The event loop logs errors that nobody has looked at when they are collected.
    gc.collect()
    assert caplog.records == []


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_time_in_which_a_call_is_open_is_not_the_programs(tmp_path: Path) -> None:
    def slow(call: ProgramModelCall) -> str:
        time.sleep(2.0)
        return "4"

    answer, _ = outcome(tmp_path, "def main(task): return ask('x')", slow, attempts=1, timeout_s=1.0)
    assert answer.answer == "4"


def test_a_cancelled_program_is_killed_and_the_next_one_runs(tmp_path: Path) -> None:
    source = "def main(task): open('pid', 'w').write(str(os.getpid())); return ask(task['question'])"
    engine: Any = Program(folder=written(tmp_path, source), call="agents_here:main", workers=1).build(None)
    engine.submit(0, request("never answered"))
    drive(engine, [0], lambda call: None, wait_s=2.0)
    process = int((tmp_path / "pid").read_text())
    engine.cancel([0])
    engine.submit(1, request())
    answers, _ = drive(engine, [1], lambda call: "4")
    assert parse_program_answer(answers[1].text).answer == "4"  # type: ignore[union-attr]
    assert not is_running(process)
    engine.close()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module", "ModuleNotFoundError"),
        ("main = 3", "is no function"),
        ("def main(task): return {'answer': '', 'rewards': {'critic': {'a': 1}}}", "callers: planner, solver"),
        ("def main(task): return {'answer': '', 'rewards': {'solver': {'a': 'x'}}}", "no number"),
    ],
)
def test_a_program_that_cannot_be_used_ends_the_run_with_the_cause(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        outcome(tmp_path, source)


def test_an_interpreter_that_has_vanished_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"policy 'crew': the program cannot be started: .*no_python"):
        outcome(tmp_path, "def main(task): return '4'", python=tmp_path / "no_python")


@pytest.mark.skipif(sys.platform != "linux", reason="scheduling of processes is set on Linux only")
def test_a_program_does_not_take_the_core_of_the_gateway_that_answers_it(tmp_path: Path) -> None:
    answer, _ = outcome(tmp_path, "def main(task): return str(os.sched_getscheduler(0) == os.SCHED_BATCH)")
    assert answer.answer == "True"


def test_a_program_gets_key_and_address_and_no_other_key_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    source = """
        def main(task):
            json.dump(dict(os.environ), open("env", "w"))
            return dict(os.environ)
    """
    answer, _ = outcome(tmp_path, source)
    environment = json.loads((tmp_path / "env").read_text())
    assert "sk-secret" not in environment.values()
    # The answer is recorded, so it does not show the key.
    assert json.loads(answer.answer)["OPENAI_API_KEY"] == "[key]"
    assert environment["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")
    assert environment["ANTHROPIC_API_KEY"] == environment["OPENAI_API_KEY"]
    assert len(environment["OPENAI_API_KEY"]) == len("marl-") + 32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "set exactly one"),
        ({"run": ["python", "x.py"], "call": "a:b"}, "set exactly one"),
        ({"call": "agents.py"}, "must be module:function, such as my_agents:main"),
        ({"run": ["x"], "python": "/usr/bin/python3"}, "python: has no effect with run"),
        ({"run": ["x"], "tasks_per_worker": 2}, "tasks_per_worker: 2 needs call"),
        ({"call": "a:b", "workers": 16, "tasks_per_worker": 65}, "workers: 16 x tasks_per_worker: 65 are more than"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Program.model_validate(settings)


def test_a_stopped_program_is_late(tmp_path: Path) -> None:
    source = "import signal\ndef main(task): os.kill(os.getpid(), signal.SIGSTOP)"
    (tmp_path / "agents_here.py").write_text("import os\n" + source)
    engine: Any = Program(folder=tmp_path, call="agents_here:main", workers=1, attempts=1, timeout_s=1.0).build(None)
    engine.submit(0, request())
    answers, _ = drive(engine, [0], lambda call: None)
    assert answers[0].finish == "unjudged"
    engine.close()


def test_attempts_are_counted_with_those_that_repeat_a_lost_one(tmp_path: Path) -> None:
    source = """
        import signal
        from pathlib import Path

        def main(task):
            if not Path("killed").exists():
                Path("killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return ask(task["question"])
    """
    engine: Any = Program(folder=written(tmp_path, source), workers=1, call="agents_here:main").build(None)
    assert engine.program_attempt_counts()[:3] == (0, 0, 0)
    engine.submit(0, request())
    running: list[int] = []

    def say(call: ProgramModelCall) -> str:
        running.append(engine.program_attempt_counts().running)
        return "4"

    drive(engine, [0], say)
    assert running == [1]
    activity = engine.program_attempt_counts()
    assert (activity.attempts, activity.repeated) == (2, 1)
    assert activity.ends == {"ended": 1, "killed": 1}
    engine.close()


def test_attempts_are_listed_by_their_ends_in_the_status_of_a_run(tmp_path: Path) -> None:
    source = """
        import signal, time

        def main(task):
            if task["question"] == "raise":
                raise ValueError("no")
            if task["question"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if task["question"] == "sleep":
                time.sleep(600)
            return "4"
    """
    settings = Program(folder=written(tmp_path, source), workers=1, call="agents_here:main", attempts=1, timeout_s=1.0)
    engine: Any = settings.build(None)
    for ticket, question in enumerate(["answer", "raise", "kill", "sleep", "answer"]):
        engine.submit(ticket, request(question))
    drive(engine, list(range(5)), lambda call: "4")
    counts = engine.program_attempt_counts()
    engine.close()
    assert counts.describe(0) == "5 attempts started, 2 ended, 1 failed, 1 killed, 1 late"
