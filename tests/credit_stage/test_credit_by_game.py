"""Credit in a run of several games: each is judged by itself."""

from dataclasses import replace
from statistics import fmean

import pytest

from marl.core.graph import Trajectory
from marl.core.types import Deal
from marl.credit_stage.stage import CreditStage
from marl.engines.scripted import Random
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.nim import NimConfig
from marl.protocols import Evidence
from marl.scenario.schema import CreditConfig
from tests.support.small_games import make_simulator

SEATS = {"player_0": "player", "player_1": "player"}


def played() -> list[Trajectory]:
    """Ten episodes of each of two games, in turns."""
    games = {"kuhn": KuhnPokerConfig(), "nim": NimConfig()}
    simulator = make_simulator(games["nim"], Random().build(None))
    simulator = type(simulator)(games, simulator.casting, simulator.engines)
    return simulator.play([Deal(f"{i}.{name}", str(i), i, SEATS, game=name) for i in range(10) for name in games])


def test_every_rule_judges_a_game_as_if_there_were_no_other() -> None:
    episodes = played()
    for baseline in ("role_average", "whiten", "group", "none"):
        rule = CreditConfig.model_validate({"baseline": {"kind": baseline}})
        together = CreditStage(rule, ("kuhn", "nim"))(Evidence(episodes, ""))
        alone = [CreditStage(rule)(Evidence([t for t in episodes if t.deal.game == n], n)) for n in ("kuhn", "nim")]
        assert together.credit == alone[0].credit | alone[1].credit
        assert len(together.credit) == sum(len(t.turns) for t in episodes)


def test_the_moving_average_of_a_role_is_of_one_game() -> None:
    rule = CreditConfig.model_validate({"baseline": {"kind": "role_average", "alpha": 0.5}})
    first, second = (next(t for t in played() if t.deal.game == name) for name in ("kuhn", "nim"))
    returns = {name: t.returns["player_0"] for name, t in (("kuhn", first), ("nim", second))}
    judge = CreditStage(rule, ("kuhn", "nim"))
    judge(Evidence([first, second], ""))
    again = judge(Evidence([first, second], ""))
    for name, trajectory in (("kuhn", first), ("nim", second)):
        turn = next(turn for turn in trajectory.turns if turn.agent == "player_0")
        # b is 0 before the first episode of its own game, half of the return after it.
        assert again.credit[turn.id].value == pytest.approx(returns[name] / 2)
        averages = {figure: value for figure, value in again.metrics.items() if "/average/" in figure}
        assert averages[f"game/{name}/credit/average/{name}/player/player_0"] == pytest.approx(returns[name] * 0.75)


def test_averages_of_every_game_are_kept_in_the_state() -> None:
    rule, episodes = CreditConfig.model_validate({"baseline": {"kind": "role_average"}}), played()
    judge, other = CreditStage(rule, ("kuhn", "nim")), CreditStage(rule, ("kuhn", "nim"))
    judge(Evidence(episodes, ""))
    other.load_state_dict(judge.state_dict())
    assert other.has_state
    assert other(Evidence(episodes, "")).credit == judge(Evidence(episodes, "")).credit


def test_a_game_that_a_step_does_not_play_is_left_as_it_is() -> None:
    rule = CreditConfig.model_validate({"baseline": {"kind": "role_average"}})
    judge = CreditStage(rule, ("kuhn", "nim"))
    nim = [trajectory for trajectory in played() if trajectory.deal.game == "nim"]
    judgement = judge(Evidence(nim, ""))
    assert {name.split("/")[1] for name in judgement.metrics if name.startswith("game/")} == {"nim"}
    spoken = [turn for trajectory in nim for turn in trajectory.turns]
    assert judgement.metrics["credit/player/nonzero"] == fmean(
        [bool(judgement.credit[turn.id].value) for turn in spoken]
    )


def test_an_episode_of_another_game_is_an_error_that_names_the_games() -> None:
    [strange] = played()[:1]
    strange.deal = replace(strange.deal, game="chess")
    with pytest.raises(ValueError, match=r"episode 0\.kuhn is of game 'chess', .*; games: kuhn, nim"):
        CreditStage(CreditConfig(), ("kuhn", "nim"))(Evidence([strange], ""))
