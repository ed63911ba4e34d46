"""The estimate of memory: each thing once, whoever shares it, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

from marl.evaluation.memory import holdings
from paths import SCENARIOS

from marl.evaluation.dry_run import DryRun, dry_run
from marl.scenario.load import load


def played(name: str, *overrides: str) -> DryRun:
    return dry_run(load(SCENARIOS / f"{name}.yaml", overrides))


def sizes(run: DryRun) -> dict[tuple[Any, ...], float]:
    return {(*each.policies, each.content): each.bytes for each in holdings(run)}


def test_a_policy_that_learns_holds_its_weights_twice_gradients_moments_and_a_cache() -> None:
    run = played("kuhn_self_play")
    weights = run.models["actor"].weights
    assert weights
    longest = max(run.prompt_tokens["player"]) + 6
    kuhn = {("actor", name): 4.0 * weights for name in ("weights to sample with", "weights that learn", "gradients")}
    optimizer = run.scenario.policies["actor"].learner.memory(4)["optimizer"]  # type: ignore[union-attr]
    held = sizes(run)
    assert held.items() >= kuhn.items()
    assert held["actor", "optimizer"] == optimizer * weights
    # 256 slots, all of them in use, of one layer with keys and values of 32 numbers.
    assert held["actor", "keys and values"] == 256 * longest * 2 * 32 * 4


def test_the_base_of_adapters_and_its_cache_are_held_once_and_frozen_ones_do_not_learn() -> None:
    run = played("train_solver_only_adapters")
    held, everyone = sizes(run), ("planner", "solver", "critic")
    assert held[*everyone, "base"] == 4.0 * (run.models["solver"].shared or 0)
    assert (*everyone, "keys and values") in held
    assert [key for key in held if key[-1] == "weights that learn"] == [("solver", "weights that learn")]
    assert held["solver", "gradients"] == 4.0 * (run.models["solver"].weights or 0)


def test_frozen_policies_with_the_same_weights_share_an_engine() -> None:
    held = sizes(played("team_arithmetic", "policies.planner.learner=null", "policies.critic.learner=null"))
    assert ("planner", "critic", "weights to sample with") in held
    assert [key for key in held if key[-1] == "gradients"] == [("solver", "gradients")]


def test_engines_without_weights_hold_nothing() -> None:
    assert {policy for *policies, _ in sizes(played("solver_critic")) for policy in policies} == {"solver", "critic"}


def test_the_cache_is_no_longer_than_the_model_takes_and_no_wider_than_what_is_played() -> None:
    small = ("schedule.groups=2", "roles.player.sampling.max_tokens=100000")
    held = sizes(played("kuhn_self_play", *small))
    turns = played("kuhn_self_play", *small).per_episode("player") * 4
    assert held["actor", "keys and values"] == turns * 512 * 2 * 32 * 4
