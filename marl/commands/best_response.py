"""`marl best-response`: a learner is trained against a frozen run in each seat, and what it gains is measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from marl.commands.entrants import Roster, roster
from marl.commands.exploitability import exploitabilities
from marl.config import nearest
from marl.data_files import write_whole
from marl.errors import Writing
from marl.evaluation.best_response import Challenge
from marl.evaluation.cross_play import Engines
from marl.models.adapter import AdapterSource
from marl.models.pretrained import PretrainedSource
from marl.models.tiny import Tiny
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import environment
from marl.scenario.load import ScenarioError, load
from marl.scenario.schema import Scenario
from marl.training.build import sources
from marl.training.placement import make_simulator
from marl.training.session import RunStart, session
from marl.types import Metrics

RESPONDER = "responder"
"""Name of the role and of the policy that learn."""
ANCHORS = {"reference": None, "proximal": None, "magnet": {"coefficient": 0.3, "final": 0.0}}
"""Anchors of a learner's weights. The only one pulls to the weights that it began with and fades to nothing at the end,
so that the learner does not settle on a move before it knows in which situations the others are better. Weaker ones
(.1) left tiny models with one move for all cards of Kuhn poker."""
FASTER = 2.5
"""Learning rate in units of the frozen policy's own: a learner has fewer steps than a run."""
_EVALUATIONS = 10


@dataclass(frozen=True, slots=True)
class Response:
    """Learners against one frozen player, and the folder in which each has its run."""

    frozen: Roster
    """The player alone."""
    target: Path
    """Its run, or the scenario from which it starts."""
    folder: Path
    seats: Sequence[str]

    @classmethod
    def to(
        cls, target: str, folder: Path | None, *, policy: str | None, seats: Sequence[str], game: str | None
    ) -> Response:
        """Return the response to the player `target`: a run, one of its checkpoints, or a scenario's policies.

        Raises:
            ScenarioError: if there is no such player or seat.
        """
        frozen = roster([target], game=game, policy=policy)
        if len(frozen.entrants) != 1:
            raise ScenarioError(f"{target}: {len(frozen.entrants)} players; a best response is to one: name its step")
        scenario = frozen.scenario
        playing = [agent for agent, role in scenario.seats.items() if role not in scenario.rule_roles]
        for seat in seats:
            if seat not in playing:
                raise ScenarioError(f"--seat {seat}: nobody learns there; {nearest(seat, playing)}")
        path = Path(target.partition("@")[0] if not Path(target).exists() else target)
        default = path.with_name(f"{path.stem if path.is_file() else path.name}-best-response")
        return cls(frozen, path, folder or default, seats or playing)

    def scenario(self, seat: str, steps: int, seed: int, overrides: Sequence[str]) -> Scenario:
        """Return the scenario in which a learner plays one seat, and the frozen player all others.

        Raises:
            ScenarioError: if the frozen player has no weights that the learner could begin with.
        """
        data = self.frozen.scenario.model_dump(mode="json")
        roles, policies = self._speakers(seat)
        every = max(1, steps // _EVALUATIONS)
        exact = self.frozen.scenario.game.starts() is not None
        data |= {
            "roles": roles,
            "seats": {agent: RESPONDER if agent == seat else agent for agent in data["seats"]},
            "policies": policies,
            "experience": {"kind": "rollouts"},
            "evaluate": {"every": every, "nashconv": exact},
            "checkpoint": {"every": every, "keep": 1, "trajectories": 0.0},
            "schedule": data["schedule"] | {"steps": steps, "seed": seed, "rotate_seats": False},
            "credit": data["credit"] | {"roles": {}, "compare": {}, "kl": None},
            **{"cluster": None, "track": [], "alarms": {}},
        }
        return load({name: value for name, value in data.items() if value is not None}, overrides)

    def _speakers(self, seat: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the roles and policies of the frozen player, each agent's role under its own name, and the learner."""
        entrant, scenario = self.frozen.entrants[0], self.frozen.scenario
        seated = {RESPONDER if agent == seat else agent: role for agent, role in entrant.roles.items()}
        roles = {name: role.model_dump(mode="json") for name, role in seated.items()}
        policies = {role.policy: self._frozen(role.policy) for name, role in seated.items() if name != RESPONDER}
        policies[RESPONDER] = _learner(scenario, entrant.roles[seat].policy)
        roles[RESPONDER]["policy"] = RESPONDER
        return roles, policies

    def _frozen(self, name: str) -> dict[str, Any]:
        """Return the settings of a policy that stays as it is: what its run has learnt, or where a scenario begins."""
        policy = self.frozen.scenario.policies[name]
        data = policy.model_dump(mode="json") | {"learner": None, "update_every": 1, "alternate": None}
        data["model"] = _as_made(self.frozen.scenario, name)
        if policy.learner and self.target.is_dir():
            step = int(self.frozen.entrants[0].name.rpartition("@")[2])
            data["model"] = {"kind": "trained", "run": str(self.target.resolve()), "policy": name, "step": step}
        return data

    def train(self, scenarios: Mapping[str, Scenario]) -> bool:
        """Train the learner of each seat in a run of its own, or go on with it; return False if one was interrupted."""
        return all(session(scenario, self.folder / seat, RunStart("auto")) for seat, scenario in scenarios.items())

    def metrics(self, episodes: int, seed: int) -> Metrics:
        """Return what the learners gain in so many new episodes, and exact figures where the game can be walked."""
        played = self.frozen.scenario
        responders = {seat: roster([str(self.folder / seat)]).entrants[0] for seat in self.seats}
        simulator = partial(_simulator, played, seed)
        metrics = Challenge(played, self.frozen.entrants[0], responders, simulator).metrics(episodes, seed)
        if played.game.starts() is not None:
            exact = next(iter(exploitabilities(self.frozen).values()))
            metrics |= {"exact/nashconv": exact.nashconv, "exact/exploitability": exact.exploitability}
        return metrics

    def write(self, metrics: Metrics) -> Path:
        """Write the figures beside the runs, with all that they depend on; return the file."""
        file = self.folder / "best_response.json"
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        whole = {
            "measured": self.frozen.entrants[0].name,
            "figures": finite,
            **environment(self.frozen.scenario),
            "runs": {seat: str(self.folder / seat) for seat in self.seats},
        }
        with Writing(file):
            write_whole(file, f"{json.dumps(whole, indent=1, allow_nan=False)}\n".encode())
        return file


def _learner(scenario: Scenario, name: str) -> dict[str, Any]:
    """Return the settings of a policy that learns as the frozen one did, from where that began, but
    faster (`FASTER`) and with other anchors.

    Where the frozen one has no model, it is the first policy with one.
    """
    names = [name, *scenario.policies]
    first = next((each for each in names if scenario.policies[each].model), None)
    if first is None:
        raise ScenarioError(f"no policy of {', '.join(scenario.policies)} has a model for a learner to begin with")
    learner = next((each for name in [first, *names] if (each := scenario.policies[name].learner)), None)
    settings: dict[str, Any] = learner.model_dump(mode="json") if learner else {"kind": "grpo"}
    settings |= {name: anchor for name, anchor in ANCHORS.items() if name in settings}
    settings |= {name: FASTER * rate for name in ("lr", "lr_end") if (rate := settings.get(name))}
    data = scenario.policies[first].model_dump(mode="json")
    return data | {"model": _as_made(scenario, first), "learner": settings, "update_every": 1, "alternate": None}


def _as_made(scenario: Scenario, name: str) -> dict[str, Any] | None:
    """Return the settings of a policy's model, of a tiny one those of the folder in which it was made.

    Tiny models are made from the words and answers of a scenario: in one with other seats they would be others.
    """
    model = scenario.policies[name].model
    base = (model.shared() or model) if model else None
    if not model or not isinstance(base, Tiny):
        return model and model.model_dump(mode="json")
    source = sources(scenario, {name: scenario.policies[name]})[name]
    assert isinstance(source, PretrainedSource | AdapterSource)
    made = base.saved(Path(source.path))
    return (made if base is model else model.model_copy(update={"base": made})).model_dump(mode="json")


def _simulator(scenario: Scenario, seed: int, engines: Engines) -> RolloutSimulator:
    return make_simulator(scenario, engines, seed)


def render_response(metrics: Mapping[str, float]) -> str:
    """Return the figures as lines with their intervals, and the share of the exact NashConv that was reached."""
    lines = []
    for name in (name for name in metrics if not name.endswith(("_low", "_high"))):
        low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
        interval = f"  [{low:.4f}, {high:.4f}]" if low is not None else ""
        lines.append(f"{name:<40} {metrics[name]:10.4f}{interval}")
    lines.append("nashconv and exploitability are lower bounds: a better learner may gain more")
    if exact := metrics.get("exact/nashconv"):
        lines.append(f"the learners reached {metrics['best_response/nashconv'] / exact:.0%} of the exact NashConv")
    return "\n".join(lines)
