"""Problems from files and data sets: real files, real Parquet, a real `datasets` folder."""

from __future__ import annotations

import gzip
import json
import os
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from marl.core.types import Problem
from marl.games.tasks import dataset_loading
from marl.games.tasks.dataset import DatasetTask, FileTask, TableColumnNames, TableTask

ROWS = [{"problem": f"What is {n} + {n}?", "solution": 2 * n, "level": -n, "bad": [2 * n + 1, "x"]} for n in range(20)]
COLUMNS = TableColumnNames(question="problem", answer="solution")


def jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def problems(table: TableTask, split: Any) -> list[Problem]:
    tasks = table.build()
    return [tasks.problem(split, index) for index in range(tasks.problem_count(split))]


def questions(table: TableTask, split: Any) -> list[str]:
    return [problem.question for problem in problems(table, split)]


def test_columns_are_mapped(tmp_path: Path) -> None:
    columns = TableColumnNames(
        question="problem", answer="solution", wrong="bad", difficulty="level", facts={"l": "level"}
    )
    (first, *rest) = problems(FileTask(path=jsonl(tmp_path / "a.jsonl", ROWS), columns=columns, held_out=0), "train")
    assert (first.question, first.answer, first.wrong, first.facts) == (
        "What is 19 + 19?",
        "38",
        ("39", "x"),
        {"l": -19},
    )
    assert [problem.facts["l"] for problem in rest] == list(range(-18, 1)), "the easiest first"


def test_parquet_gives_the_same_problems_as_json_lines(tmp_path: Path) -> None:
    rows = [row | {"bad": list(map(str, row["bad"]))} for row in ROWS]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    columns = TableColumnNames(question="problem", answer="solution", wrong="bad", difficulty="level")
    other = FileTask(path=tmp_path / "a.parquet", columns=columns)
    for split in ("train", "held_out"):
        assert problems(other, split) == problems(
            FileTask(path=jsonl(tmp_path / "a.jsonl", rows), columns=columns), split
        )


@pytest.mark.parametrize(("held_out", "many"), [(0, 0), (5, 5), (0.25, 5), (0.1, 2)])
def test_a_number_or_a_share_is_held_out(tmp_path: Path, held_out: float, many: int) -> None:
    table = FileTask(path=jsonl(tmp_path / "a.jsonl", ROWS), columns=COLUMNS, held_out=held_out)
    assert (len(questions(table, "train")), len(questions(table, "held_out"))) == (20 - many, many)
    assert not set(questions(table, "train")) & set(questions(table, "held_out"))
    assert questions(table.model_copy(update={"seed": 1}), "held_out") != questions(table, "held_out") or not many


def test_a_column_says_what_is_held_out(tmp_path: Path) -> None:
    rows = [row | {"part": "test" if i % 4 == 0 else "train"} for i, row in enumerate(ROWS)]
    columns = COLUMNS.model_copy(update={"split": "part"})
    table = FileTask(path=jsonl(tmp_path / "a.jsonl", rows), columns=columns)
    assert questions(table, "held_out") == [row["problem"] for row in rows[::4]]


def test_another_file_is_held_out_and_what_is_in_both_is_not_trained_on(tmp_path: Path) -> None:
    apart = jsonl(tmp_path / "b.jsonl", [ROWS[3], {"problem": "What  is 4 +\t4? ", "solution": 8}])
    table = FileTask(path=jsonl(tmp_path / "a.jsonl", ROWS), held_out_path=apart, columns=COLUMNS)
    assert len(questions(table, "held_out")) == 2
    assert len(questions(table, "train")) == 18
    assert not {ROWS[3]["problem"], ROWS[4]["problem"]} & set(questions(table, "train"))


def test_rows_with_the_same_question_are_one_problem(tmp_path: Path) -> None:
    twice = jsonl(tmp_path / "a.jsonl", [*ROWS, *ROWS, {"problem": "What is 1 +  1? ", "solution": 2}])
    table = FileTask(path=twice, columns=COLUMNS, held_out=0.5)
    assert len(questions(table, "train")) == len(questions(table, "held_out")) == 10


def test_an_answer_is_found_by_a_pattern(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "First 2 + 2.\n#### 1,234 "}]
    table = FileTask(path=jsonl(tmp_path / "a.jsonl", rows), answer_pattern="#### (.+)", held_out=0)
    assert problems(table, "train")[0].answer == "1,234"
    with pytest.raises(
        ValueError, match=r"answer_pattern: .*a\.jsonl, row 1: 'Answer: \(\.\*\)' finds nothing in 'First"
    ):
        table.model_copy(update={"answer_pattern": "Answer: (.*)"}).build()


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([], {}, r"a\.jsonl: no rows"),
        (
            ROWS,
            {},
            r"columns\.question: not every row of .*a\.jsonl has a column 'question'; .*bad, level, problem, sol",
        ),
        (ROWS, {"question": "problem"}, r"columns\.answer: not every row of .* has a column 'answer'"),
        ([*ROWS, {"problem": "q"}], {"question": "problem", "answer": "solution"}, r"has a column 'solution'"),
        (ROWS, {"question": "problem", "answer": None, "facts": {"t": "tests"}}, r"columns\.facts\.t: not every row"),
        (ROWS, {"question": "level", "answer": None}, r"columns\.question: .*row 1: 0 is no question"),
        (ROWS, {"question": "problem", "answer": "bad"}, r"columns\.answer: .*row 1: \[1, 'x'\] is no answer"),
        (ROWS, {"question": "problem", "answer": None, "difficulty": "bad"}, r"columns\.difficulty: .* is no number"),
        (ROWS, {"question": "problem", "answer": None, "split": "level"}, r"all 20 problems are held out"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, rows: Any, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FileTask(path=jsonl(tmp_path / "a.jsonl", rows), columns=TableColumnNames(**columns)).build()


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    table = FileTask(path=tmp_path / "a.jsonl", held_out_path=tmp_path / "b.parquet")
    assert list(table.unmet_requirements()) == [
        f"path: no such file: {tmp_path / 'a.jsonl'}",
        f"held_out_path: no such file: {tmp_path / 'b.parquet'}",
    ]
    with pytest.raises(ValueError, match="path: no such file"):
        table.build()


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"question": "q"}\n{', "line 2: not JSON"), ("\n[1]\n", "line 2: must be an object with columns, got list")],
)
def test_a_damaged_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(ValueError, match=message):
        FileTask(path=tmp_path / "a.jsonl").build()


def test_files_that_are_not_what_their_name_says_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("not parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: no Parquet file"):
        FileTask(path=tmp_path / "a.parquet").build()
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"a\.jsonl: not UTF-8"):
        FileTask(path=tmp_path / "a.jsonl").build()
    with pytest.raises(ValidationError, match=r"unknown format '\.xlsx'; choices: .*\.parquet"):
        FileTask(path=tmp_path / "a.xlsx")


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    table = FileTask(path=jsonl(tmp_path / "a.jsonl", ROWS), columns=COLUMNS, held_out=0)
    assert table.build() is table.build()
    before = table.build().problem_count("train")
    jsonl(tmp_path / "a.jsonl", ROWS[:7])
    os.utime(tmp_path / "a.jsonl", ns=(0, 1))
    assert (before, table.build().problem_count("train")) == (20, 7)


@pytest.mark.parametrize("pattern", ["####", "(", "[(]"])
def test_a_pattern_without_a_group_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ValidationError, match="answer_pattern"):
        FileTask(path=tmp_path / "a.jsonl", answer_pattern=pattern)


def test_a_challenger_poses_problems_as_json_if_that_is_allowed(tmp_path: Path) -> None:
    table = FileTask(path=jsonl(tmp_path / "a.jsonl", ROWS), columns=COLUMNS, held_out=5, poses=True)
    posed = table.build().parse_posed_problem('{"question": " What is 50 + 50? ", "answer": 100}')
    assert posed is not None
    assert (posed.question, posed.answer) == ("What is 50 + 50?", "100")
    held_out = questions(table, "held_out")[0]
    assert table.build().parse_posed_problem(json.dumps({"question": f"  {held_out}", "answer": "1"})) is None
    closed = table.model_copy(update={"poses": False}).build()
    assert closed.parse_posed_problem('{"question": "q", "answer": "a"}') is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "q", "[]", "{}", "[" * 100_000, "1" * 5_000),
        *('{"question": "q"}', '{"question": "", "answer": "a"}', '{"question": "q", "answer": ["a"]}'),
        *('{"question": 3, "answer": "a"}', '{"question": "q", "answer": "a", "more": 1}'),
    ],
)
def test_what_is_no_problem_in_json_is_none(tmp_path: Path, text: str) -> None:
    assert (
        FileTask(path=jsonl(tmp_path / "a.jsonl", ROWS), columns=COLUMNS, poses=True).build().parse_posed_problem(text)
        is None
    )


# --- Hugging Face data sets -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local data set with two splits."""
    from datasets import config

    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", True)
    (tmp_path / "sums").mkdir()
    rows = [{"problem": row["problem"], "solution": str(row["solution"])} for row in ROWS]
    jsonl(tmp_path / "sums" / "train.jsonl", rows)
    jsonl(tmp_path / "sums" / "test.jsonl", rows[15:])
    return tmp_path / "sums"


def test_a_data_set_with_its_own_held_out_split(folder: Path) -> None:
    table = DatasetTask(path=str(folder), held_out_split="test", columns=COLUMNS)
    assert questions(table, "train") == [row["problem"] for row in ROWS[:15]]
    assert questions(table, "held_out") == [row["problem"] for row in ROWS[15:]]


def test_part_of_a_split_of_a_data_set(folder: Path) -> None:
    table = DatasetTask(path=str(folder), split="train[:10]", held_out=3, columns=COLUMNS)
    assert (len(questions(table, "train")), len(questions(table, "held_out"))) == (7, 3)


def test_what_a_data_set_lacks_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"data set .*sums, split 'dev'.*Unknown split"):
        DatasetTask(path=str(folder), split="dev", columns=COLUMNS).build()
    with pytest.raises(ValueError, match=r"data set .*nowhere, split 'train'"):
        DatasetTask(path=str(folder / "nowhere")).build()
    with pytest.raises(ValueError, match=r"columns\.question: not every row of data set .*problem, solution"):
        DatasetTask(path=str(folder)).build()
    with pytest.raises(ValidationError, match="held_out_split: 'train' is trained on"):
        DatasetTask(path=str(folder), held_out_split="train")


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("README.md", "{outside}/secret.jsonl"),
        ("README.md", "../secret/secret.jsonl"),
        ("README.md", "data/../../secret/*.jsonl"),
        ("README.md", "~/secret.jsonl"),
        ("README.md", "http://127.0.0.1:9/secret.jsonl"),
        ("README.md", "zip://secret.jsonl::train.zip"),
        (".huggingface.yaml", "{outside}/secret.jsonl"),
        (".huggingface.yaml", "https://127.0.0.1:9/secret.jsonl"),
    ],
)
def test_the_card_of_a_data_set_cannot_name_files_elsewhere(
    folder: Path, tmp_path: Path, file: str, pattern: str
) -> None:
    outside = tmp_path / "secret"
    outside.mkdir()
    jsonl(outside / "secret.jsonl", [{"problem": "a", "solution": "b"}, {"problem": "c", "solution": "d"}])
    pattern = pattern.format(outside=outside)
    configs = f"configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: ['{pattern}']\n"
    (folder / file).write_text(f"---\n{configs}---\n" if file == "README.md" else configs)
    with pytest.raises(ValueError, match=r"its card names .* which is not in its folder"):
        DatasetTask(path=str(folder), columns=COLUMNS).build()


@pytest.mark.parametrize(
    "config",
    ["{config_name: default, data_files: 'test*.jsonl'}", "&a {config_name: default, data_files: test.jsonl, x: [*a]}"],
    ids=["plain", "circle_of_aliases"],
)
def test_a_card_may_name_its_own_files(folder: Path, config: str) -> None:
    (folder / "README.md").write_text(f"---\nconfigs:\n- {config}\n---\n")
    assert len(questions(DatasetTask(path=str(folder), held_out=0, columns=COLUMNS), "train")) == len(ROWS[15:])


def test_a_compressed_file_is_not_unpacked_beyond_the_size_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b'{"question": "How many?", "answer": "1"}\n' * 60_000
    folder = tmp_path / "packed"
    folder.mkdir()
    (folder / "train.jsonl.gz").write_bytes(gzip.compress(lines))
    file_size_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(dataset_loading, "MAX_FILE_BYTES", len(lines) // 8)
    with pytest.raises(ValueError, match="one of its files unpacks to more than the limit of"):
        DatasetTask(path=str(folder), held_out=0).build()
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == file_size_limit


@pytest.mark.parametrize("path", ["json", "text", "pandas", "hf://datasets/a/b", "buckets/a/b"])
def test_the_name_of_a_format_or_of_another_store_is_no_data_set(
    folder: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match=r"is a format and no data set|no such folder, and no name of a data set"):
        DatasetTask(path=path, columns=COLUMNS).build()


def test_a_format_whose_files_may_name_other_files_is_refused(folder: Path) -> None:
    for file in folder.iterdir():
        file.rename(file.with_suffix(".hdf5"))
    with pytest.raises(ValueError, match="its format is 'hdf5'; choices: arrow, csv, json, parquet, text"):
        DatasetTask(path=str(folder), columns=COLUMNS).build()


@pytest.mark.parametrize(
    "card",
    [
        "configs: [3]",
        "dataset_info: {splits: 3}",
        "configs: [{config_name: default, data_files: '*.jsonl', encoding: rot13}]",
        "{",
    ],
)
def test_a_damaged_card_of_a_data_set_is_one_line(folder: Path, card: str) -> None:
    (folder / "README.md").write_text(f"---\n{card}\n---\n")
    with pytest.raises(ValueError, match=r"^path: data set [^\n]*$"):
        DatasetTask(path=str(folder), columns=COLUMNS).build()


@pytest.mark.parametrize(
    ("file", "data"),
    [
        ("train.jsonl.gz", b"\x1f\x8b0"),
        ("train.zip", b"PK\x03\x04"),
        ("train.csv", b"\xff\xfe\x00"),
        ("train.parquet", b"PAR1 PAR1"),
    ],
)
def test_a_damaged_file_of_a_data_set_is_one_line(folder: Path, file: str, data: bytes) -> None:
    (folder / "train.jsonl").unlink()
    (folder / file).write_bytes(data)
    with pytest.raises(ValueError, match=r"^path: data set [^\n]*$"):
        DatasetTask(path=str(folder), columns=COLUMNS).build()
