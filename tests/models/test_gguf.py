"""GGUF files: read, unpacked, checked before anything is loaded, and saved as ordinary folders."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import marl
from marl.core.config import Sampling
from marl.core.types import Message, Request
from marl.evaluation.model_facts import known_model_facts
from marl.models.adapter import Adapter
from marl.models.adapter_merging import merge_adapter
from marl.models.chat_template import ChatTokenizer
from marl.models.pretrained import Pretrained, PretrainedSource
from tests.support.gguf_files import CHAT, small_llama, vocabulary, write_gguf
from tests.support.transformers_engines import CONTEXT

NAME = "small-q8_0.gguf"
IDS = torch.tensor([[3, 40, 50, 60, 70, 80]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a GGUF file and nothing else."""
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(small_llama(), folder / NAME)
    return folder


@pytest.fixture(scope="module")
def source(folder: Path) -> PretrainedSource:
    return prepared(path=str(folder), gguf_file=NAME)


def prepared(**settings: Any) -> PretrainedSource:
    return Pretrained(**settings).prepare(CONTEXT)


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(IDS).logits


def test_quantised_weights_are_unpacked(source: PretrainedSource) -> None:
    original, model = small_llama(), source.model()
    assert not model.training
    assert model.dtype == torch.float32
    for name, tensor in original.state_dict().items():
        # 8 bits a number: blocks of 32 are whole multiples of their largest number / 127.
        assert torch.allclose(model.state_dict()[name], tensor, atol=tensor.abs().max().item() / 127 * 0.51), name
    error = logits(model) - logits(original)
    assert error.std() < 0.05 * logits(original).std(), "a mistaken order of heads would make an error of that size"
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_the_tokenizer_comes_from_the_file(source: PretrainedSource) -> None:
    tokenizer = source.tokenizer()
    ids = tokenizer("<|im_start|>hi ok<|im_end|>").input_ids
    assert len(ids) == 5
    assert (ids[0], ids[-1]) == (1, tokenizer.eos_token_id)
    assert tokenizer.decode(ids) == "<|im_start|>hi ok<|im_end|>"
    assert CHAT.partition("{%")[0] in tokenizer.chat_template


def test_what_is_saved_is_an_ordinary_folder(source: PretrainedSource, tmp_path: Path) -> None:
    model = source.model()
    model.save_pretrained(tmp_path)
    source.tokenizer().save_pretrained(tmp_path)
    again, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert torch.equal(logits(again), logits(model))
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    assert again.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert tokenizer.chat_template == source.tokenizer().chat_template
    assert prepared(path=str(tmp_path)).gguf_file is None


def test_its_weights_can_learn(source: PretrainedSource) -> None:
    model = source.model()
    model(IDS, labels=IDS).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_only_gguf_file_needs_no_name(folder: Path, source: PretrainedSource) -> None:
    assert prepared(path=str(folder)) == source
    model = prepared(path=str(folder), dtype="bfloat16").model()
    assert model.dtype == torch.bfloat16


def test_an_adapter_on_it_is_read_again_and_merged(folder: Path, tmp_path: Path) -> None:
    from marl.models.lora import adapter_tensors, save_adapter

    source = Adapter(base=Pretrained(path=str(folder), gguf_file=NAME), rank=2).prepare(CONTEXT)
    model = source.model()
    for tensor in adapter_tensors(model).values():
        tensor.data.fill_(0.02)
    save_adapter(model, tmp_path / "adapter")
    again = Adapter.from_folder(tmp_path / "adapter").prepare(CONTEXT)
    assert torch.equal(logits(again.model()), logits(model))
    assert torch.allclose(logits(merge_adapter(again)), logits(model), atol=1e-4)


def test_a_learnt_model_is_no_gguf_file(folder: Path, tmp_path: Path) -> None:
    saved = Pretrained(path=str(folder), gguf_file=NAME, dtype="bfloat16").with_saved_weights(tmp_path)
    assert saved == Pretrained(path=str(tmp_path), dtype="bfloat16")


def problems(path: Path, name: str | None = None) -> str:
    return " ".join(Pretrained(path=str(path), gguf_file=name).unmet_requirements())


def test_what_is_wrong_with_a_gguf_folder_is_said_before_anything_is_loaded(folder: Path, tmp_path: Path) -> None:
    assert problems(folder) == problems(folder, NAME) == ""
    assert f"gguf_file: no file 'small.gguf' in it; GGUF files there: {NAME}" in problems(folder, "small.gguf")
    (tmp_path / "a.gguf").write_bytes(b"<html>not found</html>")
    assert "'a.gguf' is no GGUF file" in problems(tmp_path)
    (tmp_path / "b.gguf").write_bytes(b"")
    assert "has 2 GGUF files; choose one as gguf_file: a.gguf, b.gguf" in problems(tmp_path)
    assert "no such folder" in problems(tmp_path / "nowhere", NAME)
    with pytest.raises(ValueError, match=r"policy 'actor'.*choose one as gguf_file"):
        prepared(path=str(tmp_path))


def test_a_file_that_was_cut_off_is_named(folder: Path, tmp_path: Path) -> None:
    content = (folder / NAME).read_bytes()
    for size in (100, len(content) - 1000):
        (tmp_path / NAME).write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"policy 'actor': model .*cannot be loaded"):
            prepared(path=str(tmp_path)).model()


def test_without_the_package_it_is_said_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "pip install 'marl-llm[gguf]'" in problems(folder)


def test_a_name_is_no_path() -> None:
    with pytest.raises(ValueError, match="gguf_file"):
        Pretrained(path="x", gguf_file="../x.gguf")


def test_a_run_on_it_saves_ordinary_folders(folder: Path, tmp_path: Path) -> None:
    scenario = {
        "game": {"kind": "kuhn_poker"},
        "seats": {"player_0": "player", "player_1": "player"},
        "roles": {
            "player": {
                **{"kind": "player", "policy": "actor", "instructions": "", "prompt": "{{ observation }}"},
                "sampling": {"max_tokens": 4},
            }
        },
        "policies": {
            "actor": {
                "model": {"kind": "pretrained", "path": str(folder), "gguf_file": NAME},
                "learner": {"kind": "reinforce", "lr": 1e-3},
            }
        },
        "credit": {"baseline": "none"},
        "schedule": {"steps": 1, "groups": 2, "group_size": 2, "threads": 1},
    }
    assert marl.train(marl.load(scenario), tmp_path / "run")
    saved = tmp_path / "run" / "checkpoints" / "000001" / "policies" / "actor"
    learnt = AutoModelForCausalLM.from_pretrained(saved)
    assert learnt.generation_config.eos_token_id == AutoTokenizer.from_pretrained(saved).eos_token_id == 2
    assert not torch.equal(logits(learnt), logits(prepared(path=str(folder)).model()))


def test_sizes_and_prompts_are_known_without_the_weights(folder: Path, source: PretrainedSource) -> None:
    facts, model = known_model_facts(Pretrained(path=str(folder)), ()), small_llama()
    assert facts.size is not None
    assert facts.weights == facts.size.parameters == model.num_parameters()
    assert (facts.size.layers, facts.size.hidden_size, facts.size.intermediate_size, facts.size.query_size) == (
        1,
        32,
        64,
        32,
    )
    assert (facts.size.key_size, facts.size.vocabulary, facts.context) == (16, len(vocabulary()), 256)
    assert facts.count_prompt_tokens is not None
    request = Request("actor", (Message("user", "hi, ok?"),), Sampling())
    assert facts.count_prompt_tokens(request) == len(ChatTokenizer(source.tokenizer(), frozenset()).prompt(request).ids)
