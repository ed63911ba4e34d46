"""Staleness of turns, counted by hand; and the gate, which compares the learner with fresh turns alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marl.core.errors import EngineError, SamplerLogprobMismatchError
from marl.core.types import Reading, Turn
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.trainers.policy_gradient.settings import Grpo
from marl.training.staleness import StalenessTracker
from tests.support.learning_samples import TinySource, context, make_sample
from tests.support.small_games import FunctionEngine, make_deal, make_simulator, random_move

GAME = KuhnPokerConfig()
SIMULATOR = make_simulator(GAME, FunctionEngine(random_move))
ROLES = SIMULATOR.casting.roles


def turn(version: int) -> Turn:
    """Return a turn that was begun with a version of the weights."""
    played = SIMULATOR.play([make_deal(f"e{version}", GAME)])[0].turns[0]
    return replace(played, completion=replace(played.completion, prompt_ids=(1,), versions=(version, version)))


def publishing(*versions: int, allowed: int = 4) -> StalenessTracker:
    policy = next(iter(ROLES.values())).policy
    staleness = StalenessTracker([policy], ROLES, allowed)
    for version in versions:
        staleness.record_published_version(policy, version)
    return staleness


def test_staleness_is_the_steps_since_a_turns_weights_were_the_newest() -> None:
    every = publishing(1, 2, 3, 4, 5)
    assert [every(turn(version), 5) for version in (5, 4, 3, 1)] == [0, 1, 2, 4]
    rare = publishing(4, 8, allowed=1)  # a policy that learns in every fourth step
    assert [rare(turn(version), 8) for version in (4, 8)] == [1, 0]
    figures = every.metrics([turn(5), turn(2), turn(3)], 5)
    means = {"role/player/staleness": pytest.approx(5 / 3), "role/player/staleness_token": pytest.approx(5 / 3)}
    assert figures == {**means, "role/player/staleness_max": 3, "role/player/mixed_versions": 0}


def test_the_oldest_token_of_a_turn_bounds_its_staleness() -> None:
    every = publishing(1, 2, 3, 4, 5, allowed=3)
    # Weights of version 2 are 3 steps old at step 5, and those of version 4 one step.
    for runs in (((2, 3), (4, 9)), ((4, 9), (2, 3))):
        changed = turn(runs[0][0])
        ends = (runs[0][0], runs[1][0])
        mixed = replace(changed, completion=replace(changed.completion, versions=ends, version_runs=runs))
        assert every(mixed, 5) == 3
        figures = every.metrics(
            [mixed, replace(turn(5), completion=replace(turn(5).completion, token_ids=(7,) * 6))], 5
        )
        assert figures["role/player/staleness"] == pytest.approx(3 / 2)
        assert figures["role/player/staleness_token"] == pytest.approx((3 * 3 + 9 * 1) / 18)
        assert figures["role/player/mixed_versions"] == pytest.approx(1 / 2)
        with pytest.raises(EngineError, match=r"tokens from version 2 .* 4 steps old"):
            publishing(1, 2, 3, 4, 5, 6, allowed=3)(mixed, 6)


def test_weights_older_than_the_experience_allows_end_the_run() -> None:
    with pytest.raises(EngineError, match=r"version 1 .* 2 steps old, but experience.max_staleness is 1"):
        publishing(1, 2, 3, allowed=1)(turn(1), 3)


def test_a_policy_that_does_not_learn_is_never_stale_and_without_play_ahead_nothing_is() -> None:
    frozen = StalenessTracker([], ROLES, 1)
    assert (frozen(turn(0), 9), frozen.metrics([turn(0)], 9)) == (0, {})
    assert publishing(1, 2, allowed=0)(turn(0), 2) == 0


def test_the_gate_leaves_stale_samples_out() -> None:
    learner = Grpo().build(context(source=TinySource()))
    wrong = Reading((-1.0, -2.0))
    stale = [make_sample((1,), (2, 3), (-3.0, -4.0), turn=i, reading=wrong, staleness=1) for i in range(4)]
    assert "fidelity_max" not in learner.update(stale)
    with pytest.raises(SamplerLogprobMismatchError):
        Grpo().build(context(source=TinySource())).update([replace(each, staleness=0) for each in stale])
