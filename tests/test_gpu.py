"""The same run on an accelerator: `pytest -m gpu` where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import marl
from marl.runs.run_folder import RunFolder
from marl.trainers.optim.peak_flops import peak_bfloat16_flops
from tests.support.paths import KUHN

pytestmark = pytest.mark.gpu
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


LEARNERS = {
    "masters": {},
    "recomputed": {"gradient_checkpointing": "true"},
    "compiled": {"compile": "true"},
    "compiled and recomputed": {"compile": "true", "gradient_checkpointing": "true"},
    "8 bits": {"optimizer": "adamw_8bit"},
    "pages of 8 bits": {"optimizer": "paged_adamw_8bit"},
}


@pytest.mark.parametrize("learner", LEARNERS)
def test_bfloat16_learns_through_its_masters_whatever_the_layers_do(
    learner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    if "optimizer" in LEARNERS[learner]:
        pytest.importorskip("bitsandbytes")
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    model = ["policies.actor.model.device=cuda", "policies.actor.model.dtype=bfloat16"]
    switches = [f"policies.actor.learner.{name}={value}" for name, value in LEARNERS[learner].items()]
    scenario = marl.load(KUHN, [*model, *switches, "schedule.steps=20", "evaluate.every=20"])
    assert marl.train(scenario, tmp_path / "run")
    rows = list(RunFolder(tmp_path / "run").rows())
    assert rows[-1]["eval/nashconv"] < rows[0]["eval/nashconv"]
    assert max(abs(row["policy/actor/kl_sampler"]) for row in rows[1:]) < TOLERANCE["bfloat16"]
    assert all(0 < row["policy/actor/memory_gib"] < 8 for row in rows[1:])
    if peak_bfloat16_flops(torch.cuda.get_device_name()):
        assert all(0 < row["policy/actor/mfu"] < 1 for row in rows[1:])


def test_switches_leave_the_gradient_as_it_is_on_the_gpu() -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from marl.trainers.batching.batches import collate
    from marl.trainers.batching.rows import BatchRow
    from marl.trainers.forward.model_inputs import enable_checkpointing_and_compile
    from marl.trainers.forward.token_outputs import token_outputs
    from marl.trainers.imitation.settings import Sft

    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    rows = [BatchRow(tuple(range(1, 9 + n)), tuple(range(20, 90 + 7 * n))) for n in range(6)]
    found: list[torch.Tensor] = []
    for recompute, compiled in ((False, False), (True, False), (False, True), (True, True)):
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=150_000, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                             num_attention_heads=4, num_key_value_heads=4)  # fmt: skip
        built: Any = LlamaForCausalLM(config)
        model = built.cuda().train()
        enable_checkpointing_and_compile(model, Sft(gradient_checkpointing=recompute, compile=compiled))
        token_outputs(model, collate(rows, model.device)).logprobs_BT.sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert all(float((other - found[0]).norm() / found[0].norm()) < 1e-3 for other in found[1:])


def test_lines_on_the_gpu_say_and_learn_what_each_text_alone_does_and_compile_once() -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    from marl.trainers.batching.planner import BatchPlanner
    from marl.trainers.batching.rows import BatchRow
    from marl.trainers.forward import attention
    from marl.trainers.forward.token_outputs import token_outputs

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # other tests compile, too
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 40}
    built: Any = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    model = built.cuda().train()
    for prompt in (30, 100, 170, 333):
        start = torch.randint(40, (prompt,), generator=torch.Generator().manual_seed(prompt)).tolist()
        rows = [BatchRow(tuple(start), (n, 1, 2, 3, n)) for n in range(8)]
        found = []
        for packing in ("padded", "shared"):
            model.zero_grad()
            told = {}
            for chunk, batch in BatchPlanner(model, 2048, packing).collated_batches(rows):
                logprobs_BT = token_outputs(model, batch).logprobs_BT
                logprobs_BT.sum().backward()
                told |= {row.token_ids: line for row, line in zip(chunk, logprobs_BT.detach(), strict=True)}
            gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            found.append((torch.stack([told[row.token_ids] for row in rows]), gradient))
        (plain, expected), (lined, gradient) = found
        assert torch.allclose(plain, lined, atol=1e-4)
        assert float((gradient - expected).norm() / expected.norm()) < 1e-4
    assert model.config._attn_implementation == attention.ATTENTION_NAME
    frames = torch._dynamo.utils.counters["frames"]
    assert frames["total"] <= 2, f"compiled for each length: {dict(frames)}"
