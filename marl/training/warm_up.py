"""Teaches a made model the format of a game's answers, and nothing about playing well.

From random weights reinforcement learning never finds the format. So uniformly random legal play is recorded and
imitated for a few seconds: an ordinary scenario, `experience: {kind: file}` with the learner `sft`.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PositiveFloat, PositiveInt

from marl.config import Config

if TYPE_CHECKING:
    from marl.graph import Trajectory
    from marl.scenario.schema import Scenario

_FORMAT = 3
"""Raise it when the same settings teach something else."""


class WarmUp(Config):
    """Imitation of random legal play."""

    episodes: PositiveInt = 512
    """Recorded."""
    steps: PositiveInt = 150
    batch: PositiveInt = 64
    """Episodes a step."""
    lr: PositiveFloat = 5e-3
    seed: int = 0


def random_play(scenario: Scenario, episodes: int, seed: int) -> list[Trajectory]:
    """Episodes of the scenario's game in which every role plays uniformly random legal moves."""
    from marl.engines.scripted import Random
    from marl.seeds import seed_of
    from marl.training.run import lay, rule_bound
    from marl.types import Deal

    players = dict.fromkeys(scenario.policies, Random().build(None))
    table = lay(scenario, players | rule_bound(scenario.policies), seed)
    names = [f"random.{i}" for i in range(episodes)]
    return table.play([Deal(name, name, seed_of(seed, name), scenario.seats) for name in names])


def texts(trajectories: list[Trajectory], scenario: Scenario, policies: Sequence[str]) -> set[str]:
    """All that these policies read and said."""
    mine = {name for name, role in scenario.roles.items() if role.policy in policies}
    turns = [turn for trajectory in trajectories for turn in trajectory.turns if turn.role in mine]
    read = {message.content for turn in turns for message in turn.request.messages}
    tools = {tool.name for name in mine for tool in scenario.roles[name].tools}
    return read | tools | {turn.completion.text for turn in turns}


def warmed(base: Path, settings: WarmUp, scenario: Scenario, policies: Sequence[str]) -> Path:
    """The model in `base`, taught the format of what `policies` say in `scenario`; kept beside it in the cache."""
    game = scenario.model_dump(mode="json", include={"game", "seats", "roles"})
    identity = [_FORMAT, base.name, settings.model_dump(mode="json"), game, "+".join(policies)]
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = base.parent / f"{base.name}-{name}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=base.parent, prefix=f".{folder.name}-") as beside:
            made = _teach(Path(beside), base, settings, (scenario, policies))
            publish(made, folder)
    return folder


def publish(made: Path, folder: Path) -> None:
    """Give what was made its place, unless another process was faster: the same settings make the same folder."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _teach(beside: Path, base: Path, settings: WarmUp, what: tuple[Scenario, Sequence[str]]) -> Path:
    from marl.graph import write_trajectories
    from marl.scenario.load import validate
    from marl.training.resume import Start, train
    from marl.view.console import Teaching

    scenario, (student, *_) = what
    recorded = beside / "random.jsonl.zst"
    write_trajectories(recorded, random_play(scenario, settings.episodes, settings.seed))
    taught = validate(lesson(settings, what, (base, recorded)), "warm-up")
    if not train(taught, beside / "run", Start(), [Teaching(student, settings.steps)]):
        # Half taught is not taught; the run that wants this model has not begun.
        raise KeyboardInterrupt
    return beside / "run" / "checkpoints" / f"{settings.steps:06d}" / "policies" / student


def lesson(settings: WarmUp, what: tuple[Scenario, Sequence[str]], files: tuple[Path, Path]) -> dict[str, Any]:
    """The warm-up as a scenario: the same game and roles; from recorded play, the first policy learns what all of
    `what`'s say."""
    scenario, policies = what
    base, recorded = files
    data = scenario.model_dump(mode="json", include={"game", "seats", "roles"})
    learner = {"kind": "sft", "lr": settings.lr, "schedule": "linear", "betas": [0.9, 0.99]}
    speakers: dict[str, Any] = {
        name: {"engine": {"kind": "random"}} for name in scenario.policies if name not in policies
    }
    speakers[policies[0]] = {"model": {"kind": "pretrained", "path": str(base)}, "learner": learner}
    for role in data["roles"].values():
        role["trainable"] = role["policy"] in policies
        role["policy"] = policies[0] if role["trainable"] else role["policy"]
    return data | {
        "policies": speakers,
        "credit": {"baseline": {"kind": "none"}},
        "experience": {"kind": "file", "path": str(recorded)},
        "schedule": {
            "steps": settings.steps,
            "groups": settings.batch,
            "group_size": 1,
            "seed": settings.seed,
            "threads": scenario.schedule.threads,
        },
        "checkpoint": {"every": settings.steps, "trajectories": 0.0},
    }
