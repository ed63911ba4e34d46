from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from marl.models.pretrained import PretrainedSource
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model, make_tiny_tokenizer
from marl.models.word_tokenizer import sorted_tokens
from marl.protocols import ModelPreparation

KUHN = "card Q . betting check bet . moves [fold] [call]"


def test_the_folder_loads_like_any_other(words: PretrainedSource) -> None:
    model = AutoModelForCausalLM.from_pretrained(words.path)
    tokenizer = AutoTokenizer.from_pretrained(words.path)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "card K"}], return_dict=False)
    assert model(torch.tensor([ids])).logits.shape == (1, 2, len(tokenizer))


def test_the_default_model_has_about_fourteen_thousand_parameters(words: PretrainedSource) -> None:
    assert 13_000 < words.model().num_parameters() < 15_000


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_depend_on_the_seed_alone(tmp_path: Path, architecture: str, tied: bool) -> None:
    def embeddings(seed: int, name: str) -> torch.Tensor:
        torch.manual_seed(seed + len(name))
        settings = Tiny(architecture=architecture, seed=seed, tied=tied)  # type: ignore[arg-type]
        count = build_tiny_model(settings, tmp_path / name, [KUHN])
        model = settings.source("actor", tmp_path / name).model()
        assert model.num_parameters() == count
        return model.get_output_embeddings().weight

    assert torch.equal(embeddings(3, "one"), embeddings(3, "another"))
    assert not torch.equal(embeddings(3, "third"), embeddings(4, "fourth"))


def test_weights_are_spread_by_one_over_the_root_of_hidden(tmp_path: Path) -> None:
    settings = Tiny(hidden=64)
    build_tiny_model(settings, tmp_path / "model", [KUHN])
    matrix = settings.source("actor", tmp_path / "model").model().model.layers[0].mlp.up_proj.weight
    assert matrix.std().item() == pytest.approx(0.125, rel=0.05)


def test_a_move_is_three_words_and_comes_back_as_it_was() -> None:
    tokenizer = make_tiny_tokenizer("words", [KUHN])
    assert tokenizer.tokenize("[fold]") == ["[", "fold", "]"]
    for text in ("[fold]", "[fold] [call]", "bet [call] check", "[check bet]"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_unknown_words_are_marked() -> None:
    tokenizer = make_tiny_tokenizer("words", [KUHN])
    assert tokenizer.tokenize("[raise]") == ["[", "<unk>", "]"]


def test_a_kuhn_prompt_takes_few_tokens() -> None:
    tokenizer = make_tiny_tokenizer("words", [KUHN])
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": KUHN}]
    ids: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert len(ids) <= 22
    assert tokenizer.unk_token_id not in ids


@pytest.mark.parametrize("text", ["plain", " two  spaces ", "a\nb\tc", "é ✓ 日本", "[check]"])
def test_bytes_spell_any_text(text: str) -> None:
    tokenizer = make_tiny_tokenizer("bytes")
    ids = tokenizer(text).input_ids
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_the_template_keeps_roles_apart() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ho"},
        {"role": "user", "content": "again"},
    ]
    text = make_tiny_tokenizer("bytes").apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "be brief\nhi<assistant>ho<eos>again<assistant>"


def test_words_do_not_depend_on_the_order_of_the_texts() -> None:
    assert sorted_tokens(["b a", "c!"]) == sorted_tokens(["c!", "a", "b"]) == ["!", "a", "b", "c"]


def test_a_model_is_built_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path))
    folder = Tiny(words=(KUHN,)).cached_folder(())
    modified_ns = (folder / "config.json").stat().st_mtime_ns
    assert Tiny(words=(KUHN,), device="cpu").cached_folder(()) == folder
    assert (folder / "config.json").stat().st_mtime_ns == modified_ns
    assert Tiny(words=(KUHN,), seed=1).cached_folder(()) != folder
    assert Tiny(words=(KUHN,)).cached_folder(["raise"]) != folder
    assert [path.name for path in (tmp_path / "tiny").iterdir() if path.name.startswith(".")] == []


def test_a_build_that_lost_the_race_leaves_the_winner(tmp_path: Path) -> None:
    build_tiny_model(Tiny(), tmp_path / "model", [KUHN])
    modified_ns = (tmp_path / "model" / "config.json").stat().st_mtime_ns
    build_tiny_model(Tiny(), tmp_path / "model", [KUHN])
    assert (tmp_path / "model" / "config.json").stat().st_mtime_ns == modified_ns


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"hidden": 33}, "heads"), ({"hidden": 6}, "head_dim"), ({"heads": 2, "kv_heads": 4}, "kv_heads")],
)
def test_shapes_that_cannot_be_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tiny(**settings)  # type: ignore[arg-type]


def test_a_vocabulary_of_words_needs_words() -> None:
    with pytest.raises(ValueError, match="words"):
        Tiny().cached_folder(())


def test_a_model_of_bytes_needs_no_random_play_for_its_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path))
    context = ModelPreparation("actor", lambda seed: pytest.fail("episodes were played"), lambda base, settings: base)
    source = Tiny(hidden=8, vocabulary="bytes").prepare(context)
    assert Path(source.path).is_dir()
