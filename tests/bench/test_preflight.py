"""The memory that `marl check --device cpu` expects against the memory that a run takes, with a small model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import preflight
import pytest

from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model


@pytest.mark.slow
def test_a_run_takes_the_memory_that_the_check_expects(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"hidden": 384, "layers": 8, "heads": 6, "intermediate": 1152, "context": 2048}
    build_tiny_model(Tiny(vocabulary="bytes", seed=1, **shape), tmp_path / "small", ())  # 14.3M parameters
    found = preflight.compared(
        {"kind": "pretrained", "path": str(tmp_path / "small"), "device": "cpu"}, preflight.SETTINGS["full_float32"]
    )
    assert found["ratio"]["peak"] == pytest.approx(1, abs=0.2)
