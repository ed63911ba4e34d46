"""States in shares: what each process stores, and what is read from shares that are whole or damaged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from marl.core.state import load_state, save_state
from marl.core.state_shares import ShardedTensor, StateShare, StateShares, TensorShard, make_state_share

FULL = torch.arange(35, dtype=torch.bfloat16).reshape(7, 5)


def views(world_size: int) -> list[dict[str, Any]]:
    """Each process's view of a state whose tensor `rows` is divided as `torch.chunk` divides it."""
    rows = -(-len(FULL) // world_size)
    states = []
    for rank in range(world_size):
        first = min(rank * rows, len(FULL))
        shard = TensorShard(FULL[first : first + rows].clone(), first, len(FULL))
        states.append({"step": 3, "rows": shard, "odd": {"__tensor__": torch.tensor(1.5)}, "full": [torch.ones(4)]})
    return states


def shares_of(world_size: int) -> list[StateShare]:
    return [make_state_share(state, rank, world_size) for rank, state in enumerate(views(world_size))]


def state_of(shares: Sequence[StateShare]) -> StateShares:
    def source(share: StateShare) -> Any:
        return lambda: share

    return StateShares([source(share) for share in shares])


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 9])
def test_shares_on_disk_join_to_the_state_that_was_divided(world_size: int, tmp_path: Path) -> None:
    shares = shares_of(world_size)
    save_state(tmp_path, {"learners": {"a": state_of(shares), "b": state_of(shares_of(2))}, "own": torch.zeros(2)})
    loaded = load_state(tmp_path)
    assert torch.equal(loaded["own"], torch.zeros(2))
    for name in ("a", "b"):
        state = loaded["learners"][name]
        assert list(state) == ["step", "rows", "odd", "full"]
        assert (state["step"], state["odd"]) == (3, {"__tensor__": torch.tensor(1.5)})
        assert torch.equal(state["full"][0], torch.ones(4))
        rows = state["rows"]
        assert (rows.shape, rows.dtype) == ((7, 5), torch.bfloat16)
        assert torch.equal(rows.full(), FULL)
        for start in range(8):
            for stop in range(start, 8):
                assert torch.equal(rows.rows(start, stop), FULL[start:stop])


def test_every_number_is_in_one_share_and_full_tensors_are_divided_evenly() -> None:
    state = {"tensors": [torch.zeros(size) for size in (8, 8, 4, 4, 4, 4)]}
    sizes = [sum(len(t) for t in make_state_share(state, rank, 2).tensors.values()) for rank in range(2)]
    assert sizes == [16, 16]


def rewrite(file: Path, **fields: Any) -> None:
    """Change `fields` of the metadata of a share; None removes a field."""
    with safe_open(file, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118 (no mapping)
        header = json.loads(opened.metadata()["share"]) | fields
    changed = {name: value for name, value in header.items() if value is not None}
    save_file(tensors, file, {"share": json.dumps(changed)})


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"structure": None}, "structure\n  Field required"),
        ({"state": "other"}, r"holds shares of 2 states: \['/learner', 'other'\]"),
        ({"structure": "[" * 100_000}, "nested too deep"),
        ({"structure": '{"a": {"__tensor__": "/b"}}'}, "names the tensor '/b'"),
        ({"positions": {"/rows": [1, 7]}}, "'/rows' lacks rows from row 0 on"),
        ({"positions": {"/rows": [0, 8]}}, "the shards of '/rows' do not fit together"),
        ({"positions": {"/rows": "x"}}, "Input should be a valid"),
    ],
)
def test_a_damaged_share_says_why(metadata: dict[str, Any], why: str, tmp_path: Path) -> None:
    save_state(tmp_path, {"learner": state_of(shares_of(2))})
    rewrite(tmp_path / "shares/000/00000.safetensors", **metadata)
    with pytest.raises(ValueError, match=why):
        load_state(tmp_path)


@pytest.mark.parametrize(("lost", "why"), [(0, "'/rows' lacks rows from row 0 on"), (1, "'/rows' has 4 rows of 7")])
def test_a_lost_share_says_what_is_missing(lost: int, why: str, tmp_path: Path) -> None:
    save_state(tmp_path, {"learner": state_of(shares_of(2))})
    (tmp_path / f"shares/000/0000{lost}.safetensors").unlink()
    with pytest.raises(ValueError, match=why):
        load_state(tmp_path)


def test_shards_of_other_shapes_do_not_join() -> None:
    with pytest.raises(ValueError, match="the shards of 'w' do not fit together"):
        ShardedTensor("w", [TensorShard(torch.zeros(2, 3), 0, 4), TensorShard(torch.zeros(2, 2), 2, 4)])


def test_the_files_of_shares_are_safetensors_and_json_alone(tmp_path: Path) -> None:
    save_state(tmp_path, {"learner": state_of(shares_of(2))})
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["shares/000/00000.safetensors", "shares/000/00001.safetensors", "state.json", "state.safetensors"]
    with safe_open(tmp_path / files[0], framework="pt") as opened:
        assert json.loads(opened.metadata()["share"])["positions"] == {"/rows": [0, 7]}


def test_a_file_without_the_metadata_of_a_share_is_refused(tmp_path: Path) -> None:
    save_state(tmp_path, {"learner": state_of(shares_of(1))})
    save_file({"rows": FULL}, tmp_path / "shares/000/00000.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"00000.safetensors is no share of a state: its metadata lacks 'share'"):
        load_state(tmp_path)


def test_equal_states_make_equal_files(tmp_path: Path) -> None:
    contents: set[bytes] = set()
    for copy in range(8):
        save_state(tmp_path / str(copy), {"learner": state_of(shares_of(2))})
        contents.add((tmp_path / f"{copy}/shares/000/00000.safetensors").read_bytes())
    assert len(contents) == 1
