"""A server of vLLM samples for policies that learn: token ids, log-probabilities, new weights, adapters, errors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from marl.core.errors import EngineError
from marl.core.types import Completion, Request
from marl.engines.vllm.engine import VLLMEngine
from marl.engines.vllm.server_settings import VLLMServer
from marl.models.pretrained import PretrainedSource
from marl.protocols import CacheAtUpdate
from tests.support.changed_weights import assert_versions_of_long_answers, shifted_model
from tests.support.lora_adapters import adapted, merged_model, random_adapter_weights
from tests.support.transformers_engines import ask, plain_logprobs
from tests.support.transformers_engines import engine as transformers_engine
from tests.support.vllm_helpers import wide_headed
from tests.support.vllm_servers import KEY_ENV, RunningServer, serving_vllm

pytestmark = pytest.mark.xdist_group("vllm")
CLOSE = 1e-5
KEY = "of-the-server-alone"
SAMPLINGS: list[dict[str, Any]] = [{}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.3, "top_k": 20}]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> PretrainedSource:
    return wide_headed(tmp_path_factory.mktemp("models") / "wide")


@pytest.fixture(scope="module")
def server(source: PretrainedSource, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving_vllm(Path(source.path), KEY, tmp_path_factory.mktemp("server") / "log") as started:
        yield started


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_ENV, KEY)


def settings(server: RunningServer, **more: Any) -> VLLMServer:
    return VLLMServer.model_validate({"base_url": server.url, "key_env": KEY_ENV, "backoff_s": 0.1, **more})


def speaker(server: RunningServer, source: PretrainedSource, **more: Any) -> VLLMEngine:
    engine = settings(server, **more).build(source)
    assert isinstance(engine, VLLMEngine)
    return engine


def answered(engine: VLLMEngine, requests: Sequence[Request], within_s: float = 120.0) -> list[Completion]:
    for ticket, request in enumerate(requests):
        engine.submit(ticket, request)
    completions: dict[int, Any] = {}
    until = time.monotonic() + within_s
    while len(completions) < len(requests):
        assert time.monotonic() < until, "an answer is overdue"
        completions.update(engine.step(0.2))
    return [completions[ticket] for ticket in range(len(requests))]


def assert_close(model: Any, requests: Sequence[Request], completions: Sequence[Completion]) -> None:
    for request, completion in zip(requests, completions, strict=True):
        assert completion.logprobs == pytest.approx(plain_logprobs(model, completion, request.sampling), abs=CLOSE)


def test_a_server_that_is_not_there_is_told_with_its_address() -> None:
    settings = VLLMServer(base_url="http://127.0.0.1:9/", retries=1, backoff_s=0.01)
    with pytest.raises(EngineError, match=r"http://127.0.0.1:9/version gave no answer: ConnectError"):
        settings.start_vllm(None, None, 9, {})  # type: ignore[arg-type]  # it gets no further
    with pytest.raises(ValueError, match="no URL of an endpoint"):
        VLLMServer(base_url="127.0.0.1:8000")


@pytest.mark.slow
@pytest.mark.parametrize("at_update", get_args(CacheAtUpdate))
def test_a_server_pauses_for_new_weights_between_two_tokens(
    server: RunningServer, source: PretrainedSource, at_update: CacheAtUpdate
) -> None:
    engine = speaker(server, source, cache_at_update=at_update)
    models = {0: source.model(), 4: shifted_model(source, 1), 9: shifted_model(source, 2)}
    assert_versions_of_long_answers(engine, models, at_update)
    engine.close()


@pytest.mark.slow
def test_a_server_says_what_the_model_says_and_takes_new_weights(
    server: RunningServer, source: PretrainedSource
) -> None:
    engine, model = speaker(server, source), source.model()
    requests = [
        ask("word " * (1 + 12 * (n % 4)), n, max_tokens=1 + n % 9, **SAMPLINGS[n % len(SAMPLINGS)]) for n in range(12)
    ]
    first = answered(engine, requests)
    assert_close(model, requests, first)
    assert answered(engine, requests) == first, "seeds, not luck"
    assert engine.take_step_metrics()["actor"]["prefix_cache"] > 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.05
    engine.load_weights("actor", model.named_parameters(), 7)
    after = answered(engine, requests)
    assert {completion.versions for completion in after} == {(7, 7)}
    assert_close(model, requests, after)
    engine.remove_policy("actor")
    assert answered(engine, requests) == first
    engine.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::marl.core.errors.UserNotice")
def test_texts_are_scored_stopped_and_limited_as_by_an_engine_here(
    server: RunningServer, source: PretrainedSource
) -> None:
    engine, other = speaker(server, source), transformers_engine(source)
    scored = [ask("a b c", forced="xyz", **sampling) for sampling in [*SAMPLINGS, {"temperature": 0.0}]]
    for number, (request, completion) in enumerate(zip(scored, answered(engine, scored), strict=True)):
        other.submit(number, request)
        [(_, there)] = other.step(0)
        assert isinstance(there, Completion)
        assert completion.logprobs == pytest.approx(there.logprobs, abs=CLOSE)
    [free] = answered(engine, [ask("hi", max_tokens=40)])
    stop = free.text[2]
    [stopped] = answered(engine, [ask("hi", max_tokens=40, stop=(stop,))])
    assert stopped.text == free.text.partition(stop)[0]
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
    moves = {"bet": "[bet]", "fold": "[fold]"}
    [limited] = answered(engine, [replace(ask("K", max_tokens=9, structured="legal_moves"), options=moves)])
    assert limited.text in moves.values()
    engine.close()


@pytest.mark.slow
def test_adapters_on_a_server_are_swapped_and_share_a_batch(server: RunningServer, source: PretrainedSource) -> None:
    sources = {name: adapted(source, name, rank=4, alpha=8) for name in ("solver", "planner")}
    engine = settings(server).build_shared(sources)
    assert isinstance(engine, VLLMEngine)
    names = [*sources, "base"]
    engine.add_policy("base", source)
    requests = [replace(ask("w" * (1 + n * 20), n, max_tokens=5), policy=names[n % 3]) for n in range(6)]
    for version in (1, 2):
        weights = {
            policy: random_adapter_weights(each, version * 10 + n) for n, (policy, each) in enumerate(sources.items())
        }
        for policy, tensors in weights.items():
            engine.load_weights(policy, tensors.items(), version)
        for request, completion in zip(requests, answered(engine, requests), strict=True):
            learnt = request.policy in weights
            model = merged_model(sources[request.policy], weights[request.policy]) if learnt else source.model()
            assert_close(model, [request], [completion])
            assert completion.versions == ((version, version) if learnt else (0, 0))
    engine.close()


@pytest.mark.slow
@pytest.mark.one_in(3)  # a second server takes half a minute to start
@pytest.mark.filterwarnings("ignore::marl.core.errors.UserNotice")
def test_the_other_of_two_servers_answers_everything_when_one_is_killed(
    server: RunningServer, source: PretrainedSource, tmp_path: Path
) -> None:
    with serving_vllm(Path(source.path), KEY, tmp_path / "log") as second:
        engine, model = speaker(server, source, base_url=[server.url, second.url]), source.model()
        requests = [ask("word " * n, n, max_tokens=100) for n in range(1, 9)]
        for ticket, request in enumerate(requests):
            engine.submit(ticket, request)
        second.kill()
        completions: dict[int, Any] = {}
        while len(completions) < len(requests):
            completions.update(engine.step(0.2))
        assert_close(model, requests, [completions[ticket] for ticket in range(len(requests))])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.05
        engine.load_weights("actor", model.named_parameters(), 1)
        assert_close(model, requests[:3], answered(engine, requests[:3]))
        engine.close()


@pytest.mark.slow
def test_what_is_wrong_with_a_server_is_said(
    server: RunningServer, source: PretrainedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, engine = speaker(server, source, frozen=True), speaker(server, source)
    with pytest.raises(ValueError, match=r"engine.frozen: true, so the weights of http"):
        frozen.load_weights("actor", source.model().named_parameters(), 1)
    with pytest.raises(ValueError, match=r"holds 512 tokens; give engine.max_context"):
        settings(server).start_vllm(source, None, 513, {})
    speaker(server, source)
    with pytest.raises(EngineError, match=r"policies 'actor': .* has not sent: another run or another engine uses it"):
        answered(engine, [ask("hi")])
    monkeypatch.setenv(KEY_ENV, "wrong")
    with pytest.raises(EngineError, match="HTTP 401"):
        speaker(server, source)
    monkeypatch.setenv(KEY_ENV, KEY)
    last = speaker(server, source, retries=0, restart_s=0)
    server.kill()
    with pytest.raises(EngineError, match=r"policies 'actor': http.* gave no answer: ConnectError"):
        answered(last, [ask("hi")])
