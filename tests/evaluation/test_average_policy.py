"""The average policy of a run: which evaluations it holds, with what weights, and where it is kept."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.engines.scripted import Random
from marl.evaluation.average_policy import AveragePolicy
from marl.evaluation.game_tree import GameTree, InformationState, Strategy, build_game_tree, nash_conv
from marl.evaluation.mixtures import mix_strategies
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.runs.run_folder import RunFolder
from marl.scenario.games import AveragePolicySettings
from marl.scenario.load import ScenarioError, validate
from tests.support.run_processes import kuhn_scenario
from tests.support.small_games import make_simulator

STEPS = (0, 25, 50, 75, 100)


@pytest.fixture(scope="module")
def tree() -> GameTree:
    game = KuhnPokerConfig()
    return build_game_tree(
        game, make_simulator(game, Random().build(None)).casting, dict.fromkeys(("player_0", "player_1"), "player")
    )


def bold(tree: GameTree, chance: float) -> Strategy:
    """Bets and calls with this probability, whatever the card."""
    moves = {situation: tuple(request.options or ()) for situation, request in tree.requests.items()}
    return {situation: {passive: 1 - chance, active: chance} for situation, (passive, active) in moves.items()}


@pytest.mark.parametrize(
    ("settings", "held", "weights"),
    [
        (AveragePolicySettings(), (50, 75, 100), (1, 1, 1)),
        (AveragePolicySettings(last=1.0), STEPS, (1, 1, 1, 1, 1)),
        (AveragePolicySettings(last=0.25, weights="linear"), (75, 100), (76, 101)),
    ],
    ids=str,
)
def test_the_average_is_the_mixture_of_the_last_evaluations(
    tree: GameTree, settings: AveragePolicySettings, held: Sequence[int], weights: Sequence[float]
) -> None:
    average, each = AveragePolicy(tree, settings, 100), {step: bold(tree, step / 100) for step in STEPS}
    for step, strategy in each.items():
        average.add_evaluation(step, strategy)
        average.add_evaluation(step, strategy)  # an evaluation that is done again after a kill counts once
        assert (average.metrics() == {}) == (step < held[0])
    expected = nash_conv(tree, mix_strategies(tree, [each[step] for step in held], weights))
    assert average.metrics()["eval/average/nashconv"] == pytest.approx(expected, abs=1e-12)
    assert average.metrics()["eval/average/legal_mass"] == pytest.approx(1)


def test_a_strategy_for_another_game_is_refused(tree: GameTree) -> None:
    with pytest.raises(ValueError, match="the strategy of step 3 is one for another game"):
        AveragePolicy(tree, AveragePolicySettings(), 4).add_evaluation(
            3, {InformationState("player_0", "A", 0): {"bet": 1.0}}
        )


def test_a_run_keeps_the_strategies_that_its_average_follows_from(
    tree: GameTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    measured, run = {"every": 1, "nashconv": True, "average": {"last": 1.0}}, tmp_path / "run"
    schedule = {"steps": 2, "groups": 8, "group_size": 2, "threads": 1}
    marl.train(validate(kuhn_scenario(evaluate=measured, schedule=schedule)), run)
    kept = {
        step: {InformationState(row.agent, row.state, row.attempt): row.moves for row in rows}
        for step, rows in RunFolder(run).iter_strategies()
    }
    assert list(kept) == [0, 1, 2]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for step, row in enumerate(rows):
        so_far = [strategy for when, strategy in kept.items() if when <= step]
        assert row["eval/average/nashconv"] == pytest.approx(
            nash_conv(tree, mix_strategies(tree, so_far, [1] * len(so_far)))
        )
    assert rows[0]["eval/average/nashconv"] == pytest.approx(rows[0]["eval/nashconv"], abs=1e-12)


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        ({"average": {}}, "average: NashConv of the average policy needs the policies' own; set nashconv: true"),
        ({"nashconv": True, "average": {"last": 0}}, "greater than 0"),
        ({"nashconv": True, "average": {"weights": "square"}}, "average.weights: unknown; choices: linear, uniform"),
    ],
)
def test_impossible_averages_are_refused(evaluate: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        validate(kuhn_scenario(evaluate=evaluate))


def test_a_game_may_not_be_named_as_the_average_is() -> None:
    data = kuhn_scenario(evaluate={})
    games = {"average": {"game": data.pop("game"), "seats": data.pop("seats")}}
    with pytest.raises(ScenarioError, match="'average' is a part of metrics' names"):
        validate(data | {"games": games})
