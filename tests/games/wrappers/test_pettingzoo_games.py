"""Environments of PettingZoo as games without code: words, names of actions, rounds, seeds, and what is refused."""

from __future__ import annotations

import random
import re
from importlib import import_module
from typing import Any

import chess
import numpy as np
import pettingzoo
import pytest
from gymnasium.spaces import Box, MultiDiscrete
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import parallel_to_aec
from pydantic import ValidationError

from marl.core.plugins import import_check
from marl.games.aec import AecConfig, AecGame
from marl.games.wrappers.pettingzoo import PettingZooConfig
from tests.support.wrapped_game_play import determinism_faults, over, play_randomly

BOARD = "{% for row in observation %}{% for mine, theirs in row %}{{ 'x' if mine else 'o' if theirs else '.' }}{% endfor %}|{% endfor %}"  # noqa: E501


def classic(name: str, **more: Any) -> PettingZooConfig:
    return PettingZooConfig.model_validate({"env": f"pettingzoo.classic.{name}", **more})


class Lamps(ParallelEnv):
    """Two agents set a lamp and a colour at once; alike, both are paid 1, else the first loses what the second wins."""

    metadata = {"name": "lamps_v0"}  # noqa: RUF012
    possible_agents = ["ann", "bob"]  # noqa: RUF012
    render_mode = None

    def __init__(self, size: int = 4) -> None:
        self.size = size

    def observation_space(self, agent: str) -> Box:
        return Box(0, 1, (self.size,))

    def action_space(self, agent: str) -> MultiDiscrete:
        return MultiDiscrete([2, 3])

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = self.possible_agents[:]
        np.random.seed(seed)
        self.light = np.random.rand(self.size).round(2)
        return dict.fromkeys(self.agents, self.light), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        alike = bool((actions["ann"] == actions["bob"]).all())
        agents, self.agents = self.agents, []
        rewards = {"ann": 1.0 if alike else -1.0, "bob": 1.0}
        each = [dict.fromkeys(agents, value) for value in (True, False)]
        return dict.fromkeys(agents, self.light), rewards, *each, {agent: {} for agent in agents}


@pytest.mark.parametrize("name", ["tictactoe_v3", "leduc_holdem_v4", "rps_v2", "texas_holdem_no_limit_v6"])
def test_a_classic_game_is_a_function_of_its_seed_and_goes_on_after_a_fork(name: str) -> None:
    assert determinism_faults(classic(name, payoffs="zero_sum"), 3) == []


def test_moves_of_chess_have_their_uci_names_for_white_and_black() -> None:
    game, board, rng = (
        classic("chess_v6", settings={"render_mode": "ansi"}).build(),
        chess.Board(),
        np.random.RandomState(0),
    )
    game.reset(0)
    for _ in range(80):
        legal = set(game.infos[game.agent_selection]["legal"] or ())
        # The environment names no queen: a pawn becomes one unless it is said otherwise.
        assert legal == {move.uci().removesuffix("q") for move in board.legal_moves}
        assert game.observe(game.agent_selection)["text"] == str(board)
        moves: Any = list(board.legal_moves)
        move = rng.choice(moves)
        game.step(move.uci().removesuffix("q"))
        board.push(move)
        if over(game):
            break


def test_a_template_writes_what_an_agent_observes() -> None:
    game = classic("tictactoe_v3", describe=BOARD + " {{ agent }} {{ legal | length }} {{ name }}").build()
    game.reset(0)
    game.step("a1")
    assert game.observe("player_2")["text"] == "o..|...|...| player_2 8 tictactoe_v3"
    assert "a1" not in (game.infos["player_2"]["legal"] or ())


def test_without_a_template_an_observation_is_rows_of_numbers() -> None:
    game = classic("connect_four_v3").build()
    game.reset(0)
    game.step("column 1")
    *rows, last = game.observe("player_1")["text"].splitlines()
    assert last == "0,1 0,0 0,0 0,0 0,0 0,0 0,0"
    assert rows == ["0,0 0,0 0,0 0,0 0,0 0,0 0,0"] * 5


def test_in_a_parallel_environment_agents_are_asked_together_and_learn_nothing_of_each_other() -> None:
    game = PettingZooConfig(env=f"{__name__}:Lamps", payoffs="general").build()
    game.reset(5)
    assert game.infos["ann"]["together"] == ("ann", "bob")
    before = game.observe("bob"), game.infos["bob"]
    game.step("1 2")
    assert game.infos["bob"]["together"] == ("bob",)
    assert (game.observe("bob")["text"], game.infos["bob"]["state"]) == (before[0]["text"], before[1]["state"])
    assert game.infos["bob"]["legal"] == ("0 0", "0 1", "0 2", "1 0", "1 1", "1 2")
    game.step("1 2")
    assert game.rewards == {"ann": 1.0, "bob": 1.0}


def test_an_environment_that_seeds_the_global_generator_disturbs_nobody() -> None:
    np.random.seed(1)
    expected = np.random.rand(3)
    np.random.seed(1)
    game = PettingZooConfig(env=f"{__name__}:Lamps").build()
    game.reset(5)
    assert (np.random.rand(3) == expected).all()


class Drawn(Lamps):
    """Lamps whose number is drawn from the global generator when they are made, and which are seen through noise."""

    def __init__(self) -> None:
        super().__init__(size=int(np.random.randint(2, 200)))

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        _, infos = super().reset(seed, options)
        return {agent: self.light + np.random.rand() for agent in self.agents}, infos


def test_an_environment_that_draws_when_it_is_made_or_looked_at_is_the_same_each_time() -> None:
    games = [PettingZooConfig(env=f"{__name__}:Drawn").build() for _ in range(3)]
    for index, game in enumerate(games):
        np.random.seed(index)
        game.reset(5)
        for agent in ("ann", "bob", "ann")[:index]:
            game.observe(agent)
        game.step("0 0")
    assert len({game.observe("bob")["text"] for game in games}) == 1
    assert len({game.infos["bob"]["state"] for game in games}) == 1


@pytest.mark.parametrize("name", ["connect_four_v3", "leduc_holdem_v4", "rps_v2", "hanabi_v5"])
def test_what_is_paid_is_what_the_environment_pays(name: str) -> None:
    game, env = classic(name, describe="").build(), import_module(f"pettingzoo.classic.{name}").env()
    game.reset(3)
    env.reset(seed=int(game.start_state_key()))
    paid, earned = (dict.fromkeys(game.possible_agents, 0.0) for _ in range(2))
    rng, vocabulary = random.Random(1), game.all_actions
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        earned[agent] += reward
        action = None
        if not (terminated or truncated):
            assert game.agent_selection == agent
            name = rng.choice(game.infos[agent]["legal"] or ())
            action = (vocabulary or ()).index(name)
            game.step(name)
            paid = {each: paid[each] + game.rewards[each] for each in paid}
        env.step(action)
    assert over(game)
    assert paid == earned


@pytest.mark.parametrize("name", ["connect_four_v3", "leduc_holdem_v4"])
def test_a_game_can_be_copied_in_the_middle_as_search_does(name: str) -> None:
    game = classic(name, describe="{{ observation }}").build()
    game.reset(0)
    rng = random.Random(0)
    game.step(rng.choice(game.infos[game.agent_selection]["legal"] or ()))
    copy = game.copy(1)
    seen = game.observe(game.agent_selection)["text"]
    copy.step(rng.choice(copy.infos[copy.agent_selection]["legal"] or ()))
    assert game.observe(game.agent_selection)["text"] == seen
    assert copy.steps_taken == game.steps_taken + 1


def test_a_declaration_about_payoffs_is_checked() -> None:
    game = PettingZooConfig(env=f"{__name__}:Lamps", payoffs="zero_sum").build()
    game.reset(0)
    game.step("0 0")
    with pytest.raises(ValueError, match=re.escape("declared as zero_sum, but its environment paid {'ann': 1.0,")):
        game.step("0 0")


def test_names_of_actions_may_be_listed_or_made_by_a_template() -> None:
    listed = classic("leduc_holdem_v4", actions=["c", "r", "f", "k"]).build()
    made = classic("leduc_holdem_v4", actions="{{ seat }}-{{ action }}").build()
    assert isinstance(listed, AecGame)
    assert listed.all_actions == ("c", "r", "f", "k")
    assert isinstance(made, AecGame)
    assert made.all_actions == ("0-0", "0-1", "0-2", "0-3", "1-0", "1-1", "1-2", "1-3")


def refuse(place: str) -> None:
    raise ValueError(f"no consent to {place}")


class Crowd(Lamps):
    """Lamps whose agents are known only after a reset, as PettingZoo permits."""

    @property
    def possible_agents(self) -> list[str]:  # type: ignore[override]
        raise AttributeError("possible_agents")

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["ann", "bob"]
        return {}, {}


def test_an_environment_of_ones_own_without_possible_agents_is_refused_in_a_sentence() -> None:
    class CrowdConfig(AecConfig):
        kind: str = "crowd"

        def make_environment(self) -> AECEnv[str, Any, Any]:
            return parallel_to_aec(Crowd())

        def describe_observation(self, env: AECEnv[str, Any, Any], agent: str) -> str:
            return ""

    with pytest.raises(ValueError, match="lamps_v0 has no `possible_agents`, but a game's agents are known"):
        CrowdConfig().build()


@pytest.mark.parametrize("name", ["classic/rps-v2", "classic/rps_v2", "classic/rps"])
def test_an_id_of_pettingzoos_registry_is_the_same_game_as_its_module(name: str) -> None:
    ours = PettingZooConfig(env=name, payoffs="zero_sum")
    assert play_randomly(ours, 3) == play_randomly(classic("rps_v2", payoffs="zero_sum"), 3)


def test_every_id_of_the_classic_family_is_found_in_the_registry() -> None:
    ids = [env_id for env_id in pettingzoo.aec_registry if env_id.startswith("classic/")]
    assert len(ids) >= 9
    for env_id in ids:
        assert PettingZooConfig(env=env_id, describe="-").build().name == "pettingzoo"


def test_an_id_that_a_package_registered_is_found_with_its_settings() -> None:
    pettingzoo.register("parallel", "tests/lamps-v0", entry_point=f"{__name__}:Lamps", kwargs={"size": 7})
    try:
        game = PettingZooConfig(env="tests/lamps-v0").build()
        game.reset(0)
        assert len(game.observe("ann")["text"].split()) == 7
        assert len(PettingZooConfig(env="tests/lamps", settings={"size": 3}).build().possible_agents) == 2
        pettingzoo.register("aec", "tests/nothing-v0")
        with pytest.raises(ValidationError, match="registry without the function that creates it"):
            PettingZooConfig(env="tests/nothing-v0")
        token = import_check.set(refuse)
        with pytest.raises(ValidationError, match=f"no consent to {__name__}:Lamps"):
            PettingZooConfig(env="tests/lamps-v0")
        import_check.reset(token)
    finally:
        del pettingzoo.parallel_registry["tests/lamps-v0"], pettingzoo.aec_registry["tests/nothing-v0"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"env": "pettingzoo.classic.conect_four_v3"},
            "env: pettingzoo.classic has no 'conect_four_v3'; did you mean",
        ),
        ({"env": "my_module"}, "env: 'my_module'; choices: an id FAMILY/NAME-vN of PettingZoo's registry, pettingzoo."),
        (
            {"env": "classic/rsp-v2"},
            "PettingZoo's registry has no 'classic/rsp-v2'; did you mean 'classic/rps-v2'",
        ),
        (
            {"env": "classic/rps-v1"},
            "PettingZoo's registry has no 'classic/rps-v1'; did you mean 'classic/rps-v2'",
        ),
        (
            {"env": f"{__name__}:Crowd"},
            "env: lamps_v0 has no `possible_agents`, but a game's agents are known before it begins; give the",
        ),
        ({"env": "marl.games.aec:AecGames"}, "env: marl.games.aec has no 'AecGames'; did you mean 'AecGame'"),
        (
            {"env": "marl.games.aec:format_action_numbers"},
            "env: 'marl.games.aec:format_action_numbers' is no class of environments, and no function",
        ),
        ({"env": f"{__name__}:Lamps", "describe": "{% if %}"}, "'{% if %}' is no valid jinja2 template"),
        (
            {"env": "pettingzoo.classic.chess_v6"},
            "describe: an observation of 'player_0' has 7,104 numbers; at most",
        ),
        ({"env": f"{__name__}:Lamps", "settings": {"hue": 1}}, "settings: {'hue': 1} are not taken"),
        (
            {"env": "gymnasium.spaces:Discrete", "settings": {"n": 2}},
            "env: 'gymnasium.spaces:Discrete' is no class of environments",
        ),
        ({"env": f"{__name__}:Lamps", "actions": ["on"]}, "pettingzoo: moves of 'ann': 1 names (1 different) for 6"),
    ],
)
def test_what_cannot_be_played_is_refused_before_a_model_is_loaded(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        PettingZooConfig.model_validate(settings).build()


def test_an_unknown_name_in_a_template_is_named_with_the_names_that_there_are() -> None:
    game = classic("tictactoe_v3", describe="{{ board }}").build()
    with pytest.raises(ValueError, match="describe: 'board' is undefined; it may use observation, mask, legal, agent"):
        game.reset(0)


def test_code_that_a_scenario_names_is_imported_only_with_consent() -> None:
    token = import_check.set(refuse)
    try:
        with pytest.raises(ValidationError, match="no consent to somewhere:Env"):
            PettingZooConfig(env="somewhere:Env")
    finally:
        import_check.reset(token)


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pettingzoo.classic.rps_v2", None)
    with pytest.raises(ValidationError, match=re.escape("pip install 'marl-llm[pettingzoo]'")):
        classic("rps_v2")
