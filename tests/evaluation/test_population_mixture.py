"""NashConv of a pool's mixtures; the numbers are enumerated by hand on rock-paper-scissors."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl.engines.scripted import Random
from marl.evaluation.game_tree import Strategy, build_game_tree
from marl.evaluation.population_mixture import PopulationMixture
from marl.games.repeated_matrix import RepeatedMatrixConfig
from marl.protocols import SavedWeights
from marl.scenario.load import ScenarioError, validate
from tests.support.league_scenarios import league
from tests.support.small_games import make_simulator

MOVES = ("rock", "paper", "scissors")


def test_nashconv_of_pure_members_is_that_of_the_mixed_strategy_they_make() -> None:
    game = RepeatedMatrixConfig(table="rock_paper_scissors")
    casting = make_simulator(game, Random().build(None)).casting
    tree = build_game_tree(game, casting, dict.fromkeys(("player_0", "player_1"), "player"))
    measured: list[str] = []

    def pure(name: str, weights: SavedWeights) -> Strategy:
        measured.append(name)
        return {situation: {move: float(move == name) for move in MOVES} for situation in tree.requests}

    def members(*shares: float) -> dict[str, tuple[SavedWeights, float]]:
        named = zip(MOVES, shares, strict=False)
        return {name: (SavedWeights("actor", Path(), number), share) for number, (name, share) in enumerate(named)}

    mixture = PopulationMixture(tree, pure)
    assert mixture.metrics({}) == {}
    # Against rock alone, paper wins 1 in either seat.
    assert mixture.metrics(members(1.0)) == {"eval/pool/nashconv": 2.0, "eval/meta/nashconv": 2.0}
    # Against half rock and half paper, paper gains 1/2; against 1/4 rock and 3/4 paper, scissors gain 3/4 - 1/4.
    figures = mixture.metrics(members(0.25, 0.75))
    assert figures == pytest.approx({"eval/pool/nashconv": 1.0, "eval/meta/nashconv": 1.0})
    # All three alike are the equilibrium; by 1/2, 1/4, 1/4, paper gains 1/2 - 1/4.
    figures = mixture.metrics(members(0.5, 0.25, 0.25))
    assert figures == pytest.approx({"eval/pool/nashconv": 0.0, "eval/meta/nashconv": 0.5})
    assert mixture.metrics(members(0.0, 0.0, 0.0)) == pytest.approx({"eval/pool/nashconv": 0.0})
    assert measured == [*MOVES]


def test_mixtures_need_a_pool_and_exact_figures() -> None:
    data = league()
    with pytest.raises(ScenarioError, match="population: NashConv of the pool's mixtures needs the policies' own"):
        validate(data | {"evaluate": {"population": True}})
    data["seats"], data["experience"] = dict.fromkeys(data["seats"], "player"), {"kind": "rollouts"}
    with pytest.raises(ScenarioError, match=r"evaluate\.population: experience 'rollouts' has no pool"):
        validate(data | {"evaluate": {"nashconv": True, "population": True}})
