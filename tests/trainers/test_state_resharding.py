"""States of data-parallel learners: what each process stores, and learning on with another number of processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from marl.core.state import load_state, save_state
from marl.core.state_shares import ShardedTensor, StateShares, make_state_share, read_shares, write_shares
from marl.protocols import DataParallel, DataParallelGroup, SingleProcessGroup
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.critic_settings import CriticConfig
from marl.trainers.policy_gradient.settings import Ppo
from tests.support.data_parallel_processes import Float64Source, run_in_processes
from tests.support.learning_samples import SamplePlan, TinySource, context, make_samples
from tests.support.value_samples import with_value_targets

SETTINGS = Ppo(lr=1e-3, critic=CriticConfig(), proximal=KlAnchor(coefficient=0.1, refresh=2))
Layout = tuple[int, DataParallel]
"""Number of processes, and their strategy of data parallelism."""


class BFloat16Source(TinySource):
    """A model in bfloat16, whose optimizer steps float32 masters of the weights."""

    def model(self) -> Any:
        return super().model().bfloat16()


def learner_of(collective: DataParallelGroup, source: TinySource) -> Any:
    return SETTINGS.build(replace(context(source=source), data_parallel=collective))


def learn(learner: Any, first: int, last: int) -> None:
    for step in range(first, last):
        learner.update(with_value_targets(make_samples(SamplePlan(count=20), seed=step), seed=step))


def saved(learner: Any, collective: Any, folder: Path) -> None:
    """Write this process's share of the state, as the process of a run does."""
    share = make_state_share(learner.state_dict(), collective.rank, collective.world_size)
    write_shares(folder / f"{collective.rank}", "learner", StateShares([lambda: share]))


def joined(folder: Path, size: int) -> StateShares:
    """Return the state of which each process of a group has written its share."""
    (folder / "all").mkdir()
    for rank in range(size):
        (folder / f"{rank}" / "00000.safetensors").rename(folder / "all" / f"{rank:05d}.safetensors")
    return read_shares(folder / "all")[1]


def flat(state: Any, name: str = "") -> dict[str, Any]:
    """Return the state's numbers by their paths, as full tensors."""
    if isinstance(state, Mapping):
        return {key: number for child in state for key, number in flat(state[child], f"{name}/{child}").items()}
    return {name: state.full() if isinstance(state, ShardedTensor) else state}


def differences(one: Any, other: Any) -> list[str]:
    """Return the paths at which two states differ in any bit."""
    ours, theirs = flat(one), flat(other)
    assert ours.keys() == theirs.keys()
    return [name for name in ours if not _is_equal(ours[name], theirs[name])]


def _is_equal(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor):
        return one == other
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


def run(layout: Layout, folder: Path, work: Callable[[Any], Any]) -> StateShares:
    """Let a learner of `layout` work; return the state that its processes have written then."""
    folder.mkdir()
    size, way = layout

    def in_process(collective: Any) -> None:
        saved(work(collective), collective, folder)

    if size == 1:
        in_process(SingleProcessGroup())
    else:
        run_in_processes(in_process, size, way)
    return joined(folder, size)


def resumed(layout: Layout, folder: Path, state: StateShares, source: TinySource, steps: tuple[int, int]) -> Any:
    """Return the state after further updates, by a group that has restored `state`."""

    def work(collective: Any) -> Any:
        learner = learner_of(collective, source)
        learner.load_state_dict(state)
        learn(learner, *steps)
        return learner

    return run(layout, folder, work)


def started(layout: Layout, folder: Path, source: TinySource, steps: int) -> StateShares:
    def work(collective: Any) -> Any:
        learner = learner_of(collective, source)
        learn(learner, 0, steps)
        return learner

    return run(layout, folder, work)


@pytest.mark.parametrize(
    "other", [(1, "ddp"), *(pytest.param(layout, marks=pytest.mark.slow) for layout in ((3, "fsdp"), (2, "ddp")))]
)
def test_a_state_is_restored_bit_for_bit_by_any_number_of_processes(other: Layout, tmp_path: Path) -> None:
    source = BFloat16Source()
    state = started((2, "fsdp"), tmp_path / "two", source, 2)
    save_state(tmp_path / "checkpoint", {"learner": state})
    stored = load_state(tmp_path / "checkpoint")["learner"]
    elsewhere = resumed(other, tmp_path / "other", stored, source, (0, 0))
    assert differences(elsewhere, state) == []
    back = resumed((2, "fsdp"), tmp_path / "back", elsewhere, source, (0, 0))
    assert differences(back, state) == []


@pytest.mark.slow
def test_two_processes_resume_with_the_bits_of_an_uninterrupted_run(tmp_path: Path) -> None:
    source = BFloat16Source()
    whole = started((2, "fsdp"), tmp_path / "whole", source, 4)
    half = started((2, "fsdp"), tmp_path / "half", source, 2)
    assert differences(resumed((2, "fsdp"), tmp_path / "rest", half, source, (2, 4)), whole) == []


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [((2, "fsdp"), (1, "ddp")), ((1, "ddp"), (2, "fsdp"))])
def test_a_run_learns_on_with_another_number_of_processes(first: Layout, then: Layout, tmp_path: Path) -> None:
    source = Float64Source()
    whole = started((1, "ddp"), tmp_path / "whole", source, 4)
    rest = resumed(then, tmp_path / "rest", started(first, tmp_path / "half", source, 2), source, (2, 4))
    numbers, expected = flat(rest), flat(whole)
    assert numbers.keys() == expected.keys()
    for name, tensor in expected.items():
        if isinstance(tensor, Tensor):
            # Advantages are float32; the order of sums differs between numbers of processes.
            assert (numbers[name] - tensor).abs().max() <= 1e-6 * max(float(tensor.abs().max()), 1e-3), name


@pytest.mark.parametrize("way", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_each_process_stores_its_share_alone_and_no_number_is_stored_twice(way: DataParallel, tmp_path: Path) -> None:
    sharded = started((4, way), tmp_path / "four", BFloat16Source(), 1)
    alone = started((1, "ddp"), tmp_path / "one", BFloat16Source(), 1)
    sizes = [sum(tensor.nbytes for tensor in share.tensors.values()) for share in sharded.shares()]
    (full,) = (sum(tensor.nbytes for tensor in share.tensors.values()) for share in alone.shares())
    assert sum(sizes) == full
    # Rows are divided in whole rows: a tensor of 5 rows goes to four processes as 2, 2, 1 and 0 rows.
    assert max(sizes) < 0.36 * full
