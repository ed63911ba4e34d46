"""Trajectory graphs: the turns of an episode, with an edge from each turn to every later turn that it influenced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import zstandard
from pydantic import ConfigDict, FailFast, TypeAdapter, with_config

from marl.core.types import (
    NOTHING_FOUND,
    Deal,
    EdgeKind,
    EpisodeEnd,
    EpisodeMeasuresAndNewStarts,
    Message,
    Reward,
    Turn,
    TurnId,
)
from marl.host.data_files import one_line_error_message, read_lines, write_atomically

if TYPE_CHECKING:
    import networkx as nx

_HEARD: frozenset[EdgeKind] = frozenset({"heard"})
_SELF: frozenset[EdgeKind] = frozenset({"self"})
_turn_index = itemgetter(1)
"""Function that returns the index in the episode of a `TurnId`."""


class Trajectory:
    """Episode as a directed acyclic graph: a node per turn, and an edge to each turn from the turns that it read."""

    def __init__(self, deal: Deal, start: str, parent: TurnId | None = None) -> None:
        self.deal = deal
        self.start = start
        """Key of the game's start state. Episodes with equal keys can be compared with one another."""
        self.parent = parent
        """Turn of another episode from which this episode was forked, or None if it is no fork."""
        self.turns: list[Turn] = []
        """Turns in playing order."""
        self.reads: dict[TurnId, Mapping[TurnId, frozenset[EdgeKind]]] = {}
        """Id of a turn -> (id of each turn that it read -> kinds of the edge): the edges of the graph."""
        self.rewards: list[Reward] = []
        """Rewards in the order of their payment."""
        self.findings = NOTHING_FOUND
        """Measures and new start states of the episode."""
        self.end: EpisodeEnd = "no"
        """End of the episode: `no` while it is in progress."""
        self.compressed_line: bytes | None = None
        """Line of this trajectory in a trajectory file, compressed, if the process that played the episode encoded it,
        or None if `write_trajectories` is to encode it."""
        self._graph: nx.DiGraph[TurnId] | None = None
        """Cache of `graph`."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to send to another process, without the compressed line and the networkx graph."""
        return {**self.__dict__, "compressed_line": None, "_graph": None}

    @property
    def graph(self) -> nx.DiGraph[TurnId]:
        """Return the graph with turn ids as nodes (attribute `turn`), and edges with the attribute `kinds`. Read only.

        It is made from `turns` and `reads` when it is first asked for, because most episodes are never asked.
        """
        # networkx is imported here, because the import takes a tenth of a second, and `marl check` needs no graph.
        import networkx as nx

        graph = self._graph
        if graph is None or len(graph) < len(self.turns):
            graph = nx.DiGraph()
            for turn in self.turns:
                graph.add_node(turn.id, turn=turn)
                for source, kinds in self.reads[turn.id].items():
                    graph.add_edge(source, turn.id, kinds=kinds)
            # A frozen graph refuses changes, which `reads` would not show.
            self._graph = nx.freeze(graph)
        return graph

    @property
    def id(self) -> str:
        """Return the id of the episode, which is unique in a run."""
        return self.deal.episode

    def copy(self, new_deal: Deal) -> Trajectory:
        """Return an independent copy of the trajectory under `new_deal`, to which turns can be added."""
        other = Trajectory(new_deal, self.start, self.parent)
        other.turns, other.reads, other.rewards = list(self.turns), dict(self.reads), list(self.rewards)
        other.findings, other.end = self.findings, self.end
        return other

    def add(
        self,
        turn: Turn,
        read_turns: Iterable[TurnId],
        edge_kinds_by_source: Mapping[TurnId, Collection[EdgeKind]] | None = None,
    ) -> None:
        """Append `turn`, with an edge from each turn in `read_turns`.

        `edge_kinds_by_source` maps a source turn to the kinds of its edge. By default, an edge from a turn of another
        agent is `heard`, and an edge from a turn of the same agent is `self`.
        """
        edges: dict[TurnId, frozenset[EdgeKind]] = {}
        for source in read_turns:
            kinds = edge_kinds_by_source.get(source) if edge_kinds_by_source else None
            if kinds:
                edges[source] = frozenset(kinds)
            else:
                edges[source] = _SELF if self.turns[source[1]].agent == turn.agent else _HEARD
        self.add_with_edges(turn, edges)

    def add_with_edges(self, turn: Turn, edges: Mapping[TurnId, frozenset[EdgeKind]]) -> None:
        """Append `turn`. `edges` maps each turn that it read to the kinds of the edge, and must not change later."""
        self.turns.append(turn)
        self.reads[turn.id] = edges
        self.compressed_line = None

    def edge_kinds(self, source: TurnId, reader: TurnId) -> frozenset[EdgeKind]:
        """Return the kinds of the edge from turn `source` to turn `reader`; empty if there is no edge."""
        return self.reads[reader].get(source, frozenset())

    def incoming_edge_kinds(self, reader: TurnId) -> dict[TurnId, frozenset[EdgeKind]]:
        """Return (source turn -> kinds of its edge to `reader`) for all turns that `reader` read, in playing order."""
        return dict(sorted(self.reads[reader].items(), key=lambda edge: edge[0][1]))

    def sources(self, reader: TurnId, edge_kinds: Collection[EdgeKind]) -> list[TurnId]:
        """Return the turns that `reader` read: the sources of its edges with a kind in `edge_kinds`, in playing
        order."""
        edges = self.reads[reader].items()
        return sorted([source for source, kinds in edges if not kinds.isdisjoint(edge_kinds)], key=_turn_index)

    def readers(self, source: TurnId, edge_kinds: Collection[EdgeKind]) -> list[TurnId]:
        """Return the turns that read `source`: the targets of its edges with a kind in `edge_kinds`, in playing
        order."""
        edges = self.graph.succ[source].items()
        return sorted((reader for reader, edge in edges if not edge["kinds"].isdisjoint(edge_kinds)), key=_turn_index)

    @property
    def returns(self) -> dict[str, float]:
        """Return agent -> its return (the sum of its rewards), for each agent with a reward."""
        totals: dict[str, float] = {}
        for reward in self.rewards:
            totals[reward.agent] = totals.get(reward.agent, 0.0) + reward.value
        return totals

    def with_scaled_rewards(self, factor: float) -> Trajectory:
        """Return a trajectory with the same turns and graph, and with every reward multiplied by `factor`."""
        if factor == 1:
            return self
        rewards: list[Reward] = []
        for reward in self.rewards:
            # `replace` takes several times as long, and a step scales thousands of rewards.
            rewards.append(Reward(reward.agent, reward.value * factor, reward.turn, reward.name, reward.cause))
        return self._with_rewards(rewards)

    def keep_only_rewards_named(self, reward_name: str) -> Trajectory:
        """Return a trajectory with the same turns and graph, and with only the rewards called `reward_name`."""
        return self._with_rewards([reward for reward in self.rewards if reward.name == reward_name])

    def _with_rewards(self, rewards: list[Reward]) -> Trajectory:
        # `copy` would also copy the turns and edges, which may be many and are the same for other rewards.
        other = Trajectory.__new__(Trajectory)
        other.deal, other.start, other.parent = self.deal, self.start, self.parent
        other.turns, other.reads, other.rewards = self.turns, self.reads, rewards
        other.findings, other.end = self.findings, self.end
        other.compressed_line, other._graph = None, self._graph
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trajectory) and _to_record(self) == _to_record(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class _TrajectoryRecord:
    """Trajectory as one line of a trajectory file."""

    deal: Deal
    start: str
    parent: TurnId | None
    end: EpisodeEnd
    turns: Annotated[list[Turn], FailFast()]
    edges: Annotated[list[tuple[TurnId, TurnId]], FailFast()]
    """(earlier turn, turn that read it), for each edge of the graph."""
    rewards: Annotated[list[Reward], FailFast()]
    findings: EpisodeMeasuresAndNewStarts = field(default_factory=EpisodeMeasuresAndNewStarts)
    kinds: Annotated[list[tuple[EdgeKind, ...]], FailFast()] = field(default_factory=list)
    """Kinds of each edge in `edges`. Edges beyond the end of this list have the default kind."""


def _to_record(trajectory: Trajectory) -> _TrajectoryRecord:
    edges: list[tuple[TurnId, TurnId]] = []
    kinds: list[tuple[EdgeKind, ...]] = []
    for reader, sources in trajectory.reads.items():
        for source, edge_kinds in sorted(sources.items(), key=lambda edge: edge[0][1]) if sources else ():
            edges.append((source, reader))
            # The kinds are sorted, because the iteration order of a set of strings differs between processes.
            kinds.append(tuple(sorted(edge_kinds)))
    return _TrajectoryRecord(
        deal=trajectory.deal,
        start=trajectory.start,
        parent=trajectory.parent,
        end=trajectory.end,
        turns=trajectory.turns,
        edges=edges,
        rewards=trajectory.rewards,
        findings=trajectory.findings,
        kinds=kinds,
    )


@cache
def _record_adapter() -> TypeAdapter[_TrajectoryRecord]:
    # JSON has no infinity, but the log-probability of a token outside of truncated sampling is -inf.
    return TypeAdapter(with_config(ConfigDict(ser_json_inf_nan="constants"))(_TrajectoryRecord))


def write_trajectories(path: Path, trajectories: Sequence[Trajectory]) -> None:
    """Write trajectories to `path` as compressed JSON lines (`.jsonl.zst`). The file is replaced atomically."""
    lines = b"".join(map(_to_line, trajectories))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Lines from simulators are compressed again, together, because episodes repeat one another's prompts.
    write_atomically(path, zstandard.ZstdCompressor(write_checksum=True).compress(lines))


def _to_line(trajectory: Trajectory) -> bytes:
    """Return the line of `trajectory` in a trajectory file."""
    if trajectory.compressed_line is None:
        return _record_adapter().dump_json(_to_record(trajectory)) + b"\n"
    return zstandard.ZstdDecompressor().decompress(trajectory.compressed_line)


def compressed_trajectory_line(trajectory: Trajectory) -> bytes:
    """Return the line of `trajectory` in a trajectory file, compressed to be sent to the process that writes it."""
    return zstandard.ZstdCompressor().compress(_to_line(trajectory))


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file that `write_trajectories` wrote.

    Raises:
        ValueError: if the file is damaged, is no trajectory file, or exceeds a limit of `marl/host/data_files.py`.
    """
    for number, line in _numbered_lines(path):
        yield _parse_trajectory_line(path, number, line)


def read_trajectory(path: Path, index: int) -> Trajectory:
    """Return the trajectory in line `index` (from 0) of a trajectory file. Other lines are not parsed.

    Raises:
        ValueError: as `read_trajectories`, and if the file has no such line.
    """
    for number, line in _numbered_lines(path):
        if number == index + 1:
            return _parse_trajectory_line(path, number, line)
    raise ValueError(f"{path}: it has no line {index + 1}")


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) for each line of a trajectory file; numbers count from 1."""
    try:
        yield from enumerate(read_lines(path), 1)
    except ValueError as error:
        raise ValueError(f"{path}: not a whole trajectory file ({error})") from error


def _parse_trajectory_line(path: Path, line_number: int, line: bytes) -> Trajectory:
    """Return the trajectory in `line` of the trajectory file `path`. `line_number` is the line's number, from 1."""
    try:
        record = _record_adapter().validate_json(line)
        index_of_turn = {turn.id: index for index, turn in enumerate(record.turns)}
        kinds_by_reader: dict[TurnId, dict[TurnId, Collection[EdgeKind]]] = defaultdict(dict)
        for edge_index, (source, reader) in enumerate(record.edges):
            kinds_by_reader[reader][source] = record.kinds[edge_index] if edge_index < len(record.kinds) else ()
            # A turn may only read earlier turns of its episode: in a cycle, a walk over the graph would never end.
            if not index_of_turn.get(source, len(index_of_turn)) < index_of_turn.get(reader, -1):
                raise ValueError(
                    f"turn {reader} cannot have read turn {source}: a turn reads earlier ones of its episode"
                )
        trajectory = Trajectory(record.deal, record.start, record.parent)
        for turn in record.turns:
            kinds_by_source = kinds_by_reader[turn.id]
            trajectory.add(turn, kinds_by_source, kinds_by_source)
        trajectory.rewards = record.rewards
        trajectory.findings = record.findings
        trajectory.end = record.end
        return trajectory
    except ValueError as error:
        raise ValueError(f"{path}: line {line_number} is no trajectory ({one_line_error_message(error)})") from error


Chat = tuple[Message, ...]
"""Messages of a chat. The last message is the assistant's."""


def chats_up_to_each_turn(turns: Iterable[Turn]) -> Iterator[tuple[TurnId, Chat]]:
    """Yield (turn id, chat) for each turn in `turns`, the turns of one agent in one episode in playing order.

    A chat ends with the turn's completion. If the turn's prompt continues an earlier turn of the agent, the chat begins
    with the chat of that turn. Only inner turns may continue another turn than the agent's last one.
    """
    last: Chat = ()
    chat_by_tokens: dict[tuple[int, ...], Chat] = {}
    for turn in turns:
        request, completion = turn.request, turn.completion
        prompt = request.messages
        if request.continues:
            earlier = chat_by_tokens.get(request.continues, last) if turn.inner else last
            prompt = (*earlier, *prompt)
        last = (*prompt, Message("assistant", completion.text))
        if turn.inner:
            chat_by_tokens[(*completion.prompt_ids, *completion.token_ids)] = last
        yield turn.id, last


def branch_points(trajectories: Iterable[Trajectory]) -> set[TurnId] | None:
    """Return the branch points of all forks, or None if `trajectories` contains no fork.

    Branch points are the first turn of each fork that differs from its parent, and the first turn of a parent at which
    a fork began. If an experience continues from episodes with good outcomes, only these turns are unbiased samples:
    later turns belong to episodes that were selected for their outcome.
    """
    forks = {trajectory.id: trajectory.parent for trajectory in trajectories if trajectory.parent}
    if not forks:
        return None
    points: set[TurnId] = set()
    first_index: dict[str, int] = {}
    for episode, (parent, index) in forks.items():
        points.add((episode, index))
        if parent not in forks:
            first_index[parent] = min(index, first_index.get(parent, index))
    return points | set(first_index.items())
