"""TRL trains the exported model on exported rows, as a script of its documentation does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import marl
from marl.scenario.load import validate
from tests.support.command_line import marl_output
from tests.support.run_processes import kuhn_scenario

pytestmark = pytest.mark.slow


def test_trl_trains_the_exported_model_on_exported_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from datasets import load_dataset
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    short = {"steps": 2, "groups": 4, "group_size": 8, "threads": 1}
    assert marl.train(validate(kuhn_scenario(schedule=short, evaluate={}, checkpoint={"every": 2})), tmp_path / "run")
    command = partial(marl_output, monkeypatch, capsys)
    command("export", "run", "--out", "model")
    forms: list[tuple[str, Any, Any]] = [
        ("trl-sft", SFTTrainer, SFTConfig),
        ("trl-dpo", DPOTrainer, DPOConfig),
    ]
    for form, trainer, settings in forms:
        command("export-data", "run", "--out", form, "--format", form)
        rows = load_dataset(form, split="train", cache_dir=str(tmp_path / "data"))
        assert len(rows) > 3
        model = AutoModelForCausalLM.from_pretrained("model")
        before = [parameter.clone() for parameter in model.parameters()]
        trained = trainer(
            model=model,
            args=settings(
                output_dir=f"{form}-out",
                max_steps=2,
                per_device_train_batch_size=2,
                learning_rate=1e-2,
                report_to="none",
                use_cpu=True,
                bf16=False,
                save_strategy="no",
            ),
            train_dataset=rows,
            processing_class=AutoTokenizer.from_pretrained("model"),
        )
        assert torch.isfinite(torch.tensor(trained.train().training_loss))
        after = trained.accelerator.unwrap_model(trained.model).parameters()
        assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
