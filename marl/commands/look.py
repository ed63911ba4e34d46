"""Commands that measure, play and draw: `marl eval`, `play`, `why`, `plot`, `compare`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from marl.commands.options import with_options
from marl.commands.terminal import Overrides, RunPath, echo
from marl.config import nearest
from marl.scenario.load import ScenarioError, load

if TYPE_CHECKING:
    from marl.commands.entrants import Roster
    from marl.commands.evaluate import AnySearch, MeasuredPolicies

app = typer.Typer()
EPISODES = 1000
"""Episodes that `marl eval` plays unless it is told how many."""
_ScenarioOrRun = Annotated[Path, typer.Argument(help="A scenario (YAML) or a run's folder.", show_default=False)]
_Measured = Annotated[
    Path,
    typer.Argument(
        help="A scenario (YAML) or a run's folder; with --suite a model's, too, or its name on the hub. With "
        "--cross-play or --exploitability the first of several players.",
        show_default=False,
    ),
]


def _is_run(target: Path) -> bool:
    """Return True for a folder and False for a file.

    Raises:
        ScenarioError: if there is neither.
    """
    if not target.exists():
        entries = target.parent.iterdir() if target.parent.is_dir() else ()
        known = [path.name for path in entries if path.suffix == ".yaml" or (path / "scenario.yaml").is_file()]
        raise ScenarioError(f"{target}: no run and no scenario; {nearest(target.name, known)}")
    return target.is_dir()


@dataclass(frozen=True)
class EvalOptions:
    """Options of `marl eval`."""

    against: Annotated[
        str | None,
        typer.Option(
            help="random, what the game exports (nash, ...), or a run; with --suite a run, a scenario, a model or the "
            "figures of an earlier measurement (.json): what was gained since, on the same problems."
        ),
    ] = None
    episodes: Annotated[int | None, typer.Option(min=1, help="How many to play; default: 1000. Not with --suite.")] = (
        None
    )
    step: Annotated[int | None, typer.Option(help="Which checkpoint; default: the newest.")] = None
    best: Annotated[bool, typer.Option("--best", help="The best one, by the scenario's evaluate.keep_best.")] = False
    transfer: Annotated[list[Path] | None, typer.Option(help="A scenario to measure the run in; repeat it.")] = None
    out: Annotated[Path | None, typer.Option(help="Write the figures here, with versions and seed (.json).")] = None
    suite: Annotated[Path | None, typer.Option(help="Tasks and games to measure on (YAML): pass@k, maj@k, best@k.")] = (
        None
    )
    policy: Annotated[
        str | None,
        typer.Option(help="Who speaks: in roles that a --suite gives; in every seat of each run that meets others."),
    ] = None
    cross_play: Annotated[
        bool,
        typer.Option(
            "--cross-play",
            help="Let every pair of players meet in all seats: scores, Elo, equilibrium. Players: RUN, RUN@STEP, "
            "RUN@best, RUN@all, SCENARIO.yaml, a model's folder, random, what the game exports (nash, ...).",
        ),
    ] = False
    exploitability: Annotated[
        bool,
        typer.Option(
            "--exploitability",
            help="What a best response gains against each player, against the average of several, and against their "
            "equilibrium mixture, exactly. Players as with --cross-play.",
        ),
    ] = False
    budget: Annotated[int | None, typer.Option(min=1, help="With --cross-play: episodes of all pairs together.")] = None
    seed: Annotated[int | None, typer.Option(min=0, help="With --cross-play: of starts and answers; default: 0.")] = (
        None
    )
    rating: Annotated[
        Literal["elo", "glicko"] | None,
        typer.Option(
            help="With --cross-play: elo (default; all games count alike) or glicko (Glicko-2: starts are periods, "
            "later ones count more)."
        ),
    ] = None
    game: Annotated[
        str | None, typer.Option(help="Of a scenario with several games: the one that players meet in.")
    ] = None
    search: Annotated[
        str | None,
        typer.Option(
            help="Look for moves in a tree, '{simulations: 64}', or for the best of a team's courses, "
            "'{rule: tree, by: critic.score, tokens: 400}': settings in YAML. Not with --suite."
        ),
    ] = None


@app.command(name="eval")
@with_options(EvalOptions)
def evaluate(target: _Measured, options: EvalOptions, overrides: Overrides = None) -> None:
    """Measure a run, or a scenario's untrained policies: on held-out starts, against opponents, exactly where possible.

    With --suite, on the suite's tasks and games; then it may be any model's folder. Such a folder can also sit in a
    scenario: marl eval SCENARIO policies.NAME.model=FOLDER. With --cross-play, TARGET and all words after it are
    players.
    """
    from marl.commands.evaluate import prepare_file

    prepare_file(options.out)
    if options.cross_play or options.exploitability:
        _compare([str(target), *(overrides or ())], options)
        return
    if options.rating is not None:
        raise ScenarioError(f"--rating {options.rating} has no effect without --cross-play")
    if options.suite is not None:
        _evaluate_suite(str(target), options.suite, options, overrides or ())
    else:
        _measure(target, options, overrides or ())


def _measure(target: Path, options: EvalOptions, overrides: Sequence[str]) -> None:
    """Measure a run or a scenario by itself, against opponents, or in other scenarios."""
    from marl.commands.evaluate import measure_policies, read_search, render, trained, untrained, write_figures

    search = read_search(options.search) if options.search else None
    open_policies = trained if _is_run(target) else untrained
    measured = open_policies(target, overrides, options.step, best=options.best)
    if options.transfer:
        _transfer(measured, target, options, search)
        return
    metrics = measure_policies(measured, options.against, options.episodes or EPISODES, search)
    echo(render(metrics, measured.scenario.rule_roles))
    if options.out is not None:
        write_figures(options.out, target, measured, metrics, search)
        echo(f"{options.out}: {len(metrics)} figures")


def _compare(players: Sequence[str], options: EvalOptions) -> None:
    """Measure several players by play against each other, or each of them exactly."""
    from marl.commands.entrants import roster

    if options.cross_play and options.exploitability:
        raise ScenarioError("--cross-play and --exploitability: give one of them")
    meant = {"cross_play", "exploitability", "episodes", "budget", "seed", "game", "policy", "out"}
    _expect_only(options, meant | ({"rating"} if options.cross_play else set()))
    met = roster(players, game=options.game, policy=options.policy)
    (_cross_play if options.cross_play else _exploitability)(met, options)


def _expect_only(options: EvalOptions, meant: Collection[str]) -> None:
    useless = [name for name, value in vars(options).items() if value not in (None, False) and name not in meant]
    if useless:
        raise ScenarioError(f"--{useless[0].replace('_', '-')} has no effect with several players")


def _exploitability(met: Roster, options: EvalOptions) -> None:
    from marl.commands.exploitability import exploitabilities, render_exploited, write_exploited

    measured = exploitabilities(met)
    echo(render_exploited(measured))
    if options.out is not None:
        write_exploited(options.out, met, measured)
        echo(f"{options.out}: {len(measured)} rows")


def _cross_play(met: Roster, options: EvalOptions) -> None:
    """Let every pair of players meet, and print and write what came of it."""
    from marl.commands.cross_play import CrossPlay
    from marl.view.cross_table import draw_matrix, standings

    play = CrossPlay.of(
        met,
        episodes=options.episodes,
        budget=options.budget,
        seed=options.seed or 0,
        out=options.out,
        rating=options.rating or "elo",
    )
    table = play()
    echo(standings(table))
    if options.out is not None:
        draw_matrix(options.out.with_suffix(".png"), table)
        echo(f"{options.out}: {len(table.meetings)} pairs; {options.out.with_suffix('.png')}: the matrix")


def _evaluate_suite(target: str, file: Path, options: EvalOptions, overrides: Sequence[str]) -> None:
    """Measure `target` on the suite in `file`; compare it with `--against`, if there is one."""
    from marl.commands.evaluate import render
    from marl.commands.suite import contestant, figures_of, play_against, read_suite, write_suite_figures

    if options.episodes is not None:
        raise ScenarioError(
            f"--episodes {options.episodes} has no effect with --suite, which says problems and samples"
        )
    if options.search is not None:
        raise ScenarioError(f"--search {options.search} has no effect with --suite: its roles sample their answers")
    suite = read_suite(file)
    measured = contestant(target, suite, overrides, step=options.step, best=options.best, policy=options.policy)
    measured.tables(suite)  # so that what does not fit is said before anybody plays
    before = play_against(options.against, suite, options.policy) if options.against else None
    played = measured.play(suite)
    metrics = figures_of(suite, played, before)
    echo(render(metrics))
    if options.out is not None:
        write_suite_figures(options.out, suite, measured, played, metrics)
        echo(f"{options.out}: {len(metrics)} figures")


def _transfer(measured: MeasuredPolicies, run: Path, options: EvalOptions, search: AnySearch | None) -> None:
    from marl.commands.evaluate import measure_policies
    from marl.commands.transfer import render_transfers, transfers, write_transfers

    episodes = options.episodes or EPISODES
    measure = partial(measure_policies, against=options.against, episodes=episodes, search=search)
    results = transfers(measured, run, options.transfer or (), measure)
    echo(render_transfers(results))
    if options.out is not None:
        write_transfers(options.out, run, measured, results)
        echo(f"{options.out}: {len(results)} scenarios")


@dataclass(frozen=True)
class PlayOptions:
    """Options of `marl play`."""

    game: Annotated[str | None, typer.Option(help="Which of several; default: each in turn.")] = None
    seat: Annotated[str | None, typer.Option("--as", help="The seat that you play; policies play the others.")] = None
    random: Annotated[bool, typer.Option(help="Every seat plays uniformly random legal moves.")] = False
    episodes: Annotated[int, typer.Option(min=1)] = 1
    seed: Annotated[int | None, typer.Option(min=0, help="Of deals and answers; default: the scenario's.")] = None
    out: Annotated[Path | None, typer.Option(help="Write the episodes here (.jsonl.zst).")] = None


@app.command(name="play")
@with_options(PlayOptions)
def play_game(scenario: _ScenarioOrRun, options: PlayOptions, overrides: Overrides = None) -> None:
    """Play a game in the terminal, against a scenario's policies, a trained run's or random moves."""
    from marl.commands.play import play, simulator_for, with_game

    is_run = _is_run(scenario)
    if is_run and overrides:
        raise ScenarioError(f"{scenario} is a run, which is played as it is: leave {overrides[0]!r} out")
    chosen = scenario if is_run else load(scenario, overrides or (), to_train=False, random_play=options.random)
    played, simulator = simulator_for(chosen, random=options.random)
    played = with_game(played, options.game)
    play(played, simulator, seat=options.seat, episodes=options.episodes, out=options.out, seed=options.seed)


@app.command()
def why(
    run: RunPath,
    turn: Annotated[str, typer.Argument(help="EPISODE:INDEX, such as 000039.0.1:2", show_default=False)],
) -> None:
    """Explain why a recorded turn got its advantage: rewards, assign, peers, tokens. Reads the run's folder only."""
    from marl.view.why import why as explain_turn

    echo(explain_turn(run, turn))


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Runs to compare.", show_default=False)],
    metric: Annotated[list[str] | None, typer.Option(help="Which; default: success, returns, losses, ...")] = None,
    by: Annotated[Literal["role"] | None, typer.Option(help="A panel for each figure, a line for each role.")] = None,
    band: Annotated[
        Literal["seeds"] | None, typer.Option(help="Runs that differ in their seeds only as one line, with a band.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="PNG; default: curves.png in the first run.")] = None,
) -> None:
    """Draw learning curves of one or more runs."""
    from marl.view.curves import plot as draw

    echo(draw(runs, metric or [], out, by, band))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Runs to compare.", show_default=False)],
    metric: Annotated[list[str] | None, typer.Option(help="Which; default: success, exact figures, returns")] = None,
) -> None:
    """Print where the settings of runs differ, and their final figures with intervals."""
    from marl.view.compare import compare as compared

    echo(compared(runs, metric or ()))
