"""A real vLLM engine in this process says what Transformers says, and takes new weights in place."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import EngineArgs

from marl.core.config import Sampling
from marl.core.types import Completion, CompletionFailure, Message, Request, SpanFromEarlierTurn
from marl.engines.vllm import arguments, installation
from marl.engines.vllm.engine import VLLMEngine
from marl.engines.vllm.settings import VLLM
from marl.models.pretrained import PretrainedSource
from marl.roles.answering import AnsweringRole
from marl.scenario.load import load
from marl.scenario.yaml_text import ScenarioError
from tests.support.lora_adapters import adapted, merged_model, random_adapter_weights
from tests.support.paths import SCENARIOS
from tests.support.transformers_engines import (
    answers,
    ask,
    assert_answers_go_on_from_prefixes,
    plain_logprobs,
    raw_answers,
)
from tests.support.transformers_engines import engine as transformers_engine
from tests.support.vllm_helpers import SETTINGS, VLLM_KIND, vllm_engine, wide_headed

pytestmark = pytest.mark.xdist_group("vllm")
CLOSE = 1e-5
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_p": 0.8},
    {"top_k": 5},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.9},
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> PretrainedSource:
    return wide_headed(tmp_path_factory.mktemp("models") / "wide")


@pytest.fixture(scope="module")
def speaker(source: PretrainedSource) -> Iterator[VLLMEngine]:
    before = _state()
    engine = vllm_engine(source)
    assert _state() == before
    yield engine
    engine.close()


def _state() -> dict[str, Any]:
    """What vLLM would change in this process."""
    numpy_state: Any = np.random.get_state()
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": numpy_state[1].tolist(),
        "python": random.getstate(),
        "threads": (torch.get_num_threads(), torch.set_num_threads),
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")},
    }


def mixed(count: int = 30) -> list[Request]:
    """Requests of many lengths and kinds of sampling, which share a batch."""
    kinds = (SAMPLINGS[number % len(SAMPLINGS)] for number in range(count))
    return [ask("word " * (1 + n % 5), seed=n, max_tokens=1 + n % 20, **kind) for n, kind in enumerate(kinds)]


def close_to(model: Any, completion: Completion, sampling: Sampling) -> bool:
    return completion.logprobs == pytest.approx(plain_logprobs(model, completion, sampling), abs=CLOSE)


def test_logprobs_are_those_of_a_plain_forward(speaker: VLLMEngine, source: PretrainedSource) -> None:
    model, requests, before = source.model(), mixed(), _state()
    completions = answers(speaker, requests)
    assert _state() == before
    assert all(close_to(model, c, request.sampling) for request, c in zip(requests, completions, strict=True))


def test_an_answer_goes_on_from_its_prefix(speaker: VLLMEngine, source: PretrainedSource) -> None:
    assert_answers_go_on_from_prefixes(speaker, source.model())


def test_the_token_that_ends_an_answer_is_kept(speaker: VLLMEngine, source: PretrainedSource) -> None:
    completions = answers(speaker, [ask("hi", seed, max_tokens=60) for seed in range(64)])
    ended = [completion for completion in completions if completion.finish == "stop"]
    assert ended
    assert all(c.token_ids[-1] in speaker.chat_tokenizer.ends for c in ended)
    assert all(len(c.token_ids) == 60 for c in completions if c.finish == "length")
    assert close_to(source.model(), ended[0], Sampling())


def test_a_request_says_the_same_whatever_its_neighbours(speaker: VLLMEngine) -> None:
    requests = mixed()
    crowd, backwards = answers(speaker, requests), answers(speaker, requests[::-1])[::-1]
    alone = [answers(speaker, [request])[0] for request in requests[:6]]
    assert [c.token_ids for c in crowd] == [c.token_ids for c in backwards]
    assert [c.token_ids for c in crowd[:6]] == [c.token_ids for c in alone]
    assert len({c.token_ids for c in answers(speaker, [ask("x", seed, max_tokens=9) for seed in range(9)])}) == 9


def test_names_of_arguments_are_those_of_the_installed_vllm() -> None:
    assert {*arguments.installed_argument_types()} == {field.name for field in fields(EngineArgs)}
    taken: dict[str, Any] = {"quantization": "fp8", "cpu_offload_gb": 4, "enable_prefix_caching": False}
    assert VLLM(args=taken).args == taken
    assert not VLLM(args={"pipeline_parallel_size": 2}).runs_in_this_process


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        ({"quantisation": "fp8"}, r"args.quantisation: 'fp8'.*did you mean 'quantization'"),
        ({"seed": 3}, r"args.seed: 3, but each request has a seed of its own"),
        ({"max_model_len": 9}, r"args.max_model_len: 9, but the setting `max_context` gives it"),
        ({"data_parallel_size": 2}, r"cluster.simulators"),
        ({"worker_cls": "os.system"}, r"a file, a host, code or a table"),
        ({"speculative_config": "x"}, r"a file, a host, code or a table"),
        ({"distributed_executor_backend": "os.system"}, r"'os.system'; choices: mp, ray"),
        ({"quantization": "../folder"}, r"is not one word"),
        ({"pipeline_parallel_size": True}, r"True is no int"),
        ({"cpu_offload_gb": "4"}, r"'4' is no float"),
    ],
)
def test_arguments_that_scenarios_may_not_pass_are_refused(passed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VLLM(args=passed)


@pytest.mark.slow
def test_arguments_reach_vllm(source: PretrainedSource) -> None:
    engine = vllm_engine(source, args={"enable_prefix_caching": False})
    for _ in range(2):
        answers(engine, [ask("word " * 40, max_tokens=1)])
    assert engine.take_step_metrics()["actor"]["prefix_cache"] == 0
    engine.close()


def test_prompts_that_fill_more_than_one_forward_are_answered(source: PretrainedSource) -> None:
    engine, model = vllm_engine(source, prefill_tokens=32), source.model()
    requests = [ask(f"{n} " * 100, seed=n, max_tokens=3) for n in range(8)]
    assert sum(len(c.prompt_ids) for c in answers(engine, requests)) > 2 * engine.weights.context
    assert all(close_to(model, c, r.sampling) for r, c in zip(requests, answers(engine, requests), strict=True))
    engine.close()


def test_temperature_zero_takes_the_likeliest_token_with_certainty(
    speaker: VLLMEngine, source: PretrainedSource
) -> None:
    requests = [ask("hello", temperature=0, max_tokens=10), ask("hello", 1, max_tokens=10)]
    here, there = answers(speaker, requests), answers(transformers_engine(source), requests)
    assert (here[0].token_ids, set(here[0].logprobs)) == (there[0].token_ids, {0.0})


@pytest.mark.parametrize("sampling", [*SAMPLINGS, {"temperature": 0.0}], ids=str)
def test_forced_texts_are_scored_under_the_sampling_distribution(
    speaker: VLLMEngine, source: PretrainedSource, sampling: dict[str, Any]
) -> None:
    texts = ["", "xyz", answers(speaker, [ask("a b c", 3, max_tokens=12, **sampling)])[0].text]
    requests = [ask("a b c", forced=text, **sampling) for text in texts]
    here, there = answers(speaker, requests), answers(transformers_engine(source), requests)
    for one, other in zip(here, there, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=CLOSE)
        assert replace(one, logprobs=()) == replace(other, logprobs=())


def test_prompts_stops_and_overflows_are_those_of_the_other_engine(
    speaker: VLLMEngine, source: PretrainedSource
) -> None:
    other, room = transformers_engine(source), 512
    mark = SpanFromEarlierTurn(("e", 0), "heard", 0, 1, 3)
    requests = [
        Request("actor", (Message("user", "again é"),), Sampling(max_tokens=1), continues=(5, 6, 7), marks=(mark,)),
        ask("x" * (room + 1), max_tokens=3),
        ask("x" * (room - 3), max_tokens=1),
        ask("x" * (room - 3), forced="y"),
        ask("x" * (room - 3), forced="yy"),
    ]
    for one, two in zip(raw_answers(speaker, requests), raw_answers(other, requests), strict=True):
        if isinstance(one, CompletionFailure) or isinstance(two, CompletionFailure):
            assert one == two
        else:
            assert (one.prompt_ids, one.mark_tokens) == (two.prompt_ids, two.mark_tokens)
            assert (one.finish, len(one.token_ids)) == (two.finish, len(two.token_ids))


def test_a_stop_text_ends_a_completion_at_its_first_appearance(speaker: VLLMEngine) -> None:
    free = answers(speaker, [ask("hi", seed, max_tokens=40) for seed in range(8)])
    stop = free[0].text[2]
    ended = answers(speaker, [ask("hi", seed, max_tokens=40, stop=(stop, "never")) for seed in range(8)])
    assert ended[0].finish == "stop"
    for without, completion in zip(free, ended, strict=True):
        assert completion.token_ids == without.token_ids[: len(completion.token_ids)]
        assert completion.text == without.text.partition(stop)[0]


@pytest.mark.filterwarnings("ignore::marl.core.errors.UserNotice")
def test_a_thought_over_its_limit_is_ended_and_the_answer_is_sampled(
    speaker: VLLMEngine, source: PretrainedSource
) -> None:
    tokenizer = source.tokenizer()
    tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}"
    thinker = VLLMEngine(speaker.weights, tokenizer)
    free = answers(thinker, [ask("why?", seed, max_tokens=24) for seed in range(4)])
    limited = answers(thinker, [ask("why?", seed, max_tokens=24, thinking_tokens=5) for seed in range(4)])
    end, model = len("</think>"), source.model()
    for without, completion in zip(free, limited, strict=True):
        if len(without.token_ids) > 5:
            assert completion.token_ids[:5] == without.token_ids[:5]
            assert completion.imposed == tuple(range(5, 5 + end))
        assert close_to(model, completion, Sampling())
    [cut] = answers(thinker, [ask("why?", max_tokens=4, thinking_tokens=0)])
    assert (cut.imposed, cut.finish) == ((0, 1, 2, 3), "length")


def test_cancelled_requests_get_no_answer(speaker: VLLMEngine) -> None:
    for ticket in range(4):
        speaker.submit(ticket, ask("x", ticket, max_tokens=8))
    speaker.step(0)
    with pytest.raises(ValueError, match="ticket 2"):
        speaker.submit(2, ask("x"))
    speaker.cancel([0, 2])
    answered = {ticket for _ in range(8) for ticket, _ in speaker.step(0)}
    assert answered == {1, 3}


def test_answers_can_be_limited_to_legal_moves(speaker: VLLMEngine, source: PretrainedSource) -> None:
    moves = {"bet": "[bet]", "check": "[check]", "fold": "[fold]"}
    limited = [
        replace(ask("card K", seed, max_tokens=12, structured="legal_moves"), options=moves) for seed in range(12)
    ]
    completions = answers(speaker, limited)
    assert len({completion.text for completion in completions}) > 1
    assert {completion.text for completion in completions} <= {*moves.values()}
    # Byte for byte there was no choice but for the first letter: its log-probability is that among b, c and f.
    tokenizer, first, said = source.tokenizer(), completions[0], "bcf"
    letters = [tokenizer(letter, add_special_tokens=False).input_ids[0] for letter in said]
    with torch.no_grad():
        ids = torch.tensor([[*first.prompt_ids, first.token_ids[0]]])
        among = source.model()(ids).logits[0, -1][letters].log_softmax(0).tolist()
    expected = [0.0] * len(first.token_ids)
    expected[1] = among[said.index(first.text[1])]
    assert first.logprobs == pytest.approx(expected, abs=CLOSE)
    with pytest.raises(ValueError, match="any text is a move"):
        speaker.submit(0, ask("card K", structured="legal_moves"))
    with pytest.raises(ValueError, match="structured: 'json', but vLLM scores no given text"):
        speaker.submit(0, ask("card K", structured="json", forced="{}"))


def test_answers_can_be_limited_to_json_that_fits_the_schema_of_the_role(speaker: VLLMEngine) -> None:
    any_object = [ask("in JSON", seed, max_tokens=200, structured="json") for seed in range(6)]
    schema = {"type": "object", "properties": {"move": {"enum": ["hit", "stand"]}}, "required": ["move"]}
    role = AnsweringRole(
        kind="solver", policy="actor", answer="json", json_schema={**schema, "additionalProperties": False}
    )
    of_schema = [
        replace(ask("in JSON", seed, max_tokens=60, structured="json"), answer_schema=role.answer_schema)
        for seed in range(6)
    ]
    completions = answers(speaker, [*any_object, *of_schema])
    whole = [json.loads(completion.text) for completion in completions[:6] if completion.finish == "stop"]
    assert whole
    assert all(isinstance(each, dict) for each in whole)
    chosen = [json.loads(completion.text) for completion in completions[6:] if completion.finish == "stop"]
    assert chosen
    assert {(*each, each["move"]) for each in chosen} <= {("move", "hit"), ("move", "stand")}


def test_new_weights_replace_the_old_ones_in_place(speaker: VLLMEngine, source: PretrainedSource) -> None:
    model, long = source.model(), ask("word " * 30, max_tokens=12)
    answers(speaker, [long])
    assert speaker.take_step_metrics()["actor"]["prefix_cache"] == 0
    answers(speaker, [long])
    answers(speaker, [long])
    assert speaker.take_step_metrics()["actor"]["prefix_cache"] > 0.4
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.05
    speaker.submit(0, ask("in flight", max_tokens=6, stop=("never",)))
    speaker.step(0)
    # A learner publishes tied tensors once.
    speaker.load_weights("actor", model.named_parameters(), 7)
    [(_, overtaken)] = [answer for _ in range(9) for answer in speaker.step(0)]
    assert isinstance(overtaken, Completion)
    assert overtaken.versions == (0, 7)
    with pytest.raises(ValueError, match=r"missing: .*unknown: lm_tail"):
        speaker.load_weights("actor", [("lm_tail", torch.zeros(1))], 8)
    after = answers(speaker, [long, *mixed(8)])
    assert {completion.versions for completion in after} == {(7, 7)}
    assert all(close_to(model, c, r.sampling) for r, c in zip([long, *mixed(8)], after, strict=True))
    speaker.remove_policy("actor")
    [back] = answers(speaker, [long])
    assert close_to(source.model(), back, long.sampling)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.0}], ids=str)
@pytest.mark.parametrize("forced", [None, "x"])
def test_weights_that_are_no_numbers_are_named(
    speaker: VLLMEngine, source: PretrainedSource, sampling: dict[str, Any], forced: str | None
) -> None:
    broken = {name: tensor * torch.nan for name, tensor in source.model().state_dict().items()}
    speaker.load_weights("actor", broken.items(), 3)
    speaker.submit(0, ask("card K", max_tokens=1, forced=forced, **sampling))
    with pytest.raises(FloatingPointError, match="version 3 of the weights of policy 'actor'"):
        speaker.step(0)
    speaker.cancel([0])
    speaker.remove_policy("actor")


def test_adapters_and_the_base_share_a_batch_and_each_is_its_own_model(source: PretrainedSource) -> None:
    sources = {
        "solver": adapted(source, "solver", rank=4, alpha=8),
        "planner": adapted(source, "planner", rank=2, alpha=7, targets=("q_proj", "down_proj")),
        "critic": adapted(source, "critic", rank=3, targets=("o_proj", "gate_proj"), use_rslora=True),
        "frozen": adapted(source, "frozen"),
    }
    engine = VLLM(**SETTINGS, max_adapters=4).build_shared(sources)
    assert isinstance(engine, VLLMEngine)
    engine.add_policy("base", source)
    names = [*sources, "base"]
    requests = [
        replace(ask("w" * (1 + n // 5 % 3 * 40), seed=n, max_tokens=3 + n % 7), policy=names[n % 5]) for n in range(20)
    ]
    for version in (1, 2):
        weights = {
            policy: random_adapter_weights(sources[policy], version * 10 + n) for n, policy in enumerate(names[:3])
        }
        for policy, tensors in weights.items():
            engine.load_weights(policy, tensors.items(), version)
        for request, completion in zip(requests, answers(engine, requests), strict=True):
            policy = request.policy
            model = merged_model(sources[policy], weights[policy]) if policy in weights else source.model()
            assert close_to(model, completion, request.sampling), (policy, version)
            assert completion.versions == ((version, version) if policy in weights else (0, 0))
    with pytest.raises(ValueError, match="policy 'late': this engine holds 4 adapters of rank 8 at most"):
        engine.add_policy("late", adapted(source, "late"))
    engine.remove_policy("critic")
    engine.add_policy("late", adapted(source, "late"))
    [late] = answers(engine, [replace(requests[0], policy="late")])
    assert close_to(source.model(), late, requests[0].sampling)
    engine.close()


def test_what_vllm_cannot_hold_is_refused_before_a_weight_is_loaded(
    bytewise: PretrainedSource, source: PretrainedSource
) -> None:
    with pytest.raises(ValueError, match=r"policy 'actor'.*heads are 16 wide.*head_dim: 32"):
        vllm_engine(bytewise)
    with pytest.raises(ValueError, match=r"policy 'solver'.*no DoRA"):
        VLLM().build_shared({"solver": adapted(source, "solver", use_dora=True)})
    with pytest.raises(ValueError, match="max_context: 513 tokens, but the model was made for 512"):
        vllm_engine(source, max_context=513)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], r"policies.actor.engine: its heads are 16 wide.*head_dim: 32"),
        (["policies.actor.model={kind: adapter, base: {kind: tiny, head_dim: 32}, use_dora: true}"], "no DoRA"),
        (
            ["policies.actor.model.head_dim=32", "policies.actor.engine.args={max_model_len: 9}"],
            r"engine.args: args.max_model_len: 9, but the setting `max_context` gives it",
        ),
        (
            ["policies.actor.model.head_dim=32", "policies.actor.engine.sleep_level=2"],
            r"sleep_level: 2 has no effect with sleep: false",
        ),
        (
            [
                "policies.actor.model={kind: adapter, base: {kind: tiny, head_dim: 32}}",
                "policies.actor.engine={kind: vllm, sleep: true, sleep_level: 2}",
            ],
            r"vLLM discards adapters with their base; choices: 1",
        ),
        (
            [
                "policies.actor.model.head_dim=32",
                "policies.actor.engine.args={quantization: fp8}",
                "policies.actor.learner.fidelity=null",
            ],
            r"policies.actor.learner.fidelity: null, but engine.args of policies.actor may change",
        ),
        (
            ["policies.actor.model.head_dim=32", "roles.player.sampling.structured=legal_moves"],
            r"roles.player.sampling.structured: 'legal_moves', but its turns are learned from",
        ),
        (
            ["policies.actor.engine={kind: transformers}", "roles.player.sampling.structured=json"],
            r"engine 'transformers' of policies.actor limits no answers",
        ),
        (
            ["policies.actor.model.head_dim=32", "roles.player.sampling={structured: json, thinking_tokens: 3}"],
            "structured: 'json' leaves no room for thoughts",
        ),
        (
            ["policies.actor.model.head_dim=32", "roles.player.sampling.structured=legal_moves"],
            r"but evaluate.nashconv scores given texts",
        ),
    ],
)
def test_a_scenario_that_vllm_cannot_play_is_refused_when_it_is_read(overrides: list[str], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load(SCENARIOS / "kuhn_self_play.yaml", [f"policies.actor.engine={{kind: {VLLM_KIND}}}", *overrides])


def test_another_version_of_vllm_is_told_with_what_to_install(
    source: PretrainedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(VLLM().unmet_requirements()) == []
    monkeypatch.setattr(installation, "SUPPORTED_VLLM_VERSION", "99.1")
    with pytest.raises(ValueError, match=r"needs vLLM 99.1, but vllm.* 0.32.* is installed.*pip install"):
        vllm_engine(source)
    monkeypatch.setattr(installation, "DISTRIBUTIONS", ("no-such-package",))
    assert "it is not installed" in next(iter(VLLM().unmet_requirements()))
