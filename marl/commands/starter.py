"""Scenarios to begin with: commented YAML for self-play, a team, or one role of a team, on data of one's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from marl.config import nearest
from marl.data_files import Rows, read_file
from marl.scenario.load import ScenarioError, game_settings

Kind = Literal["self-play", "team", "one-role"]
QUESTIONS = ("question", "problem", "prompt", "input", "query", "instruction", "task", "text")
ANSWERS = ("answer", "solution", "output", "target", "response", "label", "result", "expected")
"""Usual names of the columns, the likeliest first."""
_HEADLINES = {
    "team": "A planner, a solver and a critic answer questions together; each has weights of its own, and all learn.",
    "one-role": "A planner, a solver and a critic answer questions together; only the solver learns.",
}
_TINY = "{kind: tiny, hidden: 64, warm_up: {steps: 300}}"
_HELD_OUT = 0.2
"""Share of the rows that are held out, where there are few."""
_MOST_HELD_OUT = 300


@dataclass(frozen=True, slots=True)
class Data:
    """A file of questions and answers."""

    path: Path
    question: str
    answer: str
    rows: int
    numeric: bool
    """True if every answer is a number."""
    longest: int
    """Words of the longest answer."""
    first_answer: str

    @property
    def held_out(self) -> int:
        """Number of rows that training never deals."""
        return max(1, min(_MOST_HELD_OUT, round(_HELD_OUT * self.rows)))


def read_data(path: Path, question: str | None = None, answer: str | None = None) -> Data:
    """Return what a scenario needs to know of a file; columns are found by their usual names unless they are given.

    Raises:
        ValueError: if the file cannot be read, or the columns are not known.
    """
    table = read_file(path)
    columns = (
        question or _column(table, QUESTIONS, "--question"),
        answer or _column(table, ANSWERS, "--answer"),
    )
    for option, column in zip(("--question", "--answer"), columns, strict=True):
        if column not in table.columns:
            raise ValueError(f"{option} {column}: not every row of {path} has it; {nearest(column, table.columns)}")
    answers = [str(row[columns[1]]) for row in table.rows]
    numeric = all(map(_is_number, answers))
    return Data(path, *columns, len(answers), numeric, max(len(text.split()) for text in answers), answers[0])


def _column(table: Rows, usual: Sequence[str], option: str) -> str:
    usual_names = [column for name in usual for column in table.columns if column.lower() == name]
    if not usual_names:
        have = ", ".join(table.columns)
        raise ValueError(f"{option}: no column of {table.name} has a usual name ({', '.join(usual)}); choices: {have}")
    return usual_names[0]


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text.replace(",", "")))
    except ValueError:
        return False


def starter(kind: Kind, file: Path, model: str | None, *, game: str = "kuhn_poker", data: Data | None = None) -> str:
    """Return a commented scenario that runs as it is; `file` is where it will be written.

    Without a `model` (a folder, or a name on the hub) tiny models are made for it, which know nothing but its format.
    """
    values = _common(file, model) | (_self_play(game) if kind == "self-play" else _team(kind, model, file, data))
    values["sampling"] = _sampling(model, data)
    template = "self-play" if kind == "self-play" else "team"
    environment = Environment(
        loader=PackageLoader("marl.commands", "starters"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template(f"{template}.yaml.jinja2").render(values)


def _common(file: Path, model: str | None) -> dict[str, Any]:
    tiny = model is None
    shown = f"    model: {_TINY if tiny else model}"
    return {
        "file": file,
        "model": f"{shown}  # or a folder, or a name on the hub" if tiny else shown,
        "lr": "1.0e-3" if tiny else "1.0e-6",
        "steps": 60 if tiny else 200,
        "groups": 16,
        "every": 20,
        "threads": ", threads: 1" if tiny else "",
    }


def _self_play(game: str) -> dict[str, Any]:
    try:
        settings = game_settings(game, {})
    except ScenarioError as error:
        raise ScenarioError(f"--game {game}: {error}; a game that needs no settings: kuhn_poker, nim") from error
    agents = settings.build().possible_agents
    return {"game": game, "seats": agents}


def _team(kind: Kind, model: str | None, file: Path, data: Data | None) -> dict[str, Any]:
    tiny = model is None
    return {
        "headline": _HEADLINES[kind],
        "task": _task(file, data),
        "learning": ["solver"] if kind == "one-role" else ["planner", "solver", "critic"],
        "verifier": "exact" if data and not data.numeric else "numeric",
        "held_out": data.held_out if data else 200,
        # A tiny model learns the format of its answers from examples, and has no use for instructions.
        "planner_examples": ', examples: ["step by step", "directly"]' if tiny else "",
        "answer_examples": f", examples: {_answer_examples(data)}" if tiny else "",
        "instructions": ', instructions: ""' if tiny else "",
    }


def _answer_examples(data: Data | None) -> str:
    """Return example answers, a third of which are wrong: there is something left to learn."""
    wrong = json.dumps(data.first_answer, ensure_ascii=False) if data else '"{{ wrong[0] }}"'
    return f'["{{{{ answer }}}}", "{{{{ answer }}}}", {wrong}]'


def _task(file: Path, data: Data | None) -> str:
    if data is None:
        return '{kind: arithmetic, digits: [1, 2], operators: ["+", "-"], train: 1000, held_out: 200}'
    path = data.path.absolute()
    here = file.absolute().parent
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    columns = json.dumps({"question": data.question, "answer": data.answer}, ensure_ascii=False)
    return f"{{kind: file, path: {json.dumps(str(shown))}, columns: {columns}, held_out: {data.held_out}}}"


def _sampling(model: str | None, data: Data | None) -> str:
    if model is not None:
        return ", sampling: {max_tokens: 512}"
    return f", sampling: {{max_tokens: {max(12, data.longest + 6 if data else 0)}}}"
