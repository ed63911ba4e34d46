"""The same run on an accelerator: `pytest -m gpu` where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

import marl
from marl.folder import RunFolder

pytestmark = pytest.mark.gpu
KUHN = Path(__file__).parents[1] / "scenarios" / "kuhn_self_play.yaml"
# The sampler and the learner must say the same of a token; bfloat16 rounds to 8 bits.
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_run_on_the_gpu_learns_and_goes_on_from_its_checkpoint(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    settings = ["policies.actor.model.device=cuda", f"policies.actor.model.dtype={dtype}", "schedule.steps=40"]
    scenario = marl.load(KUHN, [*settings, "evaluate.every=20", "checkpoint.every=20"])
    seen: list[int] = []
    assert marl.train(scenario, tmp_path / "run", on_step=lambda step, _: seen.append(step))
    rows = list(RunFolder(tmp_path / "run").rows())
    assert rows[-1]["eval/nashconv"] < rows[0]["eval/nashconv"]
    assert max(abs(row["policy/actor/kl_sampler"]) for row in rows[1:]) < TOLERANCE[dtype]
    assert marl.train(scenario, tmp_path / "run", resume=str(tmp_path / "run" / "checkpoints" / "000020"))
    assert seen == list(range(41))
