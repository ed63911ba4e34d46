"""Folders of models that are written to exhaust memory or to reach other files: refused before anything is built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from marl.models.hf_folder import check_model_folder
from marl.models.markup_escaping import MarkupEscaper
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_tiny_model(Tiny(), tmp_path / "model", ("a b",))
    return tmp_path / "model"


def rewrite(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_an_ordinary_folder_is_accepted(folder: Path) -> None:
    check_model_folder(folder)


@pytest.mark.parametrize("name", ["num_hidden_layers", "n_layer", "num_local_experts"])
def test_more_layers_than_can_be_built_are_refused(folder: Path, name: str) -> None:
    rewrite(folder / "config.json", **{name: 10**9})
    with pytest.raises(ValueError, match=rf"config\.json with {name}: 1000000000; at most 10000"):
        check_model_folder(folder)


def test_a_normalizer_that_multiplies_text_is_refused(folder: Path) -> None:
    step = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 1000}
    rewrite(folder / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [step, step, step]})
    with pytest.raises(ValueError, match="normalizer can make texts 1000000000 times longer"):
        check_model_folder(folder)


def test_a_pattern_of_a_tokenizer_that_backtracks_ends_in_an_error_about_the_text(folder: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    rewrite(folder / "tokenizer.json", pre_tokenizer=split)
    tokenizer = MarkupEscaper(AutoTokenizer.from_pretrained(folder), lambda _: "")
    assert tokenizer.encode("a b")
    with pytest.raises(ValueError, match=r"^the tokenizer cannot read a text: Onig: .*retry-limit"):
        tokenizer.encode("x" * 100)


@pytest.mark.parametrize("name", ["/etc/passwd", "../other.safetensors"])
def test_an_index_that_leads_out_of_the_folder_is_refused(folder: Path, name: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ValueError, match="which is no file of the folder"):
        check_model_folder(folder)
