"""Two processes that would train in one folder."""

import os
import signal
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from marl.core.errors import RunFolderError
from marl.runs.run_folder import RunFolder
from tests.support.run_processes import RunWorkspace, SignalTrigger, exit_status, outcome


def halted(desk: RunWorkspace) -> BaseProcess:
    """A process that stands still in the middle of its fifth step."""
    process = desk.start_training(kill=SignalTrigger("call", "CreditStage.__call__", 5, (signal.SIGSTOP,)))
    until = time.monotonic() + 60
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < until, desk.take_output()
        time.sleep(0.02)
    return process


@pytest.mark.one_in(3)
def test_a_folder_that_is_trained_in_is_refused_unharmed_until_its_process_dies(whole, desk):
    first = halted(desk)
    try:
        for how in ([], ["--resume", "auto"], ["--overwrite"]):
            assert desk.train(*how) == 1
            assert f"{desk.run} is being trained by process {first.pid}" in desk.take_output()
    finally:
        os.kill(first.pid or 0, signal.SIGKILL)
    assert exit_status(first) == -signal.SIGKILL
    assert desk.train("--resume", "auto") == 0
    assert outcome(desk.run) == outcome(whole.run)


def test_two_threads_do_not_train_in_one_folder_either(tmp_path):
    refused: list[str] = []

    def other() -> None:
        with (
            pytest.raises(RunFolderError, match=f"by process {os.getpid()}$") as error,
            RunFolder(tmp_path).hold_lock(),
        ):
            pass
        refused.append(str(error.value))

    with RunFolder(tmp_path).hold_lock():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1
    with RunFolder(tmp_path).hold_lock():
        """Free again."""
