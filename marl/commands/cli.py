"""The command line: marl train | eval | play | why | credit | check | list | schema | tiny | plot | rerun."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from marl.commands.consent import TrustAnywhere, consent_needed, reach_lines
from marl.commands.credit import credit
from marl.config import nearest
from marl.errors import RunError
from marl.parts import GROUPS, RenamedKind, find, names
from marl.scenario.checks import notes
from marl.scenario.load import ScenarioError, explain, load, problem_list
from marl.scenario.schema import Scenario
from marl.text import for_terminal

app = typer.Typer(
    cls=TrustAnywhere,
    help="Reinforcement learning for teams of language models.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(credit, name="credit")
File = Annotated[Path, typer.Argument(help="A scenario (YAML).", show_default=False)]
Overrides = Annotated[list[str] | None, typer.Argument(help="dotted.path=value", show_default=False)]
RunPath = Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)]


def main() -> None:
    """Run the command line; what a user got wrong is a message and exit status 2, never a traceback."""
    # A user's own parts lie where the command is typed; last, so that they hide nothing that is installed.
    sys.path.append(str(Path.cwd()))
    with _explained(), warnings.catch_warnings():
        warnings.showwarning = partial(_show_warning, warnings.showwarning)
        app()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        _fail(ScenarioError(problem_list(explain(error)).strip()), 2)
    except ValueError as error:
        _fail(error, 2)
    except (RunError, FloatingPointError, OSError) as error:
        _fail(error, 1)


def _show_warning(default: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Write renamed kinds as one line, without a place in the source; show other warnings by default."""
    if issubclass(category, RenamedKind):
        sys.stderr.write(for_terminal(f"marl: {message}\n"))
    else:
        default(for_terminal(str(message)), category, *place)


def _fail(error: BaseException, status: int) -> None:
    sys.stderr.write(for_terminal("\n".join([f"marl: {error}", *vars(error).get("__notes__", ())])) + "\n")
    sys.exit(status)


@app.callback()
def begin(
    context: typer.Context,
    trust: Annotated[
        bool, typer.Option("--trust", help="With any command: agree to what its scenario reaches, as `check` lists it.")
    ] = False,
) -> None:
    """Ask for consent to what scenarios reach until the command ends."""
    context.with_resource(consent_needed(trusted=trust))


def _echo(text: object) -> None:
    typer.echo(for_terminal(str(text)))


def _tell(scenario: Scenario) -> None:
    for note in notes(scenario):
        _echo(f"note: {note}")


@app.command()
def train(
    scenario: File,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; default runs/NAME.")] = None,
    resume: Annotated[str | None, typer.Option(help="'auto', or a checkpoint's folder: go on from there.")] = None,
    force: Annotated[bool, typer.Option(help="Go on although the scenario changed.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Remove the run that is in the folder.")] = False,
) -> None:
    """Train the policies of a scenario that have a learner."""
    from marl.training.session import RunStart, session

    checked = load(scenario, overrides or ())
    _tell(checked)
    start = RunStart(resume, force=force, overwrite=overwrite)
    finished = session(checked, out or Path("runs") / scenario.stem, start)
    raise typer.Exit(0 if finished else 130)


@app.command()
def check(
    scenario: File,
    overrides: Overrides = None,
    graders: Annotated[bool, typer.Option(help="Also try its verifiers on answers whose verdict is known.")] = False,
) -> None:
    """Check a scenario without loading a weight."""
    with warnings.catch_warnings(record=True, action="always", category=RenamedKind) as raised:
        checked = load(scenario, overrides or ())
    learning = [name for name, policy in checked.policies.items() if policy.learner]
    _echo(f"{scenario}: fine; game {checked.game.kind}, trains {', '.join(learning)}")
    for message in dict.fromkeys(str(warning.message) for warning in raised):
        _echo(f"note: {message}")
    _tell(checked)
    if lines := reach_lines():
        _echo(f"It reaches beyond its own text:\n{lines}")
    if graders:
        from marl.evaluation.graders import check_graders

        _echo(f"{scenario}: graders: {check_graders(checked)} verdicts as they must be")


@app.command(name="eval")
def evaluate(
    run: RunPath,
    against: Annotated[str | None, typer.Option(help="random, what the game exports (nash, ...), or a run.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="How many to play.")] = 1000,
    step: Annotated[int | None, typer.Option(help="Which checkpoint; default: the newest.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The best one, by the scenario's evaluate.keep_best.")] = False,
) -> None:
    """Measure a trained run: on held-out starts, against opponents, and exactly where the game allows it."""
    from marl.commands.evaluate import measure, render
    from marl.training.restore import best_step

    if best and step is not None:
        raise ScenarioError(f"--step {step} names a checkpoint and --best another one: give one of them")
    _echo(render(measure(run, against, episodes, best_step(run) if best else step)))


@app.command(name="play")
def play_game(
    scenario: Annotated[Path, typer.Argument(help="A scenario (YAML) or a run's folder.", show_default=False)],
    overrides: Overrides = None,
    seat: Annotated[str | None, typer.Option("--as", help="The seat that you play; policies play the others.")] = None,
    random: Annotated[bool, typer.Option(help="Every seat plays uniformly random legal moves.")] = False,
    episodes: Annotated[int, typer.Option(min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help="Write the episodes here (.jsonl.zst).")] = None,
) -> None:
    """Play a game in the terminal, against a scenario's policies, a trained run's or random moves."""
    from marl.commands.play import play, simulator_for

    if scenario.is_dir() and overrides:
        raise ScenarioError(f"{scenario} is a run, which is played as it is: leave {overrides[0]!r} out")
    chosen = None if scenario.is_dir() else load(scenario, overrides or ())
    play(*simulator_for(chosen or scenario, random=random), seat=seat, episodes=episodes, out=out)


@app.command()
def why(
    run: RunPath,
    turn: Annotated[str, typer.Argument(help="EPISODE:INDEX, such as 000039.0.1:2", show_default=False)],
) -> None:
    """Explain why a recorded turn got its advantage: rewards, assign, peers, tokens. Reads the run's folder only."""
    from marl.view.why import why as explain_turn

    _echo(explain_turn(run, turn))


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Runs to compare.", show_default=False)],
    metric: Annotated[list[str] | None, typer.Option(help="Which; default: the run's evaluations.")] = None,
    out: Annotated[Path | None, typer.Option(help="PNG; default: curves.png in the first run.")] = None,
) -> None:
    """Draw learning curves of one or more runs."""
    from marl.view.curves import plot as draw

    _echo(draw(runs, metric or [], out))


@app.command(name="list")
def list_parts(kind: Annotated[str | None, typer.Argument(help=f"One of: {', '.join(GROUPS)}.")] = None) -> None:
    """List the parts that a scenario can name, plug-ins included."""
    if kind is not None and kind not in GROUPS:
        raise ScenarioError(f"no group of parts {kind!r}; {nearest(kind, GROUPS)}")
    for group in [kind] if kind else GROUPS:
        for name in names(group):
            _echo(f"{group:<11} {name:<20} {_line(group, name)}")


def _line(group: str, kind: str) -> str:
    try:
        part = find(group, kind)
    except ValueError as error:
        return f"unusable: {error}"
    return (part.__doc__ or "").strip().split("\n")[0]


@app.command()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors; ours is scenarios/.schema.json."""
    from marl.scenario.schema import Scenario

    _echo(json.dumps(Scenario.model_json_schema(), indent=1))


@app.command()
def tiny(
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    hidden: Annotated[int, typer.Option(min=2)] = 64,
    layers: Annotated[int, typer.Option(min=1)] = 2,
    architecture: Annotated[str, typer.Option(help="llama or qwen3")] = "llama",
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Make a tiny language model with random weights and a byte tokenizer, as a Hugging Face folder."""
    from marl.models.tiny import Tiny

    if out.exists():
        raise ScenarioError(f"--out {out}: exists already")
    fields = {"architecture": architecture, "hidden": hidden, "layers": layers, "seed": seed, "vocabulary": "bytes"}
    settings = Tiny.model_validate(fields)
    from marl.models.tiny_build import build_tiny  # takes seconds, so after all that can be wrong

    _echo(f"{out}: {build_tiny(settings, out, ()):,} parameters")


@app.command()
def rerun(batch: Annotated[Path, typer.Argument(help="RUN/failed/STEP/POLICY", show_default=False)]) -> None:
    """Repeat an update that failed, from the batch and learner that were kept."""
    from marl.training.restore import rerun as again

    _echo(json.dumps(again(batch), indent=1))
