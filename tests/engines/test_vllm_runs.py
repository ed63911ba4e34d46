"""vLLM over many updates, in runs that are killed, and in processes that die or hang."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from marl.core.errors import EngineError, EngineLostError
from marl.engines.vllm.engine import VLLMEngine
from marl.engines.vllm.settings import VLLM
from marl.trainers.forward.fidelity_gate import FLOAT32_LIMITS
from tests.support.lora_adapters import adapted, merged_model, random_adapter_weights
from tests.support.run_processes import (
    RunWorkspace,
    SignalTrigger,
    kuhn_scenario,
    metric_lines,
    outcome,
    tiny_model,
)
from tests.support.run_processes import train_to_end as train_in_subprocess
from tests.support.solver_critic_game import train_in_process
from tests.support.transformers_engines import answers, ask, plain_logprobs
from tests.support.vllm_helpers import SETTINGS, VLLM_KIND, vllm_engine, wide_headed

pytestmark = [pytest.mark.slow, pytest.mark.one_in(2), pytest.mark.xdist_group("vllm")]
CORE = "EngineCore"
"""A part of the name of vLLM's process."""
IN_PROCESSES: dict[str, Any] = {"kind": VLLM_KIND, "process": True, **SETTINGS}
ROUNDING = 5e-5
"""Maximum difference in nats of two float32 computations: 1.2e-5 was seen on another processor, 1e-2 is a fault."""
GROWTH = 8 * 2**20
"""Bytes by which memory may grow: a leak of one copy of the weights in each of 100 updates is 25 MiB and more."""


def held() -> tuple[int, int, int]:
    """Files that are open, files of this process in the folders for temporary ones, and bytes in memory."""
    gc.collect()
    process, folders = psutil.Process(), [Path("/dev/shm"), Path(tempfile.gettempdir())]
    mine = sum(1 for folder in folders if folder.is_dir() for _ in folder.glob(f"marl-vllm-{process.pid}-*/**/*"))
    return process.num_fds(), mine, process.memory_info().rss


def assert_nothing_leaks(before: tuple[int, int, int]) -> None:
    after = held()
    assert after[:2] == before[:2]
    assert after[2] - before[2] < GROWTH


def test_a_hundred_updates_leak_nothing_and_the_last_one_counts(tmp_path: Path) -> None:
    source = wide_headed(tmp_path / "wide")
    engine, model = vllm_engine(source), source.model()
    for version in range(1, 121):
        if version == 21:
            before = held()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1.001
        engine.load_weights("actor", model.named_parameters(), version)
    assert_nothing_leaks(before)
    [last] = answers(engine, [ask("hi", max_tokens=9)])
    assert last.versions == (120, 120)
    assert last.logprobs == pytest.approx(plain_logprobs(model, last, ask("hi").sampling), abs=ROUNDING)
    engine.close()


def test_eight_adapters_are_swapped_without_a_leak(tmp_path: Path) -> None:
    source = wide_headed(tmp_path / "wide")
    sources = {f"p{number}": adapted(source, f"p{number}", rank=4) for number in range(8)}
    engine = VLLM(**SETTINGS).build_shared(sources)
    assert isinstance(engine, VLLMEngine)
    weights = {policy: random_adapter_weights(each, number) for number, (policy, each) in enumerate(sources.items())}
    for version in range(1, 31):
        if version == 11:
            before = held()
        for policy, tensors in weights.items():
            scaled = {name: tensor * (1 + 0.01 * version) for name, tensor in tensors.items()}
            engine.load_weights(policy, scaled.items(), version)
    assert_nothing_leaks(before)
    for policy, tensors in weights.items():
        request = ask("hi", max_tokens=5)
        [said] = answers(engine, [type(request)(policy, request.messages, request.sampling)])
        model = merged_model(sources[policy], {name: tensor * 1.3 for name, tensor in tensors.items()})
        assert said.logprobs == pytest.approx(plain_logprobs(model, said, request.sampling), abs=ROUNDING)
    engine.close()


def test_a_run_on_vllm_that_is_killed_and_resumed_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    scenario: dict[str, Any] = kuhn_scenario()
    scenario["policies"]["actor"] |= {"model": tiny_model(head_dim=32), "engine": {"kind": VLLM_KIND, **SETTINGS}}
    scenario["schedule"]["steps"] = 4
    scenario["checkpoint"] = {"every": 2}
    scenario["evaluate"] = {"every": 2, "nashconv": True}
    whole = train_in_subprocess(tmp_path / "whole", scenario)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "cache").symlink_to(whole.path / "cache")
    other = RunWorkspace(tmp_path / "other", scenario)
    assert other.train(kill=SignalTrigger("open", "metrics.jsonl", 4)) == -signal.SIGKILL
    assert other.train("--resume", "auto") == 0, other.take_output()
    assert outcome(other.run) == outcome(whole.run)


def test_a_run_whose_vllm_process_is_killed_and_hangs_says_so_and_goes_on_exactly(tmp_path: Path) -> None:
    scenario: dict[str, Any] = kuhn_scenario()
    scenario["policies"]["actor"] |= {"model": tiny_model(head_dim=32), "engine": IN_PROCESSES}
    scenario["schedule"] |= {"steps": 6, "deadline_s": 10}
    scenario |= {"evaluate": {"every": 6, "nashconv": True}, "checkpoint": {"every": 1, "keep": 9}}
    whole = RunWorkspace(tmp_path / "whole", scenario)
    assert whole.train() == 0, whole.take_output()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "cache").symlink_to(whole.path / "cache")
    other = RunWorkspace(tmp_path / "other", scenario)
    assert other.train(kill=SignalTrigger("os.rename", "checkpoints/.", 2, child=CORE)) == 1
    assert (
        "engine 'vllm' of policies 'actor': vLLM's process has died (out of memory, or killed)" in other.take_output()
    )
    hang = SignalTrigger("os.rename", "checkpoints/.", 2, (signal.SIGSTOP,), child=CORE)
    assert other.train("--resume", "auto", kill=hang) == 1
    told = r"no answer within 10 s \(schedule.deadline_s\); open requests by policy: actor: \d+ \(of VLLMEngine\)"
    assert re.search(told, other.take_output())
    assert other.train("--resume", "auto") == 0, other.take_output()
    assert outcome(other.run) == outcome(whole.run)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_p": 0.9}], ids=str)
def test_sampler_and_learner_agree_throughout_a_run(dtype: str, sampling: dict[str, Any], tmp_path: Path) -> None:
    scenario: dict[str, Any] = kuhn_scenario(
        {"fidelity": {"every": 1}, "truncated": "recompute"}, evaluate={"every": 6}
    )
    scenario["roles"]["player"]["sampling"] |= sampling
    model = tiny_model(head_dim=32) | {"dtype": dtype}
    scenario["policies"]["actor"] |= {"model": model, "engine": {"kind": VLLM_KIND, **SETTINGS}}
    scenario["schedule"]["steps"] = 6
    assert train_in_process(tmp_path / "run", scenario)
    seen = [json.loads(line) for line in metric_lines(tmp_path / "run")][1:]
    assert len(seen) == 6
    for row in seen:
        # In bfloat16 the gate works the limit out in every step, and ends the run beyond it.
        assert 0 < row["policy/actor/fidelity_max"] <= (FLOAT32_LIMITS.max if dtype == "float32" else 1.0)
        assert ("policy/actor/fidelity_rounding_max" in row) == (dtype == "bfloat16")


def test_processes_that_hang_or_die_are_told_of_with_their_policies(tmp_path: Path) -> None:
    source = wide_headed(tmp_path / "wide")
    engine, model = vllm_engine(source, process=True, timeout_s=3), source.model()
    [before] = asked(engine)
    assert before.logprobs == pytest.approx(plain_logprobs(model, before, ask("hi").sampling), abs=ROUNDING)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.1
    core = next(each for each in psutil.Process().children() if CORE in "".join(each.cmdline()))
    engine.core._timeout_s = 120.0  # pyright: ignore
    engine.load_weights("actor", model.named_parameters(), 1)
    engine.core._timeout_s = 3.0  # pyright: ignore
    [after] = asked(engine)
    assert after.versions == (1, 1)
    assert after.logprobs == pytest.approx(plain_logprobs(model, after, ask("hi").sampling), abs=ROUNDING)
    core.send_signal(signal.SIGSTOP)
    engine.submit(0, ask("hi"))
    began = time.monotonic()
    assert engine.step(0.5) == []
    with pytest.raises(EngineError, match=r"engine 'vllm' of policies 'actor': .* within 3 s \(engine.timeout_s\)"):
        engine.load_weights("actor", model.named_parameters(), 2)
    assert time.monotonic() - began < 30
    os.kill(core.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match=r"engine 'vllm' of policies 'actor': .* has died"):
        asked(engine)
    engine.close()


def test_a_process_that_dies_during_an_update_is_told_of_at_once_and_restarted_by_the_next_update(
    tmp_path: Path,
) -> None:
    source = wide_headed(tmp_path / "wide")
    engine = vllm_engine(source, process=True, timeout_s=60)
    core = next(each for each in psutil.Process().children() if CORE in "".join(each.cmdline()))
    core.send_signal(signal.SIGSTOP)  # so that the update is still going on when the process dies
    killer = threading.Timer(2.0, core.kill)
    killer.start()
    model = source.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.1
    engine.submit(7, ask("hi", 1, max_tokens=9))
    with pytest.raises(EngineLostError, match=r"engine 'vllm' of policies 'actor': .* has died"):
        engine.load_weights("actor", model.named_parameters(), 1)
    engine.load_weights("actor", model.named_parameters(), 1)
    [again] = answered(engine)
    assert again.versions == (1, 1)
    assert again.logprobs == pytest.approx(plain_logprobs(model, again, ask("hi").sampling), abs=ROUNDING)
    engine.close()


OWNER = """
import os, sys, time
from tests.support.vllm_helpers import vllm_engine, wide_headed
from pathlib import Path
engine = vllm_engine(wide_headed(Path(sys.argv[1])), process=True)
print("ready", flush=True)
time.sleep(600)
"""


def test_no_process_of_vllm_outlives_its_owner_after_sigkill(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path / "wide")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        assert any("ready" in line for line in owner.stdout)
        time.sleep(1.2)  # two looks of the watcher
        family = psutil.Process(owner.pid).children(recursive=True)
        assert any(CORE in "".join(each.cmdline()) for each in family)
        owner.kill()
    _, alive = psutil.wait_procs(family, timeout=20)
    for each in alive:
        each.kill()
    assert alive == []


def asked(engine: VLLMEngine) -> list[Any]:
    engine.submit(7, ask("hi", 1, max_tokens=9))
    return answered(engine)


def answered(engine: VLLMEngine) -> list[Any]:
    said: list[Any] = []
    while not said:
        said = [answer for _, answer in engine.step(1.0)]
    return said
