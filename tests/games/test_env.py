"""Games as ordinary PettingZoo environments: `marl.env`, played and learned from outside by other code."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from pettingzoo.test import api_test, seed_test
from pettingzoo.utils import average_total_reward

import marl
from marl.core.plugins import known_kinds
from marl.models.tiny import Tiny
from marl.scenario.yaml_text import ScenarioError
from tests.support.every_game import example_settings
from tests.support.paths import ROOT
from tests.support.small_games import PAIR

OBLONG = [[[1, -1], [-2, 2], [3, -3]], [[0, 0], [4, -4], [-5, 5]]]
THREE = [[[[1, 2, 3], [0, 0, 0]], [[0, 1, 0], [5, 5, 5]]], [[[1, 0, 1], [0, 0, 2]], [[3, 0, 0], [0, 4, 0]]]]
DOUBLES = {"agents": 3, "task": {"kind": "arithmetic", "digits": [1, 1], "train": 8, "held_out": 4}}
SHORT_DEAL = {"items": ["book", "hat"], "pool": [2, 2], "total": 4, "max_turns": 2}
TEAM_STAGES = [
    {"role": "planner", "examples": ["{{ given.left }}"]},
    {"role": "solver", "hears": ["planner"], "examples": ["{{ answer }}", "{{ wrong[0] }}"], "n": 2},
    {"role": "verifier", "verifies": "solver", "scores": ["correct"]},
]
ADDITION_TEAM = {
    "task": {"kind": "tests.support.addition_task:AdditionTask"},
    "stages": TEAM_STAGES,
    "rewards": {"solver": {"correct": "own.correct"}},
}
PROGRAM_TEAM = {
    "task": {"kind": "tests.support.addition_task:AdditionTask"},
    "stages": [
        {"role": "crew", "n": 2, "callers": {"planner": {}, "helper": {}}},
        {"role": "verifier", "verifies": "planner", "scores": ["correct"]},
    ],
    "rewards": {"planner": {"correct": "own.correct"}, "helper": {"team": "0.5 * planner_0.correct"}},
}
"""Team with a program, whose callers are agents that never move."""
ILLEGAL = [
    {},
    {"retry": 1, "then": "penalty"},
    {"retry": 1, "then": "random"},
    {"retry": 2},
    {"then": "penalty"},
    {"then": "random"},
    {"then": "penalty", "penalty": 0.3, "retry": 3},
]
ILLEGAL_TEXT = [{}, {"retry": 2}, {"retry": 20}]
"""Handling of illegal moves in games without a list of moves, which can only be forfeited."""
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "coalition": [{"preset": "majority"}, {"weights": [4, 3, 2, 1], "quota": 6}],
    "colonel_blotto": [{}, {"troops": [4, 2], "pays": "battlefields"}],
    "connect_four": [{"openings": 0.5}],
    "first_price_auction": [{}, {"players": 4, "max_value": 3}],
    "goofspiel": [{}, {"bids": "hidden", "pays": "points", "prizes": "ascending"}],
    "guess_who": [{}],
    "hanabi": [{}, {"players": 3, "lives": 3}],
    "codenames": [{}, {"teams": 1, "counts": (4, 3, 2, 1), "max_turns": 3}],
    "hint": [{"symbols": 3}],
    "holdem": [{}, {"ranks": 5, "suits": 2, "streets": 3}],
    "kuhn_poker": [{}],
    "layered_hint": [{}],
    "leduc_poker": [{}],
    "liars_dice": [{"dice": 1}, {"dice": 2}],
    "matrix": [{"table": "climbing"}, {"table": "and"}, {"table": [[1, 2, 3], [4, 5, 6]]}],
    "negotiation": [{}, SHORT_DEAL],
    "nim": [{}],
    "openspiel": [{"name": "kuhn_poker"}],
    "pettingzoo": [{"env": "pettingzoo.classic.tictactoe_v3"}, {"env": "pettingzoo.classic.leduc_holdem_v4"}],
    "repeated_matrix": [{"table": "chicken", "rounds": 3}, {"table": OBLONG, "rounds": 2}, {"table": THREE}],
    "stopping": [{}],
    "tic_tac_toe": [{}],
    "two_step": [{}],
    "werewolf": [{"whispers": True}],
}
"""Kind -> further settings, each tested with every item of `ILLEGAL`."""
TEXT_SETTINGS: dict[str, list[dict[str, Any]]] = {
    "codenames": [{"clues": "text"}],
    "communication": [DOUBLES],
    "negotiation": [{"talk": True}],
    "taboo": [{}],
    "werewolf": [{"talk": "text"}],
}
"""Kind -> further settings without a list of moves, each tested with every item of `ILLEGAL_TEXT`."""
CROSSED = [
    (kind, settings | {"illegal": illegal})
    for table, policies in ((SETTINGS, ILLEGAL), (TEXT_SETTINGS, ILLEGAL_TEXT))
    for kind in table
    for settings, illegal in product(table[kind], policies)
]
FURTHER = [
    *CROSSED,
    ("gymnasium", {"id": "Blackjack-v1"}),
    ("gymnasium", {"id": "FrozenLake-v1", "settings": {"render_mode": "ansi"}}),
    ("team", ADDITION_TEAM),
    ("team", PROGRAM_TEAM),
    ("textarena", {"id": "TicTacToe-v0"}),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", known_kinds("games"))
def test_every_game_is_an_ordinary_pettingzoo_environment(kind: str) -> None:
    settings = example_settings(kind)
    api_test(marl.env(kind, **settings), num_cycles=30)
    seed_test(lambda: marl.env(kind, **settings), num_cycles=15)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("kind", "settings"), FURTHER, ids=str)
def test_games_with_further_settings_are_ordinary_pettingzoo_environments(kind: str, settings: dict[str, Any]) -> None:
    api_test(marl.env(kind, **settings), num_cycles=60)
    seed_test(lambda: marl.env(kind, **settings), num_cycles=30)


def test_agents_that_only_a_program_asks_are_seated_and_paid_but_never_to_move() -> None:
    env: Any = marl.env("team", **PROGRAM_TEAM)
    env.reset(seed=0)
    moved: set[str] = set()
    paid: set[str] = set()
    callers = {agent for agent in env.possible_agents if agent.startswith(("planner", "helper"))}
    assert len(callers) == 4
    for agent in env.agent_iter():
        is_over = env.terminations[agent] or env.truncations[agent]
        paid |= {payee for payee, amount in env.rewards.items() if amount}
        if is_over:
            env.step(None)
            continue
        moved.add(agent)
        results = {f"{role}_{agent[-1]}": {"text": "x", "move": "x", "calls": 1} for role in ("planner", "helper")}
        program = json.dumps({"answer": "x", "callers": results})
        env.step(program if agent.startswith("crew") else json.dumps({"scores": {"correct": 1.0}}))
    assert moved.isdisjoint(callers)
    assert paid == callers


def test_pettingzoos_own_evaluation_plays_a_game_by_its_masks() -> None:
    """Uniform play of Kuhn poker is worth 1/8 to the first player, and of a zero-sum game nothing to both together."""
    total = average_total_reward(marl.env("kuhn_poker"), max_episodes=50, max_steps=10**6)
    assert total == 0
    env: Any = marl.env("kuhn_poker")
    chips = 0.0
    for seed, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(seed)
    for seed in range(4000):
        env.reset(seed)
        for agent in env.agent_iter():
            observation, reward, terminated, truncated, _ = env.last()
            chips += reward if agent == PAIR[0] else 0.0
            over = terminated or truncated
            env.step(None if over else env.action_space(agent).sample(observation["action_mask"]))
    assert chips / 4000 == pytest.approx(1 / 8, abs=0.1)  # four standard deviations


def test_q_learning_that_knows_only_pettingzoo_learns_nim() -> None:
    """Tabular self-play through `agent_iter`: the greedy moves are the optimal ones, multiples of four excepted."""
    env: Any = marl.env("nim", piles=[1, 9])
    rng = np.random.default_rng(0)
    values: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(3))
    for episode in range(3000):
        env.reset(seed=episode)
        past: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for agent in env.agent_iter():
            observation, reward, terminated, _, _ = env.last()
            if terminated:
                for text, action in past[agent]:
                    values[text][action] += 0.2 * (reward - values[text][action])
                env.step(None)
                continue
            legal = np.flatnonzero(observation["action_mask"])
            row = values[observation["text"]]
            action = int(rng.choice(legal)) if rng.random() < 0.2 else int(legal[np.argmax(row[legal])])
            past[agent].append((observation["text"], action))
            env.step(str(action + 1))
    for pile in (1, 2, 3, 5, 6, 7, 9):
        env.reset(options={"pile": pile})
        assert 1 + int(np.argmax(values[env.observe("player_0")["text"]])) == pile % 4


def test_a_registered_game_and_an_import_path_are_known_too() -> None:
    code = """
import marl
from marl.games.kuhn_poker import KuhnPokerConfig
marl.register("other_poker", type("OtherPoker", (KuhnPokerConfig,), {"__module__": "here"}))
for kind in ("other_poker", "marl.games.kuhn_poker:KuhnPokerConfig"):
    print(marl.env(kind, illegal={"retry": 2}).illegal.retry)
"""
    # In a process of its own: what is registered stays so.
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "2\n2\n", done.stderr


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("kuhn_pokr", {}, r"game.kind: unknown kind 'kuhn_pokr'; did you mean 'kuhn_poker'.*choices: "),
        ("nim", {"pile": [1, 2]}, r"game.pile: unknown field 'pile'; did you mean 'piles'"),
        ("nim", {"max_take": 0}, r"game.max_take: must be at least 1 \(got 0\)"),
        ("kuhn_poker", {"illegal": {"then": "explode"}}, r"game.illegal.then: unknown; choices: forfeit, .* 'explode'"),
    ],
)
def test_errors_name_field_value_and_choices(kind: str, settings: dict, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        marl.env(kind, **settings)


def test_making_an_environment_imports_no_torch() -> None:
    code = "import sys, marl; marl.env('kuhn_poker').reset(0); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.slow
def test_trl_learns_nim_from_the_environment_alone(tmp_path: Path) -> None:
    """TRL's GRPO on a tiny model: its reward function plays each answer, and then a random opponent, in `marl.env`."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    env: Any = marl.env("nim", piles=[1, 3])
    rng = random.Random(0)

    def prompt_of(pile: int) -> str:
        env.reset(options={"pile": pile})
        return env.observe("player_0")["text"]

    def result(pile: int, answer: str) -> float:
        """What the first move earns, if both then play at random."""
        env.reset(options={"pile": pile})
        paid, moves = 0.0, iter([answer.strip()])
        for agent in env.agent_iter():
            _, reward, terminated, _, info = env.last()
            paid += reward if agent == "player_0" else 0.0
            env.step(None if terminated else next(moves, None) or rng.choice(info["legal"]))
        return paid

    def rewards(completions: list[list[dict[str, str]]], pile: list[int], **_: Any) -> list[float]:
        means.append(fmean(scores := [result(p, c[0]["content"]) for p, c in zip(pile, completions, strict=True)]))
        return scores

    piles = [rng.randint(1, 3) for _ in range(16 * 80)]
    rows = [{"prompt": [{"role": "user", "content": prompt_of(pile)}], "pile": pile} for pile in piles]
    folder, means = Tiny(hidden=64, heads=4, layers=2).cached_folder({prompt_of(pile) for pile in range(1, 4)}), []
    reward_function: Any = rewards
    GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=reward_function,
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(
            **{"output_dir": str(tmp_path), "max_steps": 80, "use_cpu": True, "bf16": False, "report_to": "none"},
            **{"save_strategy": "no", "disable_tqdm": True, "gradient_checkpointing": False, "beta": 0.0},
            **{"per_device_train_batch_size": 128, "num_generations": 8, "max_completion_length": 1},
            **{"learning_rate": 2e-3, "temperature": 1.0, "seed": 0},
        ),
    ).train()
    assert means[0] < 0  # most answers of random weights are no legal move
    assert fmean(means[-20:]) > 0.5  # random legal moves earn 1/3
