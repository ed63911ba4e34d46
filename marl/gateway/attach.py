"""Starter of programs, run by the user's interpreter, which may lack `marl`: only the standard library is imported.

This source is run as `python -c SOURCE MODE PARENT ...`, so that the folder of this file is not on the import path.
Mode `run` executes the following command. Mode `call` imports `MODULE:FUNCTION` from the working folder once, and calls
the function with the task in each line of the input. The process ends with its parent, the process PARENT.
"""

import asyncio
import ctypes
import importlib
import inspect
import json
import os
import signal
import sys
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


def _answer_tasks_from_stdin(function_path):
    """Call the function at `function_path` with each task of stdin, and write the answers to stdout."""
    tasks, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    # The program's own prints go to stderr and its stdin is empty, so it neither writes answers nor reads tasks.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def write_reply(reply):
        answers.write(json.dumps(reply) + "\n")
        answers.flush()

    # One loop serves all tasks, because the connections of an asynchronous client belong to an event loop.
    function, loop = None, asyncio.new_event_loop()
    with _ErrorRecorder() as recorded:
        function = _import_function(function_path)
    if function is None:
        write_reply({"setup": recorded.message or "the module has ended the process"})
        return
    write_reply({"ready": True})
    for line in tasks:
        reply = {}
        with _ErrorRecorder() as recorded:
            result = function(json.loads(line))
            if inspect.isawaitable(result):
                result = loop.run_until_complete(_wait_for_awaitable(result))
            reply = {"result": result}
            json.dumps(reply)
        if recorded.message:
            reply = {"failed": recorded.message}
        write_reply(reply or {"result": None})


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
    if mode == "run":
        os.execvp(rest[0], rest)
    _answer_tasks_from_stdin(rest[0])


if __name__ == "__main__":
    main()
