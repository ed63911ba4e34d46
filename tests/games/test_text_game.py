"""Properties of all games in words: PettingZoo conformance, illegal moves, options, isolation, replay."""

import ast
import json
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from pettingzoo.test import api_test, seed_test

from marl.games.base import IllegalMoveHandling, NextAgent, TextGame, reset_and_play
from marl.games.colonel_blotto import ColonelBlottoConfig
from marl.games.goofspiel import GoofspielConfig
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.leduc_poker import LeducPokerConfig
from marl.games.liars_dice import LiarsDiceConfig
from marl.games.nim import NimConfig
from marl.games.tic_tac_toe import TicTacToeConfig
from marl.protocols import Game, GameConfig
from tests.support.paths import ROOT

CONFIGS = [
    KuhnPokerConfig,
    ColonelBlottoConfig,
    LeducPokerConfig,
    LiarsDiceConfig,
    GoofspielConfig,
    NimConfig,
    TicTacToeConfig,
]
POLICIES = [
    {},
    {"retry": 2},
    {"then": "penalty"},
    {"then": "random", "retry": 1},
    {"then": "penalty", "penalty": 0.3, "retry": 3},
]
every_game = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.__name__)
every_policy = pytest.mark.parametrize("illegal", POLICIES, ids=str)


def play(game: Game, rng: random.Random, clumsy: float) -> list[str | None]:
    """Play uniformly to the end from a fresh reset, with a share of illegal answers; the actions, None if illegal."""
    actions: list[str | None] = []
    while not any(game.terminations.values()):
        legal = game.infos[game.agent_selection]["legal"]
        actions.append(None if rng.random() < clumsy else rng.choice(legal or ()))
        game.step(actions[-1] or "")
    return actions


def snapshot(game: Game) -> str:
    """All that can be seen of a game, comparable bit for bit."""
    seen = {agent: game.observe(agent)["text"] for agent in game.agents}
    facts = (
        seen,
        game.agent_selection,
        game.rewards,
        game.reward_components,
        game.terminations,
        game.infos,
        game.start_state_key(),
    )
    return json.dumps(facts)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_game_without_a_vocabulary_passes_pettingzoos_own_tests() -> None:
    class Echo(TextGame):
        name = "echo"

        def __init__(self) -> None:
            super().__init__(("player_0",), IllegalMoveHandling(retry=1))

        def start_new_game(self, rng: random.Random, options: Mapping[str, object]) -> NextAgent:
            self.word = str(rng.randint(0, 9))
            return "player_0"

        def describe_observation(self, agent: str) -> str:
            return self.word

        def information_state(self, agent: str) -> str:
            return self.word

        def start_state_key(self) -> str:
            return self.word

        def apply_action(self, action: str) -> Mapping[str, float]:
            return {"player_0": float(action == self.word)}

    api_test(Echo(), num_cycles=50)
    seed_test(Echo, num_cycles=50)
    game = Echo()
    game.reset(seed=0)
    assert game.infos["player_0"]["legal"] is None
    game.step("")
    assert game.infos["player_0"]["attempt"] == 1
    game.step("any text is a move")
    assert game.terminations == {"player_0": True}


@every_game
def test_a_game_is_a_function_of_seed_and_actions(config: type[GameConfig]) -> None:
    one, other = config(kind="any").build(), config(kind="any").build()
    for seed in range(20):
        one.reset(seed)
        actions = play(one, random.Random(seed), 0.0)
        reset_and_play(other, seed, None, actions)
        assert snapshot(one) == snapshot(other)


@every_policy
@every_game
def test_replay_reproduces_an_episode_with_its_illegal_moves(config: type[GameConfig], illegal: dict) -> None:
    build = config.model_validate({"kind": "any", "illegal": illegal}).build
    game, copy = build(), build()
    for seed in range(40):
        game.reset(seed)
        actions = play(game, random.Random(seed), 0.4)
        random.seed(seed + 1)  # whatever others do with the global generator changes nothing
        for until in range(len(actions) + 1):
            reset_and_play(game, seed, None, actions[:until])
            reset_and_play(copy, seed, None, actions[:until])
            assert snapshot(game) == snapshot(copy)


@every_game
def test_instances_with_one_seed_share_no_random_state(config: type[GameConfig]) -> None:
    settings = config.model_validate({"kind": "any", "illegal": {"then": "random"}})
    alone = settings.build()
    alone.reset(7)
    while not any(alone.terminations.values()):
        alone.step("")
    one: Any = settings.build()
    other: Any = settings.build()
    one.reset(7)
    other.reset(7)
    while not any(one.terminations.values()):
        one.step("")
        for _ in range(2):
            if any(other.terminations.values()):
                other.reset(99)
            other.step("")
    assert snapshot(one) == snapshot(alone)
    assert one.action_space("player_0") is not other.action_space("player_0")
    assert one.action_space("player_0") is not one.action_space("player_1")


@every_game
def test_games_leave_the_global_random_generator_alone(config: type[GameConfig]) -> None:
    random.seed(3)
    before = random.getstate()
    game = config.model_validate({"kind": "any", "illegal": {"then": "random"}}).build()
    for seed in range(5):
        game.reset(seed)
        play(game, random.Random(seed), 0.5)
    assert random.getstate() == before


def test_source_files_draw_no_global_random_numbers() -> None:
    for path in (ROOT / "games").glob("*.py"):
        uses = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)]
        named = {n.attr for n in uses if isinstance(n.value, ast.Name) and n.value.id == "random"}
        # Environments of others may draw them; there they are swapped for generators that nobody else sees.
        assert named <= {"Random"} or path.name == "isolated_random.py", path


@every_policy
@every_game
def test_rewards_sum_to_zero_and_are_the_sum_of_what_was_paid(config: type[GameConfig], illegal: dict) -> None:
    game = config.model_validate({"kind": "any", "illegal": illegal}).build()
    for seed in range(40):
        game.reset(seed)
        rng = random.Random(seed)
        while not any(game.terminations.values()):
            legal = game.infos[game.agent_selection]["legal"] or ()
            game.step("nonsense" if rng.random() < 0.4 else rng.choice(legal))
            assert sum(game.rewards.values()) == pytest.approx(0, abs=1e-12)
            for agent, reward in game.rewards.items():
                assert reward == sum(game.reward_components.get(agent, {}).values())


@every_game
def test_prompts_are_short_and_made_of_words(config: type[GameConfig]) -> None:
    game: Any = config(kind="any").build()
    for seed in range(30):
        game.reset(seed)
        while not any(game.terminations.values()):
            agent = game.agent_selection
            seen: Any = game.observe(agent)
            words = seen["text"].split()
            assert len(words) <= 15
            assert all(re.fullmatch(r"\w+|\[\w+\]|\.", word) for word in words)
            legal = game.infos[agent]["legal"] or ()
            assert seen["action_mask"].sum() == len(legal)
            waiting = [other for other in game.agents if other not in game.infos[agent]["together"]]
            assert not any(game.observe(other)["action_mask"].any() for other in waiting)
            game.step(random.Random(seed).choice(legal))


class Coin(TextGame):
    """One move, which is paid as its text says."""

    name = "coin"

    def __init__(self, payment: object) -> None:
        super().__init__(("ann",), IllegalMoveHandling())
        self.payment = payment

    def start_new_game(self, rng: random.Random, options: Mapping[str, object]) -> NextAgent:
        return "ann"

    def describe_observation(self, agent: str) -> str:
        return "?"

    information_state = describe_observation

    def start_state_key(self) -> str:
        return "only"

    def apply_action(self, action: str) -> Mapping[str, Any]:
        return {"ann": self.payment}


@pytest.mark.parametrize(
    "payment",
    [
        *(1, 1.0, True, np.float32(1), np.int64(1), np.bool_(True), np.array(1.0), Fraction(1)),
        *(torch.tensor(1.0), torch.tensor([1], dtype=torch.int8), torch.ones((), dtype=torch.bfloat16)),
    ],
    ids=repr,
)
def test_a_reward_may_be_any_kind_of_number(payment: object) -> None:
    game = Coin(payment)
    game.reset(0)
    game.step("heads")
    assert game.reward_components == {"ann": {"outcome": 1.0}}
    assert type(game.rewards["ann"]) is type(game.reward_components["ann"]["outcome"]) is float


@pytest.mark.parametrize(
    "payment",
    [
        *("1", "much", b"1", None, [1], {}, 1j, 10**400, float("nan"), float("-inf"), np.float32("nan"), "x" * 10_000),
        *(np.array([1.0, 2.0]), torch.tensor([1.0, 2.0]), torch.tensor(float("inf"))),
    ],
    ids=lambda payment: repr(payment)[:20],
)
def test_a_reward_that_is_no_finite_number_is_named(payment: object) -> None:
    game = Coin(payment)
    game.reset(0)
    with pytest.raises(ValueError, match=r"^coin: reward 'outcome' of 'ann': .{1,60} is no finite number$"):
        game.step("heads")


def test_a_method_that_a_game_lacks_is_named() -> None:
    class Unfinished(TextGame):
        name = "unfinished"

        def start_new_game(self, rng: object, options: object) -> str:
            return "ann"

    with pytest.raises(NotImplementedError, match=r"^class Unfinished must define the method \w+$"):
        Unfinished(("ann",), IllegalMoveHandling(), ("a",)).reset(seed=0)


def test_masks_are_fresh_arrays() -> None:
    game: Any = KuhnPokerConfig().build()
    game.reset(0)
    game.observe("player_0")["action_mask"][:] = 9
    assert game.observe("player_0")["action_mask"].tolist() == [1, 1, 0, 0]


def test_importing_the_games_does_not_import_torch() -> None:
    code = (
        "import sys, marl.games.kuhn_poker, marl.games.nim, marl.games.tic_tac_toe;"
        "sys.exit(bool({'torch', 'transformers', 'pyspiel'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
