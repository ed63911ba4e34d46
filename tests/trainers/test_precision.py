"""Half precision learns through float32 masters; optimizers of bitsandbytes; recomputed and compiled layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import marl
from marl.trainers.forward.model_inputs import enable_checkpointing_and_compile
from marl.trainers.imitation.settings import Sft
from marl.trainers.optim import settings as optim_settings
from marl.trainers.optim.optimizer import MasterWeights
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.learning_samples import (
    SamplePlan,
    TinySource,
    context,
    distance,
    equal_weights,
    gradient,
    make_sample,
    make_samples,
    read_logprobs,
    turn,
    weights,
)
from tests.support.paths import KUHN

FULL = {
    "magnet": KlAnchor(coefficient=0.5, final=0.1),
    "proximal": KlAnchor(coefficient=0.5, refresh=2),
    "entropy": 0.01,
}
KINDS = ["adamw_8bit", "paged_adamw", "paged_adamw_8bit"]


@dataclass
class Halved(TinySource):
    """The same model, each number in half as many bits."""

    dtype: torch.dtype = torch.bfloat16

    def model(self) -> Any:
        return super().model().to(self.dtype)


def halved(dtype: torch.dtype = torch.bfloat16, **options: Any) -> Any:
    return replace(context(), source=Halved(options, dtype))


def master_weights(learner: Any) -> dict[str, Tensor]:
    return {name: state["master"] for name, state in learner.state_dict()["optimizer"].items()}


def test_tiny_steps_move_the_masters_while_the_weights_wait() -> None:
    learner = Sft(lr=1e-6, schedule="constant", max_norm=1e9).build(halved())
    before, samples = weights(learner), make_samples(SamplePlan(distinct=2, count=2))
    for step in range(1, 4):
        learner.update(samples)
        now = master_weights(learner)
        moved = [float((now[name] - tensor.float()).abs().max()) for name, tensor in before.items()]
        assert all(0.9e-6 * step < by < 1.1e-6 * step for by in moved)
        assert all(torch.equal(tensor, now[name].bfloat16()) for name, tensor in weights(learner).items())
    assert torch.equal(weights(learner)["model.norm.weight"], before["model.norm.weight"])


def test_many_tiny_steps_move_at_last_the_weights_which_without_masters_stand_still() -> None:
    one, plain = (nn.Parameter(torch.full((3,), 2**-5, dtype=torch.bfloat16)) for _ in range(2))
    twin = MasterWeights([one])
    adams = [torch.optim.AdamW([p], lr=1e-6, weight_decay=0.0) for p in (twin.master_or_parameter(one), plain)]
    for _ in range(100):  # the next smaller bfloat16 number is 1.2e-4 away
        for parameter, adam in zip((one, plain), adams, strict=True):
            parameter.sum().backward()
            adam.step()
            adam.zero_grad()
        twin.write_masters_to_model()
    assert plain.tolist() == [2**-5] * 3
    assert one.tolist() == [2**-5 - 2**-13] * 3
    assert twin.master_or_parameter(one).tolist() == pytest.approx([2**-5 - 1e-4] * 3, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_steps_are_those_of_adam_in_float32_on_the_same_gradients(dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.linspace(-2, 2, 9).to(dtype))
    twin = MasterWeights([parameter])
    master, alone = twin.master_or_parameter(parameter), nn.Parameter(parameter.detach().float())
    assert master.dtype == torch.float32
    adams = [torch.optim.AdamW([p], lr=1e-4) for p in (master, alone)]
    for _ in range(5):
        alone.grad = torch.zeros(9)
        for scale in (1.0, 3e-3, 2e-3, 1e-3):  # the later ones would vanish in a sum of bfloat16
            (parameter * scale).sum().backward()
            assert parameter.grad is None
            alone.grad += torch.tensor(scale, dtype=dtype).float()
        assert torch.equal(master.grad, alone.grad)  # type: ignore[arg-type]
        for adam in adams:
            adam.step()
            adam.zero_grad()
        twin.write_masters_to_model()
        assert torch.equal(master, alone)
        assert torch.equal(parameter, master.to(dtype))


def test_half_precision_resumes_bit_for_bit_and_publishes_its_own_type() -> None:
    settings = Grpo(lr=1e-4, minibatches=2, **FULL)
    learner, other = settings.build(halved()), settings.build(halved())
    learner.update(make_samples(SamplePlan()))
    state = learner.state_dict()
    assert {tensor.dtype for tensor in master_weights(learner).values()} == {torch.float32}
    learned = [learner.update(make_samples(SamplePlan(), seed=i)) for i in (3, 4)]
    other.load_state_dict(state)
    assert [other.update(make_samples(SamplePlan(), seed=i)) for i in (3, 4)] == learned
    assert equal_weights(master_weights(other), master_weights(learner))
    assert equal_weights(weights(other), weights(learner))
    assert {tensor.dtype for tensor in weights(learner).values()} == {torch.bfloat16}


def test_masters_are_there_before_the_first_step() -> None:
    learner, other = Sft().build(halved()), Sft().build(halved())
    other.load_state_dict(learner.state_dict())
    assert equal_weights(master_weights(other), {n: t.float() for n, t in weights(learner).items()})
    assert not Sft().build(context()).state_dict()["optimizer"]


def test_micro_batches_in_half_precision_add_up_in_float32() -> None:
    samples = [make_sample((1, 2, n), (n % 7, 5, n), (-3.5,) * 3, advantage=n - 7.5, turn=n) for n in range(16)]
    moments = []
    for micro_tokens in (1 << 15, 6):
        learner = Grpo(lr=1e-4, micro_tokens=micro_tokens).build(halved())
        learner.update(samples)
        moments.append(torch.cat([s["exp_avg"].flatten() for s in learner.state_dict()["optimizer"].values()]))
    assert distance(moments[1], moments[0]) < 2e-2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", [context(hidden_size=64), halved(hidden_size=64)], ids=["float32", "bfloat16"])
def test_optimizers_of_bitsandbytes_learn_and_resume_bit_for_bit(kind: Any, source: Any) -> None:
    pytest.importorskip("bitsandbytes")
    settings = Sft(lr=1e-2, optimizer=kind)
    learner, other = settings.build(source), settings.build(source)
    losses = [learner.update(make_samples(SamplePlan()))["loss"] for _ in range(4)]
    assert losses[-1] < losses[0] - 0.2
    state = learner.state_dict()
    if kind.endswith("8bit"):
        inner = [each["__bnb_optimizer_quant_state__"] for each in state["optimizer"].values()]
        assert any(each["state1"].dtype == torch.uint8 for each in inner)
    learned = [learner.update(make_samples(SamplePlan(), seed=i)) for i in (1, 2)]
    other.load_state_dict(state)
    assert [other.update(make_samples(SamplePlan(), seed=i)) for i in (1, 2)] == learned
    assert equal_weights(weights(other), weights(learner))


def test_a_missing_package_is_named_before_a_weight_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim_settings, "find_spec", lambda name: None if name == "bitsandbytes" else find_spec(name))
    kuhn = KUHN
    expected = (
        r"policies\.actor\.learner\.optimizer: 'adamw_8bit' is one of the package bitsandbytes.* "
        r"'marl-llm\[bitsandbytes\]'"
    )
    with pytest.raises(ValueError, match=expected):
        marl.load(kuhn, ["policies.actor.learner.optimizer=adamw_8bit"])
    marl.load(kuhn, ["policies.actor.learner.optimizer=adamw"])


def test_recomputed_layers_give_the_same_gradient() -> None:
    samples = make_samples(SamplePlan())
    options: dict[str, Any] = {"num_hidden_layers": 3}
    plain = gradient(Grpo(**FULL), samples, **options)
    learner: Any = Grpo(**FULL, gradient_checkpointing=True).build(context(**options))
    calls: list[int] = []
    learner.model.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    learner.update(samples)
    assert len(calls) == 2
    read_logprobs(learner, turn((1, 2), (3, 4)))
    assert len(calls) == 3
    assert distance(gradient(Grpo(**FULL, gradient_checkpointing=True), samples, **options), plain) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_compiled_layers_give_the_same_gradient_and_keep_their_names(recompute: bool) -> None:
    samples = make_samples(SamplePlan(distinct=4, count=4))
    settings = Sft(compile=True, gradient_checkpointing=recompute)
    assert distance(gradient(settings, samples), gradient(Sft(), samples)) < 1e-5
    assert weights(settings.build(context())).keys() == weights(Sft().build(context())).keys()


def test_a_model_without_layers_of_that_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="gradient_checkpointing, compile: Linear has no layers"):
        enable_checkpointing_and_compile(nn.Linear(2, 2), Grpo(gradient_checkpointing=True, compile=True))
