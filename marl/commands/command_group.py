"""The commands of `marl` by name: their modules, and those of installed packages, are imported when they are called."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_GROUP = "marl.commands"
COMMANDS = {
    "new": (
        "new",
        "Write a commented scenario that runs at once: self-play, a team, one role of a team, or a program.",
    ),
    "train": ("train", "Train the policies of a scenario that have a learner."),
    "rerun": ("train", "Repeat a failed update from its recorded batch and learner."),
    "eval": ("eval.app", "Measure runs, scenarios, models and scripted players."),
    "play": ("play", "Play a game in the terminal, against a scenario's policies, a trained run's or random moves."),
    "why": ("analysis", "Explain the advantage of a recorded turn: rewards, assign, peers, tokens. Read-only."),
    "plot": ("analysis", "Draw learning curves of one or more runs."),
    "compare": ("analysis", "Print the settings in which runs differ, and their final figures with intervals."),
    "view": ("web_view", "Show runs in the browser: curves, episode graphs, credit of turns. Live and read-only."),
    "report": ("web_view", "Write the page of runs as one HTML file that works offline and without a server."),
    "best-response": (
        "best_response",
        "Bound the exploitability of a run: train a learner or search against it in each seat, and measure the gain.",
    ),
    "show": ("show", "Show recorded dialogues: prompt, answer, action and reward of each turn. Read-only."),
    "export": ("export", "Write a trained policy as a Hugging Face model or a PEFT adapter, with a model card."),
    "export-data": (
        "export_data",
        "Write recorded episodes as a data set: Parquet, or rows for TRL, verl and OpenAI's fine-tuning.",
    ),
    "check": (
        "check",
        "Check a scenario without loading a weight: its settings, and a few random episodes through its real prompts.",
    ),
    "doctor": (
        "doctor",
        "Check this machine: versions, accelerators, sandbox, vLLM, Ray, folders; then train for up to a minute.",
    ),
    "list": ("catalogue", "List the plug-ins that a scenario can name, those of installed packages included."),
    "describe": (
        "catalogue",
        "Print every setting of a plug-in or a section: its type, default and meaning, with an example.",
    ),
    "schema": ("catalogue", "Print the JSON Schema of scenario files or of suites, for editors."),
    "tiny": (
        "catalogue",
        "Make a tiny language model with random weights and a byte tokenizer, as a Hugging Face folder.",
    ),
    "status": (
        "status",
        "Print the state of a run and the current activity of each part, or the last one of a run that died.",
    ),
    "top": (
        "top",
        "Watch a run: progress, speed, roles, policies, alarms, the last recorded episode. Read-only; q leaves.",
    ),
    "credit": ("credit", "Assign credit to a run's recorded episodes again, by other rules, and compare rules."),
}
"""Command -> its module in `marl.commands`, and its line in `marl --help`: the first paragraph of its own help."""


class CommandGroup(TyperGroup):
    """The commands of `COMMANDS`, then those of installed packages.

    An entry point of the group `marl.commands` names a function, which becomes a command, or a `typer.Typer`, which
    becomes a group of commands.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (_, help_line) in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=help_line)
        self._lists_commands = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # `--trust` is an option of the command group, but users may also type it after the command's name.
        return super().parse_args(ctx, sorted(args, key=lambda word: word != "--trust"))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # The list of commands takes its help lines from `COMMANDS`, because importing every module takes seconds.
        self._lists_commands = True
        super().format_help(ctx, formatter)
        self._lists_commands = False

    def list_commands(self, ctx: Any) -> list[str]:
        added = {point.name for point in entry_points(group=_GROUP)}
        return [*COMMANDS, *sorted(added - set(COMMANDS))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the module of command `cmd_name` and return the command, or None if the name is unknown."""
        if cmd_name in COMMANDS:
            if self._lists_commands:
                return self.commands[cmd_name]
            module = import_module(f"marl.commands.{COMMANDS[cmd_name][0]}")
            group = typer.main.get_group(module.app)
            # The `app` of a command's module holds several commands, or is one command with subcommands.
            command = group.commands.get(cmd_name, group)
            command.name = cmd_name
            return command
        points = {point.value: point for point in entry_points(group=_GROUP, name=cmd_name)}
        if not points:
            return None
        [point, *others] = points.values()
        try:
            loaded = point.load()
        except (ModuleNotFoundError, AttributeError) as error:
            loaded = _failing_command(cmd_name, str(error))
        if others:
            choices = ", ".join(sorted(points))
            loaded = _failing_command(cmd_name, f"two installed packages claim this name; choices: {choices}")
        app = loaded if isinstance(loaded, typer.Typer) else typer.Typer(add_completion=False)
        if app is not loaded:
            app.command(name=cmd_name)(loaded)
        return typer.main.get_command(app)


class DefaultCommandGroup(TyperGroup):
    """Group of subcommands. If the first word names no subcommand, the first declared subcommand runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def _failing_command(name: str, problem: str) -> Callable[[], None]:
    """Return a command that only raises ValueError: `problem` makes the entry point `name` unusable."""

    def raise_unusable_command_error() -> None:
        raise ValueError(f"command {name!r} is unusable: {problem}")

    raise_unusable_command_error.__doc__ = f"Unusable: {problem}."
    return raise_unusable_command_error
