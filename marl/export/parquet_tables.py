"""Export of recorded episodes as two Parquet tables, written in row groups.

The tables hold every recorded field of a turn except its random numbers and marks.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyarrow.parquet import ParquetWriter

from marl.core.errors import Writing
from marl.core.types import Reward
from marl.export.turn_selection import RecordedEpisode, RecordedTurn
from marl.runs.run_folder import RunFolder
from marl.view.edge_text import EDGE_KINDS
from marl.view.token_decoder import TokenDecoder

MAX_GROUP_ROWS = 1000
"""Maximum number of rows in a row group."""
MAX_GROUP_SIZE = 2**21
"""Total characters and tokens at which a row group is written early: a single turn may hold 100,000."""
TURNS, EPISODES = "turns.parquet", "episodes.parquet"
Row = dict[str, Any]


class ParquetTableWriter:
    """Context manager that writes one table to a Parquet file in row groups."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        self._file, self._schema = file, schema
        self._rows: list[Row] = []
        self._size = 0
        self.count = 0
        """Number of rows written so far."""
        with Writing(file):
            self._writer = ParquetWriter(file, schema, compression="zstd")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write the pending rows unless an exception is propagating, then close the file."""
        if kind is None:
            self._flush()
        with Writing(self._file):
            self._writer.close()

    def write(self, row: Row) -> None:
        """Append `row`, and write a row group if enough rows are pending."""
        self._rows.append(row)
        for value in row.values():
            if isinstance(value, str):
                self._size += len(value)
            elif isinstance(value, list | tuple):
                # Lists are homogeneous, so the first item tells a chat from a list of tokens.
                is_chat = bool(value) and isinstance(value[0], dict) and "content" in value[0]
                self._size += sum(len(message["content"]) for message in value) if is_chat else len(value)
        self.count += 1
        if len(self._rows) == MAX_GROUP_ROWS or self._size >= MAX_GROUP_SIZE:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            with Writing(self._file):
                self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema))
            self._rows.clear()
            self._size = 0


def write_tables(folder: Path, episodes: Iterable[RecordedEpisode], home: RunFolder) -> tuple[int, int]:
    """Write the tables of turns and of episodes; return the number of rows of each.

    Episodes without a selected turn are left out.
    """
    texts = TokenDecoder(home)
    turns = ParquetTableWriter(folder / TURNS, turn_schema())
    episode_table = ParquetTableWriter(folder / EPISODES, episode_schema())
    with turns, episode_table:
        for episode in episodes:
            for recorded in episode.turns:
                turns.write(turn_row(recorded, texts))
            if episode.turns:
                episode_table.write(episode_row(episode))
    return turns.count, episode_table.count


def turn_row(recorded: RecordedTurn, texts: TokenDecoder) -> Row:
    """Return `recorded` as a row of `turn_schema`."""
    turn, trajectory = recorded.turn, recorded.trajectory
    request, completion = turn.request, turn.completion
    credit: Row = dict.fromkeys(_CREDIT_COLUMNS)
    if recorded.credit is not None:
        credit = {name: getattr(recorded.credit, name) for name in _CREDIT_COLUMNS}
        credit["penalties"] = [{"name": name, "value": value} for name, value in recorded.credit.penalties.items()]
    sources = []
    for source in trajectory.sources(turn.id, EDGE_KINDS):
        kinds = sorted(trajectory.edge_kinds(source, turn.id))
        sources.append({"episode": source[0], "turn": source[1], "kinds": kinds})
    return {
        **{"step": recorded.step, "episode": turn.id[0], "turn": turn.id[1], "group": trajectory.deal.group},
        **{"game": trajectory.deal.game, "start": trajectory.start, "problem": turn.problem},
        **{"agent": turn.agent, "nth": turn.nth, "attempt": turn.attempt, "role": turn.role, "policy": request.policy},
        "messages": [message._asdict() for message in request.messages],
        "chat": [message._asdict() for message in recorded.prompt],
        "prompt": texts.decode(request.policy, completion.prompt_ids) if completion.prompt_ids else None,
        **{"prompt_ids": completion.prompt_ids, "continues": len(request.continues), "tools": request.tools},
        **{"completion": completion.text, "token_ids": completion.token_ids, "logprobs": completion.logprobs},
        **{"imposed": completion.imposed, "finish": completion.finish, "reason": completion.reason},
        "versions": completion.versions,
        "sampling": request.sampling.model_dump_json(),
        **{"legal": None if request.options is None else list(request.options), "action": turn.action},
        "state": request.state,
        "rewards": [_reward(reward) for reward in trajectory.rewards if reward.turn == turn.id],
        "return": recorded.agent_return,
        "sources": sources,
        **credit,
    }


def _reward(reward: Reward) -> Row:
    columns = {"agent": reward.agent, "name": reward.name, "value": reward.value, "cause": reward.cause}
    return columns | {"turn": reward.turn[1]}


def episode_row(episode: RecordedEpisode) -> Row:
    """Return `episode` as a row of `episode_schema`."""
    trajectory, deal = episode.trajectory, episode.trajectory.deal
    parent = trajectory.parent and {"episode": trajectory.parent[0], "turn": trajectory.parent[1]}
    measures = trajectory.findings.measures.items()
    return {
        **{"step": episode.step, "episode": trajectory.id, "group": deal.group, "game": deal.game},
        **{"seed": deal.seed, "purpose": deal.purpose, "branch": deal.branch, "start": trajectory.start},
        **{"parent": parent, "end": trajectory.end, "turns": len(trajectory.turns)},
        "tokens": sum(len(turn.completion.token_ids) for turn in trajectory.turns),
        "seats": [{"agent": agent, "role": role} for agent, role in deal.seats.items()],
        "policies": [{"role": role, "policy": policy} for role, policy in deal.policies.items()],
        "returns": [{"agent": agent, "value": value} for agent, value in trajectory.returns.items()],
        "rewards": [_reward(reward) for reward in trajectory.rewards],
        "measures": [{"name": name, "value": value} for name, value in measures],
    }


_CREDIT_COLUMNS = (
    *("pool", "pool_reward", "assigned", "penalties", "earned", "baseline", "scale", "advantage"),
    "token_advantages",
)
"""Columns from the credit record, null for a turn without credit."""


def turn_schema() -> pa.Schema:
    """Return the schema of the table of turns."""
    text, integer, number = pa.string(), pa.int64(), pa.float64()
    chat = pa.list_(pa.struct({"role": text, "content": text}))
    texts = ("group", "game", "start", "problem", "agent", "role", "policy")
    return pa.schema(
        {
            **{"step": integer, "episode": text, "turn": integer, **dict.fromkeys(texts, text)},
            **{"nth": integer, "attempt": integer, "messages": chat, "chat": chat, "prompt": text},
            **{"prompt_ids": pa.list_(integer), "continues": integer, "tools": pa.list_(text), "completion": text},
            **{"token_ids": pa.list_(integer), "logprobs": pa.list_(number), "imposed": pa.list_(integer)},
            **{"finish": text, "reason": text, "versions": pa.list_(integer), "sampling": text},
            **{"legal": pa.list_(text), "action": text, "state": text},
            **{"rewards": _reward_type(), "return": number},
            "sources": pa.list_(pa.struct({"episode": text, "turn": integer, "kinds": pa.list_(text)})),
            **dict.fromkeys(_CREDIT_COLUMNS, number),
            **{"pool": pa.list_(text), "penalties": _name_value_pairs(), "token_advantages": pa.list_(number)},
        }
    )


def episode_schema() -> pa.Schema:
    """Return the schema of the table of episodes."""
    text, integer = pa.string(), pa.int64()
    turn_id = pa.struct({"episode": text, "turn": integer})
    return pa.schema(
        {
            **{"step": integer, "episode": text, "group": text, "game": text},
            # Seeds are unsigned 64-bit numbers: half of them overflow int64.
            **{"seed": pa.uint64(), "purpose": text, "branch": integer, "start": text, "parent": turn_id, "end": text},
            **{"turns": integer, "tokens": integer, "seats": pa.list_(pa.struct({"agent": text, "role": text}))},
            "policies": pa.list_(pa.struct({"role": text, "policy": text})),
            "returns": pa.list_(pa.struct({"agent": text, "value": pa.float64()})),
            **{"rewards": _reward_type(), "measures": _name_value_pairs()},
        }
    )


def _name_value_pairs() -> pa.DataType:
    return pa.list_(pa.struct({"name": pa.string(), "value": pa.float64()}))


def _reward_type() -> pa.DataType:
    text = pa.string()
    columns = {"agent": text, "name": text, "value": pa.float64(), "cause": text, "turn": pa.int64()}
    return pa.list_(pa.struct(columns))


def verl_schema() -> pa.Schema:
    """Return the schema of verl's table for reinforcement learning."""
    text, integer = pa.string(), pa.int64()
    extra = {"split": text, "index": integer, "step": integer}
    extra |= dict.fromkeys(("role", "agent", "start", "problem"), text)
    return pa.schema(
        {
            **{"data_source": text, "prompt": pa.list_(pa.struct({"role": text, "content": text})), "ability": text},
            "reward_model": pa.struct({"style": text, "ground_truth": text}),
            "extra_info": pa.struct(extra),
        }
    )
