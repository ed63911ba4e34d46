"""What to change where a run does not fit: each proposal is a setting that can be written, and saves what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marl.evaluation.dry_run import DryRun, play_dry_run
from marl.memory.device import device_memory
from marl.memory.preflight import MemoryFitReport, estimate_memory_fit
from marl.scenario.load import load
from marl.view.memory_table import memory_table
from tests.support.paths import SCENARIOS

SHAPE = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
}
"""Settings of Qwen3-0.6B."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SHAPE))
    return path


def team(config: Path, *overrides: str, model: str = "Qwen/Qwen3-0.6B") -> DryRun:
    policies = ("planner", "solver", "critic")
    models = [f"policies.{policy}.model={model}" for policy in policies]
    engines = [f"policies.{policy}.engine={{kind: transformers}}" for policy in policies]
    return play_dry_run(load(SCENARIOS / "team_arithmetic.yaml", [*models, *engines, *overrides]), {"": config})


def checked(run: DryRun, size: str) -> MemoryFitReport:
    return estimate_memory_fit(run, device_memory(size))


def test_a_model_is_known_by_its_settings_alone(config: Path) -> None:
    size = team(config).model_facts["solver"].size
    assert size is not None
    # 596,049,920 parameters, embeddings once: the model card's 0.6B.
    assert (size.parameters, size.kv_cache_bytes_per_token) == (596_049_920, 2 * 28 * 8 * 128 * 4)


def test_what_fits_needs_no_change(config: Path) -> None:
    flight = checked(team(config), "80GiB")
    assert flight.fits_device
    assert not flight.reduced.changes
    assert "fits" in memory_table(flight).splitlines()[-1]


def test_changes_that_are_written_into_the_scenario_make_it_fit(config: Path) -> None:
    flight = checked(team(config), "40GiB")
    assert not flight.fits_device
    changes = flight.reduced.changes
    overrides = [
        f"policies.{policy}.{change.field}={json.dumps(change.value)}"
        for change in changes
        for policy in change.policies
    ]
    again = checked(team(config, *overrides, model="{kind: pretrained, path: Qwen/Qwen3-0.6B}"), "40GiB")
    assert again.fits_device
    assert again.peak_bytes == pytest.approx(flight.reduced.peak_bytes)
    assert sum(change.saved_bytes for change in changes) == pytest.approx(flight.peak_bytes - again.peak_bytes)


def test_policies_with_the_same_settings_are_changed_together_and_speed_goes_first(config: Path) -> None:
    changes = checked(team(config), "2GiB").reduced.changes
    # Solver and critic have the same learner, the planner another one.
    assert {change.policies for change in changes if change.field.startswith("learner")} == {
        ("planner",),
        ("solver", "critic"),
    }
    fields = [change.field for change in changes]
    results = [field for field in fields if field.startswith("model") or field == "learner.optimizer"]
    assert results
    assert fields[-len(results) :] == results


def test_where_nothing_helps_a_smaller_model_is_asked_for(config: Path) -> None:
    table = memory_table(checked(team(config), "1GiB"))
    assert "does not fit" in table
    assert "after all that: take a smaller model." in table.splitlines()[-1]


def test_the_estimate_of_a_run_on_a_cluster_says_that_it_is_for_one_process(config: Path) -> None:
    note = "note: cluster: this is the memory of a run with all simulators and learners in one process"
    assert note not in memory_table(checked(team(config), "1GiB"))
    assert note in memory_table(checked(team(config, "cluster.simulators=2"), "1GiB"))
