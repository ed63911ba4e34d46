"""Meta-strategies of a league beside the Nash equilibrium: alpha-Rank, rectified PSRO and anytime PSRO."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from open_spiel.python.egt import alpharank

from marl.experience.league.matchmaking import alpha_rank_probabilities, rectified_probabilities, systematic_sample
from marl.experience.league.restricted_mixture import RestrictedMixture
from marl.scenario.load import ScenarioError, validate
from tests.support.league_scenarios import league
from tests.support.run_processes import metric_lines, train_to_end

ROCK_PAPER_SCISSORS: list[list[float]] = [[0, -1, 1], [1, 0, -1], [-1, 1, 0]]


def test_alpha_rank_agrees_with_openspiel_on_random_antisymmetric_payoffs() -> None:
    rng = np.random.default_rng(0)
    for count in range(1, 13):
        # Small integers, so that some members tie.
        upper = np.triu(rng.integers(-3, 4, size=(count, count)), 1)
        payoffs = (upper - upper.T).astype(float)
        expected = alpharank.compute([payoffs], use_inf_alpha=True, inf_alpha_eps=0.01)[2]
        assert alpha_rank_probabilities(payoffs.tolist()) == pytest.approx(expected.tolist(), abs=1e-9)


def test_alpha_rank_spreads_over_a_cycle_and_leaves_a_dominated_member() -> None:
    # The paper's own case (1903.01373, rock-paper-scissors): equal shares, whatever the stakes.
    assert alpha_rank_probabilities([[0, -25, 50], [25, 0, -5], [-50, 5, 0]]) == pytest.approx([1 / 3] * 3)
    # The fourth member loses to all others.
    dominated = [[*row, 1.0] for row in ROCK_PAPER_SCISSORS] + [[-1.0, -1.0, -1.0, 0.0]]
    assert alpha_rank_probabilities(dominated)[3] < 0.01


def test_a_rectified_player_meets_the_members_of_the_equilibrium_that_it_beats_or_ties() -> None:
    # The newest member is scissors: it beats paper, ties with itself and loses to rock, each 1/3 of the equilibrium.
    assert rectified_probabilities(ROCK_PAPER_SCISSORS, newest=2) == pytest.approx([0, 1 / 2, 1 / 2])
    assert rectified_probabilities(ROCK_PAPER_SCISSORS, newest=None) == pytest.approx([1 / 3] * 3)
    # A newest member that loses to the only member of the support meets it all the same.
    assert rectified_probabilities([[0, 1], [-1, 0]], newest=1) == pytest.approx([1, 0])


def mixture_against_best_responses(payoffs: list[list[float]], updates: int, groups: int) -> list[float]:
    """Return the average mixture of rows after regret matching against an exact best response, from sampled groups."""
    names = [f"row {index}" for index in range(len(payoffs))]
    mixture, rng = RestrictedMixture(), random.Random(0)
    mixture.start_phase(names)
    for _ in range(updates):
        met = mixture.draw_probabilities(names)
        losses = [
            sum(p * row[column] for p, row in zip(met, payoffs, strict=True)) for column in range(len(payoffs[0]))
        ]
        response = losses.index(min(losses))
        drawn = systematic_sample(range(len(names)), met, groups, rng.random())
        mixture.update({names[index]: [payoffs[index][response]] * drawn.count(index) for index in {*drawn}})
    mixture.start_phase([*names, "newcomer"])
    assert mixture.average_probabilities([*names, "newcomer"])[-1] == 0
    return mixture.average_probabilities(names)


def test_an_anytime_mixture_is_the_least_exploitable_one_and_not_the_equilibrium_of_its_members() -> None:
    # Only rock and paper are members. Their equilibrium is paper alone, which scissors beat every time. The least
    # exploitable mixture is 1/3 rock, 2/3 paper: both paper and scissors win 1/3 against it.
    rock, paper = ROCK_PAPER_SCISSORS[:2]
    found = mixture_against_best_responses([rock, paper], updates=3000, groups=16)
    assert found == pytest.approx([1 / 3, 2 / 3], abs=0.03)


def test_an_anytime_mixture_of_all_moves_is_close_to_the_equilibrium_of_the_game() -> None:
    # Rock beats scissors at double stakes: 1/4, 1/2, 1/4 by hand.
    found = mixture_against_best_responses([[0, -1, 2], [1, 0, -1], [-2, 1, 0]], updates=3000, groups=16)
    assert found == pytest.approx([1 / 4, 1 / 2, 1 / 4], abs=0.05)


def league_by(rule: str) -> dict[str, Any]:
    """A league whose player meets the pool alone, by `rule`."""
    scenario = league(resident=2, matches=4)
    scenario["experience"]["players"] = {"player": {"opponents": {"pool": 1}, "by": rule, "every": 2}}
    return scenario


@pytest.mark.parametrize("rule", ["rectified", "alpha_rank", "anytime"])
def test_a_meta_strategy_needs_a_zero_sum_game_of_two(rule: str) -> None:
    scenario = league_by(rule)
    scenario["game"] = {"kind": "repeated_matrix", "table": [[[3, 3], [0, 5]], [[5, 0], [1, 1]]]}
    with pytest.raises(ScenarioError, match=f"by: '{rule}' needs a zero-sum game of two"):
        validate(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["rectified", "alpha_rank"])
def test_a_league_by_payoffs_plays_every_pair(rule: str, tmp_path: Path) -> None:
    desk = train_to_end(tmp_path, league_by(rule))
    # 1, 2 and 3 members: 0, 1 and 2 new pairs of 4 games.
    assert [json.loads(line)["league/matches"] for line in metric_lines(desk.run)[1:]] == [0, 0, 4, 0, 8, 0]
