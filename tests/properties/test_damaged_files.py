"""Files of a run with bytes changed, cut or put in at random: they are read as they are, or an error names the file."""

from __future__ import annotations

import random
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hostile_text import tried, within
from hypothesis import strategies as st

from marl.core.errors import RunError
from marl.core.graph import read_trajectories, write_trajectories
from marl.credit_stage.records import (
    BaselinePeerGroup,
    CreditRecord,
    CreditRuleSettingsRecord,
    EpisodeCreditRecord,
    TurnCreditRecord,
)
from marl.host.data_files import read_data_table
from marl.runs import checkpoint
from marl.runs.credit_records import read_credit_record, write_credit_record
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from tests.support.handmade_episodes import make_episode
from tests.support.recorded_runs import train_without_checksums

_PIECES = (
    *(
        b"",
        b"\x00",
        b"\xff" * 8,
        b"{",
        b"}",
        b"[" * 3000,
        b'"',
        b"null",
        b"NaN",
        b"-1",
        b"1e999",
        b"9" * 30,
        b"\\ud800",
        b"\n",
        b"\n\n",
    ),
    *(
        b'{"a": 1}',
        b"../../x",
        b'"__tensor__": "none"',
        b"true",
        b'"F64"',
        b'"I64"',
        b",",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"[1]",
    ),
)
_TRAJECTORIES = [make_episode(f"e{i}", ("left", "right", "left"), [("left", 1.0, 2)]) for i in range(2)]
_TURN = TurnCreditRecord(
    ("e0", 0), "left", "player", "actor", (0, 0), 0, ("left",), 1.0, 0.5, {}, 0.5, None, None, 0, 0.5
)
_RULES = (CreditRuleSettingsRecord("credit", {"kind": "outcome"}, {"kind": "group"}, 1.0),)
_CREDIT_RECORD = CreditRecord(
    _RULES, (BaselinePeerGroup("start", (("e0", 0),)),), (EpisodeCreditRecord("e0", (), (_TURN,)),)
)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with one to three pieces put in, put over others, or cut out."""
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((0, 1, 1, 4, 100, 10**6)))
        piece = rng.choice((*_PIECES, bytes([rng.randrange(256)]), data[: rng.randrange(64)]))
        data = data[:start] + piece + data[end:]
    return data


def damage_inside(rng: random.Random, file: Path, *, packed: bool) -> None:
    """Damage a file; with `packed`, damage what a zstd file holds and pack it again, so that its checksum is right."""
    data = file.read_bytes()
    if packed:
        data = zstandard.ZstdCompressor().compress(damaged(rng, zstandard.decompress(data)))
    else:
        data = damaged(rng, data)
    file.write_bytes(data)


def attempt(read: Callable[[], Any]) -> None:
    message = "read"
    with within(30.0, 3.0):
        try:
            read()
        except (ValueError, RunError) as error:
            message = str(error)
    assert 0 < len(message.strip()) < 20_000


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without checksums, so that damage to its files reaches their readers."""
    return train_without_checksums(tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture
def original(trained: Path, tmp_path: Path) -> Path:
    run = tmp_path / "whole"
    shutil.copytree(trained, run)
    write_trajectories(run / "trajectories" / "000001.jsonl.zst", _TRAJECTORIES)
    write_credit_record(run / "credit" / "000001.jsonl.zst", _CREDIT_RECORD)
    return run


def read_all(run: Path) -> None:
    """Read every file of a run, each on its own."""
    folder = RunFolder(run)
    reads: list[Callable[[], Any]] = [
        lambda: list(folder.rows()),
        lambda: folder.scenario(),
        lambda: folder.load_trajectories(1),
        lambda: folder.read_credit_of_step(1),
        lambda: folder.latest_checkpoint(),
        lambda: checkpoint.read_checkpoint(folder.checkpoints, 2),
        lambda: folder.recorded_steps(),
        lambda: read_data_table(run / "trajectories" / "000001.jsonl.zst"),
        lambda: read_data_table(run / "metrics.jsonl"),
    ]
    for read in reads:
        attempt(read)


def test_a_whole_run_is_read_without_an_error(original: Path) -> None:
    folder = RunFolder(original)
    assert folder.latest_checkpoint() == (2, [])
    assert len(folder.load_trajectories(1)) == 2
    assert folder.read_credit_of_step(1) == _CREDIT_RECORD
    assert checkpoint.read_checkpoint(folder.checkpoints, 2)


FILES = (
    *("metrics.jsonl", "scenario.yaml", "trajectories/000001.jsonl.zst", "credit/000001.jsonl.zst"),
    *("checkpoints/000002/manifest.json", "checkpoints/000002/state/state.json"),
    "checkpoints/000002/state/state.safetensors",
)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_read_or_named(name: str, original: Path, tmp_path: Path, factor: int) -> None:
    run = tmp_path / "run"

    @tried(factor * 10, st.integers(0, 2**32), st.booleans())
    def _(seed: int, packed: bool) -> None:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(original, run)
        damage_inside(random.Random(seed), run / name, packed=packed and name.endswith(".zst"))
        resize(run / name, (original / name).stat().st_size)
        read_all(run)


def resize(file: Path, size: int) -> None:
    """Give a damaged file of a checkpoint's state the length in the manifest, so that not only its length is wrong."""
    if file.parent.name == "state":
        file.write_bytes(file.read_bytes()[:size].ljust(size))


def test_a_file_that_unpacks_to_gigabytes_takes_little_memory(tmp_path: Path) -> None:
    bomb = zstandard.ZstdCompressor(level=19).compress(b" " * 2**27)
    assert len(bomb) < 2**17
    readers: dict[str, Callable[[Path], Any]] = {
        "trajectories": lambda path: list(read_trajectories(path)),
        "credit record": read_credit_record,
        "table": read_data_table,
    }
    for name, read in readers.items():
        file = tmp_path / f"{name}.jsonl.zst"
        file.write_bytes(bomb)
        tracemalloc.start()
        attempt(lambda read=read, file=file: read(file))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 300 * 2**20, f"{name}: {peak >> 20} MiB"


@pytest.mark.parametrize(
    "data", [b"game: \xff\xfe", b"a: " + b"[" * 9999, b"&a [*a]", b"game: &a {<<: *a}", b"[" * 10**6, b""]
)
def test_a_damaged_scenario_of_a_run_is_a_scenario_error(data: bytes, original: Path) -> None:
    (original / "scenario.yaml").write_bytes(data)
    with pytest.raises(ScenarioError, match=r"scenario\.yaml"):
        RunFolder(original).scenario()
