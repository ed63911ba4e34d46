"""Methods that are compared differ in what they are named for, and in nothing else."""

from __future__ import annotations

import convergence_models
import pytest
from convergence_models import METHODS, STEPS

SAME = ("lr", "betas", "aggregation", "minibatches")


@pytest.mark.parametrize("game", STEPS)
def test_all_methods_have_the_same_game_model_steps_and_episodes(game: str) -> None:
    made = {method: convergence_models.scenario(game, method, STEPS[game], []) for method in METHODS}
    first = made["plain"]
    for scenario in made.values():
        assert (scenario.game, scenario.policies["actor"].model) == (first.game, first.policies["actor"].model)
        plans = [each.schedule.model_dump(exclude={"rotate_seats"}) for each in (scenario, first)]
        assert plans[0] == plans[1]
        learners = [each.policies["actor"].learner for each in (scenario, first)]
        assert len({tuple(getattr(learner, name) for name in SAME) for learner in learners}) == 1
    assert {name for name, each in made.items() if each.experience.kind == "league"} == {"fictitious play", "league"}


def test_a_leagues_exploiters_have_the_main_players_model_and_learner() -> None:
    policies = convergence_models.scenario("liars_dice", "league", 60, []).policies
    assert [*policies] == ["actor", "main_exploiter", "league_exploiter"]
    for policy in policies.values():
        assert (policy.model, policy.learner) == (policies["actor"].model, policies["actor"].learner)
