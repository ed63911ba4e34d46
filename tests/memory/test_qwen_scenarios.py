"""The examples for one GPU: the table in the comment of each is what `marl check --device` prints, without weights."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from marl.evaluation import dry_run as dry_runs
from marl.memory.device import device_memory
from marl.memory.preflight import estimate_memory_fit
from marl.scenario.load import load
from marl.view.memory_table import memory_table
from tests.support.paths import SCENARIOS

FILES = sorted((SCENARIOS / "real").glob("qwen3_*_1gpu.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_comment_of_an_example_holds_its_table(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("SOFT_TIME_LIMIT_S", "LIMIT_S"):  # all episodes are played on a slow machine, too
        monkeypatch.setattr(dry_runs, limit, math.inf)
    shape = file.parent / "shapes" / f"{file.stem.removesuffix('_1gpu')}.json"
    flight = estimate_memory_fit(dry_runs.play_dry_run(load(file), {"": shape}), device_memory("80GiB"))
    comment = "\n".join(line[2:] for line in file.read_text().splitlines() if line.startswith("#"))
    assert memory_table(flight) in comment
    assert flight.fits_device
