"""Exact values and NashConv of a small game, against published numbers, OpenSpiel and play."""

import random
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

import pyspiel
import pytest
from open_spiel.python import policy as spiel_policy
from open_spiel.python.algorithms import exploitability

import marl.evaluation.game_tree
from marl.core.types import Metrics, Request
from marl.engines.scripted import Random, ScriptedConfig, Tabular
from marl.evaluation.evaluate import move_probability_metrics
from marl.evaluation.game_tree import (
    GameTree,
    Strategy,
    best_response_return,
    build_game_tree,
    expected_returns,
    mean_legal_move_probability,
    nash_conv,
)
from marl.games.base import FinalRewards, IllegalMoveHandling, NextAgent, TextGame
from marl.games.kuhn_poker import MOVES, KuhnEquilibrium, KuhnPokerConfig
from marl.games.nim import NimConfig, OptimalNimPlayer
from marl.games.tic_tac_toe import TicTacToeConfig
from marl.protocols import GameConfig
from marl.roles.answering import PlayerRole
from marl.rollout.game_errors import GameError
from tests.support.small_games import (
    PAIR,
    CircleConfig,
    FunctionEngine,
    Pennies,
    PenniesConfig,
    make_deal,
    make_simulator,
)

STATES = {f"{card} {betting}".strip(): moves for card in "JQK" for betting, moves in MOVES.items()}
"""The 12 information states of Kuhn poker, and the moves in each."""
MoveTable = Mapping[str, Mapping[str, float]]


def measured(player: ScriptedConfig, game: GameConfig | None = None) -> Metrics:
    """The whole way: the engine scores forced moves, they make a strategy, the tree is walked."""
    chosen = game or KuhnPokerConfig()
    laid = make_simulator(chosen, player.build(None))
    return move_probability_metrics(build_game_tree(chosen, laid.casting, seats(chosen)), [], laid)


def seats(game: GameConfig) -> dict[str, str]:
    return dict.fromkeys(game.build().possible_agents, "player")


def aggressive(chance: Mapping[str, float]) -> Tabular:
    """Bets or calls with this chance by card."""
    rows = {state: {moves[0]: 1 - chance[state[0]], moves[1]: chance[state[0]]} for state, moves in STATES.items()}
    return Tabular.model_validate({"table": rows})


# By enumeration, and equal to OpenSpiel's to 2e-16: value to the first player, NashConv.
KNOWN = {
    "uniform": (Random(), 1 / 8, 11 / 12),
    "always pass": (aggressive({"J": 0, "Q": 0, "K": 0}), 0, 2),
    "always bet and call": (aggressive({"J": 1, "Q": 1, "K": 1}), 0, 2 / 3),
    "honest: bet kings, call queens half": (
        Tabular(
            table={
                state: dict(zip(moves, (1 - p, p), strict=True))
                for state, moves in STATES.items()
                for p in [{"J": 0, "Q": 0.5 if "call" in moves else 0, "K": 1}[state[0]]]
            }
        ),
        0,
        1 / 4,
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_kuhn_poker_players_with_known_values(name: str) -> None:
    player, value, conv = KNOWN[name]
    metrics = measured(player)
    assert metrics["eval/value/player_0"] == pytest.approx(value, abs=1e-12)
    assert metrics["eval/value/player_1"] == pytest.approx(-value, abs=1e-12)
    assert metrics["eval/nashconv"] == pytest.approx(conv, abs=1e-12)
    assert metrics["eval/legal_mass"] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("alpha", [0, 1 / 12, 1 / 6, 1 / 5, 1 / 3])
def test_an_equilibrium_cannot_be_exploited(alpha: float) -> None:
    metrics = measured(KuhnEquilibrium(alpha=alpha))
    assert abs(metrics["eval/nashconv"]) <= 1e-12
    assert metrics["eval/value/player_0"] == pytest.approx(-1 / 18, abs=1e-12)


def spiel_state(state: str) -> str:
    """`K check bet` -> OpenSpiel's `2pb`."""
    card, *betting = state.split(" ")
    return str("JQK".index(card)) + "".join(move[0].replace("c", "p") for move in betting)


@pytest.mark.parametrize("seed", range(25))
def test_nashconv_is_openspiels_for_any_strategy(seed: int) -> None:
    rng = random.Random(seed)
    chances = {state: rng.choice([0.0, 1.0, rng.random(), rng.random()]) for state in STATES}
    rows = {state: {moves[0]: 1 - chances[state], moves[1]: chances[state]} for state, moves in STATES.items()}
    game = pyspiel.load_game("kuhn_poker")
    theirs = spiel_policy.TabularPolicy(game)
    for state, chance in chances.items():
        theirs.action_probability_array[theirs.state_lookup[spiel_state(state)]] = [1 - chance, chance]
    assert measured(Tabular(table=rows))["eval/nashconv"] == pytest.approx(
        exploitability.nash_conv(game, theirs), abs=1e-9
    )


# --- other games -----------------------------------------------------------------------------------------------------


def test_the_perfect_nim_player_cannot_be_exploited_and_a_random_one_can() -> None:
    game = NimConfig(piles=(1, 8))
    assert abs(measured(OptimalNimPlayer(), game)["eval/nashconv"]) <= 1e-12
    assert measured(Random(), game)["eval/nashconv"] > 0.5


def test_who_is_asked_at_the_same_time_cannot_answer_what_the_other_says() -> None:
    assert measured(Random(), PenniesConfig())["eval/nashconv"] == pytest.approx(0, abs=1e-12)
    heads = Tabular(table={"": {"heads": 1.0}})
    metrics = measured(heads, PenniesConfig())
    assert (metrics["eval/value/player_0"], metrics["eval/nashconv"]) == (1, 2)


def test_what_an_agent_is_paid_before_it_is_gone_counts() -> None:
    quitting, staying = (Tabular(table={state: {move: 1.0} for state in circle_states()}) for move in ("quit", "stay"))
    assert measured(quitting, CircleConfig())["eval/value/player_2"] == pytest.approx(1)
    metrics = measured(staying, CircleConfig())
    assert metrics["eval/value/player_1"] == pytest.approx(10)
    assert metrics["eval/nashconv"] == pytest.approx(0)


def circle_states() -> list[str]:
    agents = CircleConfig().build().possible_agents
    return [f"{agent} {turn} {gone}" for agent in agents for turn in (1, 2, 3) for gone in (0, 1, 2)]


def test_games_that_cannot_be_walked_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'tic_tac_toe' does not export its deals"):
        measured(Random(), TicTacToeConfig())
    monkeypatch.setattr(marl.evaluation.game_tree, "_MAX_HISTORIES", 300)
    with pytest.raises(ValueError, match="more than 300 histories"):
        measured(Random(), NimConfig(piles=(12, 12)))


def test_a_game_of_free_text_is_refused() -> None:
    class Free(Pennies):
        def __init__(self) -> None:
            TextGame.__init__(self, PAIR, IllegalMoveHandling())
            self.rounds = 1

    class FreeConfig(PenniesConfig):
        def build(self) -> Free:
            return Free()

    with pytest.raises(ValueError, match="player_0 may say any text"):
        build_game_tree(FreeConfig(), make_simulator(FreeConfig(), Random().build(None)).casting, seats(FreeConfig()))


def test_a_game_that_raises_while_it_is_walked_is_named_with_the_moves_that_led_there() -> None:
    class Torn(Pennies):
        def apply_action(self, action: str) -> NextAgent | FinalRewards:
            if action == "tails" and self.shown == ["heads"]:
                raise ZeroDivisionError("the coin is gone")
            return super().apply_action(action)

    class TornConfig(PenniesConfig):
        def build(self) -> Torn:
            return Torn(self)

    with pytest.raises(GameError, match=r"game Torn raised ZeroDivisionError: .* actions \['heads', 'tails'\]"):
        grown(TornConfig())


# --- illegal answers -------------------------------------------------------------------------------------------------


def kuhn(**illegal: Any) -> KuhnPokerConfig:
    return KuhnPokerConfig.model_validate({"illegal": illegal})


def grown(game: GameConfig) -> GameTree:
    return build_game_tree(game, make_simulator(game, Random().build(None)).casting, seats(game))


def slipping(tree: GameTree, masses: Mapping[str, float]) -> Strategy:
    """Uniform over legal moves, but only with the mass given for the situation's state (default: all of it)."""
    return {
        situation: {move: masses.get(situation.state, 1.0) / 2 for move in request.options or ()}
        for situation, request in tree.requests.items()
    }


FIRST = dict.fromkeys("JQK", 0.9)
"""The first player says something illegal at its first move with probability 0.1."""


@pytest.mark.parametrize(
    ("illegal", "value"),
    [
        ({"then": "forfeit"}, 0.9 / 8 - 0.1 * 2),
        ({"then": "forfeit", "penalty": 3}, 0.9 / 8 - 0.1 * 3),
        ({"then": "penalty"}, 1 / 8 - 0.1 * 2),
        ({"then": "penalty", "penalty": 0.5}, 1 / 8 - 0.1 * 0.5),
        ({"then": "random"}, 1 / 8),
        ({"retry": 1, "then": "forfeit"}, 0.99 / 8 - 0.01 * 2),
        ({"retry": 2, "then": "penalty"}, 1 / 8 - 0.001 * 2),
    ],
    ids=str,
)
def test_missing_mass_is_played_by_the_games_rule_for_illegal_moves(illegal: dict[str, Any], value: float) -> None:
    tree = grown(kuhn(**illegal))
    own = expected_returns(tree, slipping(tree, FIRST))
    assert own["player_0"] == pytest.approx(value, abs=1e-12)
    assert own["player_1"] == pytest.approx(-value, abs=1e-12)


@pytest.mark.parametrize(
    "illegal", [{}, {"then": "penalty"}, {"then": "random"}, {"retry": 1, "penalty": 1.5}], ids=str
)
def test_the_value_with_illegal_answers_is_what_play_pays(illegal: dict[str, Any]) -> None:
    game, rng = kuhn(**illegal), random.Random(7)
    rows = {state: (rng.uniform(0.1, 0.5), rng.uniform(0.1, 0.4)) for state in STATES}
    tree = grown(game)
    strategy = {s: dict(zip(r.options or (), rows[s.state], strict=True)) for s, r in tree.requests.items()}

    def say(request: Request) -> str:
        first, second = rows[request.state]
        random_move = (request.seed % 2**53) / 2**53
        texts = list((request.options or {}).values())
        return texts[0] if random_move < first else texts[1] if random_move < first + second else "hm"

    deals = [make_deal(f"e{i}", game, i) for i in range(1500)]
    paid = [t.returns.get("player_0", 0.0) for t in make_simulator(game, FunctionEngine(say)).play(deals)]
    error = stdev(paid) / len(paid) ** 0.5
    assert abs(fmean(paid) - expected_returns(tree, strategy)["player_0"]) < 4 * error
    assert error < 0.06


def test_the_best_response_breaks_the_rules_where_that_is_cheaper() -> None:
    # Against someone who always bets and calls, with a forfeit of 1/2: a jack forfeits (-1/2), a queen wins as often
    # as it loses, a king wins 2; 1/2 on average for either player.
    tree = grown(kuhn(penalty=0.5))
    bold = {situation: {list(request.options or ())[1]: 1.0} for situation, request in tree.requests.items()}
    assert best_response_return(tree, bold, "player_0") == pytest.approx(0.5)
    assert best_response_return(tree, bold, "player_1") == pytest.approx(0.5)
    assert nash_conv(tree, bold) == pytest.approx(1.0)


def test_the_rule_for_illegal_moves_does_not_change_the_nashconv_of_who_makes_none() -> None:
    for illegal in ({"then": "penalty"}, {"then": "random"}, {"retry": 2}, {"penalty": 3}):
        game = kuhn(**illegal)
        assert measured(Random(), game)["eval/nashconv"] == pytest.approx(11 / 12, abs=1e-12)


def test_legal_mass_is_not_normalised() -> None:
    tree = grown(kuhn())
    strategy = slipping(tree, FIRST)
    assert mean_legal_move_probability(strategy) == pytest.approx((9 + 3 * 0.9) / 12)


def test_a_retry_is_a_situation_of_its_own_with_a_prompt_of_its_own() -> None:
    game = kuhn(retry=1)
    role = PlayerRole(policy="actor", prompt="{{ observation }}{% if attempt %} again{% endif %}")
    tree = build_game_tree(game, make_simulator(game, Random().build(None), player=role).casting, seats(game))
    assert len(tree.requests) == 24
    prompts = {(s.attempt, r.messages[-1].content.endswith("again")) for s, r in tree.requests.items()}
    assert prompts == {(0, False), (1, True)}
