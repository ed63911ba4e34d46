"""Learners of several processes against one that computes the joint batch: real processes, gloo on loopback."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import Tensor

from marl.core.errors import NonFiniteError
from marl.core.types import Metrics, Sample
from marl.models.adapter import Adapter
from marl.models.pretrained import Pretrained, PretrainedSource
from marl.models.sharding import full_tensor
from marl.protocols import DataParallel, DataParallelGroup, SingleProcessGroup
from marl.trainers.batching.rows import BatchRow, rows_of_data_parallel_rank
from marl.trainers.imitation.settings import Sft
from marl.trainers.optim.optimizer import named_trained_tensors
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.critic_settings import CriticConfig
from marl.trainers.policy_gradient.loss_settings import GspoLoss
from marl.trainers.policy_gradient.settings import Grpo, Ppo, Prime
from marl.trainers.preferences.settings import Dpo
from tests.support.data_parallel_processes import Float64AdapterSource, Float64Source, run_in_processes
from tests.support.learning_samples import SamplePlan, TinySource, context, first_step, make_sample, make_samples, turn
from tests.support.value_samples import with_value_targets

WAYS = ("ddp", "fsdp")
STEPS = 20
Arrays = dict[str, NDArray[Any]]


def mixed(seed: int) -> list[Sample]:
    """Return samples of uneven lengths, some of them merged, with signs of both kinds, and pairs among them."""
    samples = make_samples(SamplePlan(distinct=9, count=20, answer=(1, 9)), seed=seed)
    return [
        replace(s, id=(f"{n % 5}", n), group=f"g{n % 3}", prompt_ids=samples[n % 3].prompt_ids, paid=float(n % 4))
        for n, s in enumerate(samples)
    ]


def targeted(seed: int) -> list[Sample]:
    return with_value_targets(mixed(seed), seed=seed)


KL: dict[str, Any] = {"magnet": KlAnchor(coefficient=0.3, target=0.1), "proximal": KlAnchor(coefficient=0.5, refresh=2)}
BY_ROW: dict[str, Any] = {"aggregation": "seq_mean_token_mean"}
CASES: dict[str, tuple[Any, Callable[[int], list[Sample]]]] = {
    "grpo": (Grpo(lr=1e-3, entropy=0.01, minibatches=2, micro_tokens=32, **BY_ROW, **KL), mixed),
    "whole episodes": (Grpo(lr=1e-3, unit="episode", loss=GspoLoss(), **BY_ROW), mixed),
    "critic on the trunk": (Ppo(lr=1e-3, critic=CriticConfig(where="trunk", clip=0.2)), targeted),
    "critic apart": (Ppo(lr=1e-3, critic=CriticConfig(warm_up=2)), targeted),
    "implicit rewards": (Prime(lr=1e-3), mixed),
    "pairs": (Dpo(lr=1e-3, refresh=3), mixed),
    "adapter": (Grpo(lr=1e-2, magnet=KlAnchor(coefficient=0.3)), mixed),
    "imitation": (Sft(lr=1e-3), mixed),
}

ROUNDED = ("whole episodes",)
"""Cases that take means of advantages, which are float32 whatever the weights are, over texts of any width."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> PretrainedSource:
    folder = tmp_path_factory.mktemp("base") / "model"
    TinySource().model().save_pretrained(folder)
    return PretrainedSource("actor", str(folder))


def built(case: str, base: PretrainedSource, collective: DataParallelGroup) -> Any:
    adapter = Float64AdapterSource("actor", Adapter(base=Pretrained(path=base.path)), base)
    place = replace(context(source=Float64Source()), data_parallel=collective)
    return CASES[case][0].build(replace(place, source=adapter) if case == "adapter" else place)


def arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: full_tensor(tensor).detach().numpy().copy() for name, tensor in tensors.items()}


def learn(
    case: str, base: PretrainedSource, collective: DataParallelGroup, steps: int
) -> tuple[Arrays, Arrays, list[Metrics]]:
    """Return the first step's gradients, the weights after all steps, critics' included, and each step's metrics."""
    learner, samples = built(case, base, collective), CASES[case][1]
    first, gradients = first_step(learner, samples(0))
    metrics = [first, *(learner.update(samples(step)) for step in range(1, steps))]
    return arrays(gradients), learnt_weights(learner), metrics


def learnt_weights(learner: Any) -> Arrays:
    """Return the learner's weights, critics' included, gathered from all processes."""
    learnt = dict(named_trained_tensors(learner.model, include_frozen=not learner._is_adapter))
    for name, module in learner.objective.modules.items():
        learnt |= {f"{name}/{inner}": tensor for inner, tensor in named_trained_tensors(module)}
    return arrays(learnt)


def gap(ours: Arrays, theirs: Arrays) -> float:
    """Return the distance of all numbers together, relative to the length of `theirs`."""
    assert ours.keys() == theirs.keys()
    difference = sum(float(((ours[name] - theirs[name]) ** 2).sum()) for name in theirs)
    return (difference / sum(float((each**2).sum()) for each in theirs.values())) ** 0.5


def expect_equal(case: str, results: list[Any], alone: Any) -> None:
    gradients, weights, metrics = alone
    for ours in results:
        assert gap(ours[0], gradients) < (1e-6 if case in ROUNDED else 1e-12), case
        assert gap(ours[1], weights) < (1e-6 if case in ROUNDED else 1e-9), case
        for mine, theirs in zip(ours[2], metrics, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-6, abs=1e-9), case


@pytest.mark.parametrize("way", WAYS)
def test_two_processes_take_the_steps_of_one(base: PretrainedSource, way: DataParallel) -> None:
    def work(collective: DataParallelGroup) -> dict[str, Any]:
        return {case: learn(case, base, collective, 2) for case in ("grpo", "critic apart")}

    together_, alone = run_in_processes(work, way=way), work(SingleProcessGroup())
    for case in alone:
        expect_equal(case, [each[case] for each in together_], alone[case])


SOME = ("grpo", "critic apart", "pairs", "adapter")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "size", "cases"), [("ddp", 2, tuple(CASES)), ("fsdp", 2, tuple(CASES)), ("ddp", 3, SOME)]
)
def test_twenty_steps_of_every_objective_end_at_the_weights_of_one_process(
    base: PretrainedSource, way: DataParallel, size: int, cases: Sequence[str]
) -> None:
    def work(collective: DataParallelGroup) -> dict[str, Any]:
        return {case: learn(case, base, collective, STEPS) for case in cases}

    alone = work(SingleProcessGroup())
    results = run_in_processes(work, size, way)
    for case in cases:
        expect_equal(case, [each[case] for each in results], alone[case])


def test_in_float32_gradients_are_equal_up_to_rounding() -> None:
    def work(collective: DataParallelGroup) -> Arrays:
        return arrays(
            first_step(Grpo(lr=1e-3, **BY_ROW).build(replace(context(), data_parallel=collective)), mixed(0))[1]
        )

    alone = work(SingleProcessGroup())
    assert [gap(ours, alone) < 1e-6 for ours in run_in_processes(work)] == [True, True]


@pytest.mark.parametrize("way", WAYS)
def test_readings_are_those_of_one_process(way: DataParallel) -> None:
    turns = [turn((1, 2, n), tuple(range(3, 4 + n % 5))) for n in range(9)] + [turn((1, 2), ())]

    def work(collective: DataParallelGroup) -> list[Any]:
        learner = Ppo(lr=1e-2).build(replace(context(source=Float64Source()), data_parallel=collective))
        learner.update(targeted(0))
        read = learner.read(turns, frozenset({"logprobs", "values"}))
        return [(each.logprobs, each.values, each.next_value) for each in read]

    first, second = run_in_processes(work, way=way)
    assert second == []
    for ours, theirs in zip(first, work(SingleProcessGroup()), strict=True):
        for mine, expected in zip(ours, theirs, strict=True):
            assert mine == pytest.approx(expected, rel=1e-9) if expected is not None else mine is None


@pytest.mark.parametrize("way", WAYS)
def test_every_process_names_the_turn_that_is_not_finite(way: DataParallel) -> None:
    bad = {
        "loss": make_sample((1,), (2,), (-200.0,), advantage=-1.0, turn=99),
        "gradient": make_sample((1,), (2,), (-88.0,), advantage=-1.0, turn=99),
    }

    def work(collective: DataParallelGroup) -> dict[str, Any]:
        blamed = {}
        for what, one in bad.items():
            learner: Any = Grpo(max_norm=1e30).build(replace(context(), data_parallel=collective))
            before = arrays(dict(learner.publish()))
            with pytest.raises(NonFiniteError, match="policy 'actor'") as error:
                learner.update([*make_samples(SamplePlan()), one])
            blamed[what] = error.value.quantity, error.value.samples, gap(arrays(dict(learner.publish())), before)
        return blamed

    expected = {what: (what, (("episode", 99),), 0.0) for what in bad}
    assert run_in_processes(work, way=way) == [expected, expected]


@pytest.mark.parametrize("way", WAYS)
def test_a_process_without_rows_takes_part(way: DataParallel) -> None:
    def work(collective: DataParallelGroup) -> Arrays:
        learner: Any = Grpo(lr=1e-3).build(replace(context(source=Float64Source()), data_parallel=collective))
        learner.update(make_samples(SamplePlan(distinct=1, count=1)))
        learner.update([])
        return arrays(dict(learner.publish()))

    alone = work(SingleProcessGroup())
    assert all(gap(ours, alone) < 1e-12 for ours in run_in_processes(work, way=way))


@pytest.mark.parametrize("case", ["adapter", "imitation"])
def test_shards_are_saved_as_one_folder(base: PretrainedSource, case: str, tmp_path: Path) -> None:
    def work(collective: DataParallelGroup) -> Arrays:
        learner = built(case, base, collective)
        learner.update(mixed(0))
        learner.save(tmp_path)
        return arrays(dict(learner.publish()))

    published, _ = run_in_processes(work, way="fsdp")
    (file,) = tmp_path.glob("*.safetensors")
    stored = {name.removeprefix("base_model.model."): array for name, array in load_file(file).items()}
    assert {name.replace(".default", ""): array.tobytes() for name, array in published.items()} == {
        name: array.tobytes() for name, array in stored.items()
    }


def test_shares_are_whole_units_of_even_length_and_all_rows_are_in_one() -> None:
    rows = [BatchRow((1, 2, n % 7), (3,) * (1 + n % 11), unit=("u", n // 3) if n < 9 else None) for n in range(60)]
    for size in (1, 2, 3, 8):
        shares = [rows_of_data_parallel_rank(rows, rank, size) for rank in range(size)]
        assert sorted(id(row) for share in shares for row in share) == sorted(map(id, rows))
        lengths = [sum(row.length for row in share) for share in shares]
        longest = 3 * max(row.length for row in rows)  # of a unit: a share ends with one
        assert max(lengths) - min(lengths) <= 2 * longest
        assert all(
            len({n for n, share in enumerate(shares) for row in share if row.unit == ("u", u)}) == 1 for u in range(3)
        )
    assert rows_of_data_parallel_rank(rows, 0, 1) == rows
