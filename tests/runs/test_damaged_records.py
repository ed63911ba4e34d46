"""A wrong value in a record is refused in one sentence: file, field, problem, value, and no raw text of pydantic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from marl.core.graph import read_trajectories
from marl.runs.checkpoint import (
    CheckpointError,
    CheckpointMetadata,
    CheckpointRetention,
    verify_file_sizes,
    write_checkpoint,
)
from marl.runs.credit_records import read_credit_record
from marl.runs.status import read_status
from marl.runs.strategies import read_strategies

DEAL = {"episode": "0.0.0", "group": "0.0", "seed": 1, "seats": {"player_0": "player"}}
EPISODE = {"deal": DEAL, "start": "s", "turns": [], "edges": [], "kinds": [], "rewards": [], "end": "terminated"}
STRATEGY = {"game": "", "agent": "player_0", "state": "K", "attempt": 0, "moves": {"bet": 1.0}}
LONG = "x" * 200


def written(path: Path, *rows: dict[str, Any]) -> Path:
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(lines.encode()))
    return path


@pytest.mark.parametrize(
    ("read", "rows", "says"),
    [
        (
            lambda path: list(read_trajectories(path)),
            [EPISODE | {"deal": DEAL | {"seed": "one"}}],
            "line 1 is no trajectory (deal.seed: input should be a valid integer, unable to parse string as an integer "
            "(got 'one'), and 1 more problem)",
        ),
        (
            read_strategies,
            [STRATEGY | {"moves": {"bet": LONG}, "attempt": None}],
            "not a whole file of strategies (attempt: input should be a valid integer (got None), and 1 more problem)",
        ),
        (
            read_strategies,
            [STRATEGY | {"moves": {"bet": LONG}}],
            "not a whole file of strategies (moves.bet: input should be a valid number, unable to parse string as a "
            f"number (got '{'x' * 76}...))",
        ),
        (
            read_credit_record,
            [{"rules": [], "groups": 3}],
            "not a whole credit record (groups: input should be a valid array (got 3))",
        ),
        (read_credit_record, [{"rules": []}], "not a whole credit record (groups: field required)"),
    ],
)
def test_a_wrong_value_of_a_record_is_named_with_file_and_field(
    tmp_path: Path, read: Callable[[Path], object], rows: list[dict[str, Any]], says: str
) -> None:
    file = written(tmp_path / "record.jsonl.zst", *rows)
    with pytest.raises(ValueError, match="record") as error:
        read(file)
    assert str(error.value) == f"{file}: {says}"


def test_a_wrong_value_of_a_manifest_or_a_status_is_named_with_its_field(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(
        tmp_path / "checkpoints", CheckpointMetadata(3, 10), {}, lambda _: None, CheckpointRetention(2)
    )
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").write_text(json.dumps(manifest | {"metrics_bytes": "ten"}))
    with pytest.raises(CheckpointError) as error:
        verify_file_sizes(checkpoint)
    problem = "metrics_bytes: input should be a valid integer, unable to parse string as an integer (got 'ten')"
    assert str(error.value) == f"checkpoint {checkpoint} is damaged: no readable manifest.json ({problem})"
    (tmp_path / "status.json").write_text("[")
    with pytest.raises(ValueError, match=r"status\.json is damaged: invalid JSON: [^\n]*$"):
        read_status(tmp_path)
