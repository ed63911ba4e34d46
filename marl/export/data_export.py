"""Export of recorded episodes as a data set folder with a card, loadable by path with `datasets`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from marl.core.errors import Writing
from marl.export.atomic_folder import atomic_folder
from marl.export.chat_rows import (
    DataFormat,
    PairRule,
    Row,
    RowConverter,
    openai_rows,
    pair_rows,
    prompt_rows,
    sft_rows,
    verl_rows,
)
from marl.export.data_card import DataCardFacts, write_data_card
from marl.export.turn_selection import RecordedTurn, RunRecording, TurnSelection, trained_roles
from marl.scenario.load import ScenarioError

_ROWS: Mapping[DataFormat, RowConverter] = {"trl-sft": sft_rows, "trl-prompts": prompt_rows, "openai": openai_rows}
_JSON_LINES, _PARQUET = "train.jsonl", "train.parquet"


@dataclass(frozen=True, slots=True)
class DataExportOptions:
    """Selection of turns and output format of an export."""

    format: DataFormat
    turns: TurnSelection = field(default_factory=TurnSelection)
    pairs: PairRule = field(default_factory=PairRule)
    load_path: str | None = None
    """Name under which the card loads the data set (default: the folder's name)."""


@dataclass(slots=True)
class DataExportReport:
    """Counts and findings of a finished export."""

    rows: dict[str, int] = field(default_factory=dict)
    """File name -> number of rows."""
    without_answer: bool = False
    """True if the format has a field for the right answer and every row leaves it empty."""
    tools: bool = False
    """True if at least one row has a `tools` column."""


def export_data(run: Path, out: Path, choice: DataExportOptions) -> DataExportReport:
    """Export a run's recorded turns to the folder `out`, which appears complete or not at all.

    Without `roles`, training formats contain the trained roles, and Parquet tables contain all roles.

    Raises:
        ScenarioError: if `out` exists, no turn matches, or pyarrow is missing.
        FolderError, ValueError: if a file of the run is damaged or an output file cannot be written.
    """
    if choice.format in ("parquet", "verl"):
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise ScenarioError("writing Parquet needs pyarrow: pip install 'marl-llm[data]'") from error
    recording = RunRecording(run, choice.turns)
    if choice.format != "parquet" and not choice.turns.roles:
        recording.chosen = replace(choice.turns, roles=trained_roles(recording.scenario))
    report = DataExportReport()
    with atomic_folder(out) as folder:
        folder.mkdir()
        _write(folder, recording, choice, report)
        if not any(report.rows.values()):
            problem = "no recorded turn matches: look at what there is with `marl show`, and ask for less"
            if choice.format == "trl-dpo":
                criterion, margin = choice.pairs.criterion, choice.pairs.min_margin
                problem = (
                    f"no two answers to one prompt whose {criterion} differs by {margin} or more; episodes with the "
                    "same start are needed (schedule.group_size), or a smaller --min-margin"
                )
            raise ScenarioError(f"{run}: {problem}")
        load_path = choice.load_path or f"./{out.name}"
        facts = DataCardFacts(choice.format, choice.turns, choice.pairs, report.rows, load_path)
        write_data_card(folder, recording, facts, tools=report.tools, without_answer=report.without_answer)
    return report


def _write(folder: Path, recording: RunRecording, choice: DataExportOptions, report: DataExportReport) -> None:
    match choice.format:
        case "parquet":
            # Imported here: pyarrow is an optional dependency.
            from marl.export.parquet_tables import EPISODES, TURNS, write_tables

            report.rows[TURNS], report.rows[EPISODES] = write_tables(folder, recording.episodes(), recording.home)
        case "verl":
            from marl.export.parquet_tables import ParquetTableWriter, verl_schema

            report.without_answer = True
            with ParquetTableWriter(folder / _PARQUET, verl_schema()) as table:
                for row in verl_rows(recording.turns(), lambda recorded: _game_kind(recording, recorded)):
                    report.without_answer = report.without_answer and not row["reward_model"]["ground_truth"]
                    table.write(row)
            report.rows[_PARQUET] = table.count
        case "trl-dpo":
            _write_lines(folder, pair_rows(recording.turns(), choice.pairs), report)
        case _:
            _write_lines(folder, _ROWS[choice.format](recording.turns()), report)


def _game_kind(recording: RunRecording, recorded: RecordedTurn) -> str:
    """Return the kind of the turn's game, as GAME/TASK for a team with a task."""
    game = recording.scenario.by_game()[recorded.trajectory.deal.game].game.model_dump(mode="json")
    task = game.get("task")
    return f"{game['kind']}/{task['kind']}" if isinstance(task, dict) and "kind" in task else str(game["kind"])


def _write_lines(folder: Path, rows: Iterable[Row], report: DataExportReport) -> None:
    file, count = folder / _JSON_LINES, 0
    with Writing(file), file.open("w", encoding="utf-8", newline="\n") as lines:
        for row in rows:
            lines.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            report.tools = report.tools or "tools" in row
            count += 1
    report.rows[_JSON_LINES] = count
