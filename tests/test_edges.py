"""Edges of the trajectory graph say in which way an earlier turn led to a later one."""

from __future__ import annotations

import json
from pathlib import Path

import zstandard

from marl.core.config import Sampling
from marl.core.graph import Trajectory, read_trajectories, write_trajectories
from marl.core.types import Completion, Deal, Request, SpanFromEarlierTurn, Turn

MARKS = (SpanFromEarlierTurn(("e", 0), "told", 0, 4, 9), SpanFromEarlierTurn(("e", 1), "heard", 0, 9, 9))


def turn(index: int, agent: str) -> Turn:
    request = Request(agent, (), Sampling(), marks=MARKS if index == 2 else ())
    completion = Completion("", (), (), (), "stop", mark_tokens=((1, 3), (3, 3)) if index == 2 else ())
    return Turn(("e", index), agent, 0, 0, agent, request, completion, "x")


def episode() -> Trajectory:
    made = Trajectory(Deal("e", "e", 0, {"a": "a", "b": "b"}), "start")
    made.add(turn(0, "a"), ())
    made.add(turn(1, "b"), [("e", 0)])
    made.add(turn(2, "b"), [("e", 0), ("e", 1)], {("e", 0): ("told", "gated")})
    return made


def test_edges_whose_way_is_not_given_are_heard_and_those_of_own_turns_self() -> None:
    made = episode()
    assert made.edge_kinds(("e", 0), ("e", 1)) == {"heard"}
    assert made.edge_kinds(("e", 0), ("e", 2)) == {"told", "gated"}
    assert made.edge_kinds(("e", 1), ("e", 2)) == {"self"}
    assert made.edge_kinds(("e", 1), ("e", 0)) == set()


def test_turns_are_selected_by_the_way_in_which_they_led_to_another() -> None:
    made = episode()
    assert made.sources(("e", 2), ("told", "self")) == [("e", 0), ("e", 1)]
    assert made.sources(("e", 2), ("heard",)) == []
    assert made.readers(("e", 0), ("heard", "gated")) == [("e", 1), ("e", 2)]
    assert made.readers(("e", 0), ("posed",)) == []


def test_files_keep_ways_and_places(tmp_path: Path) -> None:
    file = tmp_path / "0.jsonl.zst"
    write_trajectories(file, [episode()])
    (read,) = read_trajectories(file)
    assert read == episode()
    assert read.turns[2].request.marks == MARKS
    assert read.turns[2].completion.mark_tokens == ((1, 3), (3, 3))


def test_files_of_earlier_versions_have_edges_without_ways(tmp_path: Path) -> None:
    file = tmp_path / "0.jsonl.zst"
    write_trajectories(file, [episode()])
    record = json.loads(zstandard.ZstdDecompressor().decompress(file.read_bytes()))
    del record["kinds"]
    file.write_bytes(zstandard.ZstdCompressor().compress(json.dumps(record).encode() + b"\n"))
    (read,) = read_trajectories(file)
    assert read.edge_kinds(("e", 0), ("e", 2)) == {"heard"}
    assert read.edge_kinds(("e", 1), ("e", 2)) == {"self"}
