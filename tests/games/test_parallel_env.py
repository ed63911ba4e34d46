"""Simultaneous games as PettingZoo parallel environments: `marl.parallel_env`."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
from pettingzoo.test import parallel_api_test
from pettingzoo.test.seed_test import parallel_seed_test
from pettingzoo.test.state_test import test_parallel_env as check_parallel_state

import marl
from marl.core.plugins import known_kinds
from marl.scenario.load import game_settings
from tests.support.every_game import example_settings, random_move

SIMULTANEOUS: dict[str, list[dict[str, Any]]] = {
    "coalition": [{"preset": "majority"}],
    "colonel_blotto": [{}],
    "first_price_auction": [{"players": 3}],
    "goofspiel": [{}, {"bids": "hidden", "prizes": "ascending"}],
    "matrix": [{"table": "climbing"}, {"table": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]}],
    "openspiel": [{"name": "goofspiel(num_cards=4)"}, {"name": "matrix_pd"}],
    "pettingzoo": [{"env": "pettingzoo.classic.rps_v2"}],
    "repeated_matrix": [{"table": "shapley"}],
    "two_step": [{}],
}
"""Kind -> settings of games whose agents always move at the same time."""
CASES = [(kind, settings) for kind in SIMULTANEOUS for settings in SIMULTANEOUS[kind]]
ILLEGAL = [{}, {"then": "penalty"}, {"then": "random"}]
OF_OTHERS = {"openspiel", "pettingzoo"}
"""Kinds whose environments may be simultaneous or not."""


@pytest.mark.parametrize("illegal", ILLEGAL, ids=str)
@pytest.mark.parametrize(("kind", "settings"), CASES, ids=str)
@pytest.mark.filterwarnings("error::UserWarning")
def test_pettingzoo_accepts_every_simultaneous_game(kind: str, settings: Any, illegal: dict[str, str]) -> None:
    parallel_api_test(marl.parallel_env(kind, illegal=illegal, **settings), num_cycles=50)
    parallel_seed_test(lambda: marl.parallel_env(kind, illegal=illegal, **settings), num_cycles=30)
    env: Any = marl.parallel_env(kind, illegal=illegal, **settings)
    check_parallel_state(env)
    assert env.state_space.contains(env.state())


@pytest.mark.parametrize(("kind", "settings"), CASES, ids=str)
def test_rounds_are_those_of_the_game_played_move_by_move(kind: str, settings: dict[str, Any]) -> None:
    """Observations, rewards and ends are those of `marl.env`, also after moves that are illegal."""
    for seed, illegal in product(range(8), ILLEGAL):
        parallel, rng = marl.parallel_env(kind, illegal=illegal, **settings), random.Random(seed)
        turns: Any = marl.env(kind, illegal=illegal, **settings)
        observations, infos = parallel.reset(seed)
        turns.reset(seed)
        while parallel.agents:
            moves: dict[str, str] = {}
            for agent in parallel.agents:
                assert observations[agent]["text"] == turns.observe(agent)["text"]
                assert infos[agent] == turns.infos[agent] | {"together": infos[agent]["together"]}
                moves[agent] = "nonsense" if rng.random() < 0.1 else random_move(turns, agent, rng)
            earned = dict.fromkeys(turns.agents, 0.0)
            for agent in turns.agents:
                if not turns.terminations[agent]:
                    turns.step(moves[agent])
                    earned = {name: earned[name] + turns.rewards[name] for name in earned}
            observations, rewards, terminations, truncations, infos = parallel.step(moves)
            assert rewards == earned
            assert terminations == turns.terminations
            assert truncations == turns.truncations
        assert all(turns.terminations.values()) or all(turns.truncations.values())


def test_an_illegal_move_ends_the_game_for_all_and_later_moves_do_not_count() -> None:
    env: Any = marl.parallel_env("goofspiel", illegal={"penalty": 3})
    env.reset(seed=0)
    _, rewards, terminations, _, _ = env.step({"player_0": "king", "player_1": "queen"})
    assert rewards == {"player_0": -3.0, "player_1": 3.0}
    assert all(terminations.values())
    assert env.agents == []
    env.reset(seed=0)
    assert len(env.agents) == 2
    _, rewards, *_ = env.step({"player_0": "1", "player_1": "queen"})
    assert rewards == {"player_0": 3.0, "player_1": -3.0}


def test_a_parallel_environment_renders_as_its_game() -> None:
    env: Any = marl.parallel_env("goofspiel", render_mode="ansi")
    env.reset(seed=0)
    assert env.render().startswith("to move: player_0, player_1")
    assert env.metadata["render_modes"] == ["ansi", "rgb_array"]


def test_a_game_played_in_turns_is_refused_with_the_kinds_that_are_not() -> None:
    with pytest.raises(ValueError, match="the agents of 'kuhn_poker' do not always move at the same time; ") as caught:
        marl.parallel_env("kuhn_poker")
    for kind in SIMULTANEOUS:
        assert kind in str(caught.value)
    for kind, settings in (
        ("openspiel", {"name": "leduc_poker"}),
        ("pettingzoo", {"env": "pettingzoo.classic.tictactoe_v3"}),
    ):
        with pytest.raises(ValueError, match=f"the agents of {kind!r} do not always"):
            marl.parallel_env(kind, **settings)


def test_retries_are_refused_since_each_agent_is_asked_once_a_round() -> None:
    with pytest.raises(ValueError, match=r"illegal\.retry: 2, but parallel games ask each agent once"):
        marl.parallel_env("matrix", table="climbing", illegal={"retry": 2})


@pytest.mark.parametrize("kind", sorted(set(known_kinds("games")) - OF_OTHERS - {"verifiers_environment"}))
def test_a_kind_is_simultaneous_if_and_only_if_all_agents_are_asked_in_every_round(kind: str) -> None:
    settings = example_settings(kind)
    env: Any = marl.env(kind, **settings)
    alone = False
    for seed in range(5):
        env.reset(seed)
        rng = random.Random(seed)
        asked: set[str] = set()
        for agent in env.agent_iter(max_iter=100):
            if env.terminations[agent] or env.truncations[agent]:
                break
            # In a round of all agents, each agent is asked together with those who follow it in the round.
            alone |= not {*env.infos[agent]["together"]} | asked >= {*env.agents}
            asked = set() if len(asked) == len(env.agents) - 1 else asked | {agent}
            env.step(random_move(env, agent, rng))
    assert game_settings(kind, settings).is_simultaneous() == (len(env.possible_agents) > 1 and not alone)
