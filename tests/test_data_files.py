"""Files of data that mean harm: bombs, deep nesting, numbers and text that nothing can hold."""

from __future__ import annotations

import json
import re
import resource
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pydantic import ValidationError

from marl.core.graph import Trajectory, read_trajectories, write_trajectories
from marl.core.types import Deal
from marl.credit_stage.records import CreditRecord
from marl.host import data_files
from marl.host.data_files import EXPANSION_FREE_BYTES, MAX_LINE_BYTES, read_data_table, read_lines, write_atomically
from marl.roles.answering import PlayerRole
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from marl.runs.credit_records import read_credit_record, write_credit_record
from tests.support.small_games import FunctionEngine, PenniesConfig, random_move

MIB = 2**20
ENDLESS_LINE = zstandard.compress(bytes(200 * MIB))
ENDLESS_LINES = zstandard.compress(b'{"prompt": "p", "completion": "c"}\n' * 100_000)
EMPTY_LINES = zstandard.compress(b"\n" * (10_500_000))


def peak_memory() -> int:
    """Largest size of this process so far in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def table(folder: Path, data: bytes, name: str = "a.jsonl") -> data_files.DataTable:
    (folder / name).write_bytes(data)
    return read_data_table(folder / name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst"])
def test_a_line_that_is_too_long_is_named_and_never_held(name: str, tmp_path: Path) -> None:
    data = bytes(200 * MIB) if name == "a.jsonl" else ENDLESS_LINE
    (tmp_path / name).write_bytes(data)
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"path: .*{name}: line 1 is longer than the limit of 64 MiB$"):
        read_data_table(tmp_path / name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * MAX_LINE_BYTES


def test_a_bomb_of_empty_lines_is_named_within_seconds(tmp_path: Path) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=r"a\.jsonl\.zst: it has more rows than the limit of 10,000,000$"):
        table(tmp_path, EMPTY_LINES, "a.jsonl.zst")
    assert time.process_time() - started < 20


def test_a_small_file_that_unpacks_to_gigabytes_of_good_lines_is_named(tmp_path: Path) -> None:
    row = b'{"question": "1 + 1", "answer": "2"}\n' * 3000
    with (tmp_path / "rows.jsonl.zst").open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packed:
        for _ in range(2 * EXPANSION_FREE_BYTES // len(row)):
            packed.write(row)
    began = time.process_time()
    with pytest.raises(ValueError, match="unpacks to more than 1000 times its size"):
        sum(map(len, read_lines(tmp_path / "rows.jsonl.zst")))
    assert time.process_time() - began < 20


def test_a_file_that_unpacks_to_more_than_fits_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(table(tmp_path, ENDLESS_LINES, "a.jsonl.zst").rows) == 100_000
    monkeypatch.setattr(data_files, "MAX_FILE_BYTES", 2 * MIB)
    with pytest.raises(ValueError, match=r"a\.jsonl\.zst: unpacked, it is larger than the limit of "):
        table(tmp_path, ENDLESS_LINES, "a.jsonl.zst")


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (ENDLESS_LINES[:-4], "it was cut short"),
        (ENDLESS_LINES[:20], "it was cut short"),
        (b"", "it was cut short"),
        (b"not zstd at all", "not a whole zstd file"),
        (zstandard.compress(b"{}\n") + b"garbage", "not a whole zstd file"),
        (zstandard.FRAME_HEADER + b"\xff" * 40, "not a whole zstd file"),
    ],
    ids=["end", "middle", "empty", "other", "behind", "header"],
)
def test_a_packed_file_that_is_not_whole_is_named(packed: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"a\.jsonl\.zst: .*{why}"):
        table(tmp_path, packed, "a.jsonl.zst")


def test_several_frames_and_lines_without_an_end_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.zst"
    file.write_bytes(b"".join(map(zstandard.compress, (b"one\ntw", b"", b"o\nthree"))))
    assert list(read_lines(file)) == [b"one\n", b"two\n", b"three"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "nested deeper than 100 lists and objects"),
        ("[" * 100_000, "nested deeper than 100"),
        ('{"a":' * 100_000, "nested deeper than 100"),
        ('{"a": ' + "9" * 10_000 + "}", "Exceeds the limit"),
        ('{"a": 1e999}', "1e999 is no finite number"),
        ('{"a": -1' + "0" * 400 + ".0}", "is no finite number"),
        ('{"a": NaN}', "NaN is no finite number"),
        ('{"a": -Infinity}', "-Infinity is no finite number"),
        ('{"a": "\x01"}', "Invalid control character"),
        ("{" + '"a" ' * 5, "Expecting ':'"),
    ],
)
def test_json_that_no_reader_survives_is_named_with_its_line(line: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.jsonl: line 2: not JSON \(") as error:
        table(tmp_path, b'{"a": 1}\n' + line.encode())
    assert why in str(error.value)
    assert len(str(error.value)) < 400


def test_a_file_of_a_few_kilobytes_cannot_mean_millions_of_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "MAX_CONTAINERS", 20_000)
    line = b'{"a": [' + b"[]," * 7_000 + b"[]]}\n"
    assert len(table(tmp_path, zstandard.compress(line * 2), "a.jsonl.zst").rows) == 2
    with pytest.raises(ValueError, match="line 3: more lists and objects than the limit of 20,000 for a file"):
        table(tmp_path, zstandard.compress(line * 3), "a.jsonl.zst")


def test_nesting_that_real_data_has_is_read(tmp_path: Path) -> None:
    wide = {"a": [[i] for i in range(1000)], "b": {str(i): {} for i in range(1000)}}
    deep = "[" * 98 + "1" + "]" * 98
    [row, other] = table(tmp_path, json.dumps(wide).encode() + f'\n{{"a": {deep}, "b": 0}}'.encode()).rows
    assert row == wide
    assert json.dumps(other["a"]) == deep


def test_lone_surrogates_of_data_become_replacement_characters(tmp_path: Path) -> None:
    line = rb'{"half \ud800": ["\udc00 a", {"b": "\uD83D\uDE00 \ud83d"}], "n": 1}'
    [row] = table(tmp_path, line).rows
    assert row == {"half \ufffd": ["\ufffd a", {"b": "\U0001f600 \ufffd"}], "n": 1}
    json.dumps(row, ensure_ascii=False).encode()


def test_parquet_with_more_rows_than_the_limit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"prompt": ["p"] * 10_000}), tmp_path / "a.parquet")
    assert len(read_data_table(tmp_path / "a.parquet").rows) == 10_000
    monkeypatch.setattr(data_files, "MAX_ROWS", 5_000)
    with pytest.raises(ValueError, match=r"a\.parquet: it has more rows than the limit of 5,000$"):
        read_data_table(tmp_path / "a.parquet")
    monkeypatch.setattr(data_files, "MAX_FILE_BYTES", 1_000)
    with pytest.raises(ValueError, match=r"a\.parquet: unpacked, it is larger than the limit"):
        read_data_table(tmp_path / "a.parquet")


@pytest.mark.parametrize("as_dictionary", [False, True])
def test_one_text_that_stands_for_thousands_is_named_before_it_is_unpacked(as_dictionary: bool, tmp_path: Path) -> None:
    texts: Any = pa.array(["x" * MIB]).take(pa.array([0] * 160))
    texts = texts.dictionary_encode() if as_dictionary else texts
    chats = pa.ListArray.from_arrays(pa.array([*range(161)], pa.int32()), texts)
    for name, column in ("flat", texts), ("nested", chats):
        file = tmp_path / f"{name}.parquet"
        for count in 1, 160:
            data = pa.table({"prompt": column}).slice(0, count)
            pq.write_table(data, file, compression="zstd", dictionary_pagesize_limit=2**30)
            if count == 1:
                assert len(str(read_data_table(file).rows[0]["prompt"])) >= MIB
        assert file.stat().st_size < 2000
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(data_files, "MAX_FILE_BYTES", 100 * MIB)
            before = peak_memory()
            with pytest.raises(ValueError, match="unpacked, it is larger than the limit of"):
                read_data_table(file)
            assert peak_memory() - before < 50 * MIB


def test_millions_of_missing_values_in_a_kilobyte_of_parquet_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "MAX_VALUES", 500_000)
    count = 500_001
    lists = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pa.nulls(count, pa.int8()))
    pq.write_table(pa.table({"prompt": ["p"], "more": lists}), tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    with pytest.raises(ValueError, match="it has 500,002 values; the limit is 500,000"):
        read_data_table(tmp_path / "a.parquet")


def test_nested_rows_of_parquet_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        {"chat": [{"role": "user", "n": 1}, {"role": "me", "n": None}], "tags": ["a", None, "a"], "raw": b"\xff"},
        {"chat": None, "tags": [], "raw": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert list(read_data_table(tmp_path / "a.parquet").rows) == rows


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "no_utf8"])
def test_parquet_that_cannot_be_read_is_named(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    bad = pa.Array.from_buffers(pa.utf8(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    pq.write_table(pa.table({"prompt": bad if damage == "no_utf8" else ["p"] * 1000}), file)
    data = bytearray(file.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[-100:-8] = b"\xff" * 92
    elif damage == "text":
        data = bytearray(b"PAR1 and no more PAR1")
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"path: .*a\.parquet: no Parquet file"):
        read_data_table(file)


def test_a_file_is_written_beside_a_link_and_not_through_it(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for name in ("a", "a.part"):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "a").read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "mine"]


# --- records ---


@pytest.fixture
def played() -> Trajectory:
    cast = RoleRequestBuilder({"player": PlayerRole(policy="any")}, 0)
    simulator = RolloutSimulator(PenniesConfig(), cast, {"any": FunctionEngine(random_move)})
    return simulator.play([Deal("a", "g", 0, {"player_0": "player", "player_1": "player"})])[0]


@pytest.mark.parametrize("bomb", [ENDLESS_LINE, EMPTY_LINES], ids=["line", "lines"])
def test_bombs_among_the_records_are_named(bomb: bytes, tmp_path: Path) -> None:
    file = tmp_path / "000001.jsonl.zst"
    file.write_bytes(bomb)
    with pytest.raises(ValueError, match=r"000001\.jsonl\.zst: (not a whole trajectory file|line 1 is no trajectory)"):
        list(read_trajectories(file))
    with pytest.raises(ValueError, match=r"000001\.jsonl\.zst: not a whole credit record"):
        read_credit_record(file)


def test_a_claim_of_an_absurd_size_reserves_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "000001.jsonl.zst"
    # A header that claims 2**62 bytes, with eight bytes for the size and no data.
    file.write_bytes(zstandard.FRAME_HEADER + b"\xe0" + (2**62).to_bytes(8, "little") + b"\x01\x00\x00")
    with pytest.raises(ValueError, match="not a whole trajectory file"):
        list(read_trajectories(file))


def test_a_line_full_of_faults_is_one_short_error(tmp_path: Path, played: Trajectory) -> None:
    file = tmp_path / "000001.jsonl.zst"
    write_trajectories(file, [played])
    line = json.loads(zstandard.decompress(file.read_bytes()))
    for field, faults in {"turns": [None] * 10**6, "edges": [[]] * 10**6, "rewards": ["x"] * 10**6}.items():
        file.write_bytes(zstandard.compress(json.dumps(line | {field: faults}).encode()))
        with pytest.raises(ValueError, match="line 1 is no trajectory") as error:
            list(read_trajectories(file))
        assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    ("part", "field"),
    [
        *(("completion", field) for field in ("prompt_ids", "token_ids", "logprobs", "imposed")),
        *(("request", field) for field in ("messages", "continues", "examples", "tools")),
    ],
)
def test_a_million_wrong_values_in_a_turn_are_one_fault(
    part: str, field: str, tmp_path: Path, played: Trajectory
) -> None:
    file = tmp_path / "000001.jsonl.zst"
    write_trajectories(file, [played])
    line = json.loads(zstandard.decompress(file.read_bytes()))
    line["turns"][0][part][field] = [None] * 10**5
    file.write_bytes(zstandard.compress(json.dumps(line).encode()))
    with pytest.raises(ValueError, match="line 1 is no trajectory") as error:
        list(read_trajectories(file))
    assert isinstance(error.value.__cause__, ValidationError)
    assert error.value.__cause__.error_count() == 1


@pytest.mark.parametrize(
    "value", ["[" * 5000 + "]" * 5000, "9" * 10_000, r'"\ud800"', "[" * 5000], ids=["deep", "integer", "half", "open"]
)
def test_records_that_no_reader_survives_are_named(value: str, tmp_path: Path, played: Trajectory) -> None:
    file = tmp_path / "000001.jsonl.zst"
    write_trajectories(file, [replaced(played, options={"x": "HERE"})])
    text = zstandard.decompress(file.read_bytes()).decode()
    file.write_bytes(zstandard.compress(text.replace('"HERE"', value).encode()))
    with pytest.raises(ValueError, match=r"000001\.jsonl\.zst: line 1 is no trajectory"):
        list(read_trajectories(file))


def replaced(trajectory: Trajectory, **deal: object) -> Trajectory:
    trajectory.deal = replace(trajectory.deal, **deal)
    return trajectory


def test_turns_that_read_later_or_unknown_turns_are_refused(tmp_path: Path, played: Trajectory) -> None:
    file = tmp_path / "000001.jsonl.zst"
    write_trajectories(file, [played])
    line = json.loads(zstandard.decompress(file.read_bytes()))
    first, second = (turn["id"] for turn in line["turns"])
    for edge in ([second, first], [first, first], [["b", 7], second], [first, ["b", 7]]):
        file.write_bytes(zstandard.compress(json.dumps(line | {"edges": [edge]}).encode()))
        with pytest.raises(ValueError, match="a turn reads earlier ones of its episode"):
            list(read_trajectories(file))


def test_an_empty_judgement_is_none(tmp_path: Path) -> None:
    file = tmp_path / "000001.jsonl.zst"
    write_credit_record(file, CreditRecord((), (), ()))
    assert read_credit_record(file) == CreditRecord((), (), ())
    file.write_bytes(zstandard.compress(b""))
    with pytest.raises(ValueError, match="not a whole credit record"):
        read_credit_record(file)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_csv_file_is_read_as_spreadsheets_write_it(mark: str, tmp_path: Path) -> None:
    lines = [["question", "answer"], ['"1 + 1 =\n?"', "2"], [], ['"say ""a, b; c"""', " 007"]]
    text = "\ufeff" + "\r\n".join(mark.join(cells) for cells in lines)
    (tmp_path / "own.csv").write_bytes(text.encode())
    table = read_data_table(tmp_path / "own.csv")
    assert table.columns == ("question", "answer")
    assert list(table.rows) == [
        {"question": "1 + 1 =\n?", "answer": "2"},
        {"question": 'say "a, b; c"', "answer": "007"},
    ]
    assert [table.row_location(i).rpartition(", ")[2] for i in (0, 1)] == ["line 3", "line 5"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"a,b\n1,2\n1,2,3\n", "line 3: 3 cells, but the header has 2"),
        (b"a,a\n1,2\n", "line 1: two columns are called 'a'"),
        (b"a,,b\n", "line 1: a column without a name"),
        (b"", "line 1: a column without a name"),
        (b"," * 9_000 + b"\n", "line 1: a column without a name; the header has ['', ''"),
        (b",".join(b"%d" % i for i in range(300_000)), "line 1: 300,000 columns; the limit is 10,000"),
        (b'a,b\n"1,2\n', "no CSV after 0 rows"),
        (b"a,b\n1,2\n\xff,3\n", "not UTF-8 text after 1 rows"),
        (b"a,b\n" + b"x" * 200_000 + b",1\n", "field larger than field limit"),
    ],
)
def test_csv_that_cannot_be_read_is_named(data: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(why)):
        read_data_table(tmp_path / "own.csv")
