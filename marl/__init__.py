"""Reinforcement learning for teams of language models.

`load` reads a scenario, `train` trains it, `register` makes a part of yours known under a name, `env` returns a game as
a PettingZoo environment. Everything else is in the modules; importing this package loads neither torch nor any other
heavy library.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from marl.parts import register
from marl.scenario.load import game_settings, load

if TYPE_CHECKING:
    from pettingzoo import AECEnv

    from marl.scenario.schema import Scenario
    from marl.types import Metrics, Observation

__all__ = ["env", "load", "register", "train"]


def env(kind: str, /, **settings: Any) -> AECEnv[str, Observation, str]:
    """Return a game as a PettingZoo AEC environment, for other libraries and for loops of your own.

    An observation holds `text` and, if the game has a list of moves, an `action_mask` over it; an action is the text of
    a move. Where any text is a move, `infos[agent]["examples"]` has some. Any other text is an illegal move.

    Args:
        kind: name of the game, as in a scenario: built in, of a plug-in, registered, or an import path.
        settings: the game's own, as in a scenario (`illegal={"then": "random"}`).

    Raises:
        ScenarioError: a ValueError that names field, value and choices.
    """
    return cast("AECEnv[str, Observation, str]", game_settings(kind, settings).build())


def train(
    scenario: Scenario,
    folder: str | Path | None = None,
    *,
    resume: str | None = None,
    force: bool = False,
    overwrite: bool = False,
    on_step: Callable[[int, Metrics], None] | None = None,
) -> bool:
    """Train a scenario: the same as `marl train`, with a callback.

    Args:
        scenario: as `load` gives it.
        folder: default runs/GAME, the kind of its game, or several names joined by `-`.
        resume: "auto" or a checkpoint's folder; None begins.
        force: go on although the scenario changed.
        overwrite: remove the run that is in the folder.
        on_step: called with (steps done, metrics) after every step.

    Returns: True if it went to the end; False: interrupted, with a checkpoint.
    Raises:
        ScenarioError, CheckpointError, GameError, NonFinite, TimeoutError, EndpointError: each says what to do.
    """
    from marl.cluster.placement import placement_of
    from marl.training.session import Following, RunStart, session

    home = Path(folder or Path("runs") / (scenario.game.kind if scenario.game else "-".join(scenario.games)))
    with placement_of(scenario) as placement:
        start, following = RunStart(resume, force=force, overwrite=overwrite), Following(on_step)
        return session(scenario, home, start, following, placement=placement)
