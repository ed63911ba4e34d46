"""Attacks from inside the sandbox leave no trace outside it."""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from attacks import ATTACKS, PRELUDE, Attack
from orphans import Orphans

from marl.sandbox import Sandbox, run_program
from marl.sandbox.settings import IsolationMode

PROJECT = Path(__file__).parents[2]
HARMLESS = (
    "reads the password file",
    "reads the environment",
    "reads a file by its path",
    "reads the project",
    "listens",
    "makes a hard link to what is outside",
    "traces its own child",
)
"""Attacks that can be let loose to see whether they are any good."""
LIMITS = {"wall_s": 10.0, "cpu_s": 5, "memory_mb": 256, "processes": 8, "file_mb": 8, "output_kb": 256}


@dataclass
class World:
    """Targets of the attacks."""

    token: str
    secret: Path
    victim: subprocess.Popen[bytes]
    listeners: list[socket.socket]
    abstract: str

    def as_json(self) -> str:
        port = self.listeners[0].getsockname()[1]
        names = {"secret": str(self.secret), "victim": self.victim.pid, "port": port, "abstract": self.abstract}
        places = {"project": str(PROJECT), "bashrc": str(Path.home() / ".bashrc"), "host": os.getpid()}
        return json.dumps(names | places | {"socket": self.listeners[2].getsockname()})

    def assert_untouched(self) -> None:
        assert self.secret.read_text() == self.token
        assert self.victim.poll() is None
        assert select.select(self.listeners, [], [], 0)[0] == []
        for folder in (PROJECT, self.secret.parent, "/", "/tmp", "/usr", "/usr/lib", "/dev", "/dev/shm", "/var/tmp"):
            assert not Path(folder, "escaped").exists()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    token = secrets.token_hex()
    (folder / "secret").write_text(token)
    victim = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    name = f"marl-{secrets.token_hex(4)}"
    listeners = [socket.socket(), socket.socket(type=socket.SOCK_DGRAM), *(socket.socket(socket.AF_UNIX) for _ in "12")]
    listeners[0].bind(("127.0.0.1", 0))
    listeners[1].bind(listeners[0].getsockname())
    listeners[2].bind(os.path.relpath(folder / "s") if len(str(folder)) > 90 else str(folder / "s"))
    listeners[3].bind(f"\0{name}")
    for listener in (listeners[0], *listeners[2:]):
        listener.listen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_TEST_SECRET", token)
        yield World(token, folder / "secret", victim, listeners, name)
    victim.kill()
    victim.wait()
    for listener in listeners:
        listener.close()


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_nothing_comes_of_code_that(attack: Attack, mechanism: IsolationMode, world: World, orphans: Orphans) -> None:
    sandbox = Sandbox(how=mechanism, **{**LIMITS, **attack.limits})
    result = run_program(sandbox, PRELUDE + attack.code, files={"world.json": world.as_json()})
    assert "blocked" in result.stdout, result
    assert "ESCAPED" not in result.stdout
    assert world.token not in result.stdout + result.stderr
    assert result.reason in attack.reasons
    assert len(result.stdout) + len(result.stderr) <= 2 * sandbox.output_kb << 10
    orphans.assert_none_is_left()
    world.assert_untouched()


@pytest.mark.parametrize("name", HARMLESS)
def test_without_walls_the_same_code_gets_through(name: str, world: World) -> None:
    files = {"world.json": world.as_json()}
    assert "ESCAPED" in run_program(Sandbox(how="none"), PRELUDE + ATTACKS[name].code, files=files).stdout
