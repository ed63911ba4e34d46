from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from marl.core.config import Sampling
from marl.core.types import Completion
from marl.models.pretrained import PretrainedSource
from marl.models.weights import check_finite
from marl.protocols import SharedWeights
from tests.support.lora_adapters import adapted, build_sampler, random_adapter_weights, tensor_bytes
from tests.support.transformers_engines import answers, ask, engine, plain_logprobs


def changed(checkpoint: PretrainedSource, seed: int = 1) -> Any:
    """A model with other weights than the checkpoint's."""
    model = checkpoint.model()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.mark.parametrize("form", ["named_parameters", "state_dict", "folder", "shared"])
def test_new_weights_speak_at_once(words: PretrainedSource, tmp_path: Path, form: str) -> None:
    sampler, model = engine(words), changed(words)
    address = sampler.network.model.lm_head.weight.data_ptr()
    if form == "folder":
        model.save_pretrained(tmp_path)
    shared = SharedWeights(tmp_path / "weights.safetensors", 3)
    save_file(dict(model.named_parameters()), shared.file)
    forms = {
        "named_parameters": model.named_parameters(),
        "state_dict": model.state_dict().items(),
        "folder": tmp_path,
        "shared": shared,
    }
    sampler.load_weights("actor", forms[form], 3)
    assert sampler.network.model.lm_head.weight.data_ptr() == address
    for completion in answers(sampler, [ask("card K", seed=seed, max_tokens=5) for seed in range(5)]):
        assert completion.versions == (3, 3)
        assert completion.logprobs == pytest.approx(plain_logprobs(model, completion, Sampling()), abs=1e-5)


def test_an_adapters_weights_are_read_from_a_shared_file(words: PretrainedSource, tmp_path: Path) -> None:
    source, shared = adapted(words), SharedWeights(tmp_path / "adapter.safetensors", 2)
    sampler: Any = build_sampler(source)
    weights = random_adapter_weights(source, 1)
    save_file(weights, shared.file)
    sampler.load_weights("actor", shared, 2)
    assert tensor_bytes(sampler.policy_weights.adapter_tensors("actor")) == tensor_bytes(weights)


def test_a_shared_file_of_another_version_is_refused(words: PretrainedSource, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"weights\.safetensors holds version 2 of 'actor', not version 3"):
        engine(words).load_weights("actor", SharedWeights(tmp_path / "weights.safetensors", 2), 3)


def test_untied_weights_arrive_each(bytewise: PretrainedSource) -> None:
    sampler, model = engine(bytewise), changed(bytewise)
    sampler.load_weights("actor", model.named_parameters(), 1)
    tensors = sampler.network.model.state_dict()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), r"missing: model\.norm\.weight"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), "unknown: extra"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(3)}),
            r"model\.norm\.weight \(3,\) instead of",
        ),
    ],
    ids=["missing", "unknown", "shape"],
)
def test_weights_that_do_not_fit_change_nothing(words: PretrainedSource, edit: Any, message: str) -> None:
    sampler = engine(words)
    before = {name: tensor.clone() for name, tensor in sampler.network.model.state_dict().items()}
    tensors = dict(changed(words).named_parameters())
    edit(tensors)
    with pytest.raises(ValueError, match=message):
        sampler.load_weights("actor", tensors.items(), 1)
    assert sampler.policy_weights.versions == [0]
    assert all(torch.equal(before[name], tensor) for name, tensor in sampler.network.model.state_dict().items())


def test_a_folder_without_weights_is_named(words: PretrainedSource, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no model\.safetensors"):
        engine(words).load_weights("actor", tmp_path, 1)


def test_weights_that_arrive_midway_are_noted(bytewise: PretrainedSource) -> None:
    sampler = engine(bytewise, slots=2)
    for ticket in range(4):
        sampler.submit(ticket, ask("x", seed=ticket, max_tokens=4))
    completions = dict(sampler.step(0))
    sampler.load_weights("actor", changed(bytewise).named_parameters(), 1)
    for _ in range(20):
        completions.update(sampler.step(0))
    versions = [answer.versions for _, answer in sorted(completions.items()) if isinstance(answer, Completion)]
    assert versions == [(0, 1), (0, 1), (1, 1), (1, 1)]


def test_one_engine_speaks_with_one_policys_weights(words: PretrainedSource) -> None:
    sampler = engine(words)
    sampler.load_weights("actor", changed(words).named_parameters(), 1)
    with pytest.raises(ValueError, match=r"'other'.*'actor'"):
        sampler.load_weights("other", changed(words).named_parameters(), 1)


@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_finite_weights_whose_sum_overflows_differ_from_weights_with_a_number_that_is_not_finite(number: float) -> None:
    largest = torch.full((4,), torch.finfo(torch.float32).max)
    check_finite([torch.zeros(2), largest, torch.zeros(0)], "the adapter")
    with pytest.raises(FloatingPointError, match="the adapter holds numbers that are not finite"):
        check_finite([largest, torch.tensor([0.0, number, -number])], "the adapter")
