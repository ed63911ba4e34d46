"""Commented scenarios of `marl new`: self-play, a team, one role of a team, or a program, on a user's own data."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from marl.commands.starter_fit import MachineFittedSettings
from marl.core.config import choices_hint
from marl.host.data_files import DataTable, read_data_table
from marl.scenario.load import ScenarioError, game_settings

Kind = Literal["self-play", "team", "one-role", "program"]
SCHEMA_FILE = ".marl-schema.json"
"""Name of the JSON Schema beside a starter scenario, by which editors complete and check its settings."""
QUESTIONS = ("question", "problem", "prompt", "input", "query", "instruction", "task", "text")
"""Usual names of a column of questions, in order of preference."""
ANSWERS = ("answer", "solution", "output", "target", "response", "label", "result", "expected")
"""Usual names of a column of answers, in order of preference."""
_HEADLINES = {
    "team": "A planner, a solver and a critic answer questions together; each has weights of its own, and all learn.",
    "one-role": "A planner, a solver and a critic answer questions together; only the solver learns.",
}
_TINY = "{kind: tiny, hidden: 64, warm_up: {steps: 300}}"
_HELD_OUT = 0.2
"""Fraction of the rows that are held out from training, up to `_MAX_HELD_OUT` rows."""
_MAX_HELD_OUT = 300


@dataclass(frozen=True, slots=True)
class AgentCallingProgram:
    """Program of a starter scenario, and the agents that it asks."""

    call: str
    """Function that runs the program, as `module:function`."""
    callers: tuple[str, ...] = ("solver",)
    """Names of the agents that the program asks. The last one's answer is verified."""
    python: Path | None = None
    """Python interpreter of the program, or None for the interpreter of marl."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", self.call):
            raise ScenarioError(f"--call {self.call!r}: give a function as module:function, such as my_graph:main")
        for name in self.callers:
            if not re.fullmatch(r"[a-z]\w*", name) or name in ("crew", "verifier"):
                raise ScenarioError(f"--callers: {name!r} is no name of an agent, such as planner,solver")
        if len(set(self.callers)) < len(self.callers):
            raise ScenarioError(f"--callers: {','.join(self.callers)} names an agent twice")


@dataclass(frozen=True, slots=True)
class QuestionFileFacts:
    """File of a user with questions and answers, and the facts about the file that a scenario needs."""

    path: Path
    question: str
    """Name of the column with the questions."""
    answer: str
    """Name of the column with the answers."""
    rows: int
    numeric: bool
    """True if every answer is a number."""
    answer_words: int
    """Number of words of the longest answer."""
    first_answer: str
    """Answer of the first row, a wrong answer to most other questions: an example for a tiny model's warm-up."""

    @property
    def held_out_row_count(self) -> int:
        """Number of rows that are held out from training, at least 1."""
        return max(1, min(_MAX_HELD_OUT, round(_HELD_OUT * self.rows)))


def inspect_question_file(
    path: Path, question_column: str | None = None, answer_column: str | None = None
) -> QuestionFileFacts:
    """Read a file of questions and answers and return the facts that a scenario needs.

    Args:
        path: the file.
        question_column, answer_column: names of the columns, or None to find them by their usual names.

    Raises:
        ValueError: if the file is unreadable, or a column is missing.
    """
    try:
        table = read_data_table(path)
    except ValueError as error:
        raise ValueError(f"--data: {str(error).removeprefix('path: ')}") from error
    question_column = question_column or _find_column(table, QUESTIONS, "--question")
    answer_column = answer_column or _find_column(table, ANSWERS, "--answer")
    for option, column in (("--question", question_column), ("--answer", answer_column)):
        if column not in table.columns:
            raise ValueError(
                f"{option} {column}: not every row of {path} has it; {choices_hint(column, table.columns)}"
            )
    answers = [str(row[answer_column]) for row in table.rows]
    try:
        numeric = all(isfinite(float(text.replace(",", ""))) for text in answers)
    except ValueError:
        numeric = False
    longest = max(len(text.split()) for text in answers)
    return QuestionFileFacts(path, question_column, answer_column, len(answers), numeric, longest, answers[0])


def _find_column(table: DataTable, candidate_names: Sequence[str], option: str) -> str:
    """Return the column of `table` with the first of `candidate_names` that exists, in upper or lower case.

    Raises:
        ValueError: if no column has a usual name; the message names `option`, which names the column.
    """
    for name in candidate_names:
        for column in table.columns:
            if column.lower() == name:
                return column
    names, choices = ", ".join(candidate_names), ", ".join(table.columns)
    raise ValueError(f"{option}: no column of {table.name} has a usual name ({names}); choices: {choices}")


def starter_scenario_yaml(
    kind: Kind,
    file: Path,
    model: str | None,
    *,
    game_or_program: str | AgentCallingProgram = "kuhn_poker",
    question_file: QuestionFileFacts | None = None,
    fitted_settings: MachineFittedSettings | None = None,
) -> str:
    """Return the text of a commented scenario that runs without changes.

    Args:
        kind: kind of scenario.
        file: file to which the text will be written.
        model: a folder or a hub name, or None for tiny models that know nothing but the answer format.
        game_or_program: kind of the game of self-play, or program of the kind `program`.
        question_file: questions and answers of a team, or None for arithmetic.
        fitted_settings: settings for the memory of this machine, or None for the defaults.
    """
    tiny = model is None
    shown = f"    model: {_TINY if tiny else model}"
    max_tokens = (
        max(12, question_file.answer_words + 6 if question_file else 0)
        if tiny
        else (fitted_settings and fitted_settings.max_tokens) or 512
    )
    values = {
        **{"file": file, "model": f"{shown}  # or a folder, or a name on the hub" if tiny else shown},
        **{"lr": "1.0e-3" if tiny else "1.0e-6", "steps": 60 if tiny else 200, "groups": 16, "every": 20},
        **{"learner": fitted_settings.learner if fitted_settings else {}, "schema": SCHEMA_FILE},
        **{"threads": ", threads: 1" if tiny else "", "sampling": f", sampling: {{max_tokens: {max_tokens}}}"},
    }
    if isinstance(game_or_program, AgentCallingProgram):
        python = f", python: {json.dumps(str(game_or_program.python))}" if game_or_program.python else ""
        values |= {"call": game_or_program.call, "callers": game_or_program.callers, "python": python}
    if kind == "self-play":
        game = str(game_or_program)
        try:
            settings = game_settings(game, {})
        except ScenarioError as error:
            raise ScenarioError(f"--game {game}: {error}; a game that needs no settings: kuhn_poker, nim") from error
        # NashConv needs a zero-sum game that lists its start states; other games are too large, or not zero-sum.
        exact = settings.is_zero_sum() and settings.all_start_states() is not None
        values |= {"game": game, "seats": settings.build().possible_agents, "nashconv": exact}
    else:
        values |= _team_template_values(kind, file, question_file, tiny=tiny)
    environment = Environment(
        loader=PackageLoader("marl.commands", "starters"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    template = "team" if kind == "one-role" else kind
    return environment.get_template(f"{template}.yaml.jinja2").render(values)


def _team_template_values(
    kind: Kind, file: Path, question_file: QuestionFileFacts | None, *, tiny: bool
) -> dict[str, Any]:
    """Return the values of a team's template: task, learning roles, verifier and examples of answers."""
    task = '{kind: arithmetic, digits: [1, 2], operators: ["+", "-"], train: 1000, held_out: 200}'
    if question_file:
        path, folder = question_file.path.absolute(), file.absolute().parent
        # A relative path lets the user move scenario and data together.
        shown_path = json.dumps(str(path.relative_to(folder) if path.is_relative_to(folder) else path))
        columns = json.dumps({"question": question_file.question, "answer": question_file.answer}, ensure_ascii=False)
        task = f"{{kind: file, path: {shown_path}, columns: {columns}, held_out: {question_file.held_out_row_count}}}"
    # One of three example answers is wrong, so that a tiny model is not perfect before training.
    wrong = json.dumps(question_file.first_answer, ensure_ascii=False) if question_file else '"{{ wrong[0] }}"'
    return {
        **{
            "headline": _HEADLINES.get(kind, ""),
            "task": task,
            "held_out": question_file.held_out_row_count if question_file else 200,
        },
        "learning": ["solver"] if kind == "one-role" else ["planner", "solver", "critic"],
        "verifier": "exact" if question_file and not question_file.numeric else "numeric",
        # Tiny models learn the form of answers from examples in a warm-up, and cannot follow instructions.
        "planner_examples": ', examples: ["step by step", "directly"]' if tiny else "",
        "answer_examples": f', examples: ["{{{{ answer }}}}", "{{{{ answer }}}}", {wrong}]' if tiny else "",
        "instructions": ', instructions: ""' if tiny else "",
    }
