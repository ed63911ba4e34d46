"""Connection of a run to Ray: what is refused, by which message, and who can reach the ports of a run's own cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from marl.cluster.connection import ray_connection
from marl.cluster.placement import open_placement
from marl.core.errors import EngineError
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import ScenarioError, load
from tests.support.command_line import run_marl
from tests.support.paths import KUHN

ray = pytest.importorskip("ray")

LISTENERS = """
import json, os, psutil
from marl.cluster.connection import ray_connection
from marl.scenario.cluster import ClusterConfig

with ray_connection(ClusterConfig(cpus=0.5)):
    import ray

    actor = ray.remote(num_cpus=0.5)(type("Actor", (), {"pid": lambda self: os.getpid()})).remote()
    ray.get(actor.pid.remote())
    me = psutil.Process()
    sockets = [c for process in [me, *me.children(recursive=True)] for c in process.net_connections("inet")]
    print(json.dumps([c.laddr.ip for c in sockets if c.status == psutil.CONN_LISTEN]))
"""

IMPORT_PATH = """
import sys
from marl.cluster.connection import ray_connection
from marl.scenario.cluster import ClusterConfig

with ray_connection(ClusterConfig(cpus=0.5)):
    import ray

    print(sys.argv[1] in ray.get(ray.remote(num_cpus=0.5)(lambda: sys.path).remote()))
"""

WITHOUT_TOKEN = """
import socket
from marl.cluster.connection import ray_connection
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import ScenarioError

with socket.create_server(("127.0.0.1", 0)) as server:
    try:
        ray_connection(ClusterConfig(address=f"127.0.0.1:{server.getsockname()[1]}")).__enter__()
    except ScenarioError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_the_working_folder_is_not_on_the_import_path_of_rays_processes(tmp_path: Path) -> None:
    # Ray would put it first, where a stranger's file hides an installed package.
    (tmp_path / "pydantic.py").write_text("open('ran', 'w').close()")
    words = [sys.executable, "-P", "-c", IMPORT_PATH, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "False"
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_cluster_of_the_runs_own_listens_on_loopback_alone() -> None:
    done = subprocess.run([sys.executable, "-c", LISTENERS], capture_output=True, text=True, timeout=120, check=True)
    addresses = json.loads(done.stdout.splitlines()[-1])
    assert len(addresses) >= 4
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}


def test_an_address_given_on_the_command_line_is_that_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("train", KUHN, "--address", "127.0.0.1:1", "--out", tmp_path / "run")
    status, _, errors = run_marl(monkeypatch, capsys, *words)
    assert status == 2
    assert "cluster.address: 127.0.0.1:1: no Ray cluster answers there" in errors
    assert "refused" in errors
    assert not (tmp_path / "run").exists()


def test_an_address_that_is_none_is_refused() -> None:
    for address in ("rubbish", "no.such.host.invalid:6379"):
        with pytest.raises(ScenarioError, match=f"cluster.address: {address}: no Ray cluster answers there"):
            ray_connection(ClusterConfig(address=address)).__enter__()


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_missing_token_is_named_with_where_ray_reads_it(tmp_path: Path) -> None:
    environment = os.environ | {"RAY_AUTH_MODE": "token", "HOME": str(tmp_path)}
    words = [sys.executable, "-c", WITHOUT_TOKEN]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert "the token for Ray is missing or wrong; set RAY_AUTH_TOKEN to the cluster's token" in done.stdout


def test_a_start_that_takes_ray_too_long_is_tried_again_until_the_runs_own_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts: list[str] = []

    def slow(**options: object) -> None:
        attempts.append(str(options["address"]))
        raise Exception("The current node timed out during startup.")  # as Ray does

    monkeypatch.setattr(ray, "init", slow)
    with pytest.raises(EngineError, match=r"not come up within cluster\.start_s .* timed out during startup"):
        ray_connection(ClusterConfig(start_s=0.05)).__enter__()
    assert attempts == ["local"] * len(attempts)
    assert capsys.readouterr().err.count("it is tried again") == len(attempts) - 1 > 0


def test_ray_that_is_missing_or_too_old_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    scenario = load(KUHN, ["cluster.simulators=2"])
    for installed, message in ((missing, "which is not installed"), (lambda name: "2.9.3", "and 2.9.3 is installed")):
        monkeypatch.setattr("marl.scenario.cluster.version", installed)
        with (
            pytest.raises(ScenarioError, match=rf"{message}; pip install 'marl-llm\[ray\]', or use kind: local"),
            open_placement(scenario),
        ):
            pass
