"""The newest rows of metrics.jsonl are read from its end, and then only what is added."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from marl.core.errors import RunFolderError
from marl.runs import metrics_tail
from marl.runs.metrics_tail import MetricsTail


def write(run: Path, steps: range, mode: str = "a", **more: float) -> None:
    with (run / "metrics.jsonl").open(mode) as file:
        file.writelines(json.dumps({"step": step, **more}) + "\n" for step in steps)


def steps(tail: MetricsTail) -> list[int]:
    return [row["step"] for row in tail.rows]


def test_only_rows_that_were_added_are_read_again(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4), x=1.5)
    tail = MetricsTail(tmp_path)
    assert [row["step"] for row in tail.read_new_rows()] == [1, 2, 3]
    assert tail.read_new_rows() == []
    write(tmp_path, range(4, 6))
    assert [row["step"] for row in tail.read_new_rows()] == [4, 5]
    assert tail.rows[0] == {"step": 1, "x": 1.5}


def test_a_line_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2, "x"')
    tail = MetricsTail(tmp_path)
    tail.read_new_rows()
    assert steps(tail) == [1]
    with file.open("a") as more:
        more.write(": 3}\n")
    assert tail.read_new_rows() == [{"step": 2, "x": 3}]


def test_a_long_file_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_tail, "MAX_READ_BYTES", 2000)
    write(tmp_path, range(1, 100_001))
    tail = MetricsTail(tmp_path, 50)
    tail.read_new_rows()
    assert steps(tail) == list(range(99_951, 100_001))
    write(tmp_path, range(100_001, 101_001))  # more than is read at once
    tail.read_new_rows()
    assert steps(tail) == list(range(100_951, 101_001))


def test_a_run_that_goes_on_from_an_earlier_step_replaces_its_later_rows(tmp_path: Path) -> None:
    write(tmp_path, range(1, 9))
    tail = MetricsTail(tmp_path)
    tail.read_new_rows()
    file = tmp_path / "metrics.jsonl"
    os.truncate(file, 4 * len('{"step": 1}\n'))
    write(tmp_path, range(5, 7), x=1.0)
    tail.read_new_rows()
    assert steps(tail) == [1, 2, 3, 4, 5, 6]
    assert tail.rows[-1]["x"] == 1.0
    file.write_text("")
    tail.read_new_rows()
    assert steps(tail) == []
    file.unlink()
    write(tmp_path, range(1, 3), "w")
    tail.read_new_rows()
    assert steps(tail) == [1, 2]


def test_a_file_that_grew_beyond_the_place_where_it_was_cut_is_read_anew(tmp_path: Path) -> None:
    write(tmp_path, range(1, 9))
    tail = MetricsTail(tmp_path)
    tail.read_new_rows()
    write(tmp_path, range(1, 9), "w", metric=12345.0)  # the same file, in which the old end lies within a line
    tail.read_new_rows()
    assert steps(tail) == list(range(1, 9))
    assert tail.rows[-1]["metric"] == 12345.0


def test_what_is_no_row_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("[]\n")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: no rows of metrics"):
        MetricsTail(tmp_path).read_new_rows()
    assert MetricsTail(tmp_path / "nowhere").read_new_rows() == []
