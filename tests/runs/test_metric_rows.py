"""Rows of metrics.jsonl with changed bits, and rows that are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl.core.errors import RunFolderError
from marl.runs.metric_rows import RowChecksumChain, metrics_line_with_checksum
from marl.runs.metrics_tail import MetricsTail
from marl.runs.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    for step in range(1, 6):
        # A new object each time, as after a resume: it has to read the last checksum from the file.
        RunFolder(tmp_path).append_metrics(step, {"episode/count": 32.0, "policy/actor/loss": -0.125 * step})
    return RunFolder(tmp_path)


def test_rows_are_read_without_their_checksums(run: RunFolder) -> None:
    rows = list(run.rows())
    assert rows[1] == {"step": 2, "episode/count": 32.0, "policy/actor/loss": -0.25}
    assert MetricsTail(run.path).read_new_rows() == rows


@pytest.mark.one_in(3)
def test_every_flipped_bit_is_noticed(run: RunFolder) -> None:
    data = run.metrics_file.read_bytes()
    unnoticed: list[int] = []
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        run.metrics_file.write_bytes(flipped)
        try:
            rows = list(run.rows())
        except RunFolderError:
            continue
        # A lost end of the last line looks like the row of a killed run.
        if len(rows) != 4 or bit // 8 != len(data) - 1:
            unnoticed.append(bit)
    assert unnoticed == []


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_missing_row_is_noticed_at_the_next_one(run: RunFolder, missing: int) -> None:
    lines = run.metrics_file.read_bytes().splitlines(keepends=True)
    del lines[missing]
    run.metrics_file.write_bytes(b"".join(lines))
    with pytest.raises(RunFolderError, match=f"line {missing + 1}: no row of metrics: its checksum does not fit"):
        list(run.rows())


def test_rows_of_older_runs_have_no_checksum_and_are_read() -> None:
    chain = RowChecksumChain()
    assert chain.verify_row(b'{"step": 1}\n') == b'{"step": 1}\n'
    assert chain.verify_row(b'{"step": 2}\n') == b'{"step": 2}\n'
    # The resumed run adds rows with checksums; from then on every row has one.
    assert chain.verify_row(metrics_line_with_checksum({"step": 3}, 0)[0]) == b'{"step": 3}'
    with pytest.raises(ValueError, match="its checksum is missing"):
        chain.verify_row(b'{"step": 4}\n')
