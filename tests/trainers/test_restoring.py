"""States of learners that do not fit: nothing is broadcast, cast or made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.learning_samples import SamplePlan, TinySource, context, equal_weights, make_samples, weights

SETTINGS = {"lr": 1e-3, "magnet": KlAnchor(coefficient=0.5), "proximal": KlAnchor(coefficient=0.5, refresh=2)}
FIRST = "model.embed_tokens.weight"
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "a_row": lambda tensor: tensor[:1].clone(),
    "a_number": lambda tensor: tensor.sum(),
    "transposed": lambda tensor: tensor.T.contiguous(),
    "wider": lambda tensor: tensor[None].clone(),
    "double": lambda tensor: tensor.double(),
    "half": lambda tensor: tensor.half(),
    "integers": lambda tensor: tensor.long(),
    "packed": lambda tensor: tensor.to(torch.int8),
}
PLACES = {
    "weights": lambda state: (state["model"], FIRST),
    "moment": lambda state: (state["optimizer"][FIRST], "exp_avg"),
    "second_moment": lambda state: (state["optimizer"][FIRST], "exp_avg_sq"),
    "magnet": lambda state: (state["objective"]["anchors"]["initial"], FIRST),
    "proximal": lambda state: (state["objective"]["anchors"]["proximal"], FIRST),
}


class HalfSource(TinySource):
    """The model in half precision, of which the optimizer steps a copy."""

    def model(self) -> Any:
        return super().model().bfloat16()


@pytest.fixture(scope="module")
def stepped() -> Any:
    learner = Grpo(**SETTINGS).build(context())
    learner.update(make_samples(SamplePlan()))
    return learner


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("place", PLACES)
def test_a_tensor_of_another_shape_or_type_is_refused_by_name(place: str, other: str, stepped: Any) -> None:
    state = stepped.state_dict()
    holder, name = PLACES[place](state)
    holder[name] = OTHERS[other](holder[name])
    with pytest.raises(
        ValueError, match=r"do(es)? not fit.*was saved as \[.*\] of torch\.\w+, but is \[.*torch.float32"
    ):
        Grpo(**SETTINGS).build(context()).load_state_dict(state)


@pytest.mark.parametrize("value", [0.5, [1.0, 2.0], None, "x"])
def test_what_is_no_tensor_is_no_weight(value: Any, stepped: Any) -> None:
    state = stepped.state_dict()
    state["model"][FIRST] = value
    with pytest.raises(ValueError, match=f"{FIRST!r} was saved as {type(value).__name__}, but is"):
        Grpo(**SETTINGS).build(context()).load_state_dict(state)


def test_weights_that_do_not_fit_leave_the_model_as_it_is(stepped: Any) -> None:
    state = stepped.state_dict()
    last = list(state["model"])[-1]
    state["model"][last] = state["model"][last][:1].clone()
    learner = Grpo(**SETTINGS).build(context())
    before = weights(learner)
    with pytest.raises(ValueError, match=f"weights do not fit the model: {last!r}"):
        learner.load_state_dict(state)
    assert equal_weights(weights(learner), before)


@pytest.mark.parametrize(("change", "why"), [("exp_avg_sq", "exp_avg_sq"), ("step", "step")])
def test_an_optimizer_state_that_lacks_a_moment_is_refused(change: str, why: str, stepped: Any) -> None:
    state = stepped.state_dict()
    del state["optimizer"][FIRST][change]
    with pytest.raises(ValueError, match=f"optimizer state of '{FIRST}' does not fit: saved and present .*{why}"):
        Grpo(**SETTINGS).build(context()).load_state_dict(state)


@pytest.mark.parametrize("other", ["a_row", "double", "half"])
def test_a_master_weight_of_another_shape_or_type_is_refused(other: str) -> None:
    source = HalfSource()
    learner = Grpo(lr=1e-3).build(context(source=source))
    learner.update(make_samples(SamplePlan()))
    state = learner.state_dict()
    moments = state["optimizer"][FIRST]
    moments["master"] = OTHERS[other](moments["master"])
    with pytest.raises(ValueError, match="master weights do not fit the model: "):
        Grpo(lr=1e-3).build(context(source=source)).load_state_dict(state)


def test_a_state_that_fits_comes_back_to_the_last_bit(stepped: Any) -> None:
    learner = Grpo(**SETTINGS).build(context())
    learner.load_state_dict(stepped.state_dict())
    assert equal_weights(weights(learner), weights(stepped))
