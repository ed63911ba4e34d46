"""Weights of a critic: an adapter of its own on the policy's base, or another model's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from marl.models.adapter import Adapter, AdapterSource
from marl.models.pretrained import Pretrained, PretrainedSource
from marl.protocols import LearnerBuildArguments
from marl.trainers.policy_gradient.critic_settings import CriticConfig
from marl.trainers.policy_gradient.settings import Ppo
from tests.support.learning_samples import TinySource, context, distance, equal_weights, turn, weights
from tests.support.value_samples import gradients, valued_samples, with_random_critic

VALUES = frozenset({"values"})


def saved(folder: Path, words: int = 40, **options: Any) -> PretrainedSource:
    """A model and a tokenizer of that many words in a folder."""
    TinySource(options).model().save_pretrained(folder)
    vocabulary = {f"w{number}": number for number in range(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return PretrainedSource("actor", str(folder))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> PretrainedSource:
    return saved(tmp_path_factory.mktemp("base") / "model")


def adapted(base: PretrainedSource, **settings: Any) -> LearnerBuildArguments:
    source = AdapterSource("actor", Adapter(base=Pretrained(path=base.path), **settings), base)
    return replace(context(), source=source)


def frozen(module: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters() if not p.requires_grad}


@pytest.mark.parametrize("where", ["trunk", "separate"])
def test_with_an_adapter_a_critic_is_a_head_or_an_adapter_of_its_own(base: PretrainedSource, where: Any) -> None:
    learner = with_random_critic(Ppo(lr=1e-2, critic=CriticConfig(where=where)).build(adapted(base)))
    critic = learner.objective.modules["critic"]
    before, still = frozen(learner.model), frozen(critic)
    first = {name: p.detach().clone() for name, p in critic.named_parameters() if p.requires_grad}
    for seed in range(3):
        learner.update(valued_samples(seed=seed))
    assert equal_weights(frozen(learner.model), before)
    assert equal_weights(frozen(critic), still)
    critic_state = learner.state_dict()["modules"]["critic"]
    assert critic_state.keys() == first.keys()
    assert all(name.startswith("head.") or "lora_" in name for name in critic_state)
    assert ({name for name in critic_state if "lora_" in name} != set()) == (where == "separate")
    assert all(not torch.equal(critic_state[name], first[name]) for name in critic_state)


def test_the_base_is_held_once_for_policy_and_critic(base: PretrainedSource) -> None:
    learner: Any = Ppo().build(adapted(base))
    places = {p.data_ptr() for p in learner.model.parameters() if not p.requires_grad}
    body = [p for p in learner.objective.modules["critic"].body.parameters() if not p.requires_grad]
    assert body
    assert {p.data_ptr() for p in body} <= places


def test_in_the_warm_up_the_policys_adapter_stays(base: PretrainedSource) -> None:
    learner = Ppo(lr=1e-2, critic=CriticConfig(where="trunk", warm_up=1)).build(adapted(base))
    before = weights(learner)
    learner.update(valued_samples())
    assert equal_weights(weights(learner), before)
    learner.update(valued_samples())
    assert not equal_weights(weights(learner), before)


@pytest.mark.parametrize("where", ["trunk", "separate"])
def test_with_an_adapter_the_gradient_does_not_depend_on_micro_batches(base: PretrainedSource, where: Any) -> None:
    samples = valued_samples(distinct=16, count=30)

    def flat(**options: Any) -> Tensor:
        named = gradients(
            with_random_critic(Ppo(critic=CriticConfig(where=where), **options).build(adapted(base))), samples
        )
        return torch.cat([named[name].flatten() for name in sorted(named)])

    whole = flat()
    for micro_tokens in (1, 60):
        assert distance(flat(micro_tokens=micro_tokens), whole) < 1e-6


def test_a_restored_adapter_and_critic_continue_bit_for_bit(base: PretrainedSource) -> None:
    settings = Ppo(lr=1e-2, minibatches=2, critic=CriticConfig(lr=3e-2))
    learner, other = (settings.build(adapted(base, dropout=0.2)) for _ in range(2))
    learner.update(valued_samples(seed=0))
    state = learner.state_dict()
    learned = learner.update(valued_samples(seed=1))
    other.load_state_dict(state)
    assert other.update(valued_samples(seed=1)) == learned
    assert equal_weights(weights(other), weights(learner))
    assert equal_weights(*(each.state_dict()["modules"]["critic"] for each in (other, learner)))


def test_a_critic_can_start_from_other_weights_of_any_size(base: PretrainedSource, tmp_path: Path) -> None:
    other = saved(tmp_path / "other", hidden_size=16, num_hidden_layers=2)
    settings = Ppo(lr=1e-2, critic=CriticConfig(model=Pretrained(path=other.path)))
    learner: Any = with_random_critic(settings.build(replace(context(), source=base)))
    head = learner.objective.modules["critic"].head
    assert head.in_features == 16
    one = turn((1, 2, 3), (4, 5))
    with torch.no_grad():
        states = TinySource({"hidden_size": 16, "num_hidden_layers": 2}).model().model(torch.tensor([[1, 2, 3, 4, 5]]))
        expected = (states.last_hidden_state[0] @ head.weight[0] + head.bias)[2:].tolist()
    (reading,) = learner.read([one], VALUES)
    assert [*(reading.values or ()), reading.next_value] == pytest.approx(expected, abs=1e-5)
    learner.update(valued_samples())


def test_a_critic_with_another_tokenizer_is_refused(base: PretrainedSource, tmp_path: Path) -> None:
    settings = Ppo(critic=CriticConfig(model=Pretrained(path=saved(tmp_path / "other", words=39).path)))
    with pytest.raises(ValueError, match=r"policy 'actor': critic\.model: .* has another tokenizer than the policy"):
        settings.build(replace(context(), source=base))


def test_a_folder_that_is_not_there_is_told_before_anything_starts() -> None:
    missing = list(Ppo(critic=CriticConfig(model=Pretrained(path="/no/such/model"))).unmet_requirements())
    assert len(missing) == 1
    assert missing[0].startswith("critic.model.path: '/no/such/model'")


def test_a_body_that_cannot_read_lines_is_given_padded_texts(base: PretrainedSource, tmp_path: Path) -> None:
    other = saved(tmp_path / "other", attention_dropout=0.1)
    for path, packing in ((base.path, "auto"), (other.path, "padded")):
        learner: Any = Ppo(critic=CriticConfig(model=Pretrained(path=path))).build(replace(context(), source=base))
        assert learner.settings.packing == packing
