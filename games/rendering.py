"""Base class of games that are rendered, and that have a global state, by the information states of their agents."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from gymnasium import logger
from pettingzoo import AECEnv

from marl.core.types import Observation
from marl.games.state_views import AgentView, render_as_text
from marl.games.text_space import MAX_OBSERVATION_LENGTH, TextSpace
from marl.protocols import GameConfig

ANSI, RGB_ARRAY = "ansi", "rgb_array"
"""Render modes of PettingZoo: text, and a picture as an array."""


class RenderedGame(AECEnv[str, Observation, str]):
    """PettingZoo environment with texts that renders, and joins in its global state, what each agent knows."""

    name: str

    def __init__(self, name: str, agents: tuple[str, ...]) -> None:
        self.metadata = {"name": name, "render_modes": [ANSI], "is_parallelizable": False}
        self.possible_agents = list(agents)
        self.seats = agents
        self.render_mode: str | None = None
        self.pictures: GameConfig | None = None
        """Settings whose `render_state` draws the game's information states, or None to show them as text."""

    def _missing_method(self, name: str) -> NotImplementedError:
        """Return the error about a method that the class of a game must define."""
        return NotImplementedError(f"class {type(self).__name__} must define the method {name}")

    def information_state(self, agent: str) -> str:
        """Return the information state of `agent` as text.

        Two information states of an agent are equal if and only if the agent knows the same in both.
        """
        raise self._missing_method("information_state")

    @cached_property
    def state_space(self) -> TextSpace:  # type: ignore[override]
        """Space of the global states."""
        return TextSpace(MAX_OBSERVATION_LENGTH * len(self.seats))

    def state(self) -> str:  # type: ignore[override]
        """Return the global state: the information states of all agents, one after the other, as text."""
        return "\n".join([f"{agent}: {self.information_state(agent)}" for agent in self.seats])

    def render(self) -> str | np.ndarray | None:
        """Return whose turn it is and what each agent knows, as `render_mode` says: text, or a picture as an array.

        The array has the shape [height, width, 3] and the dtype uint8.
        """
        if self.render_mode is None:
            logger.warn(f"{self.name}: render() without a render mode; choices: {self.metadata['render_modes']}")
            return None
        info = self.infos.get(self.agent_selection) if self.agents else None
        headline = f"to move: {', '.join(info['together'])}" if info else "The game is over."
        views: list[AgentView] = []
        for agent in self.seats:
            state = self.information_state(agent)
            views.append(AgentView(agent, state, self.pictures.render_state(state) if self.pictures else None))
        if self.render_mode == ANSI:
            return render_as_text(headline, views)
        # Imported here, because matplotlib takes long to import.
        from marl.games.state_image import draw_agent_views

        return draw_agent_views(headline, views)

    def close(self) -> None:
        """Do nothing, since a game holds no window and no file."""
