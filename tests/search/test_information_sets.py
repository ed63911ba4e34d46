"""Information set Monte Carlo tree search: no plan uses hidden information; OpenSpiel's search as the reference."""

from __future__ import annotations

import random
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import pyspiel
import pytest
from open_spiel.python.algorithms.exploitability import nash_conv
from open_spiel.python.policy import TabularPolicy

from marl.engines.scripted import Random
from marl.evaluation.search_policy import exact_search_metrics
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig, equiprobable_starts
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.liars_dice import LiarsDiceConfig
from marl.protocols import GameStart
from marl.rollout.episode import Episode
from marl.scenario.load import validate
from marl.search.evaluation import SearchEvaluation
from marl.search.play import SearchPlayer, SearchRoles
from marl.search.settings import SearchSettings
from tests.support.small_games import make_deal, make_simulator


class CoinConfig(TextGameConfig):
    """An agent stops for .3, or goes on and guesses a hidden coin: 1 if it is right, else -1."""

    kind: str = "hidden_coin"

    def build(self) -> Coin:
        return Coin(("player_0",), self.illegal, ("stop", "on", "heads", "tails"))

    def all_start_states(self) -> tuple[GameStart, ...]:
        return equiprobable_starts("coin", ("heads", "tails"))


class Coin(TextGame):
    name, reset_options = "hidden_coin", ("coin",)

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.coin, self.goes_on = options["coin"], False
        return "player_0"

    def start_state_key(self) -> str:
        return self.coin

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return ("heads", "tails") if self.goes_on else ("stop", "on")

    def describe_observation(self, agent: str) -> str:
        return "guess" if self.goes_on else "begin"

    def information_state(self, agent: str) -> str:
        return self.describe_observation(agent)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        if action == "on":
            self.goes_on = True
            return "player_0"
        return {"player_0": 0.3 if action == "stop" else 1.0 if action == self.coin else -1.0}


@pytest.mark.parametrize("rule", ["puct", "gumbel"])
def test_a_search_over_information_sets_does_not_plan_as_if_it_will_know_a_hidden_coin(rule: str) -> None:
    # Going on and guessing is worth 0, but 1 in each state alone: averages of determinized searches prefer it.
    game = CoinConfig()
    simulator = make_simulator(game, Random().build(None))
    episode = Episode(game.build(), make_deal("e", game, coin="heads"), simulator.casting)
    chosen: dict[str, str] = {}
    for kind in ("ismcts", "pimc"):
        settings = SearchSettings(simulations=400, prior="uniform", rule=rule, hidden_information=kind)  # type: ignore[arg-type]
        player = SearchPlayer(simulator, settings, SearchRoles(["player"], {}))
        (result,) = player.search_next_moves([episode])
        chosen[kind] = result.chosen_move
        assert sum(result.visits) == 400
    assert chosen == {"ismcts": "stop", "pimc": "on"}


def _open_spiel_nashconv(simulations: int, seed: int) -> float:
    """Return the NashConv in Kuhn poker of the visits of OpenSpiel's `ISMCTSBot`, with its usual exploration of 2."""
    game = pyspiel.load_game("kuhn_poker")
    table = TabularPolicy(game)
    visits = pyspiel.ISMCTSFinalPolicyType.NORMALIZED_VISIT_COUNT
    bot = pyspiel.ISMCTSBot(seed, pyspiel.RandomRolloutEvaluator(1, seed), 2.0, simulations, -1, visits)
    for state in table.states:
        policy = dict(bot.get_policy(state))
        row = table.state_lookup[state.information_state_string()]
        table.action_probability_array[row] = [policy[action] for action in range(2)]
    return float(nash_conv(game, table))  # type: ignore[arg-type]  # a number unless asked for details


def test_its_nashconv_in_kuhn_poker_is_that_of_open_spiels_search() -> None:
    settings = SearchSettings(simulations=500, temperature=1.0, prior="uniform")
    ours: list[float] = []
    for seed in range(3):
        scenario = validate(
            {
                "game": {"kind": "kuhn_poker"},
                "seats": {"player_0": "player", "player_1": "player"},
                "roles": {"player": {"kind": "player", "policy": "actor"}},
                "policies": {"actor": {"engine": {"kind": "random"}}},
                "schedule": {"steps": 1, "groups": 2, "group_size": 1, "seed": seed},
            },
            "test",
            to_train=False,
        )
        simulator = make_simulator(scenario.game, {"actor": Random().build(None)}, seed)
        ours.append(exact_search_metrics(scenario, simulator, SearchEvaluation(settings))["eval/nashconv"])
    theirs = fmean(_open_spiel_nashconv(500, seed) for seed in range(3))
    assert fmean(ours) == pytest.approx(theirs, abs=0.1)


def test_states_drawn_by_the_game_are_as_many_as_simulations_and_policies_are_asked_in_them() -> None:
    for game in (LiarsDiceConfig(), KuhnPokerConfig()):
        simulator = make_simulator(game, Random().build(None))
        episode = Episode(game.build(), make_deal("e", game, seed=3), simulator.casting)
        settings = SearchSettings(simulations=30, rollouts="policy", determinizations=None)
        (result,) = SearchPlayer(simulator, settings, SearchRoles(["player"], {})).search_next_moves([episode])
        assert sum(result.visits) == 30
        assert max(result.prior) == pytest.approx(1 / len(result.moves))
