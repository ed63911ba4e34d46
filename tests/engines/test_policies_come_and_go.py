"""Engines that add and remove policies while requests of other policies are in flight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from marl.core.types import Completion, Request
from marl.engines.openai.settings import OpenAI
from marl.engines.scripted import Human, Random
from marl.engines.transformers.engine import TransformersEngine
from marl.models.adapter import AdapterSource
from marl.models.pretrained import PretrainedSource
from tests.support.lora_adapters import adapted, build_sampler, merged_model, random_adapter_weights
from tests.support.transformers_engines import answers, ask, engine, plain_logprobs

SETTINGS: dict[str, dict[str, Any]] = {
    "lora": {"rank": 3, "alpha": 5, "targets": ("q_proj", "down_proj", "lm_head")},
    "dora": {"rank": 6, "use_dora": True, "use_rslora": True},
}


def team(base: PretrainedSource) -> dict[str, AdapterSource]:
    return {"solver": adapted(base, "solver", rank=4), "planner": adapted(base, "planner", use_dora=True, rank=2)}


def serve_taught(sources: dict[str, AdapterSource], **settings: Any) -> TransformersEngine:
    sampler = build_sampler(*sources.values(), **settings)
    for seed, (policy, source) in enumerate(sources.items()):
        sampler.load_weights(policy, random_adapter_weights(source, seed).items(), 1)
    return sampler


def requests_of(policies: tuple[str, ...], count: int, length: int) -> list[Request]:
    return [
        replace(ask("w" * (1 + n % 5), seed=n, max_tokens=length), policy=policies[n % len(policies)])
        for n in range(count)
    ]


def drain(sampler: TransformersEngine, completions: dict[int, Any], tickets: range) -> None:
    for _ in range(1000):
        if completions.keys() >= set(tickets):
            return
        completions.update(sampler.step(0))
    raise AssertionError("requests were not answered")


def expect_same(one: list[Any], other: list[Any]) -> None:
    for first, second in zip(one, other, strict=True):
        assert isinstance(first, Completion)
        assert first.token_ids == second.token_ids
        assert first.versions == second.versions
        assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)


@pytest.mark.parametrize("kind", SETTINGS)
def test_an_adapter_comes_and_goes_and_others_in_flight_say_the_same(bytewise: PretrainedSource, kind: str) -> None:
    early, late = requests_of(("solver", "planner"), 12, 30), requests_of(("guest", "solver"), 8, 5)
    undisturbed = answers(serve_taught(team(bytewise), slots=40), early)
    sampler, guest = serve_taught(team(bytewise), slots=40), adapted(bytewise, "guest", **SETTINGS[kind])
    for ticket, request in enumerate(early):
        sampler.submit(ticket, request)
    completions = dict(sampler.step(0))
    sampler.add_policy("guest", guest)
    weights = random_adapter_weights(guest, 7)
    sampler.load_weights("guest", weights.items(), 3)
    for ticket, request in enumerate(late, start=100):
        sampler.submit(ticket, request)
    drain(sampler, completions, range(100, 108))
    assert not completions.keys() >= set(range(12)), "others are still in flight"
    sampler.remove_policy("guest")
    drain(sampler, completions, range(12))
    expect_same([completions[ticket] for ticket in range(12)], undisturbed)
    model = merged_model(guest, weights)
    for ticket in range(100, 108, 2):
        completion = completions[ticket]
        assert isinstance(completion, Completion)
        assert completion.versions == (3, 3)
        expected = plain_logprobs(model, completion, late[0].sampling)
        assert completion.logprobs == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match=r"'guest' has no adapter here.*solver, planner"):
        sampler.submit(200, late[0])


def test_the_first_policy_can_go_and_another_takes_its_place(bytewise: PretrainedSource) -> None:
    sampler, sources = serve_taught(team(bytewise)), team(bytewise)
    requests = requests_of(("planner",), 6, 8)
    before = answers(sampler, requests)
    sampler.remove_policy("solver")
    expect_same(answers(sampler, requests), before)
    guest = adapted(bytewise, "guest", rank=5)
    sampler.add_policy("guest", guest)
    expect_same(answers(sampler, requests), before)
    [completion] = answers(sampler, [replace(requests[0], policy="guest")])
    assert completion.versions == (0, 0)
    assert completion.logprobs == pytest.approx(
        plain_logprobs(guest.model(), completion, requests[0].sampling), abs=1e-5
    )
    sampler.remove_policy("planner")
    sampler.remove_policy("guest")
    assert not any("lora" in name for name, _ in sampler.network.model.named_parameters())
    sampler.add_policy("solver", sources["solver"])
    assert answers(sampler, [replace(request, policy="solver") for request in requests])


def test_an_adapter_that_does_not_fit_is_refused_and_changes_nothing(bytewise: PretrainedSource) -> None:
    sampler = serve_taught(team(bytewise))
    requests = requests_of(("solver", "planner"), 4, 6)
    before = answers(sampler, requests)
    with pytest.raises(ValueError, match="'solver' has an adapter here already"):
        sampler.add_policy("solver", adapted(bytewise, "solver"))
    with pytest.raises(ValueError, match=r"policy 'guest': this engine holds adapters on .* and no other weights"):
        sampler.add_policy("guest", bytewise)
    with pytest.raises(ValueError, match=r"this engine holds adapters on .* in float32, and no other weights"):
        sampler.add_policy("guest", adapted(replace(bytewise, dtype="bfloat16"), "guest"))
    with pytest.raises(ValueError, match="'guest' has no adapter here"):
        sampler.remove_policy("guest")
    expect_same(answers(sampler, requests), before)


def test_a_policy_with_requests_in_flight_stays_until_they_are_cancelled(bytewise: PretrainedSource) -> None:
    sampler = serve_taught(team(bytewise), slots=2)
    for ticket, request in enumerate(requests_of(("solver", "planner"), 6, 5)):
        sampler.submit(ticket, request)
    sampler.step(0)
    with pytest.raises(ValueError, match="'planner' has 3 requests in flight; cancel them"):
        sampler.remove_policy("planner")
    sampler.cancel([1, 3, 5])
    sampler.remove_policy("planner")
    completions: dict[int, Any] = {}
    for ticket in (0, 2, 4):
        drain(sampler, completions, range(ticket, ticket + 1))


def test_policies_with_the_same_weights_share_an_engine_that_holds_all_of_them(words: PretrainedSource) -> None:
    sampler = engine(words)
    sampler.add_policy("guest", replace(words, policy="guest"))
    first, second = answers(sampler, [ask("card K"), replace(ask("card K"), policy="guest")])
    assert first.token_ids == second.token_ids
    with pytest.raises(ValueError, match=r"policy 'actor' has weights of its own.*'guest'"):
        sampler.load_weights("actor", words.model().state_dict().items(), 1)
    with pytest.raises(ValueError, match=r"policy 'other': this engine holds the weights of .* alone"):
        sampler.add_policy("other", adapted(words, "other"))
    sampler.remove_policy("guest")
    sampler.load_weights("actor", words.model().state_dict().items(), 1)
    with pytest.raises(ValueError, match="policy 'guest': this engine holds weights that policy 'actor' has learnt"):
        sampler.add_policy("guest", words)


def test_weights_that_a_removed_policy_has_learnt_give_way_to_the_first_ones(words: PretrainedSource) -> None:
    sampler = engine(words)
    learnt = {name: tensor + 0.1 for name, tensor in words.model().state_dict().items()}
    sampler.load_weights("actor", learnt.items(), 4)
    sampler.remove_policy("actor")
    sampler.add_policy("guest", words)
    held = sampler.network.model.state_dict()
    assert all(torch.equal(held[name], tensor) for name, tensor in words.model().state_dict().items())
    assert sampler.policy_weights.versions == [0]


@pytest.mark.parametrize(
    "settings",
    [Random(), Human(), OpenAI(base_url="http://localhost:9/v1", model="m", key_env=None)],
    ids=lambda s: s.kind,
)
def test_engines_without_weights_answer_for_any_policy_and_load_none(settings: Any) -> None:
    plain = settings.build(None)
    plain.add_policy("guest", None)
    plain.remove_policy("guest")
    with pytest.raises(ValueError, match=r"policy 'guest' .*no weights to load"):
        plain.load_weights("guest", [], 1)
