"""Checkpoints that are read while their run goes on, and runs whose folder goes away."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import marl
from marl.core.errors import RunFolderError
from marl.core.types import Deal
from marl.runs import checkpoint
from marl.runs.checkpoint import CheckpointError, CheckpointManifest, CheckpointMetadata, CheckpointRetention
from marl.runs.locks import checkpoint_lock
from marl.runs.run_folder import RunFolder
from marl.training.restore import restore_simulator
from tests.support.run_processes import RunWorkspace

NEWEST = CheckpointRetention(newest=1)


def save(folder: Path, step: int) -> Path:
    return checkpoint.write_checkpoint(
        folder, CheckpointMetadata(step, 0), {}, lambda path: path.mkdir(parents=True), NEWEST
    )


def write_policy_file(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"weights")


def test_a_checkpoint_that_is_read_outlives_newer_ones_until_it_has_been_read(tmp_path: Path) -> None:
    first = save(tmp_path, 1)
    with checkpoint_lock(first), checkpoint_lock(first):
        save(tmp_path, 2)
        save(tmp_path, 3)
        assert checkpoint.checkpoint_steps(tmp_path) == [1, 3]
    save(tmp_path, 4)
    assert checkpoint.checkpoint_steps(tmp_path) == [4]


READING = """
import sys, time
from pathlib import Path
from marl.runs.locks import checkpoint_lock
from marl.runs.run_folder import RunFolder
with checkpoint_lock(Path(sys.argv[1])):
    print("reading", flush=True)
    time.sleep(60)
"""


def test_a_reader_that_is_killed_keeps_nothing(tmp_path: Path) -> None:
    first = save(tmp_path, 1)
    reader = subprocess.Popen([sys.executable, "-c", READING, str(first)], stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "reading\n"
    save(tmp_path, 2)
    assert checkpoint.checkpoint_steps(tmp_path) == [1, 2]
    reader.kill()
    reader.wait()
    save(tmp_path, 3)
    assert checkpoint.checkpoint_steps(tmp_path) == [3]


def test_a_checkpoint_that_is_not_there_or_cannot_be_locked_is_no_obstacle(tmp_path: Path) -> None:
    with checkpoint_lock(tmp_path / "000007"), checkpoint_lock(tmp_path / "000007", removing=True) as free:
        assert free
    first = save(tmp_path, 1)
    with checkpoint_lock(first, removing=True) as free, checkpoint_lock(first) as kept:
        assert free
        assert not kept


def test_what_was_restored_needs_its_checkpoint_no_longer(whole: RunWorkspace, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole.run, tmp_path / "run"))
    scenario, simulator = restore_simulator(run)
    shutil.rmtree(run)
    (played,) = simulator.play([Deal("one", "one", 0, scenario.seats)])
    assert played.turns[0].completion.token_ids


def test_a_checkpoint_that_is_just_being_removed_is_not_read_but_the_newest_that_stays(
    whole: RunWorkspace, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(whole.run, tmp_path / "run"))
    versions: list[object] = []
    reader = threading.Thread(target=lambda: versions.append(restore_simulator(run)[0]))
    with checkpoint_lock(run / "checkpoints" / "000008", removing=True) as free:
        assert free
        reader.start()
        reader.join(0.5)
        assert reader.is_alive()
        (run / "checkpoints" / "000008").rename(run / "checkpoints" / ".000008.old")
        reader.join(60)
    assert len(versions) == 1


def test_a_checkpoint_that_is_replaced_while_it_is_verified_is_not_reported_as_damaged(tmp_path: Path) -> None:
    """Without a lock, the run may remove the checkpoint after its files were listed and before they are read."""
    run = RunFolder(tmp_path)
    # Step 1 is the best one and stays, but the newest one that stays is wanted.
    retention = CheckpointRetention(newest=1, best=1)
    for step in (1, 2):
        checkpoint.write_checkpoint(run.checkpoints, CheckpointMetadata(step, 0), {}, write_policy_file, retention)

    def verify_while_the_run_goes_on(path: Path) -> CheckpointManifest:
        manifest = checkpoint.verify_checksums(path)
        if path.name == "000002":
            checkpoint.write_checkpoint(run.checkpoints, CheckpointMetadata(3, 0), {}, write_policy_file, retention)
            checkpoint.verify_checksums(path)
        return manifest

    assert run.latest_checkpoint(verify_while_the_run_goes_on) == (3, [])


def test_a_file_that_is_removed_between_two_checks_of_a_checkpoint_is_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = checkpoint.write_checkpoint(tmp_path, CheckpointMetadata(1, 0), {}, write_policy_file, NEWEST)
    compare_sizes = checkpoint.verify_file_sizes

    def compare_sizes_and_remove_a_file(path: Path) -> CheckpointManifest:
        manifest = compare_sizes(path)
        (saved / "policies" / "weights").unlink()
        return manifest

    monkeypatch.setattr(checkpoint, "verify_file_sizes", compare_sizes_and_remove_a_file)
    with pytest.raises(CheckpointError, match=r"000001 is damaged: \[Errno 2\] No such file"):
        checkpoint.verify_checksums(saved)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_whose_folder_is_removed_or_replaced_meanwhile_ends_and_does_not_make_it_anew(
    replaced: bool, whole: RunWorkspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(whole.path / "cache"))
    run = tmp_path / "run"

    def remove(step: int, metrics: dict[str, float]) -> None:
        if step == 2:
            run.rename(tmp_path / "elsewhere")
            if replaced:
                run.mkdir()

    with pytest.raises(
        RunFolderError, match=r"run is gone: the run's folder was removed, moved or replaced while it was"
    ):
        marl.train(marl.load(whole.path / "scenario.yaml"), run, on_step=remove)
    assert run.exists() == replaced
    assert not replaced or list(run.iterdir()) == []
    assert len((tmp_path / "elsewhere" / "metrics.jsonl").read_text().splitlines()) == 3


def test_no_checkpoint_outlives_the_rows_and_episodes_before_it_when_the_power_fails(
    whole: RunWorkspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was written before the checkpoint is on the disk before the checkpoint gets its name."""
    monkeypatch.setenv("MARL_CACHE", str(whole.path / "cache"))
    settled: list[Path] = []
    on_disk, real = list[set[Path]](), os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        settled.append(path)
        if path.name == "checkpoints":  # the rename has been done
            on_disk.append(set(settled))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    run = tmp_path / "run"
    assert marl.train(marl.load(whole.path / "scenario.yaml"), run)
    written = {path for name in ("trajectories", "credit") for path in (run / name).iterdir()}
    assert written
    assert len(on_disk) == 3
    assert {run / "metrics.jsonl", run / "trajectories", run / "credit"} < on_disk[0]
    assert written < on_disk[-1]
