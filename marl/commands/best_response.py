"""`marl best-response`: train a learner, or search, against a frozen run in each seat, and measure the gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from marl.commands.eval.evaluate import format_metrics, show_progress
from marl.commands.eval.exploitability import measure_exploitability
from marl.commands.eval.output import replace_nonfinite_by_none, write_json_results
from marl.commands.eval.players import PlayerRoster, read_roster
from marl.commands.options import with_options
from marl.commands.terminal import Overrides, echo
from marl.core.config import choices_hint
from marl.core.types import Metrics
from marl.evaluation.best_response import TrainedResponderEvaluation
from marl.evaluation.cross_play import TournamentPlayer
from marl.evaluation.evaluate import move_probabilities
from marl.evaluation.searched_response import BestResponseSearch
from marl.models.adapter import AdapterSource
from marl.models.pretrained import PretrainedSource
from marl.models.tiny import Tiny
from marl.rollout.casting import RoleRequestBuilder
from marl.runs.run_folder import describe_environment
from marl.scenario.load import ScenarioError, load
from marl.scenario.schema import Scenario
from marl.training.build import prepare_models
from marl.training.placement import simulator_from_engines
from marl.training.session import NewOrResumedRunStart, train_with_monitors

app = typer.Typer()
RESPONDER = "responder"
"""Name of the learner's role and of its policy."""
ANCHORS = {"reference": None, "proximal": None, "magnet": {"coefficient": 0.3, "final": 0.0}}
"""Settings of the learner's KL terms. The magnet pulls to the initial weights and fades to zero, so that the learner
tries all moves before it prefers one. With a coefficient of .1 tiny models chose one move for all cards of Kuhn poker.
"""
LEARNING_RATE_FACTOR = 2.5
"""Factor by which a learner's learning rate exceeds the frozen policy's, because it has fewer steps than a run."""
_EVALUATIONS = 10
"""Number of evaluations during the training of a learner."""
_SLICES = 100
"""Number of slices of a search, after each of which the progress bar is updated."""
_FROZEN: dict[str, Any] = {"learner": None, "update_every": 1, "alternate": None}
"""Settings of a policy that does not learn."""


@dataclass(frozen=True, slots=True)
class BestResponseOptions:
    """Options of `marl best-response`."""

    steps: Annotated[int, typer.Option(min=1, help="Training steps of each learner.")] = 400
    episodes: Annotated[int, typer.Option(min=2, help="Episodes that measure the gain of each learner.")] = 1000
    search: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train nothing: find the best move in each information state by tree search, with this many episodes "
            "for each seat. For games with legal moves.",
        ),
    ] = None
    seat: Annotated[list[str] | None, typer.Option(help="Seat of a learner; repeat it. Default: all.")] = None
    policy: Annotated[str | None, typer.Option(help="Policy of the run that speaks in every seat.")] = None
    game: Annotated[str | None, typer.Option(help="In a scenario with several games: the game that is played.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of the learners' runs and of the measurement.")] = 0
    out: Annotated[Path | None, typer.Option(help="Folder of the learners' runs; default: TARGET-best-response.")] = (
        None
    )


@app.command(name="best-response")
@with_options(BestResponseOptions)
def train_and_measure_best_responses(
    target: Annotated[str, typer.Argument(help="RUN, RUN@STEP, RUN@best or SCENARIO.yaml.", show_default=False)],
    options: BestResponseOptions,
    overrides: Overrides = None,
) -> None:
    """Bound the exploitability of a run: train a learner or search against it in each seat, and measure the gain.

    For games that are too large for `marl eval exploitability`. Each learner starts from the frozen policy's initial
    weights, and continues an interrupted run. Overrides change the learners' scenario: policies.responder.model=..., or
    schedule.groups=64.
    """
    response = BestResponseTraining.from_target(
        target, options.out, policy=options.policy, seats=options.seat or [], game=options.game
    )
    if options.search is None:
        responders = _train_responders(response, options, overrides or [])
        name, method = "best_response", {"runs": {seat: str(response.folder / seat) for seat in response.seats}}
    elif overrides:
        raise ScenarioError(f"--search {options.search} trains nothing: leave {overrides[0]!r} out")
    else:
        responders = response.search(options.search, options.seed)
        name, method = "best_response_by_search", {"search": options.search}
        response.folder.mkdir(parents=True, exist_ok=True)
    metrics = response.measure_best_response_gains(responders, options.episodes, options.seed)
    echo(f"{format_metrics(metrics)}\nnashconv and exploitability are lower bounds: a better response may gain more")
    if exact := metrics.get("exact/nashconv"):
        echo(f"the responses reached {metrics['best_response/nashconv'] / exact:.0%} of the exact NashConv")
    file = response.folder / f"{name}.json"
    content = {
        "measured": response.frozen.entrants[0].name,
        "figures": replace_nonfinite_by_none(metrics),
        **describe_environment(response.frozen.scenario),
        **method,
    }
    write_json_results(file, content)
    echo(f"{file}: {len(metrics)} figures")


def _train_responders(
    response: BestResponseTraining, options: BestResponseOptions, overrides: Sequence[str]
) -> dict[str, TournamentPlayer]:
    """Train a learner for each seat, and return the learners."""
    scenarios: dict[str, Scenario] = {}
    for seat in response.seats:
        scenarios[seat] = response.responder_scenario(seat, options.steps, options.seed, overrides)
    for seat, scenario in scenarios.items():
        if not train_with_monitors(scenario, response.folder / seat, NewOrResumedRunStart("auto")):
            raise typer.Exit(130)
    return {seat: read_roster([str(response.folder / seat)]).entrants[0] for seat in response.seats}


@dataclass(frozen=True, slots=True)
class BestResponseTraining:
    """Training of learners against one frozen player: one learner and one run for each of `seats`."""

    frozen: PlayerRoster
    """Roster with one player: the frozen player."""
    target: Path
    """Folder of the frozen player's run, or its scenario file."""
    folder: Path
    """Folder with one run for each learner, named after the learner's seat."""
    seats: Sequence[str]
    """Seats in each of which a learner is trained."""

    @classmethod
    def from_target(
        cls, target: str, folder: Path | None, *, policy: str | None, seats: Sequence[str], game: str | None
    ) -> BestResponseTraining:
        """Return the learners against the player `target`: a run, one of its checkpoints, or a scenario.

        Args:
            folder: folder of the learners' runs (default: beside `target`).
            policy: policy that speaks in every seat of the frozen player, or None for the run's own policies.
            seats: seats of the learners, or () for all seats without a rule-based policy.
            game: name of the game if the scenario has several.

        Raises:
            ScenarioError: if `target` does not name exactly one player, or nobody learns at one of `seats`.
        """
        frozen = read_roster([target], game=game, policy=policy)
        if len(frozen.entrants) != 1:
            raise ScenarioError(f"{target}: {len(frozen.entrants)} players; a best response is to one: name its step")
        scenario = frozen.scenario
        contested = [agent for agent, role in scenario.seats.items() if role not in scenario.rule_based_roles]
        for seat in seats:
            if seat not in contested:
                raise ScenarioError(f"--seat {seat}: nobody learns there; {choices_hint(seat, contested)}")
        path = Path(target if Path(target).exists() else target.partition("@")[0])
        default = path.with_name(f"{path.stem if path.is_file() else path.name}-best-response")
        return cls(frozen, path, folder or default, seats or contested)

    def responder_scenario(self, seat: str, steps: int, seed: int, overrides: Sequence[str]) -> Scenario:
        """Return the scenario in which a learner plays `seat`, and the frozen player plays every other seat.

        The learner is configured as that of the frozen policy at `seat`, but with a higher learning rate
        (`LEARNING_RATE_FACTOR`) and the KL terms `ANCHORS`.

        Raises:
            ScenarioError: if the frozen player has no weights from which the learner could start.
        """
        frozen, entrant = self.frozen.scenario, self.frozen.entrants[0]
        data = frozen.model_dump(mode="json")
        roles, policies = {}, {}
        for agent, role in entrant.roles.items():
            roles[RESPONDER if agent == seat else agent] = role.model_dump(mode="json")
            if agent == seat:
                continue
            policy = frozen.policies[role.policy]
            policies[role.policy] = policy.model_dump(mode="json") | _FROZEN
            policies[role.policy]["model"] = _initial_model_settings(frozen, role.policy)
            # If the frozen player is a run, its trained policies get their weights at the step that the player names.
            if policy.learner and self.target.is_dir():
                step, run = int(entrant.name.rpartition("@")[2]), str(self.target.resolve())
                policies[role.policy]["model"] = {"kind": "trained", "run": run, "policy": role.policy, "step": step}
        # The learner starts from the initial model of the policy in its seat, or of the first policy with a model.
        names = [entrant.roles[seat].policy, *frozen.policies]
        with_model = next((name for name in names if frozen.policies[name].model), None)
        if with_model is None:
            raise ScenarioError(f"no policy of {', '.join(frozen.policies)} has a model for a learner to begin with")
        learners = [learner for name in [with_model, *names] if (learner := frozen.policies[name].learner)]
        settings: dict[str, Any] = learners[0].model_dump(mode="json") if learners else {"kind": "grpo"}
        for field in ANCHORS.keys() & settings.keys():
            settings[field] = ANCHORS[field]
        for field in ("lr", "lr_end"):
            if rate := settings.get(field):
                settings[field] = LEARNING_RATE_FACTOR * rate
        model = _initial_model_settings(frozen, with_model)
        learner_policy = frozen.policies[with_model].model_dump(mode="json")
        policies[RESPONDER] = learner_policy | _FROZEN | {"model": model, "learner": settings}
        roles[RESPONDER]["policy"] = RESPONDER
        every = max(1, steps // _EVALUATIONS)
        data |= {
            "roles": roles,
            "seats": {agent: agent for agent in data["seats"]} | {seat: RESPONDER},
            "policies": policies,
            "experience": {"kind": "rollouts"},
            "evaluate": {"every": every, "nashconv": frozen.game.all_start_states() is not None},
            "checkpoint": {"every": every, "keep": 1, "trajectories": 0.0},
            "schedule": data["schedule"] | {"steps": steps, "seed": seed, "rotate_seats": False},
            "credit": data["credit"] | {"roles": {}, "compare": {}, "kl": None},
            # The learner's run is small and local, so the frozen run's cluster, trackers and alarms are left out.
            **{"cluster": None, "track": [], "alarms": {}},
        }
        return load({section: content for section, content in data.items() if content is not None}, overrides)

    def search(self, episodes: int, seed: int) -> dict[str, TournamentPlayer]:
        """Return a responder for each seat, found by tree search with `episodes` episodes, with a progress bar."""
        scenario, frozen = self.frozen.scenario, self.frozen.entrants[0]
        casting = RoleRequestBuilder(frozen.roles, scenario.schedule.seed)
        simulator = simulator_from_engines(scenario, frozen.load_engines()).variant(casting)
        ask = partial(move_probabilities, simulator)
        slices = [episodes * (number + 1) // _SLICES - episodes * number // _SLICES for number in range(_SLICES)]
        responders: dict[str, TournamentPlayer] = {}
        for seat in self.seats:
            search = BestResponseSearch(scenario.game, casting, seat, ask, seed)
            for count in show_progress(slices, f"search for {seat}"):
                search.run(count)
            role = frozen.roles[seat].model_copy(update={"policy": RESPONDER})
            engines = {RESPONDER: search.response().build(None)}
            name = f"search for {seat}"
            responders[seat] = TournamentPlayer(name, {seat: role}, partial(dict, engines), name)
        return responders

    def measure_best_response_gains(
        self, responders: Mapping[str, TournamentPlayer], episodes: int, seed: int
    ) -> Metrics:
        """Return the responders' gains in `episodes` new episodes, and exact metrics if the game can be enumerated."""
        scenario = self.frozen.scenario
        challenge = TrainedResponderEvaluation(
            scenario,
            self.frozen.entrants[0],
            responders,
            lambda engines: simulator_from_engines(scenario, engines, seed),
        )
        metrics = challenge.measure_best_response_gains(episodes, seed)
        if scenario.game.all_start_states() is not None:
            exact = next(iter(measure_exploitability(self.frozen).values()))
            metrics |= {"exact/nashconv": exact.nashconv, "exact/exploitability": exact.exploitability}
        return metrics


def _initial_model_settings(scenario: Scenario, policy: str) -> dict[str, Any] | None:
    """Return the settings of the initial model of `policy`, or None if the policy has no model.

    A tiny model is named by the folder in which it was built.
    """
    model = scenario.policies[policy].model
    if model is None:
        return None
    base = model.shared_base() or model
    if not isinstance(base, Tiny):
        return model.model_dump(mode="json")
    # A tiny model is built here, from the words of `scenario`: the best-response scenario has other words.
    source = prepare_models(scenario, {policy: scenario.policies[policy]})[policy]
    assert isinstance(source, PretrainedSource | AdapterSource)
    built = base.with_saved_weights(Path(source.path))
    return (built if base is model else model.model_copy(update={"base": built})).model_dump(mode="json")
