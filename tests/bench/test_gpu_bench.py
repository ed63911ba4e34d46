"""The benchmark of a GPU runs on a processor from end to end, with tiny shapes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gpu
import pytest
import torch


@pytest.mark.slow
@pytest.mark.one_in(3)
def test_every_section_of_the_benchmark_measures_something_on_a_processor() -> None:
    static, dynamic = (gpu.decode("tiny", cache, "cpu") for cache in ("static", "dynamic"))
    assert static["ms_per_token"] > 0
    assert max(static["logprob_difference"], dynamic["logprob_difference"]) < 1e-5
    assert gpu.decode("tiny", "generate", "cpu")["ms_per_token"] > 0
    saved, recomputed = (gpu.update("tiny", layers, "cpu") for layers in ("saved", "recomputed"))
    # Recomputation does not count as useful operations, and a processor has no known peak.
    assert saved["tflops"] * saved["seconds"] == pytest.approx(recomputed["tflops"] * recomputed["seconds"], rel=0.5)
    assert saved["mfu"] is None
    assert gpu.step("tiny", "ours", "cpu")["play"] > 0
    assert 0.1 < gpu.memory("tiny", "three_adapters", "cpu")["ratio"]["peak"] < 10


@pytest.mark.slow
@pytest.mark.one_in(3)
def test_a_measurement_that_fails_or_takes_too_long_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpu.measured("decode", ("tiny", "static"), "cpu", 0.0) == {"left out": "no time was left"}
    assert "KeyError: 'unknown'" in gpu.measured("decode", ("unknown", "static"), "cpu", 600)["error"]
    command = ["gpu.py", "--device", "cpu", "--minutes", "0", "--out", str(tmp_path / "gpu.json")]
    monkeypatch.setattr(sys, "argv", command)
    gpu.main()
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["commit"]
    assert record["settings"]["versions"].keys() == {"cuda", "trl", "peft", "vllm"}
    assert set(record["figures"]) == {"targets", "decode", "step", "update", "memory"}
    assert record["figures"]["step"]["tiny, ours"] == {"left out": "no time was left"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
@pytest.mark.parametrize(("section", "arguments"), [("decode", ("0.1B", "static")), ("update", ("0.6B", "recomputed"))])
def test_a_section_is_measured_on_a_gpu_in_real_shapes(section: str, arguments: tuple[str, ...]) -> None:
    found = gpu.measured(section, arguments, "cuda", 300)
    assert "error" not in found, found["error"]
    assert found.get("logprob_difference", 0.0) < 0.2
