"""Games as PettingZoo environments that other libraries use: `marl.env` and `marl.parallel_env`."""

from __future__ import annotations

from pettingzoo import ParallelEnv
from pettingzoo.utils import aec_to_parallel

from marl.core.config import choices_hint
from marl.core.plugins import plugins_by_kind
from marl.core.types import Observation
from marl.games.parallel import RoundCollectingEnv
from marl.games.rendering import ANSI, RGB_ARRAY, RenderedGame
from marl.protocols import Game, GameConfig


class RenderableGameConfig(GameConfig):
    """Base of the settings of games that are rendered and, if all agents move at once, have a parallel environment."""

    def build_environment(self, render_mode: str | None = None) -> Game:
        game = self.build()
        modes: list[str] = []
        if isinstance(game, RenderedGame):
            # A game can render pictures only if it overrides `render_state`.
            has_pictures = type(self).render_state is not GameConfig.render_state
            modes = [ANSI, RGB_ARRAY] if has_pictures else [ANSI]
            game.metadata["render_modes"] = modes
            game.render_mode, game.pictures = render_mode, self
        if render_mode is not None and render_mode not in modes:
            raise ValueError(f"render_mode: {self.kind!r} has no {render_mode!r}; {choices_hint(render_mode, modes)}")
        return game

    def build_parallel_environment(self, render_mode: str | None = None) -> ParallelEnv[str, Observation, str]:
        """Return a new game as a parallel environment, as `GameConfig.build_parallel_environment` says.

        A game is refused if agents move one after another, or may repeat an illegal move.
        """
        game = self.build_environment(render_mode) if self.is_simultaneous() else None
        if not isinstance(game, RenderedGame):
            kinds = [kind for kind, plugin in plugins_by_kind("games", GameConfig).items() if plugin.simultaneous]
            raise ValueError(
                f"kind: the agents of {self.kind!r} do not always move at the same time; choices: {', '.join(kinds)}, "
                "simultaneous environments of openspiel and pettingzoo, or marl.env"
            )
        return aec_to_parallel(RoundCollectingEnv(game))
