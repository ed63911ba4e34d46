"""vLLM with models in GGUF files, asleep while learners work, and on a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from vllm import LLMEngine

import marl
from marl.core.errors import EngineError, UserNotice
from marl.engines.vllm.engine import VLLMEngine
from marl.engines.vllm.settings import VLLM
from marl.models.pretrained import Pretrained, PretrainedSource
from marl.protocols import SharedWeights
from marl.scenario.load import validate
from marl.training.placement import LocalLearners
from tests.support.changed_weights import shifted_model
from tests.support.gguf_files import small_llama, write_gguf
from tests.support.run_processes import kuhn_scenario, tiny_model
from tests.support.transformers_engines import CONTEXT, answers, ask, plain_logprobs
from tests.support.transformers_engines import engine as transformers_engine
from tests.support.vllm_helpers import SETTINGS, VLLM_KIND, vllm_engine, wide_headed

pytestmark = pytest.mark.xdist_group("vllm")
CLOSE = 1e-5
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")


@pytest.fixture
def source(tmp_path: Path) -> PretrainedSource:
    return wide_headed(tmp_path / "wide")


def test_a_gguf_file_speaks_as_it_does_on_transformers(tmp_path: Path) -> None:
    write_gguf(small_llama(width=64), tmp_path / "small.gguf")
    source = Pretrained(path=str(tmp_path)).prepare(CONTEXT)
    engine, requests = vllm_engine(source), [ask("hi ok", seed, max_tokens=12, temperature=0.7) for seed in range(6)]
    other = transformers_engine(source)
    for request, completion in zip(requests, answers(engine, requests), strict=True):
        [there] = answers(other, [replace(request, forced=completion.text)])
        assert completion.prompt_ids == there.prompt_ids
        assert completion.logprobs == pytest.approx(
            plain_logprobs(source.model(), completion, request.sampling), abs=CLOSE
        )
    assert engine.chat_tokenizer.ends == other.chat_tokenizer.ends
    model = source.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.1
    engine.load_weights("actor", model.named_parameters(), 1)
    [after] = answers(engine, requests[:1])
    assert after.logprobs == pytest.approx(plain_logprobs(model, after, requests[0].sampling), abs=CLOSE)
    engine.close()


def test_an_engine_that_sleeps_wakes_up_when_it_is_asked_or_given_weights(
    source: PretrainedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = followed(monkeypatch)
    with pytest.warns(UserNotice, match="engine.sleep: true has no effect on a processor"):
        engine = vllm_engine(source, sleep=True)
    request, model = ask("hi", max_tokens=9), source.model()
    [before] = answers(engine, [request])
    engine.sleep()
    engine.sleep()
    assert answers(engine, [request]) == [before]
    engine.sleep()
    engine.load_weights("actor", model.state_dict().items(), 1)
    assert calls == ["sleep", "wake_up", "sleep", "wake_up"]
    engine.submit(0, request)
    engine.sleep()
    assert calls == ["sleep", "wake_up"] * 2, "a request is in flight"
    engine.cancel([0])
    engine.close()


@pytest.mark.filterwarnings("ignore::marl.core.errors.UserNotice")
def test_weights_that_sleep_discards_are_sent_again_unless_a_learner_has_changed_them(
    source: PretrainedSource, tmp_path: Path
) -> None:
    # On a CPU, vLLM keeps the weights in its sleep: this shows when they are sent, not that memory is free.
    engine = vllm_engine(source, sleep=True, sleep_level=2)
    request, model = ask("hi", max_tokens=9), shifted_model(source, 1)
    [before] = answers(engine, [request])
    engine.sleep()
    assert engine.core.lacks_weights
    assert answers(engine, [request]) == [before]
    assert not engine.core.lacks_weights
    save_file({name: tensor.clone() for name, tensor in model.named_parameters()}, tmp_path / "shared")
    for weights in (SharedWeights(tmp_path / "shared", 1), model.named_parameters()):
        engine.load_weights("actor", weights, 1)
        engine.sleep()
        [after] = answers(engine, [request])
        assert after.logprobs == pytest.approx(plain_logprobs(model, after, request.sampling), abs=CLOSE)
    engine.sleep()
    with torch.no_grad():
        next(model.parameters()).mul_(1.0)
    with pytest.raises(EngineError, match=r"sleep_level: 2.*a learner has changed them since; set sleep_level: 1"):
        engine.submit(0, request)
    engine.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::marl.core.errors.UserNotice")
def test_an_engine_sleeps_while_the_learner_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    scenario: dict[str, Any] = kuhn_scenario()
    scenario["policies"]["actor"] |= {"model": tiny_model(head_dim=32), "engine": {"kind": VLLM_KIND, **SETTINGS}}
    scenario["policies"]["actor"]["engine"]["sleep"] = True
    scenario["schedule"]["steps"] = 2
    scenario["evaluate"] = {}
    calls = followed(monkeypatch)
    update = LocalLearners.update

    def noted(self: LocalLearners, samples: Any) -> Any:
        calls.append("learn")
        return update(self, samples)

    monkeypatch.setattr(LocalLearners, "update", noted)
    assert marl.train(validate(scenario, "test"), tmp_path / "run")
    # Nothing is read before the update: it sleeps once, and the new weights wake it up.
    assert calls[-6:] == ["sleep", "learn", "wake_up"] * 2


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.15)])
def test_logprobs_hold_on_a_gpu_before_and_after_new_weights(
    source: PretrainedSource, dtype: Any, tolerance: float
) -> None:
    there = replace(source, dtype=dtype, device="cuda")
    engine, model = vllm_engine(there, eager=True, tensor_parallel=1), there.model()
    requests = [ask("word " * (1 + n % 5), n, max_tokens=9, temperature=0.7, top_p=0.9) for n in range(8)]
    for version in (0, 1):
        if version:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter *= 1.05
            assert all(parameter.is_cuda for parameter in model.parameters())
            engine.load_weights("actor", model.named_parameters(), version)
        for request, completion in zip(requests, answers(engine, requests), strict=True):
            assert completion.versions == (version, version)
            expected = plain_logprobs(model, completion, request.sampling)
            assert completion.logprobs == pytest.approx(expected, abs=tolerance)
    engine.close()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("level", [1, 2])
def test_the_memory_share_is_kept_and_most_of_it_is_free_during_sleep(source: PretrainedSource, level: Any) -> None:
    there = replace(source, dtype="bfloat16", device="cuda")
    before, whole = torch.cuda.mem_get_info()
    engine = VLLM(memory_share=0.2, max_sequences=32, eager=True, sleep=True, sleep_level=level).build(there)
    assert isinstance(engine, VLLMEngine)
    [said] = answers(engine, [ask("hi", max_tokens=9)])
    awake = before - torch.cuda.mem_get_info()[0]
    assert 0.1 * whole < awake < 0.25 * whole
    engine.sleep()
    assert before - torch.cuda.mem_get_info()[0] < 0.2 * awake
    assert answers(engine, [ask("hi", max_tokens=9)]) == [said]
    engine.close()


def followed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which vLLM's engines add that they were put to sleep or woken up."""
    calls: list[str] = []

    def follow(name: str) -> None:
        call = getattr(LLMEngine, name)

        def note(self: LLMEngine, *args: Any, **more: Any) -> Any:
            calls.append(name)
            return call(self, *args, **more)

        monkeypatch.setattr(LLMEngine, name, note)

    follow("sleep")
    follow("wake_up")
    return calls
