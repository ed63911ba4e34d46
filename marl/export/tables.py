"""Recorded episodes as two tables of Parquet, written in pieces: nothing that training recorded of a turn is left out
but its random numbers and marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from marl.errors import Writing
from marl.export.selection import RecordedEpisode, RecordedTurn
from marl.graph import Trajectory
from marl.judging.records import TurnRecord
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.types import Reward
from marl.view.edges import KINDS
from marl.view.page.token_texts import TokenTexts

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP = 1000
"""Most rows that are held, and written at once."""
GROUP_SIZE = 2**21
"""Signs and tokens of the held rows after which they are written, however few they are: a turn may have 100,000."""
TURNS, EPISODES = "turns.parquet", "episodes.parquet"
Row = dict[str, Any]


def expect_pyarrow() -> None:
    """Check that Parquet can be written.

    Raises:
        ScenarioError: if pyarrow is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ScenarioError("writing Parquet needs pyarrow: pip install 'marl-llm[data]'") from error


class TableWriter:
    """Context manager that writes rows of one table to a Parquet file, a group of rows at a time."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        from pyarrow.parquet import ParquetWriter

        self._file, self._schema = file, schema
        self._rows: list[Row] = []
        self._size = 0
        self.count = 0
        """Number of rows so far."""
        with Writing(file):
            self._writer = ParquetWriter(file, schema, compression="zstd")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write what is held, unless there was an error, and the end of the file."""
        if kind is None:
            self._flush()
        with Writing(self._file):
            self._writer.close()

    def write(self, row: Row) -> None:
        """Add a row."""
        self._rows.append(row)
        self._size += sum(map(_size, row.values()))
        self.count += 1
        if len(self._rows) == ROW_GROUP or self._size >= GROUP_SIZE:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            with Writing(self._file):
                self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema))
            self._rows.clear()
            self._size = 0


def _size(value: Any) -> int:
    """Return the signs of a text or of a chat, and the length of any other list."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, list | tuple):
        return 0
    first = value[0] if value else None
    chat = isinstance(first, dict) and "content" in first
    return sum(len(part["content"]) for part in value) if chat else len(value)


def write_tables(folder: Path, episodes: Iterable[RecordedEpisode], home: RunFolder) -> tuple[int, int]:
    """Write both tables into a folder; return the numbers of turns and of episodes.

    Episodes of which no turn matches are left out.
    """
    texts = TokenTexts(home)
    turns, played = TableWriter(folder / TURNS, turn_schema()), TableWriter(folder / EPISODES, episode_schema())
    with turns, played:
        for episode in episodes:
            for recorded in episode.turns:
                turns.write(turn_row(recorded, texts))
            if episode.turns:
                played.write(episode_row(episode))
    return turns.count, played.count


def turn_row(recorded: RecordedTurn, texts: TokenTexts) -> Row:
    """Return a turn as a row of `turn_schema`."""
    turn, trajectory = recorded.turn, recorded.trajectory
    request, completion = turn.request, turn.completion
    return {
        **{"step": recorded.step, "episode": turn.id[0], "turn": turn.id[1], "group": trajectory.deal.group},
        **{"game": trajectory.deal.game, "start": trajectory.start, "problem": turn.problem},
        **{"agent": turn.agent, "nth": turn.nth, "attempt": turn.attempt, "role": turn.role, "policy": request.policy},
        "messages": [message._asdict() for message in request.messages],
        "chat": [message._asdict() for message in recorded.prompt],
        "prompt": texts.text(request.policy, completion.prompt_ids) if completion.prompt_ids else None,
        **{"prompt_ids": completion.prompt_ids, "continues": len(request.continues), "tools": request.tools},
        **{"completion": completion.text, "token_ids": completion.token_ids, "logprobs": completion.logprobs},
        **{"imposed": completion.imposed, "finish": completion.finish, "reason": completion.reason},
        "versions": completion.versions,
        "sampling": request.sampling.model_dump_json(),
        **{"legal": None if request.options is None else list(request.options), "action": turn.action},
        "state": request.state,
        "rewards": [_reward(reward) for reward in trajectory.rewards if reward.turn == turn.id],
        "return": recorded.total,
        "sources": [*_sources(recorded)],
        **_judged(recorded.judged),
    }


def _judged(judged: TurnRecord | None) -> Row:
    if judged is None:
        return dict.fromkeys(_JUDGED)
    penalties = [{"name": name, "value": value} for name, value in judged.penalties.items()]
    return {name: getattr(judged, name) for name in _JUDGED} | {"penalties": penalties}


def _sources(recorded: RecordedTurn) -> Iterator[Row]:
    trajectory, reader = recorded.trajectory, recorded.turn.id
    for source in trajectory.sources(reader, KINDS):
        yield {"episode": source[0], "turn": source[1], "kinds": sorted(trajectory.kinds(source, reader))}


def _reward(reward: Reward) -> Row:
    paid = {"agent": reward.agent, "name": reward.name, "value": reward.value, "cause": reward.cause}
    return paid | {"turn": reward.turn[1]}


def episode_row(episode: RecordedEpisode) -> Row:
    """Return an episode as a row of `episode_schema`."""
    trajectory, deal = episode.trajectory, episode.trajectory.deal
    measures = trajectory.findings.measures.items()
    return {
        **{"step": episode.step, "episode": trajectory.id, "group": deal.group, "game": deal.game},
        **{"seed": deal.seed, "purpose": deal.purpose, "branch": deal.branch, "start": trajectory.start},
        **{"parent": _parent(trajectory), "end": trajectory.end, "turns": len(trajectory.turns)},
        "tokens": sum(len(turn.completion.token_ids) for turn in trajectory.turns),
        "seats": [{"agent": agent, "role": role} for agent, role in deal.seats.items()],
        "policies": [{"role": role, "policy": policy} for role, policy in deal.policies.items()],
        "returns": [{"agent": agent, "value": value} for agent, value in trajectory.returns.items()],
        "rewards": [_reward(reward) for reward in trajectory.rewards],
        "measures": [{"name": name, "value": value} for name, value in measures],
    }


def _parent(trajectory: Trajectory) -> Row | None:
    parent = trajectory.parent
    return parent and {"episode": parent[0], "turn": parent[1]}


_JUDGED = (
    *("pool", "pool_reward", "assigned", "penalties", "earned", "baseline", "scale", "advantage"),
    "token_advantages",
)
"""Columns of a judgement, which are null in a turn that was not judged."""


def turn_schema() -> pa.Schema:
    """Return the columns of turns."""
    import pyarrow as pa

    text, whole, number = pa.string(), pa.int64(), pa.float64()
    chat = pa.list_(pa.struct({"role": text, "content": text}))
    texts = ("group", "game", "start", "problem", "agent", "role", "policy")
    return pa.schema(
        {
            **{"step": whole, "episode": text, "turn": whole, **dict.fromkeys(texts, text)},
            **{"nth": whole, "attempt": whole, "messages": chat, "chat": chat, "prompt": text},
            **{"prompt_ids": pa.list_(whole), "continues": whole, "tools": pa.list_(text), "completion": text},
            **{"token_ids": pa.list_(whole), "logprobs": pa.list_(number), "imposed": pa.list_(whole)},
            **{"finish": text, "reason": text, "versions": pa.list_(whole), "sampling": text},
            **{"legal": pa.list_(text), "action": text, "state": text},
            **{"rewards": _rewards(), "return": number},
            "sources": pa.list_(pa.struct({"episode": text, "turn": whole, "kinds": pa.list_(text)})),
            **dict.fromkeys(_JUDGED, number),
            **{"pool": pa.list_(text), "penalties": _named(), "token_advantages": pa.list_(number)},
        }
    )


def episode_schema() -> pa.Schema:
    """Return the columns of episodes."""
    import pyarrow as pa

    text, whole = pa.string(), pa.int64()
    place = pa.struct({"episode": text, "turn": whole})
    return pa.schema(
        {
            **{"step": whole, "episode": text, "group": text, "game": text},
            # A seed has 64 bits without a sign.
            **{"seed": pa.uint64(), "purpose": text, "branch": whole, "start": text, "parent": place, "end": text},
            **{"turns": whole, "tokens": whole, "seats": pa.list_(pa.struct({"agent": text, "role": text}))},
            "policies": pa.list_(pa.struct({"role": text, "policy": text})),
            "returns": pa.list_(pa.struct({"agent": text, "value": pa.float64()})),
            **{"rewards": _rewards(), "measures": _named()},
        }
    )


def _named() -> pa.DataType:
    import pyarrow as pa

    return pa.list_(pa.struct({"name": pa.string(), "value": pa.float64()}))


def _rewards() -> pa.DataType:
    import pyarrow as pa

    text = pa.string()
    paid = {"agent": text, "name": text, "value": pa.float64(), "cause": text, "turn": pa.int64()}
    return pa.list_(pa.struct(paid))


def verl_schema() -> pa.Schema:
    """Return the columns of verl's data for reinforcement learning."""
    import pyarrow as pa

    text, whole = pa.string(), pa.int64()
    extra = {"split": text, "index": whole, "step": whole, "role": text, "agent": text, "start": text, "problem": text}
    return pa.schema(
        {
            **{"data_source": text, "prompt": pa.list_(pa.struct({"role": text, "content": text})), "ability": text},
            "reward_model": pa.struct({"style": text, "ground_truth": text}),
            "extra_info": pa.struct(extra),
        }
    )
