"""A real server of vLLM on loopback, in processes of its own."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psutil

from tests.support.paths import ROOT

README = ROOT / "marl" / "engines" / "vllm" / "README.md"
KEY_ENV = "MARL_TEST_SERVER_KEY"
_START_S, _END_S = 300.0, 30.0


class RunningServer:
    """A server that has been started."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    def kill(self) -> None:
        """Kill it with all its processes, as the operating system does when memory is used up."""
        for each in psutil.Process(self.process.pid).children(recursive=True):
            each.send_signal(signal.SIGKILL)
        self.process.kill()
        self.process.wait(_END_S)


@contextmanager
def serving_vllm(model: Path, key: str, log: Path) -> Iterator[RunningServer]:
    """Yield a server that takes new weights and three adapters, and asks for `key`: the README's command starts it."""
    port = _free_port()
    documented = re.search(r"^VLLM_SERVER_DEV_MODE=1 .*", README.read_text(), flags=re.MULTILINE)
    assert documented, "the README says how to start a server"
    words = shlex.split(documented[0])
    start = words.index("python")
    wanted = dict(word.split("=", 1) for word in words[:start])
    command = [sys.executable, *words[start + 1 :], "--api-key", key, "--enable-prompt-tokens-details"]
    command[command.index("MODEL")] = str(model)
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--block-size", "32"]
    command += ["--kv-cache-memory-bytes", str(64 * 2**20), "--max-num-seqs", "32", "--enforce-eager"]
    command += ["--max-lora-rank", "8"]
    quick = {"TORCH_COMPILE_DISABLE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"}
    plain = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=plain | wanted | quick)
    server = RunningServer(process, port)
    try:
        _await_health(server, log)
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(_END_S)


def _await_health(server: RunningServer, log: Path) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        assert server.process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx2.get(f"{server.url}/health", timeout=5.0).is_success:
                return
        except httpx2.HTTPError:
            time.sleep(0.5)
    raise AssertionError(f"no server within {_START_S:g} s: {log.read_text()[-3000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
