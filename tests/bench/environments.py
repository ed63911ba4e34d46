"""Plays environments of PettingZoo, Gymnasium, OpenSpiel, TextArena, verifiers and TRL as games.

    python tests/bench/environments.py LIBRARY [--survey] [--out FILE]

Each environment of a library (pettingzoo, openspiel, textarena, gymnasium, chat) is played by a random player: twice
with one seed, once more in another process in which sets have another order, and from the middle by replay of its
moves. Then a tiny language model that knows nothing trains on all of them in one run of two steps, once left alone and
once with a SIGKILL at the end of the second step and `--resume auto`, and all that the two leave on disk is compared.
`--survey` plays one random episode of every game that OpenSpiel or TextArena registers instead, and says why some do
not work.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from _bench import ROOT, parser, report

SUPPORT = ROOT / "tests" / "support"
sys.path.append(str(SUPPORT))

from marl.core.graph import read_trajectories  # noqa: E402
from marl.core.plugins import find_plugin  # noqa: E402
from marl.protocols import GameConfig  # noqa: E402
from tests.support.run_processes import RunWorkspace, SignalTrigger, outcome  # noqa: E402
from tests.support.wrapped_game_play import determinism_faults, digest, play_randomly, seats  # noqa: E402

RUNS = ROOT / "runs" / "environments"
_CELL = "{{ 'x' if cell[0] else 'o' if cell[1] else '.' }}"
_BOARD = f"{{% for row in observation %}}{{% for cell in row %}}{_CELL}{{% endfor %}}/{{% endfor %}}"
_ONES = "{% for bit in observation %}{% if bit %}{{ loop.index0 }} {% endif %}{% endfor %}"
_CLASSIC: dict[str, dict[str, Any]] = {
    "chess_v6": {"settings": {"render_mode": "ansi"}, "payoffs": "zero_sum"},
    "connect_four_v3": {"describe": _BOARD, "payoffs": "zero_sum"},
    "go_v5": {"settings": {"board_size": 5}, "describe": _BOARD, "payoffs": "zero_sum"},
    "hanabi_v5": {"describe": _ONES, "payoffs": "common"},
    "leduc_holdem_v4": {"payoffs": "zero_sum"},
    "rps_v2": {"payoffs": "zero_sum"},
    "texas_holdem_no_limit_v6": {"payoffs": "zero_sum"},
    "texas_holdem_v4": {"payoffs": "zero_sum"},
    "tictactoe_v3": {"describe": _BOARD, "payoffs": "zero_sum"},
}
_SPIEL = (
    *("blackjack", "blotto", "breakthrough(rows=5,columns=4)", "catch", "connect_four", "dark_hex"),
    *("first_sealed_auction", "goofspiel(num_cards=5)", "hanabi", "hex(board_size=4)", "kuhn_poker(players=3)"),
    *("leduc_poker", "lewis_signaling", "liars_dice", "matching_pennies_3p", "matrix_pd", "negotiation", "nim"),
    *("phantom_ttt", "pig(winscore=20)", "sheriff", "tic_tac_toe", "tiny_bridge_2p", "trade_comm"),
)
_ARENA = {
    1: ("Mastermind-v0", "GuessTheNumber-v0", "TowerOfHanoi-v0", "FrozenLake-v0"),
    2: (
        *("TicTacToe-v0", "ConnectFour-v0", "KuhnPoker-v0", "Nim-v0", "Othello-v0-tiny", "WildTicTacToe-v0"),
        *("IteratedPrisonersDilemma-v0", "SimpleNegotiation-v0-short", "Snake-v0", "LiarsDice-v0-small"),
    ),
    3: ("ThreePlayerTicTacToe-v0", "ThreePlayerIPD-v0"),
}
"""Number of players -> games."""
_TEXT = {"settings": {"render_mode": "ansi"}}
_GYM: dict[str, dict[str, Any]] = {
    "FrozenLake-v1": _TEXT,
    "CliffWalking-v1": {"settings": {"render_mode": "ansi", "max_episode_steps": 50}},
    "Blackjack-v1": {},
    "CartPole-v1": {},
    "MountainCar-v0": {"settings": {"max_episode_steps": 50}},
}
_VERIFIERS = {
    "kind": "verifiers_environment",
    "env": "tests.support.third_party_environments:load_environment",
    "examples": ["4", "5"],
}
_CALLS = [f'{{"name": "guess", "arguments": {{"number": {number}}}}}' for number in (3, 7)]
_CHAT: dict[str, dict[str, Any]] = {
    "single turn": {**_VERIFIERS, "settings": {"name": "sums"}},
    "several turns": {**_VERIFIERS, "settings": {"name": "guessing"}},
    "with a tool": {**_VERIFIERS, "settings": {"name": "doubling"}},
    "tools and get_reward": {
        "kind": "trl_environment",
        "env": "tests.support.third_party_environments:GuessEnvironment",
        "examples": [*_CALLS, "done"],
    },
}
_REASONS = {
    "OpenRouter": "asks a model of an endpoint",
    "nltk": "needs lists of words that nltk downloads",
    "SyntaxError": "its module needs Python 3.12",
    "mean field game": "is a mean field game",
    "action structs": "lists no legal moves",
    "is no finite number": "pays a text after a wrong move",
    "FileNotFoundError": "lacks files in its package",
    "Could not import": "lacks its module in the package",
}
"""Part of a message -> the reason in short."""
_TOO_LONG = {"chess_v6": "several hundred moves an episode take the model minutes"}
"""Environment -> the reason why the model does not play it."""
_PLAYERS = (2, 1, 3, 4, 5, 6)
"""Numbers of players that a game of TextArena is tried with."""


def libraries() -> dict[str, dict[str, dict[str, Any]]]:
    """Return library -> name of an environment -> settings of a game."""
    return {
        "pettingzoo": {
            name: {"kind": "pettingzoo", "env": f"pettingzoo.classic.{name}", **more} for name, more in _CLASSIC.items()
        },
        "openspiel": {name: {"kind": "openspiel", "name": name} for name in _SPIEL},
        "textarena": {
            name: {"kind": "textarena", "id": name, "players": players}
            for players, names in _ARENA.items()
            for name in names
        },
        "gymnasium": {name: {"kind": "gymnasium", "id": name, **more} for name, more in _GYM.items()},
        "chat": _CHAT,
    }


def main() -> None:
    line = parser(__doc__)
    line.add_argument("library", choices=libraries())
    line.add_argument("--survey", action="store_true")
    line.add_argument("--random", action="store_true", help="leave out the language model, which takes minutes")
    line.add_argument("--digests", action="store_true", help="print a digest of one episode of each, and nothing else")
    given = line.parse_args()
    if given.survey:
        games = {"openspiel": _every_spiel_game, "textarena": _every_arena_game}[given.library]()
        return report(survey(games), given.out, seeds=[0])
    if given.digests:
        return print(json.dumps(digests(libraries()[given.library])))
    figures = measure(given.library, libraries()[given.library], learns=not given.random)
    report(figures, given.out, seeds=[0])
    return sys.exit(bool(figures["faults"]))


def config_of(settings: dict[str, Any]) -> GameConfig:
    part = find_plugin("games", settings["kind"]).model_validate(settings)
    assert isinstance(part, GameConfig)
    return part


def measure(library: str, games: dict[str, dict[str, Any]], *, learns: bool) -> dict[str, Any]:
    """Return the turns of a random episode and of the model's in each game, and what is not as it must be."""
    configs = {name: config_of(settings) for name, settings in games.items()}
    wrong = [f"{name}: {fault}" for name, config in configs.items() for fault in determinism_faults(config, 0)]
    elsewhere = _digests_elsewhere(library)
    wrong += [f"{name}: another process" for name, text in digests(games).items() if elsewhere[name] != text]
    left_out = {name: reason for name, reason in _TOO_LONG.items() if name in games}
    turns = _learn(library, {name: games[name] for name in games if name not in left_out}, wrong) if learns else {}
    return {
        "faults": wrong,
        "learned": learns,
        "left_out": left_out if learns else {},
        "turns": {
            name: {"random": len(play_randomly(config, 0).moves), "model": turns.get(_label(name), [])}
            for name, config in configs.items()
        },
    }


def _learn(library: str, games: dict[str, dict[str, Any]], wrong: list[str]) -> dict[str, list[int]]:
    """Return name of a game in the run -> turns of each episode of the model; add to `wrong` what differs."""
    home = RUNS / library
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    alone, killed = (RunWorkspace(home / run, scenario(games)) for run in ("alone", "killed"))
    statuses = [
        _status(alone.start_training("--trust")),
        _status(killed.start_training("--trust", kill=SignalTrigger("open", "000002.jsonl"))),
        _status(killed.start_training("--trust", "--resume", "auto")),
    ]
    if statuses != [0, -9, 0]:
        wrong.append(f"runs ended with {statuses}: {alone.take_output()[-300:]} {killed.take_output()[-300:]}")
    elif outcome(alone.run) != outcome(killed.run):
        wrong.append("a killed and resumed run differs")
    return _turns(alone.run)


def digests(games: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return name -> a digest of one random episode."""
    return {name: digest(config_of(settings), 1) for name, settings in games.items()}


def _digests_elsewhere(library: str) -> dict[str, str]:
    """Return what `digests` does in a process in which sets of texts have another order."""
    command = [sys.executable, "-W", "ignore", __file__, library, "--digests"]
    output = subprocess.check_output(command, env=os.environ | {"PYTHONHASHSEED": "12345"}, text=True)
    return json.loads(output.splitlines()[-1])


def _turns(run: Path) -> dict[str, list[int]]:
    """Return name of a game in a run -> turns of each episode."""
    turns: dict[str, list[int]] = {}
    for file in sorted((run / "trajectories").glob("*.jsonl.zst")):
        for trajectory in read_trajectories(file):
            turns.setdefault(trajectory.deal.game, []).append(len(trajectory.turns))
    return turns


def _status(process: BaseProcess) -> int | None:
    """Return the exit status of a process, however long it takes."""
    process.join()
    return process.exitcode


def _label(name: str) -> str:
    """Return a name that a game can have in a run."""
    return re.sub("[^0-9A-Za-z_]+", "-", name)


def scenario(games: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a run of a tiny model that knows nothing, one episode of each game a step.

    Where moves are listed, illegal ones are replaced by random ones, so that episodes have their usual length.
    """
    return {
        "games": {
            _label(name): {"game": _with_random_moves(game), "seats": seats(config_of(game))}
            for name, game in games.items()
        },
        "roles": {"player": {"kind": "player", "policy": "actor", "sampling": {"max_tokens": 3}}},
        "policies": {
            "actor": {
                "model": {"kind": "tiny", "hidden": 16, "vocabulary": "bytes", "context": 65536},
                "learner": {"kind": "grpo", "lr": 1e-3},
            }
        },
        "credit": {"baseline": {"kind": "none"}},
        "schedule": {"steps": 2, "groups": len(games), "group_size": 1, "threads": 1},
        "checkpoint": {"every": 1, "trajectories": 1.0},
        "alarms": None,
    }


def _with_random_moves(game: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a game with random moves for illegal ones, if moves are listed.

    TextArena lists none: there, the moves of a random episode are.
    """
    if game["kind"] in ("verifiers_environment", "trl_environment"):
        return game
    listed = {"actions": sorted(set(play_randomly(config_of(game), 0).moves))} if game["kind"] == "textarena" else {}
    return game | listed | {"illegal": {"then": "random"}}


def survey(games: Iterator[tuple[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Return how many games can be played, and the others by the reason why they cannot."""
    played, others = 0, dict[str, list[str]]()
    for name, attempts in games:
        problems = [_attempt(settings) for settings in attempts]
        played += "" in problems
        if "" not in problems:
            others.setdefault(problems[0], []).append(name)
    return {"played": played, "not_played": others}


def _attempt(settings: dict[str, Any]) -> str:
    """Return the reason why a random episode of at most 100 moves cannot be played; "" if it can."""
    try:
        play_randomly(config_of(settings), 0, most=100)
    except Exception as error:  # noqa: BLE001 (whatever somebody else's code raises is the result)
        text = f"{type(error).__name__}: {error}"
        return next((reason for mark, reason in _REASONS.items() if mark in text), " ".join(text.split())[:100])
    return ""


def _every_spiel_game() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    import pyspiel

    for facts in pyspiel.registered_games():
        if facts.default_loadable:
            yield facts.short_name, [{"kind": "openspiel", "name": facts.short_name}]


def _every_arena_game() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the first variant of each game of TextArena."""
    from textarena.envs.registration import ENV_REGISTRY

    seen = set[str]()
    for name, spec in list(ENV_REGISTRY.items()):
        if str(spec.entry_point) not in seen:
            seen.add(str(spec.entry_point))
            yield name, [{"kind": "textarena", "id": name, "players": players} for players in _PLAYERS]


if __name__ == "__main__":
    random.seed(0)
    main()
