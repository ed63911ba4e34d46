"""`marl eval`: subcommands that measure runs, scenarios, models and scripted players."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from marl.commands.command_group import DefaultCommandGroup
from marl.commands.eval.cross_play import CrossPlayTournament
from marl.commands.eval.evaluate import (
    AnySearch,
    EvaluatedPolicies,
    evaluate_policies,
    format_metrics,
    parse_search,
    policies_of_run,
    policies_of_scenario,
)
from marl.commands.eval.exploitability import measure_exploitability, render_exploitability
from marl.commands.eval.output import create_output_folder, replace_nonfinite_by_none, write_json_results
from marl.commands.eval.players import read_roster
from marl.commands.eval.suite import read_suite, read_suite_scores, suite_player, write_suite_results
from marl.commands.eval.transfer import measure_transfers, render_transfers, write_transfers
from marl.commands.eval.without_role import measure_without_role
from marl.commands.options import with_options
from marl.commands.terminal import Overrides, RunPath, ScenarioOrRun, echo, is_run_folder
from marl.core.types import Metrics
from marl.evaluation.suite_play import paired_gain_metrics, suite_metrics
from marl.runs.run_folder import RESULTS_WITHOUT_ROLES, describe_environment
from marl.runs.symlinks import path_without_symlinks
from marl.scenario.load import ScenarioError
from marl.view.tournament_table import ranking_and_cross_play_text

REPLACED_OPTIONS = {
    "--suite": "write `marl eval suite SUITE.yaml TARGET`",
    "--transfer": "write `marl eval transfer RUN SCENARIO.yaml`",
    "--cross-play": "write `marl eval cross-play PLAYER PLAYER`",
    "--exploitability": "write `marl eval exploitability PLAYER`",
    "--rating": "leave it out: ratings of `marl eval cross-play` are Elo",
}
"""Option of `marl eval` in version 0.1 -> instruction for its new spelling, which the error message contains."""


class EvalCommandGroup(DefaultCommandGroup):
    """Subcommands of `marl eval`. Options of version 0.1 are refused with an error that names their new spelling."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for word in args:
            option = word.partition("=")[0]
            if option in REPLACED_OPTIONS:
                raise ScenarioError(f"marl eval {option}: no such option any more; {REPLACED_OPTIONS[option]}")
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=EvalCommandGroup,
    no_args_is_help=True,
    help="Measure runs, scenarios, models and scripted players.\n\n`marl eval TARGET` is `marl eval run TARGET`. A run "
    "folder with the name of a subcommand is written as a path: ./suite.",
)
_Step = Annotated[int | None, typer.Option(help="Step of the checkpoint; default: the newest.")]
_Best = Annotated[bool, typer.Option("--best", help="The best checkpoint, by the scenario's evaluate.keep_best.")]
_Out = Annotated[
    Path | None, typer.Option(help="Write the figures to this file (.json), with command, seed and versions.")
]
_Game = Annotated[str | None, typer.Option(help="In a scenario with several games: the game that is played.")]
_SeatPolicy = Annotated[str | None, typer.Option(help="The policy that speaks in every seat of each run.")]
_Players = Annotated[
    list[str],
    typer.Argument(
        metavar="PLAYER...",
        help="RUN, RUN@STEP, RUN@best, RUN@all, RUN@pool or RUN@meta (members of a league), SCENARIO.yaml, a model's "
        "folder, random, or a player that the game exports (nash, ...).",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class PolicyEvalOptions:
    """Options of `marl eval run` and `marl eval transfer`."""

    against: Annotated[
        str | None,
        typer.Option(
            help="Opponent: random, a player that the game exports (nash, ...), a run, or members of a run's league: "
            "RUN@pool, or RUN@meta by its meta-strategy."
        ),
    ] = None
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 1000
    step: _Step = None
    best: _Best = False
    search: Annotated[
        str | None,
        typer.Option(
            help="Search at test time, as YAML settings: for moves, '{simulations: 64}', or for the best of a team's "
            "rollouts, '{rule: tree, by: critic.score, tokens: 400}'."
        ),
    ] = None
    exact_simulations: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --search for moves: at most this many simulations for exact figures (0: none). NashConv needs "
            "all information states; optimal moves are measured in fewer positions. Default: no limit, or 0 with "
            "--against.",
        ),
    ] = None
    out: _Out = None

    def evaluated_policies(self, target: Path, overrides: Sequence[str] = ()) -> EvaluatedPolicies:
        """Return the policies of `target`, a run's folder or a scenario file, at the step that the options name."""
        find_policies = policies_of_run if is_run_folder(target) else policies_of_scenario
        return find_policies(target, overrides, self.step, best=self.best)


@dataclass(frozen=True)
class RunEvalOptions(PolicyEvalOptions):
    """Options of `marl eval run`."""

    without: Annotated[
        str | None,
        typer.Option(
            help="Role of a team: also play the same held-out starts without it (its seats pass on what they read), "
            "and print the differences with paired intervals. A run's folder keeps them for `marl view`."
        ),
    ] = None

    def results_file(self, target: Path) -> Path | None:
        """Return the file of the figures: `--out`, or for a run without a role its file in the run, or None."""
        if self.out is None and self.without is not None and is_run_folder(target):
            return path_without_symlinks(target, RESULTS_WITHOUT_ROLES, f"{quote(self.without, safe='')}.json")
        return self.out

    def metrics_of(self, policies: EvaluatedPolicies, search: AnySearch | None) -> Metrics:
        """Return the metrics of `policies` that the options ask for.

        Raises:
            ScenarioError: as `evaluate_policies` and `measure_without_role`, or if options exclude each other.
        """
        if self.without is None:
            return evaluate_policies(policies, self.against, self.episodes, search, self.exact_simulations)
        for option, value in (("--against", self.against), ("--search", self.search)):
            if value is not None:
                raise ScenarioError(f"--without {self.without} and {option} {value} exclude each other; give one")
        return measure_without_role(policies, self.without, self.episodes)


@app.command(name="run")
@with_options(RunEvalOptions)
def evaluate_run_or_scenario(target: ScenarioOrRun, options: RunEvalOptions, overrides: Overrides = None) -> None:
    """Measure a run, or a scenario's untrained policies: on held-out starts, against opponents, exactly if possible.

    To measure a model's folder, name it in a scenario: marl eval run SCENARIO policies.NAME.model=FOLDER. This
    subcommand is the default: marl eval RUN.
    """
    out = options.results_file(target)
    create_output_folder(out)
    search = parse_search(options.search) if options.search else None
    policies = options.evaluated_policies(target, overrides or ())
    metrics = options.metrics_of(policies, search)
    echo(format_metrics(metrics, policies.scenario.rule_based_roles))
    if out is not None:
        content = {
            **{"measured": str(target), "checkpoint": policies.checkpoint},
            **({"search": search.model_dump(mode="json")} if search else {}),
            "figures": replace_nonfinite_by_none(metrics),
            **describe_environment(policies.scenario),
            "scenario": policies.scenario.model_dump(mode="json"),
        }
        write_json_results(out, content)
        echo(f"{out}: {len(metrics)} figures")


@dataclass(frozen=True)
class SuiteEvalOptions:
    """Options of `marl eval suite`."""

    against: Annotated[
        str | None,
        typer.Option(
            help="A run, a scenario, a model or the figures of an earlier measurement (.json): also print the gain "
            "over it on the same problems."
        ),
    ] = None
    step: _Step = None
    best: _Best = False
    policy: Annotated[str | None, typer.Option(help="The policy that speaks in tests with roles of their own.")] = None
    out: _Out = None


@app.command(name="suite")
@with_options(SuiteEvalOptions)
def evaluate_suite(
    suite: Annotated[Path, typer.Argument(help="Tasks and games to measure on (YAML).", show_default=False)],
    target: Annotated[
        str,
        typer.Argument(
            help="A run, a scenario (YAML), a model's folder, or a model's name on the hub.", show_default=False
        ),
    ],
    options: SuiteEvalOptions,
    overrides: Overrides = None,
) -> None:
    """Measure a run, a scenario or a model on the tasks and games of a suite: pass@k, maj@k, best@k."""
    create_output_folder(options.out)
    tests = read_suite(suite)
    player = suite_player(target, tests, overrides or (), step=options.step, best=options.best, policy=options.policy)
    # A test that does not fit `target` is refused now, before the player of `--against` plays for minutes.
    player.assign_policies_to_tests(tests)
    before = None
    if options.against and options.against.endswith(".json"):
        before = read_suite_scores(Path(options.against), tests)
    elif options.against:
        before = suite_player(options.against, tests, policy=options.policy).play_suite(tests)
    scores = player.play_suite(tests)
    metrics = suite_metrics(tests, scores)
    if before is not None:
        metrics |= paired_gain_metrics(tests, before, scores)
    echo(format_metrics(metrics))
    if options.out is not None:
        write_suite_results(options.out, tests, player, scores, metrics)
        echo(f"{options.out}: {len(metrics)} figures")


@app.command(name="transfer")
@with_options(PolicyEvalOptions)
def evaluate_transfer(
    run: RunPath,
    scenarios: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO... [dotted.path=value]...",
            help="Scenarios (YAML) to measure in, and changes of all of them.",
            show_default=False,
        ),
    ],
    options: PolicyEvalOptions,
) -> None:
    """Measure a run's policies in other scenarios, before and after training.

    The run's own game in other words: marl eval transfer RUN RUN/scenario.yaml game.disguise=1.
    """
    files = [Path(argument) for argument in scenarios if "=" not in argument]
    overrides = [argument for argument in scenarios if "=" in argument]
    if not files:
        raise ScenarioError(f"transfer {overrides[0]}: no scenario to measure in; give a scenario (YAML) before it")
    create_output_folder(options.out)
    search = parse_search(options.search) if options.search else None
    policies = options.evaluated_policies(run)
    measure = partial(
        evaluate_policies,
        opponent_or_run=options.against,
        episodes=options.episodes,
        search=search,
        exact_simulations=options.exact_simulations,
    )
    results = measure_transfers(policies, run, files, overrides, measure)
    echo(render_transfers(results))
    if options.out is not None:
        write_transfers(options.out, run, policies, results)
        echo(f"{options.out}: {len(results)} scenarios")


@dataclass(frozen=True)
class CrossPlayOptions:
    """Options of `marl eval cross-play`."""

    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes of each pair; default: 200.")] = None
    budget: Annotated[int | None, typer.Option(min=1, help="Episodes of all pairs together.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of starts and answers.")] = 0
    game: _Game = None
    policy: _SeatPolicy = None
    out: _Out = None


@app.command(name="cross-play")
@with_options(CrossPlayOptions)
def evaluate_cross_play(players: _Players, options: CrossPlayOptions) -> None:
    """Play every pair of players against each other in all seats: scores, Elo ratings, equilibrium."""
    create_output_folder(options.out)
    roster = read_roster(players, game=options.game, policy=options.policy)
    play = CrossPlayTournament.from_roster(
        roster, episodes=options.episodes, budget=options.budget, seed=options.seed, out=options.out
    )
    table = play()
    echo(ranking_and_cross_play_text(table))
    if options.out is not None:
        from marl.view.pictures import save_heat_map  # The import is here, because matplotlib loads slowly.

        picture = options.out.with_suffix(".png")
        save_heat_map(picture, table)
        echo(f"{options.out}: {len(table.episodes_by_pair)} pairs; {picture}: the matrix")


@app.command(name="exploitability")
def evaluate_exploitability(
    players: _Players, game: _Game = None, policy: _SeatPolicy = None, out: _Out = None
) -> None:
    """Compute exactly how much a best response gains: against each player, their average, and their equilibrium."""
    create_output_folder(out)
    roster = read_roster(players, game=game, policy=policy)
    measured = measure_exploitability(roster)
    echo(render_exploitability(measured))
    if out is not None:
        content = {
            "measured": [entrant.name for entrant in roster.entrants],
            "figures": {name: asdict(row) for name, row in measured.items()},
            **describe_environment(roster.scenario),
            "scenario": roster.scenario.model_dump(mode="json"),
        }
        write_json_results(out, content)
        echo(f"{out}: {len(measured)} rows")
