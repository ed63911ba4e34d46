"""`marl best-response`: train a learner against a frozen run in each seat, and measure the learner's gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from marl.commands.eval.evaluate import format_metrics
from marl.commands.eval.exploitability import measure_exploitability
from marl.commands.eval.output import finite_or_null, write_figures_file
from marl.commands.eval.players import Roster, read_roster
from marl.commands.options import with_options
from marl.commands.terminal import Overrides, echo
from marl.core.config import choices_hint
from marl.core.types import Metrics
from marl.evaluation.best_response import Challenge
from marl.models.adapter import AdapterSource
from marl.models.pretrained import PretrainedSource
from marl.models.tiny import Tiny
from marl.runs.run_folder import environment
from marl.scenario.load import ScenarioError, load
from marl.scenario.schema import Scenario
from marl.training.build import prepare_models
from marl.training.placement import make_simulator
from marl.training.session import RunStart, train_with_monitors

app = typer.Typer()
RESPONDER = "responder"
"""Name of the learner's role and of its policy."""
ANCHORS = {"reference": None, "proximal": None, "magnet": {"coefficient": 0.3, "final": 0.0}}
"""Regularisation towards earlier weights. Only the magnet is used: it pulls to the learner's initial weights and fades
to zero, so that the learner does not settle on a move before it has seen where others are better. With a coefficient of
.1 tiny models chose one move for all cards of Kuhn poker."""
LEARNING_RATE_FACTOR = 2.5
"""Learning rate relative to that of the frozen policy: a learner has fewer steps than a run."""
_EVALUATIONS = 10


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """Options of `marl best-response`."""

    steps: Annotated[int, typer.Option(min=1, help="Training steps of each learner.")] = 400
    episodes: Annotated[int, typer.Option(min=2, help="Episodes that measure the gain of each learner.")] = 1000
    seat: Annotated[list[str] | None, typer.Option(help="Seat of a learner; repeat it. Default: all.")] = None
    policy: Annotated[str | None, typer.Option(help="Policy of the run that speaks in every seat.")] = None
    game: Annotated[str | None, typer.Option(help="In a scenario with several games: the game that is played.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of the learners' runs and of the measurement.")] = 0
    out: Annotated[Path | None, typer.Option(help="Folder of the learners' runs; default: TARGET-best-response.")] = (
        None
    )


@app.command(name="best-response")
@with_options(ResponseOptions)
def best_response(
    target: Annotated[str, typer.Argument(help="RUN, RUN@STEP, RUN@best or SCENARIO.yaml.", show_default=False)],
    options: ResponseOptions,
    overrides: Overrides = None,
) -> None:
    """Bound the exploitability of a run: train a learner against it in each seat, and measure the learner's gain.

    For games that are too large for `marl eval exploitability`. Each learner starts from the frozen policy's initial
    weights, and continues an interrupted run. Overrides change the learners' scenario: policies.responder.model=..., or
    schedule.groups=64.
    """
    response = BestResponse.against(
        target, options.out, policy=options.policy, seats=options.seat or [], game=options.game
    )
    scenarios = {seat: response.scenario(seat, options.steps, options.seed, overrides or []) for seat in response.seats}
    for seat, scenario in scenarios.items():
        if not train_with_monitors(scenario, response.folder / seat, RunStart("auto")):
            raise typer.Exit(130)
    metrics = response.metrics(options.episodes, options.seed)
    echo(f"{format_metrics(metrics)}\nnashconv and exploitability are lower bounds: a better learner may gain more")
    if exact := metrics.get("exact/nashconv"):
        echo(f"the learners reached {metrics['best_response/nashconv'] / exact:.0%} of the exact NashConv")
    file = response.folder / "best_response.json"
    content = {
        "measured": response.frozen.entrants[0].name,
        "figures": finite_or_null(metrics),
        **environment(response.frozen.scenario),
        "runs": {seat: str(response.folder / seat) for seat in response.seats},
    }
    write_figures_file(file, content)
    echo(f"{file}: {len(metrics)} figures")


@dataclass(frozen=True, slots=True)
class BestResponse:
    """Learners against one frozen player, and the folder that contains a run for each learner."""

    frozen: Roster
    """Roster that contains the frozen player alone."""
    target: Path
    """Run of the frozen player, or its scenario file."""
    folder: Path
    seats: Sequence[str]

    @classmethod
    def against(
        cls, target: str, folder: Path | None, *, policy: str | None, seats: Sequence[str], game: str | None
    ) -> BestResponse:
        """Return the best response to the player `target`: a run, one of its checkpoints, or a scenario.

        Raises:
            ScenarioError: if there is no such player or seat.
        """
        frozen = read_roster([target], game=game, policy=policy)
        if len(frozen.entrants) != 1:
            raise ScenarioError(f"{target}: {len(frozen.entrants)} players; a best response is to one: name its step")
        scenario = frozen.scenario
        contested = [agent for agent, role in scenario.seats.items() if role not in scenario.rule_roles]
        for seat in seats:
            if seat not in contested:
                raise ScenarioError(f"--seat {seat}: nobody learns there; {choices_hint(seat, contested)}")
        path = Path(target if Path(target).exists() else target.partition("@")[0])
        default = path.with_name(f"{path.stem if path.is_file() else path.name}-best-response")
        return cls(frozen, path, folder or default, seats or contested)

    def scenario(self, seat: str, steps: int, seed: int, overrides: Sequence[str]) -> Scenario:
        """Return the scenario in which a learner plays `seat`, and the frozen player plays every other seat.

        Raises:
            ScenarioError: if the frozen player has no weights from which the learner could start.
        """
        data = self.frozen.scenario.model_dump(mode="json")
        entrant = self.frozen.entrants[0]
        roles, policies = {}, {}
        for agent, role in entrant.roles.items():
            roles[RESPONDER if agent == seat else agent] = role.model_dump(mode="json")
            if agent != seat:
                policies[role.policy] = self._frozen_policy(role.policy)
        policies[RESPONDER] = _learner(self.frozen.scenario, entrant.roles[seat].policy)
        roles[RESPONDER]["policy"] = RESPONDER
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
            # The learners are small local runs, without cluster, trackers and alarms of the frozen one.
            **{"cluster": None, "track": [], "alarms": {}},
        }
        return load({name: value for name, value in data.items() if value is not None}, overrides)

    def _frozen_policy(self, name: str) -> dict[str, Any]:
        """Return the settings of a policy without a learner: with trained weights if the target is a run."""
        policy = self.frozen.scenario.policies[name]
        data = policy.model_dump(mode="json") | {"learner": None, "update_every": 1, "alternate": None}
        data["model"] = _model_settings(self.frozen.scenario, name)
        if policy.learner and self.target.is_dir():
            step = int(self.frozen.entrants[0].name.rpartition("@")[2])
            data["model"] = {"kind": "trained", "run": str(self.target.resolve()), "policy": name, "step": step}
        return data

    def metrics(self, episodes: int, seed: int) -> Metrics:
        """Return the learners' gains in `episodes` new episodes, and exact metrics if the game can be enumerated."""
        scenario = self.frozen.scenario
        responders = {seat: read_roster([str(self.folder / seat)]).entrants[0] for seat in self.seats}
        challenge = Challenge(
            scenario, self.frozen.entrants[0], responders, lambda engines: make_simulator(scenario, engines, seed)
        )
        metrics = challenge.metrics(episodes, seed)
        if scenario.game.starts() is not None:
            exact = next(iter(measure_exploitability(self.frozen).values()))
            metrics |= {"exact/nashconv": exact.nashconv, "exact/exploitability": exact.exploitability}
        return metrics


def _learner(scenario: Scenario, name: str) -> dict[str, Any]:
    """Return the settings of a learning policy that starts from the initial model of the policy `name`.

    The learner has that policy's settings, but a higher learning rate (`LEARNING_RATE_FACTOR`) and the regularisation
    `ANCHORS`. If `name` has no model, the first policy with a model is used.
    """
    names = [name, *scenario.policies]
    with_model = next((candidate for candidate in names if scenario.policies[candidate].model), None)
    if with_model is None:
        raise ScenarioError(f"no policy of {', '.join(scenario.policies)} has a model for a learner to begin with")
    settings: dict[str, Any] = {"kind": "grpo"}
    for candidate in [with_model, *names]:
        if learner := scenario.policies[candidate].learner:
            settings = learner.model_dump(mode="json")
            break
    settings |= {field: anchor for field, anchor in ANCHORS.items() if field in settings}
    for field in ("lr", "lr_end"):
        if rate := settings.get(field):
            settings[field] = LEARNING_RATE_FACTOR * rate
    model = _model_settings(scenario, with_model)
    data = scenario.policies[with_model].model_dump(mode="json")
    return data | {"model": model, "learner": settings, "update_every": 1, "alternate": None}


def _model_settings(scenario: Scenario, name: str) -> dict[str, Any] | None:
    """Return the settings of a policy's initial model; a tiny model is named by the folder in which it was built."""
    model = scenario.policies[name].model
    if model is None:
        return None
    base = model.shared_base() or model
    if not isinstance(base, Tiny):
        return model.model_dump(mode="json")
    # A tiny model is built from a scenario's words and answers, so a scenario with other seats would build another one.
    source = prepare_models(scenario, {name: scenario.policies[name]})[name]
    assert isinstance(source, PretrainedSource | AdapterSource)
    built = base.with_saved_weights(Path(source.path))
    return (built if base is model else model.model_copy(update={"base": built})).model_dump(mode="json")
