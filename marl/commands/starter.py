"""Commented scenarios of `marl new`: self-play, a team, or one role of a team, on a user's own data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from marl.core.config import choices_hint
from marl.host.data_files import DataTable, read_file
from marl.scenario.load import ScenarioError, game_settings

Kind = Literal["self-play", "team", "one-role"]
QUESTIONS = ("question", "problem", "prompt", "input", "query", "instruction", "task", "text")
ANSWERS = ("answer", "solution", "output", "target", "response", "label", "result", "expected")
"""Usual names of the two columns, in order of preference."""
_HEADLINES = {
    "team": "A planner, a solver and a critic answer questions together; each has weights of its own, and all learn.",
    "one-role": "A planner, a solver and a critic answer questions together; only the solver learns.",
}
_TINY = "{kind: tiny, hidden: 64, warm_up: {steps: 300}}"
_HELD_OUT = 0.2
"""Fraction of the rows that are held out, up to `_MAX_HELD_OUT` rows."""
_MAX_HELD_OUT = 300


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """Facts about a file of questions and answers."""

    path: Path
    question: str
    """Column of the questions."""
    answer: str
    """Column of the answers."""
    rows: int
    numeric: bool
    """True if every answer is a number."""
    longest: int
    """Length of the longest answer, in words."""
    first_answer: str

    @property
    def held_out(self) -> int:
        """Number of rows that are excluded from training."""
        return max(1, min(_MAX_HELD_OUT, round(_HELD_OUT * self.rows)))


def inspect_data(path: Path, question: str | None = None, answer: str | None = None) -> QuestionFile:
    """Read a file of questions and answers and return the facts that a scenario needs.

    Args:
        question, answer: names of the columns, or None to find them by their usual names.

    Raises:
        ValueError: if the file is unreadable, or a column is missing.
    """
    table = read_file(path)
    question = question or _column(table, QUESTIONS, "--question")
    answer = answer or _column(table, ANSWERS, "--answer")
    for option, column in (("--question", question), ("--answer", answer)):
        if column not in table.columns:
            raise ValueError(
                f"{option} {column}: not every row of {path} has it; {choices_hint(column, table.columns)}"
            )
    answers = [str(row[answer]) for row in table.rows]
    numeric = all(map(_is_number, answers))
    longest = max(len(text.split()) for text in answers)
    return QuestionFile(path, question, answer, len(answers), numeric, longest, answers[0])


def _column(table: DataTable, usual: Sequence[str], option: str) -> str:
    for name in usual:
        for column in table.columns:
            if column.lower() == name:
                return column
    choices = ", ".join(table.columns)
    raise ValueError(f"{option}: no column of {table.name} has a usual name ({', '.join(usual)}); choices: {choices}")


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text.replace(",", "")))
    except ValueError:
        return False


def starter_yaml(
    kind: Kind, file: Path, model: str | None, *, game: str = "kuhn_poker", data: QuestionFile | None = None
) -> str:
    """Return the text of a commented scenario that runs without changes.

    Args:
        file: file to which the text will be written.
        model: a folder or a hub name, or None for tiny models that know nothing but the answer format.
    """
    tiny = model is None
    shown = f"    model: {_TINY if tiny else model}"
    max_tokens = max(12, data.longest + 6 if data else 0) if tiny else 512
    values = {
        **{"file": file, "model": f"{shown}  # or a folder, or a name on the hub" if tiny else shown},
        **{"lr": "1.0e-3" if tiny else "1.0e-6", "steps": 60 if tiny else 200, "groups": 16, "every": 20},
        **{"threads": ", threads: 1" if tiny else "", "sampling": f", sampling: {{max_tokens: {max_tokens}}}"},
    }
    if kind == "self-play":
        try:
            settings = game_settings(game, {})
        except ScenarioError as error:
            raise ScenarioError(f"--game {game}: {error}; a game that needs no settings: kuhn_poker, nim") from error
        values |= {"game": game, "seats": settings.build().possible_agents}
    else:
        # A third of the examples of the warm-up is wrong, so that learning can improve on them.
        wrong = json.dumps(data.first_answer, ensure_ascii=False) if data else '"{{ wrong[0] }}"'
        values |= {
            **{"headline": _HEADLINES[kind], "task": _task(file, data), "held_out": data.held_out if data else 200},
            "learning": ["solver"] if kind == "one-role" else ["planner", "solver", "critic"],
            "verifier": "exact" if data and not data.numeric else "numeric",
            # A tiny model learns the format of its answers from examples, and has no use for instructions.
            "planner_examples": ', examples: ["step by step", "directly"]' if tiny else "",
            "answer_examples": f', examples: ["{{{{ answer }}}}", "{{{{ answer }}}}", {wrong}]' if tiny else "",
            "instructions": ', instructions: ""' if tiny else "",
        }
    environment = Environment(
        loader=PackageLoader("marl.commands", "starters"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    template = "self-play" if kind == "self-play" else "team"
    return environment.get_template(f"{template}.yaml.jinja2").render(values)


def _task(file: Path, data: QuestionFile | None) -> str:
    if data is None:
        return '{kind: arithmetic, digits: [1, 2], operators: ["+", "-"], train: 1000, held_out: 200}'
    path = data.path.absolute()
    folder = file.absolute().parent
    # A relative path lets the scenario and its data move together.
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    columns = json.dumps({"question": data.question, "answer": data.answer}, ensure_ascii=False)
    return f"{{kind: file, path: {json.dumps(str(shown))}, columns: {columns}, held_out: {data.held_out}}}"
