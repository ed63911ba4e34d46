"""Data set card: a README.md with the files and their columns, which `datasets` and the hub read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from marl.export.chat_rows import DataFormat, PairRule
from marl.export.markdown import fenced_block, front_matter, write_card
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
_CHATS: Mapping[DataFormat, tuple[str, ...]] = {
    **{"trl-sft": ("prompt", "completion"), "trl-dpo": ("prompt", "chosen", "rejected"), "trl-prompts": ("prompt",)},
}
"""Format of JSON lines -> columns that hold chats."""
_VALUES: Mapping[DataFormat, Mapping[str, str]] = {
    "trl-dpo": {"score_chosen": "float64", "score_rejected": "float64", "step": "int64", "role": "string"},
    "trl-prompts": {"role": "string", "start": "string", "problem": "string", "answer": "string"},
}
"""Format of JSON lines -> dtypes of the other columns."""


@dataclass(frozen=True, slots=True)
class DataCardFacts:
    """Facts of one export that its data card states."""

    format: DataFormat
    turns: TurnSelection
    pairs: PairRule
    rows: Mapping[str, int]
    """File name -> number of rows."""
    load_path: str
    """Name under which users load the folder: a repository, or the folder itself."""


def write_data_card(
    folder: Path, recording: RunRecording, facts: DataCardFacts, *, tools: bool, without_answer: bool
) -> None:
    """Write README.md into the folder of a data set.

    Args:
        folder: the data set's folder.
        recording: source of the rows.
        facts: options of the export, and the written files.
        tools: True if a row has a `tools` column.
        without_answer: True if the format has a field for the right answer and every row leaves it empty.
    """
    location, several = json.dumps(facts.load_path), len(facts.rows) > 1
    lines = ["from datasets import load_dataset", ""]
    for file in facts.rows:
        name, config = (Path(file).stem, f', "{Path(file).stem}"') if several else ("rows", "")
        lines.append(f'{name} = load_dataset({location}{config}, split="train")')
    values = {
        "front": front_matter(_metadata(facts, tools=tools)),
        **{"run": recording.home.path.resolve().name, "format": facts.format, "purpose": _PURPOSES[facts.format]},
        **{"steps": f"{recording.steps[0]} to {recording.steps[-1]}", "count": len(recording.steps)},
        **{"roles": ", ".join(recording.chosen.roles) or "all", "files": facts.rows.items()},
        **{"conditions": [*_conditions(facts)], "tables": facts.format == "parquet"},
        **{"without_answer": without_answer, "snippet": fenced_block("\n".join(lines), "python")},
    }
    write_card(folder, "data_card", values)


def _metadata(facts: DataCardFacts, *, tools: bool) -> dict[str, object]:
    """Return the metadata for `datasets`: the files, and the column types of JSON lines.

    Parquet files declare their own columns. For JSON lines `datasets` infers columns from the first rows and fails if a
    `tools` column appears only later.
    """
    several = len(facts.rows) > 1
    configs: list[dict[str, object]] = [
        {"config_name": Path(file).stem if several else "default", "data_files": file} for file in facts.rows
    ]
    if several:
        configs[0]["default"] = True
    values: dict[str, object] = {"configs": configs}
    if facts.format in _CHATS:
        features: list[dict[str, object]] = []
        for column in _CHATS[facts.format]:
            # A new list per column: YAML writes a shared list as an alias, and `datasets` would convert it twice.
            parts = [{"name": part, "dtype": "string"} for part in ("role", "content")]
            features.append({"name": column, "list": parts})
        scalars = {**_VALUES.get(facts.format, {}), **({"tools": "string"} if tools else {})}
        for column, dtype in scalars.items():
            features.append({"name": column, "dtype": dtype})
        values["dataset_info"] = {"features": features}
    return values | {"tags": ["marl", "reinforcement-learning", "multi-agent"]}


def _conditions(facts: DataCardFacts) -> Iterator[str]:
    turns = facts.turns
    if turns.policies:
        yield f"policies: {', '.join(turns.policies)}"
    if turns.min_return is not None:
        yield f"return of the agent in the episode: at least {turns.min_return}"
    if turns.min_advantage is not None:
        yield f"advantage: at least {turns.min_advantage}"
    if turns.readable:
        yield "a legal move was read"
    if facts.format in ("trl-sft", "openai"):
        yield "answers that were cut off at their longest length are left out"
    if facts.format == "trl-dpo":
        margin = facts.pairs.min_margin
        yield f"compared by {facts.pairs.criterion}, the mean over equal answers, which differ by more than 0" + (
            f" and at least {margin}" if margin else ""
        )
