"""Starter of programs, run by the user's interpreter, which may lack `marl`: only the standard library is imported.

This source is run as `python -c SOURCE MODE PARENT ...`, so that the folder of this file is not on the import path.
Mode `run` executes the following command. Mode `call` imports `MODULE:FUNCTION` from the working folder once, and calls
the function with the task in each line of the input, in THREADS threads. The process ends with its parent PARENT.
"""

import asyncio
import contextlib
import ctypes
import importlib
import inspect
import json
import os
import signal
import sys
import threading
import traceback

_PR_SET_PDEATHSIG = 1
_MAX_ERROR = 2000
"""Maximum length of an error message in characters."""


class _ErrorRecorder:
    """Context manager that catches and records any error of the user's code."""

    message = ""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None or issubclass(kind, KeyboardInterrupt):
            return False
        if kind is SystemExit and error.code in (None, 0):
            return True
        self.message = "".join(traceback.format_exception_only(kind, error)).strip()[-_MAX_ERROR:] or kind.__name__
        traceback.print_exception(kind, error, trace)
        return True


def _die_with_parent_process(parent_pid):
    """Let the kernel kill this process when its parent `parent_pid` dies (on Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def _import_function(function_path):
    """Import and return the function at `function_path`, written as `module:function`."""
    module, _, name = function_path.partition(":")
    function = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    if not callable(function):
        raise TypeError(f"{function_path} is no function")
    return function


def _answer_tasks_from_stdin(function_path, thread_count):
    """Call the function at `function_path` with each task of stdin, in `thread_count` threads; answer on stdout.

    Each line of stdin is `{"id": number, "task": ...}`. The answer is a line with the same `id`.
    """
    tasks, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    # The program's own prints go to stderr and its stdin is empty, so it neither writes answers nor reads tasks.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    reading, writing = threading.Lock(), threading.Lock()

    def read_line():
        with reading:
            return tasks.readline()

    def write_reply(number, reply):
        with writing:
            answers.write(json.dumps({"id": number, **reply}) + "\n")
            answers.flush()

    function = None
    with _ErrorRecorder() as recorded:
        function = _import_function(function_path)
    if function is None:
        write_reply(0, {"setup": recorded.message or "the module has ended the process"})
        return
    write_reply(0, {"ready": True})
    for _ in range(thread_count - 1):
        threading.Thread(target=_answer_tasks, args=(function, read_line, write_reply), daemon=True).start()
    _answer_tasks(function, read_line, write_reply)


def _answer_tasks(function, read_line, write_reply):
    """Call `function` with the task of one line after the other until `read_line` returns ""."""
    loop = None
    for line in iter(read_line, ""):
        entry, reply = json.loads(line), {}
        with _ErrorRecorder() as recorded:
            result = function(entry["task"])
            if inspect.isawaitable(result):
                # A thread's tasks share a loop, because the connections of an asynchronous client belong to a loop.
                loop = loop or asyncio.new_event_loop()
                result = loop.run_until_complete(_wait_for_awaitable(result))
            reply = {"result": result}
            json.dumps(reply)
        if recorded.message:
            reply = {"failed": recorded.message}
        write_reply(entry["id"], reply or {"result": None})


async def _wait_for_awaitable(awaitable):
    """Return the result of `awaitable`, and cancel the background tasks that it leaves behind."""
    try:
        return await awaitable
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def main():
    """Run the program that the command line names, until it ends or this process's parent dies."""
    mode, parent, *rest = sys.argv[1:]
    _die_with_parent_process(int(parent))
    if sys.platform == "linux":
        # A normal process that gets an answer may at once take the core of the gateway that sends it, and with it the
        # lock of the run's interpreter. A batch process waits until a core is free, or its turn comes. Some containers
        # forbid the call; programs then run as normal processes.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    if mode == "run":
        os.execvp(rest[0], rest)
    _answer_tasks_from_stdin(rest[0], int(rest[1]))


if __name__ == "__main__":
    main()
