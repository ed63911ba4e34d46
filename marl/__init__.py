"""Reinforcement learning for teams of language models.

`load` reads a scenario, `train` trains it, `open_run` reads a run's records as tables, `register` adds a plug-in of
yours under a name, and `env` and `parallel_env` return a game as a PettingZoo environment. Importing this package loads
neither torch nor any other heavy library.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl.core.plugins import register
from marl.core.types import Metrics, Observation
from marl.scenario.load import game_settings, load
from marl.scenario.schema import Scenario

if TYPE_CHECKING:
    from pettingzoo import AECEnv, ParallelEnv

    from marl.export.run_tables import RunTables

__all__ = ["env", "load", "open_run", "parallel_env", "register", "train"]


def env(kind: str, /, *, render_mode: str | None = None, **settings: Any) -> AECEnv[str, Observation, str]:
    """Return a game as a PettingZoo AEC environment, for other libraries and for your own training loops.

    An action is the text of a move. An observation has a `text` and, if the game has a fixed list of moves, an
    `action_mask` over the list. If any text is a move, `infos[agent]["examples"]` has examples. Other texts are illegal
    moves.

    Args:
        kind: kind of the game as in a scenario: built in, installed, registered, or an import path.
        render_mode: "ansi" to let `render()` return text, "rgb_array" for a picture (of games that have pictures), or
            None to render nothing.
        settings: settings of the game as in a scenario (`illegal={"then": "random"}`).

    Raises:
        ScenarioError: if a setting is wrong. A ValueError that names field, value and choices.
    """
    return game_settings(kind, settings).build_environment(render_mode)


def parallel_env(
    kind: str, /, *, render_mode: str | None = None, **settings: Any
) -> ParallelEnv[str, Observation, str]:
    """Return a game whose agents always move at the same time as a PettingZoo parallel environment.

    Observations, actions and arguments are those of `env`. An illegal move that ends the game ends it for all agents;
    moves of later agents in the same round then have no effect.

    Raises:
        ScenarioError: if a setting is wrong. A ValueError that names field, value and choices.
        ValueError: if the agents of the game do not always move at the same time.
    """
    return game_settings(kind, settings).build_parallel_environment(render_mode)


def train(
    scenario: Scenario,
    folder: str | Path | None = None,
    *,
    resume: str | None = None,
    force: bool = False,
    overwrite: bool = False,
    on_step: Callable[[int, Metrics], None] | None = None,
) -> bool:
    """Train a scenario like `marl train`, with a callback after every step.

    Args:
        scenario: scenario as returned by `load`.
        folder: folder of the run (default: runs/GAME, with the game's kind, or the names of several games joined by
            `-`).
        resume: "auto" or the folder of a checkpoint to continue from, or None to start a new run.
        force: True to resume although the scenario has changed.
        overwrite: True to delete an earlier run in `folder`.
        on_step: function that is called with (number of finished steps, metrics) after every step.

    Returns:
        True if the training is complete, False if it was interrupted and wrote a checkpoint.

    Raises:
        ScenarioError, CheckpointError, GameError, NonFiniteError, TimeoutError, EndpointError: each says what to do.
    """
    # Imported here, because these modules load torch.
    from marl.cluster.placement import open_placement
    from marl.training.session import NewOrResumedRunStart, ProgressOptions, train_with_monitors

    home = Path(folder or Path("runs") / (scenario.game.kind if scenario.game else "-".join(scenario.games)))
    with open_placement(scenario) as placement:
        start, progress = NewOrResumedRunStart(resume, force=force, overwrite=overwrite), ProgressOptions(on_step)
        return train_with_monitors(scenario, home, start, progress, placement=placement)


def open_run(folder: str | Path) -> RunTables:
    """Open a run, also one in progress, to read its metrics, evaluations, episodes, turns and credit as tables.

    Each table is a sequence of plain rows with `to_pandas()` and `to_polars()`.

    Raises:
        ScenarioError: if the folder contains no run.
    """
    # Imported here, because these modules load libraries for tokens and files.
    from marl.export.run_tables import RunTables

    return RunTables(folder)
