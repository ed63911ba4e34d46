"""End of an episode by PettingZoo's rules."""

from __future__ import annotations

from marl.protocols import Game


def step_done_agents_and_check_game_is_over(game: Game) -> bool:
    """Step agents that are done with None, as PettingZoo requires; return True if the episode is over."""
    while game.agents and (game.terminations[game.agent_selection] or game.truncations[game.agent_selection]):
        done = [agent for agent in game.agents if game.terminations[agent] or game.truncations[agent]]
        if len(done) == len(game.agents):
            return True
        game.step(None)
    return not game.agents
