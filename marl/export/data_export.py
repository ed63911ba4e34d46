"""Export of recorded episodes as a data set: a folder with a card, which the library `datasets` opens by its path."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from marl.errors import Writing
from marl.export.chats import Format, PairRule, Rows, openai_rows, pair_rows, prompt_rows, sft_rows, verl_rows
from marl.export.folders import write_folder
from marl.export.markdown import front_matter, shown
from marl.export.selection import RecordedTurn, Recording, TurnSelection, learned_roles
from marl.export.tables import EPISODES, TURNS, TableWriter, expect_pyarrow, verl_schema, write_tables
from marl.scenario.load import ScenarioError

_ROWS: Mapping[Format, Rows] = {"trl-sft": sft_rows, "trl-prompts": prompt_rows, "openai": openai_rows}
_JSON_LINES, _PARQUET = "train.jsonl", "train.parquet"
_PURPOSES: Mapping[Format, str] = {
    "parquet": "Turns and episodes as they were recorded, with rewards, edges, and what was judged of each turn.",
    "trl-sft": "Prompts and completions for TRL's SFTTrainer.",
    "trl-dpo": "Pairs for TRL's DPOTrainer: of a step's answers to the same prompt, by the same policy in episodes "
    "with the same start, the best one is chosen and the worst one rejected.",
    "trl-prompts": "Prompts for TRL's GRPOTrainer, each once.",
    "verl": "Prompts for reinforcement learning with verl, each once.",
    "openai": "Chats for OpenAI's supervised fine-tuning.",
}


@dataclass(frozen=True, slots=True)
class DataChoice:
    """TurnSelection of turns, and their format."""

    format: Format
    turns: TurnSelection = field(default_factory=TurnSelection)
    pairs: PairRule = field(default_factory=PairRule)


@dataclass(slots=True)
class DataExport:
    """Report on a data set that was written."""

    rows: dict[str, int] = field(default_factory=dict)
    """File -> number of its rows."""
    without_answer: bool = False
    """True if no prompt has a right answer, though the format has a place for it."""


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
        _write_card(folder, recording, choice, report)

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
            rows = pair_rows(recording.turns(), choice.pairs)
            report.rows[_JSON_LINES] = _write_lines(folder / _JSON_LINES, rows)
        case _:
            report.rows[_JSON_LINES] = _write_lines(folder / _JSON_LINES, _ROWS[choice.format](recording.turns()))


def _source(recording: Recording, recorded: RecordedTurn) -> str:
    """Return the kind of the game that a turn was played in; of a team, also that of its task."""
    game = recording.scenario.by_game()[recorded.trajectory.deal.game].game.model_dump(mode="json")
    task = game.get("task")
    return f"{game['kind']}/{task['kind']}" if isinstance(task, dict) and "kind" in task else str(game["kind"])


def _write_parquet(file: Path, rows: Iterable[dict[str, Any]], report: DataExport) -> int:
    report.without_answer = True
    table = TableWriter(file, verl_schema())
    for row in rows:
        report.without_answer = report.without_answer and not row["reward_model"]["ground_truth"]
        table.write(row)
    table.close()
    return table.count


def _write_lines(file: Path, rows: Iterator[dict[str, Any]]) -> int:
    count = 0
    with Writing(file), file.open("w", encoding="utf-8", newline="\n") as lines:
        for row in rows:
            lines.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def _write_card(folder: Path, recording: Recording, choice: DataChoice, report: DataExport) -> None:
    """Write README.md, by which `datasets` knows the files, and people know where they come from."""
    configs = [{"config_name": Path(file).stem, "data_files": file} for file in report.rows]
    configs[0]["default"] = True  # type: ignore[assignment]
    environment = Environment(
        loader=PackageLoader("marl.export", "templates"),
        undefined=StrictUndefined,
        finalize=shown,
        keep_trailing_newline=True,
    )
    values = {
        "front": front_matter({"configs": configs, "tags": ["marl", "reinforcement-learning", "multi-agent"]}),
        **{"run": recording.home.path.resolve().name, "format": choice.format, "purpose": _PURPOSES[choice.format]},
        **{"steps": f"{recording.steps[0]} to {recording.steps[-1]}", "count": len(recording.steps)},
        **{"roles": ", ".join(recording.chosen.roles) or "all", "files": report.rows.items()},
        **{"conditions": [*_conditions(choice)], "tables": choice.format == "parquet"},
        "without_answer": report.without_answer,
    }
    text = environment.get_template("data_card.md.jinja2").render(values)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _conditions(choice: DataChoice) -> Iterator[str]:
    turns = choice.turns
    if turns.policies:
        yield f"policies: {', '.join(turns.policies)}"
    if turns.min_return is not None:
        yield f"return of the agent in the episode: at least {turns.min_return}"
    if turns.min_advantage is not None:
        yield f"advantage: at least {turns.min_advantage}"
    if turns.readable:
        yield "a legal move was read"
    if choice.format == "trl-dpo":
        margin = choice.pairs.min_margin
        yield f"compared by {choice.pairs.by}, the mean over equal answers, which differ by more than 0" + (
            f" and at least {margin}" if margin else ""
        )
