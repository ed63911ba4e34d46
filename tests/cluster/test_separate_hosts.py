"""A run over two hosts: network namespaces with a cable between them, and a Ray node in each."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT
from tests.support.run_processes import kuhn_scenario

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

HOSTS = ("198.18.0.1", "198.18.0.2")
"""Addresses that are kept for tests of networks."""
SECRET = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
"""Ray's processes answer only those who know it."""
HEAD = f"{HOSTS[0]}:6379"


def in_host(number: int) -> list[str]:
    return ["ip", "netns", "exec", f"marl{os.getpid()}-{number}"]


@pytest.fixture
def network() -> Iterator[None]:
    """Two namespaces, joined by a pair of virtual interfaces; each has its own loopback."""
    if not shutil.which("ip"):
        pytest.skip("the command `ip` is not installed")
    names = [f"marl{os.getpid()}-{number}" for number in range(2)]
    cable = "ip link add {0} netns {0} type veth peer name {1} netns {1}".format(*names)
    up = [f"ip -n {name} link set {link} up" for name in names for link in ("lo", name)]
    addresses = [f"ip -n {name} addr add {host}/24 dev {name}" for name, host in zip(names, HOSTS, strict=True)]
    with ExitStack() as stack:
        for command in (*(f"ip netns add {name}" for name in names), cable, *addresses, *up):
            done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"network namespaces are not allowed here: {command}: {done.stderr.strip()}")
            if "netns add" in command:
                stack.callback(subprocess.run, ["ip", "netns", "del", command.split()[-1]], check=False)
        yield


@pytest.fixture
def nodes(network: None) -> Iterator[None]:
    """Ray on both hosts, started as its users do; they share files but for Ray's own."""
    own = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))  # short: paths of sockets have at most 107 characters
    ray = str(Path(sys.executable).with_name("ray"))
    size = ["--num-cpus=2", "--object-store-memory=100000000", "--block"]
    head = [ray, "start", "--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={own}", *size]
    other = [ray, "start", f"--address={HEAD}", *size]
    alone = ["sh", "-c", f'mount -t tmpfs none {own} && exec "$@"', "sh"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1", **SECRET}
    # A private cluster that a test before this one started in this process leaves its setting behind.
    for name in ("RAY_TMPDIR", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        environment.pop(name, None)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, words in enumerate((head, [*alone, *other])):
            command = [*in_host(number), *words, f"--node-ip-address={HOSTS[number]}"]
            with (own / f"log{number}").open("wb") as log:
                started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            until = time.monotonic() + 60
            while "--block" not in (own / f"log{number}").read_text():  # it says how to end it once it is up
                assert time.monotonic() < until, (own / f"log{number}").read_text()
                assert started[-1].poll() is None, (own / f"log{number}").read_text()
                time.sleep(0.2)
        yield
    finally:
        for number, process in enumerate(started):
            there = ["ip", "netns", "pids", in_host(number)[-1]]
            for pid in subprocess.run(there, capture_output=True, text=True, check=True).stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            process.wait(30)
        shutil.rmtree(own, ignore_errors=True)


def marl_train(folder: Path, *words: str, host: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Metrics of a run that do not depend on the clock or on processes."""
    command = [*host, sys.executable, "-m", "marl", "train", str(folder.parent / "scenario.yaml"), "--out", str(folder)]
    done = subprocess.run(
        [*command, *words], env=os.environ | SECRET, capture_output=True, text=True, cwd=ROOT, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    theirs = ("time/", "crc32", "cluster/", "policy/actor/restarts", "policy/actor/idle")
    return [{name: value for name, value in row.items() if not name.startswith(theirs)} for row in rows]


def test_a_run_over_two_hosts_is_that_of_one(
    nodes: None, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))
    schedule = {"steps": 3, "groups": 6, "group_size": 2, "threads": 1}
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(kuhn_scenario(schedule=schedule, evaluate={"every": 3})))
    alone = marl_train(tmp_path / "alone", "cluster={kind: local, simulators: 2}")
    # Either host has room for two of the four processes.
    placed = ("cluster.simulators=2", "cluster.learners={actor: 2}", "cluster.start_s=100")
    both = marl_train(tmp_path / "both", "--address", HEAD, *placed, host=tuple(in_host(0)))
    # Two processes add gradients up in another order than one.
    assert both == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in alone]
