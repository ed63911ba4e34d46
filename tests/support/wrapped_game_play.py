"""Random play of games that wrap environments of others, move by move, for comparisons."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from hashlib import sha256

from marl.games.base import TextGame, reset_and_play
from marl.protocols import Game, GameConfig

BLIND = ("0",)
"""Said where any text is a move and the game shows no example."""


@dataclass
class Play:
    """All that an episode was, to the last bit."""

    moves: list[str] = field(default_factory=list)
    read: list[tuple[str, str, str]] = field(default_factory=list)
    """(agent, observation, information state) at each move."""
    paid: dict[str, float] = field(default_factory=dict)
    start: str = ""


def play_randomly(config: GameConfig, seed: int, most: int = 2000) -> Play:
    """An episode of random moves in a game of its own; the global generator is in another state each time."""
    game, rng, episode = config.build(), random.Random(seed), Play()
    random.seed()
    game.reset(seed)
    episode.start = game.start_state_key()
    episode.paid = dict.fromkeys(game.possible_agents, 0.0)
    while not over(game) and len(episode.moves) < most:
        agent = game.agent_selection
        info = game.infos[agent]
        episode.read.append((agent, game.observe(agent)["text"], info["state"]))
        episode.moves.append(rng.choice(info["legal"] or info.get("examples") or BLIND))
        game.step(episode.moves[-1])
        for payee, reward in game.rewards.items():
            episode.paid[payee] += reward
    return episode


def over(game: Game) -> bool:
    """True if nobody is to move any more."""
    return all(game.terminations[agent] or game.truncations[agent] for agent in game.possible_agents)


def compare_fork(config: GameConfig, episode: Play, seed: int) -> tuple[str, str, str] | None:
    """(agent, observation, information state) in a new game in which half of the moves are played again."""
    game, half = config.build(), len(episode.moves) // 2
    reset_and_play(game, seed, None, episode.moves[:half])
    agent = game.agent_selection
    return None if over(game) else (agent, game.observe(agent)["text"], game.infos[agent]["state"])


def determinism_faults(config: GameConfig, seed: int, most: int = 2000) -> list[str]:
    """What is not as it must be: the same seed and moves give the same episode; a fork goes on where it was left."""
    once, again = play_randomly(config, seed, most), play_randomly(config, seed, most)
    wrong = ["the same seed gave another episode"] if once != again else []
    if once.moves and compare_fork(config, once, seed) != once.read[len(once.moves) // 2]:
        wrong.append("a fork goes on elsewhere")
    return wrong


def digest(config: GameConfig, seed: int, most: int = 2000) -> str:
    """A short text that differs if anything in the episode does, for comparisons between processes."""
    return sha256(repr(play_randomly(config, seed, most)).encode()).hexdigest()[:16]


def seats(config: GameConfig) -> dict[str, str]:
    """Every agent -> the role `player`."""
    game = config.build()
    assert isinstance(game, TextGame)
    return dict.fromkeys(game.possible_agents, "player")
