"""Runs and checkpoints that another version of marl wrote are refused with one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import marl
from marl.runs.checkpoint import CheckpointError, verify_file_sizes
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from tests.support.paths import KUHN

QUICK = ["schedule.steps=1", "schedule.groups=2", "policies.actor.model.warm_up.steps=1", "evaluate={}"]
SENTENCE = r"was written by another version of marl \(format 1; this version reads 2\): train anew"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("format") / "run"
    marl.train(marl.load(KUHN, QUICK), folder)
    return folder


def set_format(file: Path, number: int) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": number}))


def test_a_checkpoint_of_another_format_is_refused(run: Path) -> None:
    manifest = run / "checkpoints" / "000001" / "manifest.json"
    set_format(manifest, 1)
    with pytest.raises(CheckpointError, match=SENTENCE):
        verify_file_sizes(manifest.parent)
    set_format(manifest, 2)
    assert verify_file_sizes(manifest.parent).step == 1


def test_a_run_of_another_format_is_refused(run: Path) -> None:
    set_format(run / "environment.json", 1)
    with pytest.raises(ScenarioError, match=SENTENCE):
        RunFolder(run).scenario()
    set_format(run / "environment.json", 2)
    assert RunFolder(run).scenario().game is not None
