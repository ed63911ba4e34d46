"""State on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from marl.core.state import check_same_tensors, load_state, save_state


@pytest.mark.parametrize(
    "state",
    [
        {"__tensor__": "/weights", "weights": torch.ones(2)},
        {"pool": {"__tensor__": ["a"], "'__tensor__": 1, "''__tensor__": torch.zeros(1)}},
        {"a/b": torch.ones(1), "a": {"b": torch.zeros(3)}, "a/b'": torch.ones(2)},
        {"text": "half \ud83d", "numbers": [float("inf"), 10**30]},
    ],
    ids=["a_key_like_ours", "quoted_keys", "paths_that_meet", "odd_values"],
)
def test_a_state_comes_back_as_it_was_whatever_its_keys(state: dict[str, Any], tmp_path: Path) -> None:
    save_state(tmp_path, state)
    assert repr(load_state(tmp_path)) == repr(state)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested too deep"),
        ('{"a": ' * 100_000, "nested too deep"),
        ('{"a": {"__tensor__": "/b"}}', "names the tensor '/b', which no file of tensors has"),
        ('{"a": {"__tensor__": ["/a"]}}', r"names the tensor \['/a'\]"),
        ('{"a": ', "Expecting value"),
    ],
    ids=["lists", "objects", "no_such_tensor", "no_name", "cut"],
)
def test_a_state_that_is_none_says_why(text: str, why: str, tmp_path: Path) -> None:
    save_state(tmp_path, {"a": torch.ones(1)})
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(ValueError, match=why):
        load_state(tmp_path)


def test_tensors_are_alike_if_names_shapes_and_types_are() -> None:
    held = {"a": torch.zeros(2, 3)}
    check_same_tensors({"a": torch.ones(2, 3)}, held, "x")
    with pytest.raises(ValueError, match=r"^x: saved and present tensors differ: \['b'\]$"):
        check_same_tensors({"a": torch.ones(2, 3), "b": torch.ones(1)}, held, "x")
    with pytest.raises(ValueError, match=r"^x: 'a' was saved as \[3\] of torch.float32, but is \[2, 3\] of torch.fl"):
        check_same_tensors({"a": torch.ones(3)}, held, "x")


def test_old_states_read_as_they_did(tmp_path: Path) -> None:
    save_state(tmp_path, {"a": {"b": torch.ones(1)}})
    assert json.loads((tmp_path / "state.json").read_text()) == {"a": {"b": {"__tensor__": "/a/b"}}}
