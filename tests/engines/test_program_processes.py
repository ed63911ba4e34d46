"""The engine `program`: processes that serve several tasks, one after the other or at once."""

from __future__ import annotations

import gc
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marl.core.types import Completion
from marl.engines.program.settings import Program
from marl.protocols import IneffectiveCallsNotice, ProgramModelCall
from marl.protocols.programs import parse_program_answer
from tests.engines.test_program_engine import drive, is_running, request, written


def test_a_process_serves_many_tasks_and_all_end_with_the_engine(tmp_path: Path) -> None:
    source = "def main(task): return f\"{os.getpid()} {ask(task['question'])}\""
    engine: Any = Program(folder=written(tmp_path, source), call="agents_here:main", workers=2).build(None)
    for ticket in range(12):
        engine.submit(ticket, request(f"{ticket}"))
    answers, _ = drive(engine, list(range(12)), lambda call: call.messages[0].content)
    texts = [parse_program_answer(answers[ticket].text).answer.split() for ticket in range(12)]  # type: ignore[union-attr]
    assert [number for _, number in texts] == [str(ticket) for ticket in range(12)]
    processes = {int(process) for process, _ in texts}
    assert len(processes) <= 2
    engine.close()
    time.sleep(0.3)
    assert not any(map(is_running, processes))


ASK_WITH_KEY_OF_TASK = """
def ask_as(task, text):
    body = json.dumps({"model": "solver", "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + task["api_key"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
        return json.load(response)["choices"][0]["message"]["content"]
"""


def shared_worker(folder: Path, source: str, tasks_per_worker: int) -> Any:
    """Engine with one process for `tasks_per_worker` tasks at once."""
    written(folder, ASK_WITH_KEY_OF_TASK + textwrap.dedent(source))
    settings = {"call": "agents_here:main", "workers": 1, "tasks_per_worker": tasks_per_worker}
    return Program.model_validate({"folder": folder, **settings}).build(None)


def answered(answer: Any) -> str:
    return parse_program_answer(answer.text).answer  # type: ignore[union-attr]


def test_tasks_that_share_a_process_are_told_apart_by_their_keys(tmp_path: Path) -> None:
    engine = shared_worker(tmp_path, "def main(task): return f\"{os.getpid()} {ask_as(task, task['question'])}\"", 6)
    for ticket in range(6):
        engine.submit(ticket, request(f"{ticket}"))
    calls: list[ProgramModelCall] = []

    def say(call: ProgramModelCall) -> None:
        # No call is answered before all are open, so that all tasks run at once.
        calls.append(call)
        for opened in calls if len(calls) == 6 else []:
            text = f"{opened.messages[0].content} of {opened.parent}"
            engine.deliver_model_call_answer(opened.id, Completion(text, (1,), (2,), (-0.5,), "stop"))

    answers, _ = drive(engine, list(range(6)), say)
    engine.close()
    texts = [answered(answers[ticket]).partition(" ") for ticket in range(6)]
    assert [text for _, _, text in texts] == [f"{ticket} of {ticket}" for ticket in range(6)]
    assert len({process for process, _, _ in texts}) == 1


def test_the_key_in_the_environment_is_refused_if_tasks_share_a_process(tmp_path: Path) -> None:
    source = """
        import urllib.error
        def main(task):
            try:
                return ask(task["question"])
            except urllib.error.HTTPError as error:
                return f"{error.code} {error.read().decode()}"
    """
    engine = shared_worker(tmp_path, source, 2)
    engine.submit(0, request())
    answers, events = drive(engine, [0], lambda call: "4")
    engine.close()
    assert events == []
    assert answered(answers[0]).startswith("401 ")
    assert "use task['api_key'] instead" in answered(answers[0])


def test_a_cancelled_task_leaves_the_other_tasks_of_its_process_alone(tmp_path: Path) -> None:
    engine = shared_worker(tmp_path, "def main(task): return f\"{os.getpid()} {ask_as(task, task['question'])}\"", 2)
    opened: dict[int, ProgramModelCall] = {}

    def leave_open(call: ProgramModelCall) -> None:
        opened[call.parent] = call

    for ticket in range(2):
        engine.submit(ticket, request(f"{ticket}"))
    end = time.monotonic() + 20
    while len(opened) < 2 and time.monotonic() < end:
        drive(engine, [0], leave_open, wait_s=0.1)
    engine.cancel([0])
    engine.submit(2, request("2"))
    # Task 2 runs in a new process, because a thread of the first process may still work on task 0.
    later, _ = drive(engine, [2], lambda call: "later")
    engine.deliver_model_call_answer(opened[1].id, Completion("went on", (1,), (2,), (-0.5,), "stop"))
    first, _ = drive(engine, [1], leave_open)
    (old, _, text), (new, _, _) = answered(first[1]).partition(" "), answered(later[2]).partition(" ")
    assert text == "went on"
    assert old != new
    engine.close()
    assert not is_running(int(old))


def test_tasks_start_again_if_one_of_them_ends_their_process(tmp_path: Path) -> None:
    source = """
        from pathlib import Path
        def main(task):
            if task["question"] == "ends" and not Path("ended").exists():
                ask_as(task, "wait")
                Path("ended").touch()
                os._exit(3)
            return ask_as(task, task["question"])
    """
    engine = shared_worker(tmp_path, source, 2)
    engine.submit(0, request("ends"))
    engine.submit(1, request("goes on"))
    opened: dict[str, ProgramModelCall] = {}

    def say(call: ProgramModelCall) -> str | None:
        text = call.messages[0].content
        if (tmp_path / "ended").exists():
            return text
        opened[text] = call
        # The process ends while the other task's call is open.
        if len(opened) == 2:
            engine.deliver_model_call_answer(opened["wait"].id, Completion("", (1,), (2,), (-0.5,), "stop"))
        return None

    answers, events = drive(engine, [0, 1], say)
    engine.close()
    assert [answered(answers[ticket]) for ticket in range(2)] == ["ends", "goes on"]
    assert IneffectiveCallsNotice(0) in events


def test_coroutine_functions_share_an_event_loop_and_leave_no_task_behind(tmp_path: Path) -> None:
    # The connections of an asynchronous client belong to the loop in which they were opened.
    source = """
        import asyncio
        loops = set()
        async def main(task):
            loops.add(asyncio.get_running_loop())
            asyncio.create_task(asyncio.sleep(60))
            return f"{len(loops)} loop, {len(asyncio.all_tasks())} tasks"
    """
    engine: Any = Program(folder=written(tmp_path, source), call="agents_here:main", workers=1).build(None)
    for ticket in range(3):
        engine.submit(ticket, request())
    answers, _ = drive(engine, [0, 1, 2], lambda call: "4")
    engine.close()
    texts = [parse_program_answer(answers[ticket].text).answer for ticket in range(3)]  # type: ignore[union-attr]
    assert texts == ["1 loop, 2 tasks"] * 3


def test_a_process_whose_thread_calls_after_the_end_is_replaced(tmp_path: Path) -> None:
    source = """
        import threading, time
        def late():
            time.sleep(0.2)
            try:
                ask("too late")
            except OSError:
                pass
        def main(task):
            threading.Thread(target=late).start()
            return str(os.getpid())
    """
    engine: Any = Program(folder=written(tmp_path, source), call="agents_here:main", workers=1).build(None)
    processes: list[str] = []
    for ticket in range(2):
        engine.submit(ticket, request())
        answers, events = drive(engine, [ticket], lambda call: "4")
        processes.append(parse_program_answer(answers[ticket].text).answer)  # type: ignore[union-attr]
        assert events == []
        time.sleep(0.6)
    assert processes[0] != processes[1]
    engine.close()


def test_a_process_that_dies_is_noticed_though_a_descendant_keeps_its_output_open(tmp_path: Path) -> None:
    source = """
        import time
        def main(task):
            if os.fork() == 0:
                # In a session of its own, the descendant is not killed with the process.
                os.setsid()
                time.sleep(20)
                os._exit(0)
            os._exit(3)
    """
    written(tmp_path, textwrap.dedent(source))
    settings = {"call": "agents_here:main", "workers": 1, "attempts": 1, "timeout_s": 60.0}
    engine: Any = Program.model_validate({"folder": tmp_path, **settings}).build(None)
    begin_s = time.monotonic()
    engine.submit(0, request())
    answers, _ = drive(engine, [0], lambda call: "4", wait_s=30.0)
    engine.close()
    assert "exit code 3" in parse_program_answer(answers[0].text).why  # type: ignore[union-attr]
    assert time.monotonic() - begin_s < 15


def test_descendants_of_a_process_that_ends_between_tasks_are_killed_at_once(tmp_path: Path) -> None:
    source = """
        import subprocess, threading
        def main(task):
            child = subprocess.Popen(["sleep", "60"])
            threading.Timer(0.3, os._exit, [0]).start()
            return str(child.pid)
    """
    engine: Any = Program(folder=written(tmp_path, source), call="agents_here:main", workers=1).build(None)
    engine.submit(0, request())
    answers, _ = drive(engine, [0], lambda call: "4")
    child, end = int(answered(answers[0])), time.monotonic() + 5
    while is_running(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_running(child)
    engine.close()


def test_cancelled_tasks_that_wait_for_a_process_start_no_further_ones(tmp_path: Path) -> None:
    source = """
        import time
        open("starts", "a").write("x")
        time.sleep(0.3)
        def main(task): return open("starts").read()
    """
    engine = shared_worker(tmp_path, source, 4)
    for ticket in range(4):
        engine.submit(ticket, request())
    while not (tmp_path / "starts").exists():
        time.sleep(0.01)
    engine.cancel(range(4))
    engine.submit(4, request())
    answers, _ = drive(engine, [4], lambda call: "4")
    engine.close()
    assert answered(answers[4]) == "x"


@pytest.mark.skipif(sys.platform != "linux", reason="open files are counted by /proc")
def test_pipes_are_closed_although_a_descendant_keeps_an_unread_task_open(tmp_path: Path) -> None:
    source = """
        import subprocess
        subprocess.Popen(["sleep", "20"], start_new_session=True)
        print("4")
    """
    (tmp_path / "agents_here.py").write_text(textwrap.dedent(source))
    engine: Any = Program(folder=tmp_path, run=("python", "agents_here.py"), workers=1).build(None)
    pipes: list[int] = []
    for ticket in range(2):
        # Longer than a pipe's buffer, so that the end of the task cannot be written.
        engine.submit(ticket, request("2" * 300_000))
        drive(engine, [ticket], lambda call: "4")
        time.sleep(0.2)
        pipes.append(count_open_pipes())
    engine.close()
    assert pipes[0] == pipes[1]


def count_open_pipes() -> int:
    return sum(file.is_fifo() for file in Path("/proc/self/fd").iterdir())


@pytest.fixture
def collection_disabled() -> Iterator[None]:
    """The garbage collector also ends processes and closes files that were forgotten."""
    gc.disable()
    yield
    gc.enable()


def close_engines_while_a_process_starts(folder: Path) -> None:
    written(folder, "def main(task): return '4'")
    for delay_ms in range(24):
        engine: Any = Program(folder=folder, call="agents_here:main", workers=1).build(None)
        engine.submit(0, request())
        time.sleep(delay_ms / 4000)
        engine.close()


@pytest.mark.skipif(sys.platform != "linux", reason="child processes are listed by /proc")
@pytest.mark.usefixtures("collection_disabled")
def test_processes_that_start_while_their_engine_is_closed_are_no_zombies(tmp_path: Path) -> None:
    # Other tests may have left processes in this process, such as workers of a model that a module shares.
    before = child_processes()
    close_engines_while_a_process_starts(tmp_path)
    end = time.monotonic() + 5
    while (children := child_processes() - before) and time.monotonic() < end:
        time.sleep(0.05)
    assert children == set()


def child_processes() -> set[str]:
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


@pytest.mark.usefixtures("collection_disabled")
def test_an_engine_that_is_closed_while_a_process_starts_closes_no_files_of_others(tmp_path: Path) -> None:
    close_engines_while_a_process_starts(tmp_path)
    time.sleep(0.2)
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(300)]
    gc.collect()
    # Raises OSError if the file is closed: its number was one of a pipe that was closed a second time.
    for file in files:
        os.close(file)
