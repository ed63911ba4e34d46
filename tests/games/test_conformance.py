"""What PettingZoo's own checks leave out: contents of spaces, rendering and global states."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from pettingzoo.test.render_test import collect_render_results

import marl
from marl.core.plugins import known_kinds
from marl.games.text_space import TextSpace
from tests.support.every_game import example_settings, random_move


@pytest.mark.parametrize("kind", known_kinds("games"))
def test_every_observation_and_move_lies_in_its_space(kind: str) -> None:
    env: Any = marl.env(kind, **example_settings(kind))
    rng = random.Random(0)
    for seed in range(20):
        env.reset(seed)
        for agent in env.agent_iter(max_iter=200):
            for name in env.agents:
                assert env.observation_space(name).contains(env.observe(name))
            assert env.state_space.contains(env.state())
            over = env.terminations[agent] or env.truncations[agent]
            move = None if over else random_move(env, agent, rng)
            assert over or env.action_space(agent).contains(move)
            env.step(move)


def test_any_text_of_the_right_length_is_in_the_space_of_a_free_text_game() -> None:
    space = marl.env("taboo").action_space("attacker")
    for text in ("", "Straße", "日本語", "👩‍👩‍👧", "line\nbreak", "a" * 4096):
        assert text in space
    for other in ("a" * 4097, b"Strasse", None, 3, ["a"]):
        assert other not in space


def test_samples_of_a_text_space_are_its_texts_and_follow_its_seed() -> None:
    one, other = TextSpace(30), TextSpace(30)
    one.seed(5)
    other.seed(5)
    texts = [one.sample() for _ in range(50)]
    assert texts == [other.sample() for _ in range(50)]
    assert all(text in one and text.isascii() for text in texts)
    assert one == other != TextSpace(31)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", known_kinds("games"))
def test_every_game_renders_in_each_mode_of_its_metadata(kind: str) -> None:
    settings = example_settings(kind)
    for mode in marl.env(kind, **settings).metadata["render_modes"]:
        env: Any = marl.env(kind, render_mode=mode, **settings)
        for rendering in collect_render_results(env):
            if mode == "ansi":
                assert rendering.startswith(("to move: ", "The game is over."))
                assert all(agent in rendering for agent in env.possible_agents)
            else:
                assert rendering.dtype == np.uint8
                assert rendering.ndim == 3
                assert rendering.shape[2] == 3
                assert rendering.std() > 0
        env.close()


def test_a_board_that_all_players_see_is_rendered_once() -> None:
    env: Any = marl.env("tic_tac_toe", render_mode="ansi", openings=0)
    env.reset(seed=0)
    for cell in ("5", "1"):
        env.step(cell)
    assert env.render() == "to move: player_0\n\nplayer_0, player_1:\no . .\n. x .\n. . .\nx to move"
    assert env.copy(1).render() == env.render()


def test_hidden_cards_are_rendered_for_each_player() -> None:
    env: Any = marl.env("kuhn_poker", render_mode="ansi")
    env.reset(options={"cards": "KJ"})
    env.step("check")
    assert env.render() == (
        "to move: player_1\n\nplayer_0:\n[K] [?]\nbetting: check\n\nplayer_1:\n[J] [?]\nbetting: check"
    )


def test_a_move_changes_the_picture_and_the_deal_alone_determines_it() -> None:
    env: Any = marl.env("connect_four", render_mode="rgb_array")
    env.reset(seed=3)
    empty = env.render()
    env.step("d")
    assert (env.render() != empty).any()
    env.reset(seed=3)
    assert (env.render() == empty).all()


def test_agents_asked_together_are_named_together() -> None:
    env: Any = marl.env("repeated_matrix", table="chicken", render_mode="ansi")
    env.reset(seed=0)
    assert env.render().startswith("to move: player_0, player_1\n")


def test_an_unknown_render_mode_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="render_mode: 'kuhn_poker' has no 'human'; choices: ansi, rgb_array"):
        marl.env("kuhn_poker", render_mode="human")
    with pytest.raises(ValueError, match=r"render_mode: 'taboo' has no 'rgb_array'.*choices: ansi"):
        marl.env("taboo", render_mode="rgb_array")


def test_a_game_without_a_render_mode_renders_nothing_and_says_so() -> None:
    env: Any = marl.env("nim")
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="nim: render\\(\\) without a render mode"):
        assert env.render() is None


def test_the_global_state_tells_what_each_agent_knows() -> None:
    env: Any = marl.env("kuhn_poker")
    env.reset(options={"cards": "KJ"})
    states = {agent: env.information_state(agent) for agent in env.possible_agents}
    assert env.state() == f"player_0: {states['player_0']}\nplayer_1: {states['player_1']}"
    assert len(set(states.values())) == 2


@pytest.mark.parametrize("kind", sorted({*known_kinds("games")} - {"verifiers_environment"}))
def test_a_copy_goes_on_as_its_game_and_leaves_it_alone(kind: str) -> None:
    """Environments of verifiers are left out: they hold a running conversation, which cannot be copied."""
    env: Any = marl.env(kind, render_mode="ansi", **example_settings(kind))
    for seed in range(3):
        env.reset(seed)
        rng = random.Random(seed)
        for _ in range(20):
            if env.terminations[env.agent_selection] or env.truncations[env.agent_selection]:
                break
            copy, before, move = env.copy(), env.render(), random_move(env, env.agent_selection, rng)
            copy.step(move)
            assert env.render() == before
            env.step(move)
            assert (env.render(), env.state(), env.rewards) == (copy.render(), copy.state(), copy.rewards)
            assert env.agent_selection == copy.agent_selection
