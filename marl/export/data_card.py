"""Data set card: a README.md with the files and their columns, which `datasets` and the hub read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from marl.export.chat_rows import DataFormat, PreferencePairRule
from marl.export.markdown import fenced_block, write_card, yaml_front_matter
from marl.export.turn_selection import RunRecording, TurnSelection

_PURPOSES: Mapping[DataFormat, str] = {
    "parquet": "Turns and episodes as they were recorded, with rewards, edges and credit.",
    "trl-sft": "Prompts and completions for TRL's SFTTrainer.",
    "trl-dpo": "Pairs for TRL's DPOTrainer: of a step's answers to the same prompt, by the same policy in episodes "
    "with the same start, the best one is chosen and the worst one rejected.",
    "trl-prompts": "Prompts for TRL's GRPOTrainer, each once.",
    "verl": "Prompts for reinforcement learning with verl, each once.",
    "openai": "Chats for OpenAI's supervised fine-tuning. Earlier answers in a chat have weight 0.",
}
_CHAT_COLUMNS: Mapping[DataFormat, tuple[str, ...]] = {
    **{"trl-sft": ("prompt", "completion"), "trl-dpo": ("prompt", "chosen", "rejected"), "trl-prompts": ("prompt",)},
}
"""Format of JSON lines -> columns that hold chats."""
_OTHER_COLUMNS: Mapping[DataFormat, Mapping[str, str]] = {
    "trl-dpo": {"score_chosen": "float64", "score_rejected": "float64", "step": "int64", "role": "string"},
    "trl-prompts": {"role": "string", "start": "string", "problem": "string", "answer": "string"},
}
"""Format of JSON lines -> column without chats -> its dtype."""


@dataclass(frozen=True, slots=True)
class DataCardFacts:
    """Facts of one export that its data card states."""

    format: DataFormat
    turns: TurnSelection
    pairs: PreferencePairRule
    rows: Mapping[str, int]
    """Name of each exported file -> its number of rows."""
    load_path: str
    """Argument of `load_dataset` in the card's example: a repository of the hub, or the path of the folder."""


def write_data_card(
    folder: Path, recording: RunRecording, facts: DataCardFacts, *, has_tools: bool, without_answer: bool
) -> None:
    """Write README.md into the folder of a data set.

    Args:
        folder: the data set's folder.
        recording: recorded run from which the rows were made.
        facts: options of the export, and the written files.
        has_tools: True if at least one row has a `tools` column.
        without_answer: True if the format has a field for the right answer and every row leaves it empty.
    """
    location, several = json.dumps(facts.load_path), len(facts.rows) > 1
    lines = ["from datasets import load_dataset", ""]
    for file in facts.rows:
        name, config = (Path(file).stem, f', "{Path(file).stem}"') if several else ("rows", "")
        lines.append(f'{name} = load_dataset({location}{config}, split="train")')
    turns, conditions = facts.turns, list[str]()
    if turns.policies:
        conditions.append(f"policies: {', '.join(turns.policies)}")
    if turns.min_return is not None:
        conditions.append(f"return of the agent in the episode: at least {turns.min_return}")
    if turns.min_advantage is not None:
        conditions.append(f"advantage: at least {turns.min_advantage}")
    if turns.readable:
        conditions.append("a legal move was read")
    if facts.format in ("trl-sft", "openai"):
        conditions.append("answers that were cut off at their longest length are left out")
    if facts.format == "trl-dpo":
        margin = f" and at least {facts.pairs.min_margin}" if facts.pairs.min_margin else ""
        criterion = f"compared by {facts.pairs.criterion}, the mean over equal answers"
        conditions.append(f"{criterion}, which differ by more than 0{margin}")
    values = {
        "front": yaml_front_matter(_hub_metadata(facts, has_tools=has_tools)),
        **{"run": recording.home.path.resolve().name, "format": facts.format, "purpose": _PURPOSES[facts.format]},
        **{"steps": f"{recording.steps[0]} to {recording.steps[-1]}", "count": len(recording.steps)},
        **{"roles": ", ".join(recording.chosen.roles) or "all", "files": facts.rows.items()},
        **{"conditions": conditions, "tables": facts.format == "parquet"},
        **{"without_answer": without_answer, "snippet": fenced_block("\n".join(lines), "python")},
    }
    write_card(folder, "data_card", values)


def _hub_metadata(facts: DataCardFacts, *, has_tools: bool) -> dict[str, object]:
    """Return the metadata that `datasets` and the hub read: the files, and the column types of JSON lines.

    Parquet files declare their own columns. For JSON lines `datasets` infers columns from the first rows and fails if a
    `tools` column appears only later.
    """
    configs: list[dict[str, object]] = []
    for file in facts.rows:
        configs.append({"config_name": Path(file).stem if len(facts.rows) > 1 else "default", "data_files": file})
    if len(configs) > 1:
        configs[0]["default"] = True
    values: dict[str, object] = {"configs": configs}
    if facts.format in _CHAT_COLUMNS:
        features: list[dict[str, object]] = []
        for column in _CHAT_COLUMNS[facts.format]:
            # Each column gets a new list, because YAML writes a shared list as an alias that `datasets` converts twice.
            fields = [{"name": field, "dtype": "string"} for field in ("role", "content")]
            features.append({"name": column, "list": fields})
        scalars = {**_OTHER_COLUMNS.get(facts.format, {}), **({"tools": "string"} if has_tools else {})}
        for column, dtype in scalars.items():
            features.append({"name": column, "dtype": dtype})
        values["dataset_info"] = {"features": features}
    return values | {"tags": ["marl", "reinforcement-learning", "multi-agent"]}
