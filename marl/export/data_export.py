"""Export of recorded episodes as a data set folder with a card, loadable by path with `datasets`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from marl.core.errors import RaiseRunFolderErrorOnFailedWrite
from marl.export.atomic_folder import atomic_folder
from marl.export.chat_rows import (
    DataFormat,
    PreferencePairRule,
    RowConverter,
    dpo_rows,
    grpo_prompt_rows,
    openai_rows,
    sft_rows,
    verl_rows,
)
from marl.export.data_card import DataCardFacts, write_data_card
from marl.export.turn_selection import RecordedTurn, RunRecording, TurnSelection, trained_roles
from marl.scenario.load import ScenarioError

_CONVERTERS: Mapping[DataFormat, RowConverter] = {
    **{"trl-sft": sft_rows, "trl-prompts": grpo_prompt_rows, "openai": openai_rows},
}
"""Format -> function that converts turns to its rows, for formats without options of their own."""
_JSON_LINES, _PARQUET = "train.jsonl", "train.parquet"


@dataclass(frozen=True, slots=True)
class DataExportOptions:
    """Selection of turns and output format of an export."""

    format: DataFormat
    turns: TurnSelection = field(default_factory=TurnSelection)
    pairs: PreferencePairRule = field(default_factory=PreferencePairRule)
    load_path: str | None = None
    """Path or repository from which the data card's example code loads the data set (default: the folder)."""


@dataclass(slots=True)
class DataExportReport:
    """Files of a finished export, and facts about their rows."""

    rows: dict[str, int] = field(default_factory=dict)
    """Name of each exported file -> its number of rows."""
    without_answer: bool = False
    """True if the format has a field for the right answer and every row leaves it empty."""
    tools: bool = False
    """True if at least one row has a `tools` column."""


def export_data(run: Path, out_folder: Path, options: DataExportOptions) -> DataExportReport:
    """Export a run's recorded turns to the folder `out_folder`, which appears complete or not at all.

    Without `roles`, training formats contain the trained roles, and Parquet tables contain all roles.

    Raises:
        ScenarioError: if `out_folder` exists, no turn matches, or pyarrow is missing.
        RunFolderError, ValueError: if a file of the run is damaged or an output file cannot be written.
    """
    recording = RunRecording(run, options.turns)
    if options.format != "parquet" and not options.turns.roles:
        recording.chosen = replace(options.turns, roles=trained_roles(recording.scenario))
    report = DataExportReport()
    with atomic_folder(out_folder) as folder:
        folder.mkdir()
        _write_data_files(folder, recording, options, report)
        if not any(report.rows.values()):
            problem = "no recorded turn matches: look at what there is with `marl show`, and ask for less"
            if options.format == "trl-dpo":
                criterion, margin = options.pairs.criterion, options.pairs.min_margin
                problem = (
                    f"no two answers to one prompt whose {criterion} differs by {margin} or more; episodes with the "
                    "same start are needed (schedule.group_size), or a smaller --min-margin"
                )
            raise ScenarioError(f"{run}: {problem}")
        load_path = options.load_path or f"./{out_folder.name}"
        facts = DataCardFacts(options.format, options.turns, options.pairs, report.rows, load_path)
        write_data_card(folder, recording, facts, has_tools=report.tools, without_answer=report.without_answer)
    return report


def _write_data_files(
    folder: Path, recording: RunRecording, options: DataExportOptions, report: DataExportReport
) -> None:
    """Write the recorded turns in the chosen format to `folder`, and complete `report`."""
    match options.format:
        case "parquet" | "verl":
            try:
                from marl.export import parquet_tables
            except ImportError as error:
                raise ScenarioError("writing Parquet needs pyarrow: pip install 'marl-llm[data]'") from error
            if options.format == "parquet":
                report.rows |= parquet_tables.write_turn_and_episode_tables(
                    folder, recording.episodes(), recording.home
                )
                return

            def game_kind_of_turn(recorded_turn: RecordedTurn) -> str:
                """Return the kind of the turn's game, as GAME/TASK for a team with a task."""
                game = recording.scenario.scenario_by_game()[recorded_turn.trajectory.deal.game].game.model_dump(
                    mode="json"
                )
                task = game.get("task")
                return f"{game['kind']}/{task['kind']}" if isinstance(task, dict) and "kind" in task else game["kind"]

            report.without_answer = True
            with parquet_tables.ParquetTableWriter(folder / _PARQUET, parquet_tables.VERL_SCHEMA) as table:
                for row in verl_rows(recording.turns(), game_kind_of_turn):
                    report.without_answer = report.without_answer and not row["reward_model"]["ground_truth"]
                    table.write(row)
            report.rows[_PARQUET] = table.count
        case _:
            turns, file, count = recording.turns(), folder / _JSON_LINES, 0
            rows = dpo_rows(turns, options.pairs) if options.format == "trl-dpo" else _CONVERTERS[options.format](turns)
            with RaiseRunFolderErrorOnFailedWrite(file), file.open("w", encoding="utf-8", newline="\n") as lines:
                for row in rows:
                    lines.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
                    report.tools = report.tools or "tools" in row
                    count += 1
            report.rows[_JSON_LINES] = count
