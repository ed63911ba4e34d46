"""Checkpoints that are cut short, folders that cannot be written, disks that are full."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.support.run_processes import RunWorkspace, SignalTrigger, contents, metric_lines, outcome

FILES = ["state/state.safetensors", "state/state.json", "policies/actor/model.safetensors"]
FILES += ["policies/actor/tokenizer.json", "policies/actor/config.json", "manifest.json"]
MORE = [0, 4_000, 8_000, 16_000, 36_000, 48_000, 60_000, 72_000, 84_000, 96_000]
"""Bytes of room at which other files of a checkpoint are the first that does not fit."""


@pytest.fixture(scope="module")
def stopped(whole: RunWorkspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its checkpoints 3 and 6."""
    desk = RunWorkspace(tmp_path_factory.mktemp("stopped"), whole.scenario)
    (desk.path / "cache").symlink_to(whole.path / "cache")
    assert desk.train(kill=SignalTrigger("call", "CreditStage.__call__", 8)) == -9
    return desk.run


@pytest.fixture
def half(stopped: Path, desk: RunWorkspace) -> RunWorkspace:
    shutil.copytree(stopped, desk.run)
    return desk


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.slow) for name in FILES[:-1]), FILES[-1]])
def test_a_file_cut_in_half_sends_auto_back_to_the_checkpoint_before(name, whole, half):
    cut(half.run / "checkpoints" / "000006" / name)
    damaged = contents(half.run, "checkpoints/000006")
    assert half.train("--resume", "000006") == 1
    assert f"checkpoint {half.run}/checkpoints/000006 is damaged" in (said := half.take_output())
    assert name.split("/")[-1] in said
    assert half.train("--resume", "auto") == 0
    assert "WARNING: checkpoint" in (said := half.take_output())
    assert "going on from step 3" in said
    assert metric_lines(half.run) == metric_lines(whole.run)
    aside = contents(half.run, "checkpoints/000006.aside1")
    assert list(aside.values()) == list(damaged.values()), "what was damaged is kept"


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"step": "x"}', '{"step": 3, "metrics_bytes": 1, "files": {}}'])
def test_a_manifest_that_is_missing_or_garbage_is_damage(text, half):
    file = half.run / "checkpoints" / "000006" / "manifest.json"
    file.unlink()
    if text is not None:
        file.write_text(text)
    assert half.train("--resume", "000006") == 1
    said = half.take_output()
    assert "manifest.json" in said
    assert "Traceback" not in said


def test_without_a_whole_checkpoint_every_one_is_named_and_nothing_changes(half):
    for step in ("000003", "000006"):
        cut(half.run / "checkpoints" / step / "state" / "state.safetensors")
    before = outcome(half.run)
    assert half.train("--resume", "auto") == 1
    said = half.take_output()
    assert "000003 is damaged: state/state.safetensors" in said
    assert "000006 is damaged: state/state.safetensors" in said
    assert outcome(half.run) == before


def zeroed(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def reshaped(file: Path) -> None:
    """Whole, in equal length, with a checksum to match: only the tensors' shapes are others."""
    tensors = load_file(file)
    name = next(name for name, tensor in tensors.items() if tensor.dim() == 2 and tensor.shape[0] != tensor.shape[1])
    save_file(tensors | {name: tensors[name].T.contiguous()}, file)
    record = file.parents[1] / "manifest.json"
    manifest = json.loads(record.read_text())
    manifest["sha256"]["state/state.safetensors"] = hashlib.sha256(file.read_bytes()).hexdigest()
    manifest["files"]["state/state.safetensors"] = file.stat().st_size
    record.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "message"),
    [(zeroed, "state/state.safetensors has '"), (reshaped, "state/state.safetensors has '/learners/actor/")],
)
def test_a_state_of_zeros_or_of_other_shapes_sends_auto_back_and_says_which_tensor(damage, message, whole, half):
    damage(half.run / "checkpoints" / "000006" / "state" / "state.safetensors")
    assert half.train("--resume", "auto") == 0
    said = half.take_output()
    assert f"WARNING: checkpoint {half.run}/checkpoints/000006 is damaged: {message}" in said
    assert "; written was F32[" in said
    assert "going on from step 3" in said
    assert metric_lines(half.run) == metric_lines(whole.run)


def test_a_line_of_garbage_in_the_rows_is_named_with_its_file(half):
    lines = (half.run / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[2] = f"{'#' * (len(lines[2]) - 1)}\n"
    (half.run / "metrics.jsonl").write_text("".join(lines))
    before = outcome_but_rows(half.run)
    assert half.train("--resume", "auto") == 1
    said = half.take_output()
    assert f"{half.run}/metrics.jsonl, line 3: no row of metrics" in said
    assert "Traceback" not in said
    assert outcome_but_rows(half.run) == before


def outcome_but_rows(run: Path) -> dict[str, bytes]:
    return contents(run, "checkpoints", "trajectories")


@pytest.mark.parametrize("name", [FILES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in FILES[1:-1])])
def test_one_flipped_bit_sends_auto_back_to_the_checkpoint_before(name, whole, half):
    file = half.run / "checkpoints" / "000006" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert half.train("--resume", "000006") == 1
    said = half.take_output()
    assert f"checkpoint {half.run}/checkpoints/000006 is damaged: " in said
    assert name in said
    assert half.train("--resume", "auto") == 0
    assert "WARNING: checkpoint" in half.take_output()
    assert metric_lines(half.run) == metric_lines(whole.run)


def without_checksums(run: Path) -> None:
    """Clear the checksums in every manifest, so that damage reaches the readers of the files."""
    for file in run.glob("checkpoints/*/manifest.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"sha256": {}, "tensors": {}}))


def test_a_state_without_checksum_that_cannot_be_read_is_an_error_that_names_it(half):
    without_checksums(half.run)
    file = half.run / "checkpoints" / "000006" / "state" / "state.safetensors"
    file.write_bytes(b"\xff" * file.stat().st_size)
    before = outcome(half.run)
    assert half.train("--resume", "auto") == 1
    assert "checkpoints/000006 is damaged: state cannot be read" in half.take_output()
    assert outcome(half.run) == before


def test_rows_that_are_lost_are_an_error(half):
    cut(half.run / "metrics.jsonl")
    assert half.train("--resume", "auto") == 1
    assert "rows are lost" in half.take_output()


@pytest.mark.parametrize("keep", [1, 3])
def test_as_many_checkpoints_are_kept_as_asked_for(keep, desk):
    assert desk.train(checkpoint={"every": 2, "keep": keep, "trajectories": 0.0}) == 0
    assert [p.name for p in sorted((desk.run / "checkpoints").iterdir())] == ["000004", "000006", "000008"][-keep:]
    assert not (desk.run / "trajectories").exists()


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(desk: RunWorkspace) -> Iterator[Path]:
    """The run's folder, on a disk of 2 MiB."""
    desk.run.mkdir()
    mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(desk.run))
    yield desk.run
    subprocess.run(["umount", "-l", str(desk.run)], check=True)


@pytest.mark.parametrize("room", [24_000, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)])
def test_a_full_disk_ends_the_run_and_leaves_what_there_was(room, whole, desk, small_disk):
    assert desk.train(kill=SignalTrigger("call", "CreditStage.__call__", 5)) == -9
    before = contents(desk.run, "checkpoints")
    free = shutil.disk_usage(small_disk).free
    (small_disk / "ballast").write_bytes(bytes(max(free - room, 0)))
    assert desk.train("--resume", "auto") == 1
    said = desk.take_output()
    assert "No space left on device" in said
    assert f"marl: {small_disk}" in said or f"marl: checkpoint {small_disk}" in said
    assert "Traceback" not in said
    assert before.items() <= contents(desk.run, "checkpoints").items()
    (small_disk / "ballast").unlink()
    assert desk.train("--resume", "auto") == 0
    assert outcome(desk.run) == outcome(whole.run)


def test_a_read_only_folder_is_named_and_left_as_it_is(half):
    before = outcome(half.run)
    mount("--bind", str(half.run), str(half.run))
    try:
        mount("-o", "remount,bind,ro", str(half.run))
        assert half.train("--resume", "auto") == 1
        assert f"marl: {half.run} cannot be written" in (said := half.take_output())
        assert "Read-only file system" in said
        assert half.train("--overwrite") == 1
        assert f"marl: {half.run} cannot be written" in half.take_output()
        assert outcome(half.run) == before
    finally:
        subprocess.run(["umount", "-l", str(half.run)], check=True)
    assert half.train("--resume", "auto") == 0


def test_a_run_cannot_begin_where_a_file_is_in_the_way(desk):
    desk.run.write_text("a file")
    assert desk.train() == 1
    assert f"marl: {desk.run} cannot be written" in desk.take_output()
