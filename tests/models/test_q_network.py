"""Q-networks: what they read stands in the prompt, and their layers compute what papers say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from marl.models.decision_prompts import QNetworkInput, split_observation_and_heard_texts
from marl.models.mixers import QmixMixer
from marl.models.q_network import QNetworkModel, save_q_network
from marl.models.q_network_modules import GraphSageLayer
from marl.models.text_encoders import FrozenHiddenStates
from marl.models.tiny import Tiny
from marl.protocols import ModelPreparation
from tests.support.q_samples import ACTIONS, heard, network, request


def test_words_that_an_agent_hears_stand_apart_from_what_it_observes() -> None:
    text = "ann says: go left now, bob says: stay put. choose"
    marks = (heard(3, 10, 17), heard(3, 18, 21), heard(4, 33, 41), heard(5, 0, 3, "told"))
    observation, words = split_observation_and_heard_texts(request(text, marks=marks))
    assert observation == "ann says:  , bob says: . choose"
    assert words == ["go left now", "stay put"]


def test_marks_within_marks_are_cut_out_once() -> None:
    observation, words = split_observation_and_heard_texts(
        request("abcdefgh", marks=(heard(1, 1, 6), heard(2, 2, 4), heard(2, 5, 7)))
    )
    assert observation == "ah"
    assert words == ["bcdef", "cd fg"]


def test_all_that_the_network_sees_can_be_made_again_from_the_prompt() -> None:
    tokenizer = network().tokenizer()
    first = tokenizer.prompt(request("hear abc", ["stay", "left"], marks=(heard(0, 5, 8),)))
    second = tokenizer.prompt(request("", ["right"], continues=(*first, tokenizer.token_id_of_action("left"))))
    ids = tokenizer._encoder.encode
    expected = (
        QNetworkInput(tuple(ids("hear ")), (tuple(ids("abc")),), (2, 0), -1),
        QNetworkInput((), (), (1,), 0),
    )
    assert tokenizer.decisions(second) == expected
    assert tokenizer.decisions(first) == expected[:1]


def test_a_round_of_message_passing_is_that_of_graphsage() -> None:
    torch.manual_seed(0)
    layer, nodes = GraphSageLayer(3), torch.randn(4, 3)
    edges = torch.tensor([[1, 2, 0, 3], [0, 0, 1, 1]])
    here, bias, there = (t.detach().numpy() for t in (layer.here.weight, layer.here.bias, layer.there.weight))
    x = nodes.numpy()
    means = np.array([(x[1] + x[2]) / 2, (x[0] + x[3]) / 2, np.zeros(3), np.zeros(3)])
    expected = np.maximum(x @ here.T + bias + means @ there.T, 0)
    assert layer(nodes, edges).detach().numpy() == pytest.approx(expected, abs=1e-6)


def test_a_memory_reads_earlier_decisions_and_what_is_heard_changes_values() -> None:
    source = network(rounds=2)
    net, tokenizer = source.model(), source.tokenizer()
    left, right = (tokenizer.prompt(request(f"the treasure is {side}")) for side in ("left", "right"))
    later = [
        tokenizer.prompt(request("choose", continues=(*first, tokenizer.token_id_of_action("stay"))))
        for first in (left, right)
    ]
    prompts = [tokenizer.prompt(request(text, marks=marks)) for text, marks in (("ab", ()), ("ab", (heard(0, 1, 2),)))]
    with torch.no_grad():
        after_left, after_right = net([tokenizer.decisions(prompt) for prompt in later])[:, 1]
        alone = net([tokenizer.decisions(later[0])])[0, 1]
        silent, informed = (net([tokenizer.decisions(prompt)])[0, 0] for prompt in prompts)
    assert not torch.allclose(after_left, after_right)
    assert not torch.allclose(silent, informed)
    assert torch.allclose(after_left, alone, atol=1e-6)


def test_a_network_is_equal_wherever_it_is_made_and_saved_weights_play_greedily(tmp_path: Path) -> None:
    source = network(seed=3)
    before = torch.get_rng_state()
    one, two = source.model(), source.model()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert float(one.epsilon) == 1
    save_q_network(one, source.settings, tmp_path / "net")
    saved = network(seed=4, path=str(tmp_path / "net")).model()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), saved.parameters(), strict=True))
    assert float(saved.epsilon) == 0
    with pytest.raises(ValueError, match=r"policy 'actor': model\.path: .*heads\.2"):
        network(actions=("left",), path=str(tmp_path / "net")).model()


def test_a_folder_without_weights_is_named_before_anything_is_loaded(tmp_path: Path) -> None:
    settings = QNetworkModel(actions=ACTIONS, path=str(tmp_path))
    assert list(settings.unmet_requirements()) == [
        f"path: {str(tmp_path)!r}: is no folder of a Q-network: it has no config.json, model.safetensors"
    ]


def test_hidden_states_of_a_language_model_read_texts_and_are_no_part_of_what_is_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path))
    corpus = {"the sum of 3 and 4 is 7", "choose"}
    encoder = FrozenHiddenStates(model=Tiny(hidden=16))
    prepared = QNetworkModel(actions=ACTIONS, encoder=encoder, width=8).prepare(
        ModelPreparation("actor", lambda seed: corpus, lambda base, settings: base)
    )
    net = prepared.model()
    tokenizer = net.tokenizer
    prompts = [tokenizer.prompt(request(text)) for text in ("the sum of 3 and 4", "the sum of 4 and 3", "")]
    with torch.no_grad():
        values = net([tokenizer.decisions(prompt) for prompt in prompts])[:, 0]
        again = net([tokenizer.decisions(prompts[1])])[0, 0]
    assert not torch.allclose(values[0], values[1], atol=1e-5)
    assert torch.allclose(values[1], again, atol=1e-6)
    assert {name for name, _ in net.named_parameters() if name.startswith("encoder")} == {
        "encoder.layer.weight",
        "encoder.layer.bias",
    }


def test_qmix_is_the_formula_of_its_paper() -> None:
    torch.manual_seed(1)
    mixer, q, state = QmixMixer(3, 5, 4, 7), torch.randn(6, 3), torch.randn(6, 5)
    weights = {name: tensor.detach().numpy().astype(np.float64) for name, tensor in mixer.named_parameters()}

    def hyper(name: str, s: np.ndarray) -> np.ndarray:
        hidden = np.maximum(weights[f"{name}.0.weight"] @ s + weights[f"{name}.0.bias"], 0)
        return weights[f"{name}.2.weight"] @ hidden + weights[f"{name}.2.bias"]

    for row in range(6):
        s, utilities = state[row].numpy().astype(np.float64), q[row].numpy().astype(np.float64)
        first = np.abs(hyper("w1", s)).reshape(3, 4)
        inner = utilities @ first + weights["b1.weight"] @ s + weights["b1.bias"]
        outer = np.where(inner > 0, inner, np.exp(np.minimum(inner, 0)) - 1)
        expected = outer @ np.abs(hyper("w2", s)) + hyper("bias", s)[0]
        assert float(mixer(q, state)[row].detach()) == pytest.approx(expected, abs=1e-5)
