"""Nim against brute force and OpenSpiel."""

from functools import cache

import pyspiel
import pytest

from marl.games.nim import AGENTS, NimConfig, OptimalNimPlayer


@cache
def wins(pile: int, limit: int) -> bool:
    """Brute force: whether the player to move can win."""
    return any(not wins(pile - take, limit) for take in range(1, min(pile, limit) + 1))


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7])
def test_optimal_moves_are_those_that_brute_force_finds(limit: int) -> None:
    config = NimConfig(piles=(1, 40), max_take=limit)
    for pile in range(1, 41):
        winning = tuple(str(t) for t in range(1, min(pile, limit) + 1) if not wins(pile - t, limit))
        assert config.optimal_moves(str(pile)) == winning


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_the_perfect_player_needs_no_limit_to_play_optimally(limit: int) -> None:
    config = NimConfig(piles=(1, 30), max_take=limit)
    game = config.build()
    for options, _ in config.evaluation_positions():
        game.reset(0, options)
        info = game.infos["player_0"]
        chances = OptimalNimPlayer().move_probabilities(info["state"], info["legal"])
        best = config.optimal_moves(info["state"]) or info["legal"]
        assert {move for move, chance in chances.items() if chance} == set(best)
        assert sum(chances.values()) == pytest.approx(1)


def test_single_pile_nim_agrees_with_openspiel_where_its_rules_can_say_it() -> None:
    """OpenSpiel's nim has no limit per move, so the limit is set to the pile; lesser limits: see brute force."""
    high = 7
    game = NimConfig(piles=(1, high), max_take=high).build()
    for pile in range(1, high + 1):
        theirs = pyspiel.load_game("nim", {"pile_sizes": str(pile), "is_misere": False})
        stack: list[tuple[pyspiel.State, tuple[str, ...]]] = [(theirs.new_initial_state(), ())]
        leaves = 0
        while stack:
            state, moves = stack.pop()
            game.reset(0, {"pile": pile})
            for move in moves:
                game.step(move)
            assert state.is_terminal() == any(game.terminations.values())
            if state.is_terminal():
                leaves += 1
                assert state.returns() == [game.rewards[agent] for agent in AGENTS]
                continue
            assert AGENTS[state.current_player()] == game.agent_selection
            legal = game.infos[game.agent_selection]["legal"]
            assert len(state.legal_actions()) == len(legal)
            stack += [(state.child(a), (*moves, m)) for a, m in zip(state.legal_actions(), legal, strict=True)]
        assert leaves == 2 ** (pile - 1)


def test_whoever_takes_the_last_object_wins() -> None:
    game = NimConfig().build()
    game.reset(0, {"pile": 5})
    assert game.observe("player_0")["text"] == "pile 5 . take [1] [2] [3]"
    game.step("3")
    assert game.observe("player_1")["text"] == "pile 2 . take [1] [2]"
    assert game.infos["player_1"]["legal"] == ("1", "2")
    game.step("2")
    assert game.rewards == {"player_0": -1.0, "player_1": 1.0}


def test_taking_more_than_there_is_is_illegal() -> None:
    game = NimConfig().build()
    game.reset(0, {"pile": 2})
    game.step("3")
    assert game.reward_components == {"player_0": {"illegal": -1.5}, "player_1": {"illegal": 1.5}}


def test_start_piles_are_those_of_the_settings_and_as_likely_as_declared() -> None:
    config = NimConfig(piles=(4, 7))
    game = config.build()
    counts = dict.fromkeys("4567", 0)
    for seed in range(4000):
        game.reset(seed)
        counts[game.start_state_key()] += 1
    assert all(885 < count < 1115 for count in counts.values())  # 1000 +- 4.2 standard deviations
    assert [(start.probability, start.options) for start in config.all_start_states()] == [
        (0.25, {"pile": pile}) for pile in (4, 5, 6, 7)
    ]
    assert [options["pile"] for options, _ in config.evaluation_positions()] == [1, 2, 3, 4, 5, 6, 7]
    assert config.reference_players() == {"minimax": OptimalNimPlayer()}
