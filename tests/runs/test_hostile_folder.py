"""Run folders that somebody else has prepared: links, manifests that lie, rows that are none."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import marl
from marl.core.errors import RunFolderError
from marl.credit_stage.records import CreditRecord
from marl.runs import checkpoint
from marl.runs.checkpoint import CheckpointError, CheckpointMetadata, CheckpointRetention
from marl.runs.failed_updates import load_failed_batch
from marl.runs.locks import lock_owner
from marl.runs.metrics_tail import MetricsTail
from marl.runs.run_folder import RunFolder
from marl.runs.run_format import read_environment
from marl.runs.status import read_status
from marl.scenario.load import ScenarioError, validate
from marl.scenario.trust import external_accesses
from marl.training.restore import restore_simulator
from marl.view.curves import plot_curves
from tests.support.recorded_runs import train_without_checksums
from tests.support.run_processes import kuhn_scenario


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_without_checksums(tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> RunFolder:
    """A copy of a run of four steps, whose checkpoint 2 has no checksums, with a checkpoint 4 that has them."""
    shutil.copytree(trained, tmp_path / "run")
    home = RunFolder(tmp_path / "run")
    home.metrics_file.write_text("".join(json.dumps({"step": step, "eval/a": 0.5}) + "\n" for step in range(5)))
    save(home, 4)
    return home


def save(home: RunFolder, step: int) -> Path:
    def policies(folder: Path) -> None:
        (folder / "actor").mkdir(parents=True)
        (folder / "actor" / "config.json").write_text("{}")

    state = {"weights": torch.arange(100.0)}
    keep = CheckpointRetention(newest=9)
    return checkpoint.write_checkpoint(
        home.checkpoints, CheckpointMetadata(step, home.fsync_records()), state, policies, keep
    )


def secret(run: RunFolder) -> Path:
    file = run.path.parent / "secret"
    file.write_text("secret")
    return file


# --- links ---

WRITES: dict[str, tuple[str, Callable[[RunFolder], Any]]] = {
    "rows": ("metrics.jsonl", lambda run: run.append_metrics(5, {"a": 1.0})),
    "episodes": ("trajectories", lambda run: run.record_trajectories(5, [])),
    "credit": ("credit", lambda run: run.record_credit(5, CreditRecord((), (), ()))),
    "checkpoints": ("checkpoints", lambda run: save(run, 5)),
    "scenario": ("metrics.jsonl", lambda run: run.create(validate(kuhn_scenario()))),
    "clear": ("trajectories", lambda run: run.remove_files_of_run()),
    "curves": ("curves.png", lambda run: plot_curves([run.path], [], None)),
    "lock": (".lock", lambda run: run.hold_lock().__enter__()),
    "events": ("events", lambda run: run.hold_lock().__enter__()),
    "an_episode": ("trajectories/000001.jsonl.zst", lambda run: run.hold_lock().__enter__()),
    "a_weight": ("checkpoints/000002/state/state.json", lambda run: run.hold_lock().__enter__()),
    "a_checkpoint": ("checkpoints/000009", lambda run: run.hold_lock().__enter__()),
    "half_a_checkpoint": ("checkpoints/.000005.part", lambda run: save(run, 5)),
    "failed": ("failed", lambda run: run.hold_lock().__enter__()),
}


@pytest.mark.parametrize("kind", ["file", "folder", "nothing"])
@pytest.mark.parametrize("name", WRITES)
def test_nothing_is_written_or_removed_through_a_link(name: str, kind: str, run: RunFolder) -> None:
    outside = run.path.parent / "outside"
    if kind == "file":
        outside.write_text("mine")
    elif kind == "folder":
        outside.mkdir()
        (outside / "000001.jsonl.zst").write_text("mine")
    place, write = WRITES[name]
    link = run.path / place
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    with pytest.raises(RunFolderError, match=place.split("/")[-1]):
        write(run)
    assert link.is_symlink()
    assert outside.exists() == (kind != "nothing")
    if kind == "file":
        assert outside.read_text() == "mine"
    elif kind == "folder":
        assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("000001.jsonl.zst", "mine")]


def test_a_run_does_not_write_into_a_folder_that_it_is_linked_to(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run.path)
    linked = RunFolder(tmp_path / "link")
    with pytest.raises(RunFolderError, match=rf"link is a symbolic link to {run.path}: a run writes through none"):
        linked.hold_lock().__enter__()
    with pytest.raises(RunFolderError, match="is a symbolic link"):
        linked.remove_files_of_run()
    assert not (run.path / ".lock").exists()
    assert linked.recorded_steps() == [1, 2, 3, 4], "it can be read"
    assert len(linked.load_trajectories(1)) == len(run.load_trajectories(1))
    assert linked.latest_checkpoint() == (4, [])


def test_links_elsewhere_in_the_folder_are_nobodys_business(run: RunFolder) -> None:
    (run.path / "notes").symlink_to(run.path.parent)
    with run.hold_lock():
        run.append_metrics(5, {"a": 1.0})


READS: dict[str, tuple[str, Callable[[RunFolder], Any]]] = {
    "rows": ("metrics.jsonl", lambda run: list(run.rows())),
    "scenario": ("scenario.yaml", lambda run: run.scenario()),
    "episodes": ("trajectories/000001.jsonl.zst", lambda run: run.load_trajectories(1)),
    "all_episodes": ("trajectories", lambda run: run.load_trajectories(1)),
    "judgement": ("credit/000001.jsonl.zst", lambda run: run.read_credit_of_step(1)),
    "manifest": ("checkpoints/000004/manifest.json", lambda run: checkpoint.read_checkpoint(run.checkpoints, 4)),
    "state": ("checkpoints/000004/state/state.json", lambda run: checkpoint.read_checkpoint(run.checkpoints, 4)),
    "weights": ("checkpoints/000004/policies/actor/config.json", lambda run: run.verified_policies_folder(4)),
    "policy": ("checkpoints/000004/policies/actor", lambda run: run.verified_policies_folder(4)),
    "checkpoint": ("checkpoints/000004", lambda run: run.verified_policies_folder(4)),
    "checkpoints": ("checkpoints", lambda run: run.verified_policies_folder(4)),
}


@pytest.mark.parametrize("name", READS)
def test_nothing_is_read_through_a_link_that_leads_out(name: str, run: RunFolder) -> None:
    place, read = READS[name]
    original = run.path / place
    outside = run.path.parent / "elsewhere"
    if original.exists():
        original.rename(outside)
    else:
        outside.write_text("secret")
        original.parent.mkdir(exist_ok=True)
    original.symlink_to(outside)
    with pytest.raises(RunFolderError, match=rf"{place}.* leads out of .*, to {outside}.*: it is not read"):
        read(run)


PIPES: dict[str, tuple[str, Callable[[RunFolder], Any]]] = {
    **{name: READS[name] for name in ("rows", "scenario", "episodes", "judgement", "manifest")},
    "environment": ("environment.json", lambda run: read_environment(run.path)),
    "newest_rows": ("metrics.jsonl", lambda run: MetricsTail(run.path).read_new_rows()),
    "activity": ("status.json", lambda run: read_status(run.path)),
    "format": ("environment.json", lambda run: run.scenario()),
}


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_without_a_writer_keeps_no_reader_waiting(name: str, run: RunFolder) -> None:
    place, read = PIPES[name]
    (run.path / place).parent.mkdir(exist_ok=True)
    (run.path / place).unlink(missing_ok=True)
    os.mkfifo(run.path / place)
    with pytest.raises(
        (RunFolderError, ScenarioError), match=rf"{place} is neither a file nor a folder: it is not read"
    ):
        read(run)


def test_pipes_named_like_a_lock_or_like_the_manifest_of_a_run_keep_nobody_waiting(run: RunFolder) -> None:
    (run.path / ".lock").unlink(missing_ok=True)
    os.mkfifo(run.path / ".lock")
    assert lock_owner(run.path) is None
    for manifest in run.checkpoints.glob("*/manifest.json"):
        manifest.unlink()
        os.mkfifo(manifest)
    accesses = external_accesses({"run": str(run.path)}, run.path.parent / "elsewhere")
    assert [access.needs_consent for access in accesses if access.action == "reads"] == [True]


def test_a_file_that_no_manifest_lists_is_not_read_through_a_link(run: RunFolder) -> None:
    linked = run.checkpoints / "000004" / "policies" / "actor" / "chat_template.jinja"
    linked.symlink_to(secret(run))
    with pytest.raises(CheckpointError, match=r"is damaged: .*chat_template\.jinja leads out of .*: it is not read"):
        run.verified_policies_folder(4)


def test_a_kept_batch_is_not_read_through_a_link(run: RunFolder) -> None:
    folder = run.path / "failed" / "000005" / "actor"
    folder.mkdir(parents=True)
    (folder / "samples.json").symlink_to(secret(run))
    with pytest.raises(RunFolderError, match=r"samples\.json leads out of"):
        load_failed_batch(folder)
    (folder / "samples.json").unlink()
    (folder / "samples.json").write_text("[" * 10_000)
    with pytest.raises(ValueError, match="the kept batch cannot be read"):
        load_failed_batch(folder)


# --- manifests ---


def lie(run: RunFolder, **changes: Any) -> Path:
    file = run.checkpoints / "000004" / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return file


@pytest.mark.parametrize(
    "name", ["../../../secret", "/etc/passwd", "state/../../../../secret", "../000002/manifest.json"]
)
def test_a_manifest_cannot_name_files_outside_of_its_checkpoint(name: str, run: RunFolder) -> None:
    secret(run)
    lie(run, files={name: 6})
    with pytest.raises(CheckpointError, match=r"checkpoint .*000004 is damaged: .* leads out of"):
        checkpoint.read_checkpoint(run.checkpoints, 4)
    assert run.latest_checkpoint()[0] == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"step": "../../x"},
        {"step": -4},
        {"metrics_bytes": "x"},
        {"files": {"state/state.json": 1e999}},
        {"files": {"\x00": 1}},
        {"files": {"a" * 5000: 1}},
        {"sha256": {"state/other": "0"}},
        {"sha256": []},
    ],
    ids=["step", "other_step", "length", "size", "null", "long", "checksum_alone", "checksums"],
)
def test_a_manifest_that_makes_no_sense_is_damage(changes: dict[str, Any], run: RunFolder) -> None:
    lie(run, **changes)
    with pytest.raises(CheckpointError, match=r"checkpoint .*000004 is damaged: .*"):
        checkpoint.read_checkpoint(run.checkpoints, 4)
    assert run.latest_checkpoint()[0] == 2


@pytest.mark.parametrize("text", ["[" * 100_000, '{"step": ' + "9" * 10_000 + "}", " " * 2**25, "\ud800"])
def test_a_manifest_that_no_reader_survives_is_damage(text: str, run: RunFolder) -> None:
    (run.checkpoints / "000004" / "manifest.json").write_bytes(text.encode(errors="surrogatepass"))
    assert "no readable manifest.json" in (checkpoint.checkpoint_damage_message(run.checkpoints, 4) or "")


def test_every_file_has_a_checksum_and_a_flipped_bit_is_noticed(run: RunFolder) -> None:
    folder = run.checkpoints / "000004"
    manifest = json.loads((folder / "manifest.json").read_text())
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert manifest["files"].keys() == manifest["sha256"].keys() == files - {"manifest.json"}
    for name in manifest["files"]:
        file = folder / name
        data = file.read_bytes()
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert f"{name} has changed since it was written" in (
            checkpoint.checkpoint_damage_message(run.checkpoints, 4) or ""
        )
        with pytest.raises(CheckpointError, match="has changed since"):
            checkpoint.read_checkpoint(run.checkpoints, 4)
        file.write_bytes(data)
    assert checkpoint.checkpoint_damage_message(run.checkpoints, 4) is None


def test_weights_that_have_changed_are_neither_played_nor_evaluated(run: RunFolder) -> None:
    file = run.checkpoints / "000004" / "policies" / "actor" / "config.json"
    file.write_text("[]")
    with pytest.raises(CheckpointError, match=r"policies/actor/config\.json has changed"):
        restore_simulator(run.path, 4)


def test_a_checkpoint_whose_manifest_lists_no_checksums_is_read(run: RunFolder) -> None:
    manifest, state = checkpoint.read_checkpoint(run.checkpoints, 2)
    assert not manifest.sha256
    assert "learners" in state


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, b"\xff\xff\xff\xff\xff\xff\xff\x7f{}", b"\x02\0\0\0\0\0\0\0[]"])
def test_headers_of_tensors_that_lie_are_named(data: bytes, run: RunFolder) -> None:
    file = run.checkpoints / "000002" / "state" / "state.safetensors"
    file.write_bytes(data.ljust(file.stat().st_size, b"\0"))
    with pytest.raises(CheckpointError, match="000002 is damaged: state cannot be read: "):
        checkpoint.read_checkpoint(run.checkpoints, 2)


def test_files_are_on_the_disk_before_the_checkpoint_has_its_name(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def note_fsync(descriptor: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def note_rename(path: Path, target: Path) -> Path:
        done.append(f"rename {path.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    folder = save(run, 5)
    place = done.index("rename .000005.part")
    part = str(folder.with_name(".000005.part"))
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")} | {"."}
    assert {os.path.normpath(f"{part}/{name}") for name in names} | {str(run.metrics_file)} == set(done[:place])
    assert done[place + 1] == str(run.checkpoints)


# --- rows ---


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("garbage", "Expecting value"),
        ('{"step": 5', "Expecting ',' delimiter"),
        ("[]", "must be an object with a whole number `step`"),
        ('{"a": 1}', "a whole number `step`"),
        ('{"step": "5"}', "a whole number `step`"),
        ('{"step": true}', "a whole number `step`"),
        ('{"step": 5, "a": "\\u001b[2J"}', "a must be a number, got str"),
        ('{"step": 5, "a": [1]}', "a must be a number, got list"),
        ("[" * 100_000, "nested deeper than 100"),
        ('{"step": ' + "9" * 10_000 + "}", "Exceeds the limit"),
        ("\x00\x00", "Expecting value"),
        ("\udcff", "can't decode byte"),
    ],
)
def test_a_row_that_is_none_is_named_with_its_line(line: str, why: str, run: RunFolder) -> None:
    with run.metrics_file.open("ab") as file:
        file.write(line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl, line 6: no row of metrics: ") as error:
        list(run.rows())
    assert why in str(error.value)
    assert len(str(error.value)) < 500


def test_half_a_row_at_the_end_and_numbers_that_are_not_finite_are_fine(run: RunFolder) -> None:
    run.append_metrics(5, {"a": float("nan"), "b": float("-inf")})
    with run.metrics_file.open("a") as file:
        file.write('{"step": 6, "a"')
    assert [row["step"] for row in run.rows()] == [0, 1, 2, 3, 4, 5]


# --- names ---


@pytest.mark.parametrize("name", ["²", "٣", "5", "+00005", "1_0000", "000005 ", "-00005"])
def test_names_that_only_look_like_steps_are_none(name: str, run: RunFolder) -> None:
    (run.checkpoints / name).mkdir()
    for each in (name, "000005"):
        (run.path / "trajectories" / f"{each}.jsonl.zst").touch()
    assert checkpoint.checkpoint_steps(run.checkpoints) == [2, 4]
    assert run.recorded_steps() == [1, 2, 3, 4, 5]
    run.rewind_to_checkpoint(4)
    assert run.recorded_steps() == [1, 2, 3, 4]
    assert (run.path / "trajectories" / f"{name}.jsonl.zst").exists()


@pytest.mark.parametrize("name", ["../../x", "a/b", "..", ".", "", "a\x00b", "a\x1bb", "\u202ea", "\ud800"])
def test_names_that_become_folders_cannot_lead_elsewhere(name: str) -> None:
    scenario = kuhn_scenario()
    scenario["policies"] = {name: next(iter(scenario["policies"].values()))}
    scenario["roles"] = {role: {**fields, "policy": name} for role, fields in scenario["roles"].items()}
    with pytest.raises(ScenarioError, match="is no name: use letters, digits"):
        validate(scenario)


@pytest.mark.parametrize("step", ["../../x", "/etc", "000002/../../x", 0, -1])
def test_steps_of_another_run_cannot_lead_elsewhere(step: Any) -> None:
    scenario = kuhn_scenario()
    for policy in scenario["policies"].values():
        policy["model"] = {"kind": "trained", "run": "runs/x", "policy": "actor", "step": step}
    with pytest.raises(ScenarioError, match="step"):
        validate(scenario)


@pytest.mark.parametrize("resume", ["../000002", "checkpoints/../../x", "/000004", "000004/..", "²", "٠٠٠٠٠٤"])
def test_resume_takes_a_checkpoint_of_the_run_alone(resume: str, run: RunFolder) -> None:
    scenario = marl.load(run.path / "scenario.yaml")
    with pytest.raises(ScenarioError, match=r"--resume .*: give 'auto', or a checkpoint of this run"):
        marl.train(scenario, run.path, resume=resume)
