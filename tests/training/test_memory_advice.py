"""Memory that is used up: recognised whoever says so, and told with the settings that use less."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import torch

from marl.core.errors import is_out_of_memory
from marl.scenario.load import validate
from marl.training.failure_advice import out_of_memory_advice
from tests.support.run_processes import kuhn_scenario


class OutOfMemoryError(RuntimeError):
    """As torch names its own, which a machine without an accelerator never raises."""


def raised_by_torch() -> BaseException:
    try:
        torch.zeros(2**55, dtype=torch.uint8)
    except RuntimeError as error:
        return error
    raise AssertionError


ERRORS: list[BaseException] = [
    raised_by_torch(),
    MemoryError(),
    OutOfMemoryError("Tried to allocate 20.00 GiB"),
    torch.OutOfMemoryError("CUDA out of memory."),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    RuntimeError("std::bad_alloc"),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_memory_that_is_used_up_is_recognised(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("shape '[2]' is invalid"), ValueError("out of memory"), KeyError(1)])
def test_other_errors_are_not_taken_for_it(error: BaseException) -> None:
    assert not is_out_of_memory(error)


@pytest.mark.parametrize(
    ("stage", "named"),
    [
        ("learn", ["policies.actor.learner.micro_tokens (now 32768)", "gradient_checkpointing"]),
        ("read", ["policies.actor.learner.micro_tokens (now 32768)"]),
        ("evaluate", ["policies.actor.engine.slots (now 256)", "policies.actor.engine.prefill_tokens (now 16384)"]),
        ("publish", ["policies.actor.engine.slots (now 256)"]),
        ("load", ["smaller model", "dtype: bfloat16"]),
    ],
)
def test_the_settings_on_which_the_stage_depends_are_named_with_their_values(stage: str, named: list[str]) -> None:
    scenario: dict[str, Any] = kuhn_scenario()
    scenario["policies"]["other"] = {"engine": {"kind": "random"}}
    scenario["roles"]["rival"] = {"kind": "player", "policy": "other"}
    scenario["seats"]["player_1"] = "rival"
    message = out_of_memory_advice(validate(scenario), stage, RuntimeError(f"too much\n{'x' * 10**6}"))
    assert all(part in message for part in (f"out of memory (stage: {stage})", "(too much)", *named))
    assert "rival" not in message
    assert len(message) < 600
