"""Games whose agents all move at once, as PettingZoo parallel environments."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Space
from pettingzoo import AECEnv

from marl.core.types import Observation
from marl.games.rendering import RenderedGame


class RoundCollectingEnv(AECEnv[str, Observation, str]):
    """AEC environment that collects the moves of all agents, and plays them when the last agent of a round has moved.

    PettingZoo's `aec_to_parallel` needs this order: the game itself ends at once at an illegal move, in the middle of a
    round. Moves that follow an illegal move of the same round are then not played.
    """

    def __init__(self, game: RenderedGame) -> None:
        self._game = game
        self.possible_agents, self.render_mode = game.possible_agents, game.render_mode
        self.metadata = {**game.metadata, "is_parallelizable": True}
        self.state_space = game.state_space  # type: ignore[assignment]

    @property
    def unwrapped(self) -> RenderedGame:
        return self._game

    def observation_space(self, agent: str) -> Space[Any]:
        return self._game.observation_space(agent)

    def action_space(self, agent: str) -> Space[str]:
        return self._game.action_space(agent)

    def observe(self, agent: str) -> Observation | None:
        return self._game.observe(agent)

    def state(self) -> str:  # type: ignore[override]
        return self._game.state()

    def render(self) -> Any:
        return self._game.render()

    def close(self) -> None:
        self._game.close()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._game.reset(seed, options)
        self._skip_agent_selection = None
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self._game.agents, 0.0) for _ in range(2))
        self._begin_round()

    def step(self, action: str | None) -> None:
        """Note the move of the agent in turn; play the moves of all agents when the last of them has moved."""
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            self._was_dead_step(action)  # type: ignore[arg-type]
            return
        if action is None:
            raise ValueError(f"{self._game.name}: no move of {self.agent_selection}; an illegal move is any other text")
        self._clear_rewards()
        self._cumulative_rewards[self.agent_selection] = 0.0
        self._moves[self.agent_selection] = action
        if len(self._moves) < len(self.agents):
            self.agent_selection = self.agents[len(self._moves)]
            return
        game, moves, rewards = self._game, self._moves, dict.fromkeys(self.agents, 0.0)
        while moves and not _is_game_over(game):
            game.step(moves.pop(game.agent_selection))
            for agent, reward in game.rewards.items():
                rewards[agent] += reward
        self._begin_round()
        self.rewards = rewards
        self._accumulate_rewards()

    def _begin_round(self) -> None:
        """Begin to collect moves; copy the facts of the game about its agents.

        Raises:
            ValueError: if not all agents move in this round.
        """
        game = self._game
        self._moves: dict[str, str] = {}
        """Agent -> its move in this round."""
        self.agents, self.agent_selection = game.agents[:], game.agents[0]
        self.terminations, self.truncations = dict(game.terminations), dict(game.truncations)
        self.infos = dict(game.infos)
        if not _is_game_over(game):
            together = game.infos[game.agent_selection]["together"]
            if missing := [agent for agent in game.agents if agent not in together]:
                raise ValueError(
                    f"{game.name}: {', '.join(missing)} cannot move in this round, but a parallel environment asks all "
                    "agents; choices: marl.env"
                )


def _is_game_over(game: RenderedGame) -> bool:
    return game.terminations[game.agent_selection] or game.truncations[game.agent_selection]
