"""Export of recorded episodes as a data set: a folder with a card, which the library `datasets` opens by its path."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from marl.errors import Writing
from marl.export.chats import Format, PairRule, Row, Rows, openai_rows, pair_rows, prompt_rows, sft_rows, verl_rows
from marl.export.data_card import DataFacts, write_data_card
from marl.export.folders import write_folder
from marl.export.selection import RecordedTurn, Recording, TurnSelection, learned_roles
from marl.export.tables import EPISODES, TURNS, TableWriter, expect_pyarrow, verl_schema, write_tables
from marl.scenario.load import ScenarioError

_ROWS: Mapping[Format, Rows] = {"trl-sft": sft_rows, "trl-prompts": prompt_rows, "openai": openai_rows}
_JSON_LINES, _PARQUET = "train.jsonl", "train.parquet"


@dataclass(frozen=True, slots=True)
class DataChoice:
    """Selection of turns, and their format."""

    format: Format
    turns: TurnSelection = field(default_factory=TurnSelection)
    pairs: PairRule = field(default_factory=PairRule)
    place: str | None = None
    """Name by which the card loads it. None: the folder's."""


@dataclass(slots=True)
class DataExport:
    """Report on a data set that was written."""

    rows: dict[str, int] = field(default_factory=dict)
    """File -> number of its rows."""
    without_answer: bool = False
    """True if no prompt has a right answer, though the format has a place for it."""
    tools: bool = False
    """True if a row has a column of tools."""


def export_data(run: Path, out: Path, choice: DataChoice) -> DataExport:
    """Write what a run recorded to the folder `out`, whole or not at all.

    Without `roles`, formats to learn from hold the roles that are learned from, and tables hold all.

    Raises:
        ScenarioError: if `out` exists, nothing matches, or pyarrow is missing.
        FolderError, ValueError: if a file of the run is damaged, or one cannot be written.
    """
    if choice.format in ("parquet", "verl"):
        expect_pyarrow()
    recording = Recording(run, choice.turns)
    if choice.format != "parquet" and not choice.turns.roles:
        recording.chosen = replace(choice.turns, roles=learned_roles(recording.scenario))
    report = DataExport()

    def write(folder: Path) -> None:
        folder.mkdir()
        _write(folder, recording, choice, report)
        if not any(report.rows.values()):
            raise ScenarioError(f"{run}: {_nothing(choice)}")
        facts = DataFacts(choice.format, choice.turns, choice.pairs, report.rows, choice.place or f"./{out.name}")
        write_data_card(folder, recording, facts, tools=report.tools, without_answer=report.without_answer)

    write_folder(out, write)
    return report


def _nothing(choice: DataChoice) -> str:
    if choice.format == "trl-dpo":
        return (
            f"no two answers to one prompt whose {choice.pairs.by} differs by {choice.pairs.min_margin} or more; "
            "episodes with the same start are needed (schedule.group_size), or a smaller --min-margin"
        )
    return "no recorded turn matches: look at what there is with `marl show`, and ask for less"


def _write(folder: Path, recording: Recording, choice: DataChoice, report: DataExport) -> None:
    match choice.format:
        case "parquet":
            report.rows[TURNS], report.rows[EPISODES] = write_tables(folder, recording.episodes(), recording.home)
        case "verl":
            rows = verl_rows(recording.turns(), partial(_source, recording))
            report.rows[_PARQUET] = _write_parquet(folder / _PARQUET, rows, report)
        case "trl-dpo":
            _write_lines(folder, pair_rows(recording.turns(), choice.pairs), report)
        case _:
            _write_lines(folder, _ROWS[choice.format](recording.turns()), report)


def _source(recording: Recording, recorded: RecordedTurn) -> str:
    """Return the kind of the game that a turn was played in; of a team, also that of its task."""
    game = recording.scenario.by_game()[recorded.trajectory.deal.game].game.model_dump(mode="json")
    task = game.get("task")
    return f"{game['kind']}/{task['kind']}" if isinstance(task, dict) and "kind" in task else str(game["kind"])


def _write_parquet(file: Path, rows: Iterable[Row], report: DataExport) -> int:
    report.without_answer = True
    with TableWriter(file, verl_schema()) as table:
        for row in rows:
            report.without_answer = report.without_answer and not row["reward_model"]["ground_truth"]
            table.write(row)
    return table.count


def _write_lines(folder: Path, rows: Iterable[Row], report: DataExport) -> None:
    file, count = folder / _JSON_LINES, 0
    with Writing(file), file.open("w", encoding="utf-8", newline="\n") as lines:
        for row in rows:
            lines.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            report.tools = report.tools or "tools" in row
            count += 1
    report.rows[_JSON_LINES] = count
