"""The estimate of memory: each thing once, whoever shares it, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

from marl.evaluation.dry_run import DryRun, play_dry_run
from marl.memory.estimate import MemoryEstimate, estimate_memory, measure_model_sizes_and_workloads
from marl.protocols.memory_estimates import Workload
from marl.scenario.load import load
from marl.trainers.optim.memory_estimate import MicroBatchSize, largest_micro_batch_size
from tests.support.paths import SCENARIOS


def played(name: str, *overrides: str) -> DryRun:
    return play_dry_run(load(SCENARIOS / f"{name}.yaml", overrides))


def estimated(run: DryRun) -> MemoryEstimate:
    return estimate_memory(run.scenario, measure_model_sizes_and_workloads(run))


def sizes(run: DryRun) -> dict[tuple[Any, ...], float]:
    return {(*item.policies, item.content): item.bytes for item in estimated(run).items}


def test_a_policy_that_learns_holds_its_weights_twice_gradients_moments_and_a_cache() -> None:
    run = played("kuhn_self_play")
    weights = run.model_facts["actor"].weights
    assert weights
    kuhn = {("actor", name): 4.0 * weights for name in ("weights to sample with", "weights that learn", "gradients")}
    estimated_bytes = sizes(run)
    assert estimated_bytes.items() >= kuhn.items()
    assert estimated_bytes["actor", "optimizer"] == 8.0 * weights
    # 256 slots, all of them in use, of one layer with keys and values of 32 numbers; room for 64 tokens, as 20 need.
    assert estimated_bytes["actor", "keys and values"] == 256 * 64 * 2 * 32 * 4
    # Both anchors follow the policy, each at its own pace.
    assert (estimated_bytes["actor", "copy for magnet"], estimated_bytes["actor", "copy for proximal"]) == (
        4.0 * weights,
        4.0 * weights,
    )


def test_the_base_of_adapters_and_its_cache_are_held_once_and_frozen_ones_do_not_learn() -> None:
    run = played("train_solver_only_adapters")
    estimated_bytes, everyone = sizes(run), ("planner", "solver", "critic")
    assert estimated_bytes[*everyone, "base"] == 4.0 * (run.model_facts["solver"].base_weights or 0)
    assert estimated_bytes[*everyone, "adapters to sample with"] == 3 * 4.0 * (run.model_facts["solver"].weights or 0)
    assert (*everyone, "keys and values") in estimated_bytes
    assert [key for key in estimated_bytes if key[-1] == "weights that learn"] == [("solver", "weights that learn")]
    assert estimated_bytes["solver", "gradients"] == 4.0 * (run.model_facts["solver"].weights or 0)


def test_frozen_policies_with_the_same_weights_share_an_engine() -> None:
    estimated_bytes = sizes(played("team_arithmetic", "policies.planner.learner=null", "policies.critic.learner=null"))
    assert ("planner", "critic", "weights to sample with") in estimated_bytes
    assert [key for key in estimated_bytes if key[-1] == "gradients"] == [("solver", "gradients")]


def test_engines_without_weights_hold_nothing() -> None:
    assert {policy for *policies, _ in sizes(played("solver_critic")) for policy in policies} == {"solver", "critic"}


def test_the_cache_is_no_longer_than_the_model_takes_and_no_wider_than_what_is_played() -> None:
    small = (
        "schedule.groups=2",
        "roles.player.sampling.max_tokens=100000",
        "policies.actor.engine={kind: transformers, max_context: 500}",
    )
    estimated_bytes = sizes(played("kuhn_self_play", *small))
    # In each of 4 episodes one turn follows from the other, so 4 are sampled at once. The cache doubles from 64: 512.
    assert estimated_bytes["actor", "keys and values"] == 4 * 512 * 2 * 32 * 4


def test_turns_of_other_engines_take_no_rows_of_a_cache() -> None:
    # A critic and a verifier, which has no model, answer at the same time: 2 groups of 16 episodes, so 32 rows.
    estimated_bytes = sizes(played("train_solver_only_adapters", "schedule.groups=2", "schedule.group_size=16"))
    assert estimated_bytes["planner", "solver", "critic", "keys and values"] == 32 * 64 * 2 * 2 * 64 * 4


def test_a_static_cache_has_rows_and_tokens_in_powers_of_two_and_graphs_keep_their_memory_on_a_gpu() -> None:
    engine = "policies.actor.engine={kind: transformers, cache: static}"
    run = played("kuhn_self_play", "schedule.groups=1", "schedule.group_size=3", engine)
    # Both seats of 3 episodes are one policy's, but take turns: 3 rows, padded to 4.
    assert sizes(run)["actor", "keys and values"] == 4 * 64 * 2 * 32 * 4
    assert ("actor", "CUDA graphs of decoding") not in sizes(run)
    on_gpu = estimate_memory(run.scenario, measure_model_sizes_and_workloads(run), device_bytes=80e9)
    assert [item.stage for item in on_gpu.items if item.content == "CUDA graphs of decoding"] == ["always"]


def test_weights_in_halves_have_masters_and_gradients_in_float32() -> None:
    estimated_bytes = sizes(run := played("kuhn_self_play", "policies.actor.model.dtype=bfloat16"))
    weights = run.model_facts["actor"].weights or 0
    assert estimated_bytes["actor", "weights that learn"] == 2.0 * weights
    assert estimated_bytes["actor", "float32 masters"] == estimated_bytes["actor", "gradients"] == 4.0 * weights


def test_a_separate_critic_learns_as_the_policy_does_and_a_head_on_its_trunk_is_as_good_as_nothing() -> None:
    overrides = ("policies.solver.learner.critic.where=trunk",)
    trunk, apart = sizes(played("ppo_team", *overrides)), sizes(run := played("ppo_team"))
    critic_bytes = {key[1]: size for key, size in apart.items() if key not in trunk and key[0] == "solver"}
    weights = run.model_facts["solver"].weights or 0
    assert critic_bytes["critic's weights that learn"] == critic_bytes["critic's gradients"] == 4.0 * weights
    assert critic_bytes["critic's optimizer"] == 8.0 * weights
    assert critic_bytes["critic's activations"] == apart["solver", "activations"]


def test_engines_and_learners_take_turns_and_what_is_saved_is_copied_of_all() -> None:
    both = estimated(played("kuhn_two_policies"))
    learning: dict[tuple[str, ...], float] = {}
    for item in both.items:
        if item.stage == "learn":
            learning[item.policies] = learning.get(item.policies, 0.0) + item.bytes
    assert len(learning) == 2
    assert both.stage_bytes("learn") == max(learning.values())
    assert both.stage_bytes("save") == sum(item.bytes for item in both.items if item.stage == "save") > 0
    assert both.peak_bytes() == both.stage_bytes("always") + both.stage_bytes("learn")


def test_an_engine_that_sleeps_takes_nothing_of_a_gpu_while_learners_work() -> None:
    engine = "policies.actor.engine={kind: vllm, memory_share: 0.25, sleep: "
    wide = "policies.actor.model.head_dim=32"
    waking, sleeping = (played("kuhn_self_play", wide, f"{engine}{sleeps}}}") for sleeps in ("false", "true"))
    beside, alone = (
        estimate_memory(run.scenario, measure_model_sizes_and_workloads(run), 80e9) for run in (waking, sleeping)
    )
    assert beside.peak_bytes(["learn"]) - alone.peak_bytes(["learn"]) == 20e9
    assert beside.peak_bytes(["play"]) == alone.peak_bytes(["play"]) > 20e9
    # On a processor vLLM frees nothing.
    assert estimated(sleeping).peak_bytes(["learn"]) == estimated(waking).peak_bytes(["learn"])


def test_a_micro_batch_holds_no_more_than_there_is() -> None:
    work = Workload(completions=16, distinct_prompts=2, max_prompt_tokens=50, max_completion_tokens=10)
    assert largest_micro_batch_size(work, 10_000, "padded", 1).tokens == 16 * 60
    assert largest_micro_batch_size(work, 10_000, "shared", 1).tokens == 2 * 50 + 16 * 10
    assert largest_micro_batch_size(work, 10_000, "padded", 4).tokens == 4 * 60
    # 5 texts of 60 tokens are as many as fit into 350 when each is padded alone.
    assert largest_micro_batch_size(work, 350, "padded", 1) == MicroBatchSize(tokens=300, completion_tokens=50, count=4)
