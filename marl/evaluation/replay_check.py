"""Replay of random episodes, to find before a run a game that depends on more than its seed and the moves."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields

from marl.core.errors import EpisodeWithoutOutcomeError
from marl.core.seeds import hash_to_seed
from marl.core.watchdog import CallTimeoutError
from marl.protocols import Game, GameConfig
from marl.rollout.game_errors import GameError, GameErrorGuard
from marl.scenario.schema import Scenario

EPISODES = 3
"""Maximum number of episodes per game that are played twice."""
MAX_MOVES = 200
"""Maximum number of moves of one episode that are played twice."""
TIME_LIMIT_S = 1.0
"""Time after which no further move of a game is played for the first time [s]."""
CALL_LIMIT_S = 10.0
"""Time limit of one play of an episode [s]."""
_PLACEHOLDER_MOVE = "1"
"""Move where any text is a move and the game gives no example."""
_SHOWN_BEFORE, _SHOWN = 20, 100
"""Number of characters of a differing text shown before the first difference, and in total."""


@dataclass(frozen=True)
class _GameSnapshot:
    """Everything that can be seen of a game before a move."""

    agent: str
    """Agent to move, or "" at the end of the game."""
    observations: Mapping[str, str]
    """Agent -> its observation, for the agents asked together."""
    information_state: str
    legal_moves: tuple[str, ...] | None
    rewards: Mapping[str, float]
    """Agent -> reward of the previous move."""


def replay_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each game of the scenario that did not repeat a random episode, move for move."""
    for name, view in scenario.scenario_by_game().items():
        # Errors of the game and calls that never return are left to the dry run, which reports them.
        with suppress(GameError, CallTimeoutError, EpisodeWithoutOutcomeError):
            if difference := find_replay_difference(view.game, scenario.schedule.seed):
                yield f"{f'games.{name}.game' if name else 'game'}: {difference}"


def find_replay_difference(config: GameConfig, run_seed: int) -> str | None:
    """Return a description of the first difference between two plays of equal seeds and moves, or None.

    Each play has a game of its own. The check takes about twice `TIME_LIMIT_S`, plus the time of building the games.

    Raises:
        GameError: if the game raises an error.
        CallTimeoutError: if one play takes longer than `CALL_LIMIT_S`.
    """
    stop_s = time.monotonic() + TIME_LIMIT_S
    for index in range(EPISODES):
        seed = hash_to_seed(run_seed, f"replay.{index}")
        game = config.build()
        with GameErrorGuard(game, lambda seed=seed: f"in a replay with seed {seed}", CALL_LIMIT_S):
            moments, moves = _snapshots_and_moves_of_random_episode(game, seed, stop_s)
        game = config.build()
        with GameErrorGuard(game, lambda seed=seed: f"in a replay with seed {seed}", CALL_LIMIT_S):
            game.reset(seed)
            for step, first in enumerate(moments):
                if first != (second := _snapshot_before_move(game)):
                    return (
                        f"{config.kind!r} is not reproducible: two plays of seed {seed} with the same moves differ "
                        f"before step {step}: {_describe_difference(first, second)}. A game's course must depend on "
                        "the seed of `reset` and on the moves alone, not on other random numbers, the clock or earlier "
                        "games"
                    )
                if step < len(moves):
                    game.step(moves[step])
        if time.monotonic() > stop_s:
            break
    return None


def _snapshots_and_moves_of_random_episode(
    game: Game, seed: int, stop_s: float
) -> tuple[list[_GameSnapshot], list[str]]:
    """Return what was seen before each move and after the last, and the moves of a random episode."""
    rng, moves = random.Random(seed), list[str]()
    game.reset(seed)
    moments = [_snapshot_before_move(game)]
    while moments[-1].agent and len(moves) < MAX_MOVES and time.monotonic() < stop_s:
        info = game.infos[game.agent_selection]
        moves.append(rng.choice(info["legal"] or info.get("examples") or (_PLACEHOLDER_MOVE,)))
        game.step(moves[-1])
        moments.append(_snapshot_before_move(game))
    return moments, moves


def _snapshot_before_move(game: Game) -> _GameSnapshot:
    agent, rewards = game.agent_selection, dict(game.rewards)
    if game.terminations[agent] or game.truncations[agent]:
        return _GameSnapshot("", {}, "", None, rewards)
    info = game.infos[agent]
    observations: dict[str, str] = {}
    for name in info["together"]:
        observations[name] = game.observe(name)["text"]
    return _GameSnapshot(agent, observations, info["state"], info["legal"], rewards)


def _describe_difference(first: _GameSnapshot, second: _GameSnapshot) -> str:
    """Return the first field in which two moments differ, with both values."""
    for field in fields(_GameSnapshot):
        once, again = vars(first)[field.name], vars(second)[field.name]
        if once == again:
            continue
        name = field.name.replace("_", " ")
        if isinstance(once, dict) and isinstance(again, dict):
            [key, *_] = [key for key in (once | again) if once.get(key) != again.get(key)]
            name, once, again = f"{name} of {key!r}", once.get(key), again.get(key)
        return f"{name} {_excerpt_around_difference(once, again)}, then {_excerpt_around_difference(again, once)}"
    raise ValueError("two equal moments have no difference")


def _excerpt_around_difference(value: object, other: object) -> str:
    """Return `value` as text; of long texts, only the surroundings of the first difference to `other`."""
    if not (isinstance(value, str) and isinstance(other, str)):
        return repr(value)
    common = 0
    for one, another in zip(value, other, strict=False):
        if one != another:
            break
        common += 1
    start = max(0, common - _SHOWN_BEFORE)
    shown = value[start : start + _SHOWN]
    before, after = "…" * (start > 0), "…" * (start + _SHOWN < len(value))
    return f"{before}{shown!r}{after}"
