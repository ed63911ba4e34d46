"""Trajectory graphs: the turns of an episode, with an edge from each turn to every later turn that it influenced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import zstandard
from pydantic import ConfigDict, FailFast, TypeAdapter, with_config

from marl.core.types import Deal, EdgeKind, EpisodeEnd, Findings, Message, Reward, Turn, TurnId
from marl.host.data_files import read_lines, summarize_error, write_atomically

if TYPE_CHECKING:
    import networkx as nx

_HEARD: frozenset[EdgeKind] = frozenset({"heard"})
_SELF: frozenset[EdgeKind] = frozenset({"self"})
_turn_index = itemgetter(1)
"""Maps a `TurnId` to the turn's index in the episode."""


class Trajectory:
    """One episode as a directed acyclic graph with a node per turn, and an edge to each turn from the turns it read."""

    def __init__(self, deal: Deal, start: str, parent: TurnId | None = None) -> None:
        self.deal = deal
        self.start = start
        """Key of the game's start state. Episodes with equal keys can be compared with one another."""
        self.parent = parent
        """Turn of another episode at which this episode branched off, or None if it is no fork."""
        self.turns: list[Turn] = []
        """Turns in playing order."""
        self.rewards: list[Reward] = []
        self.findings = Findings()
        self.end: EpisodeEnd = "no"

    @cached_property
    def graph(self) -> nx.DiGraph[TurnId]:
        """Graph with the turn ids as nodes (attribute `turn`), and edges with the attribute `kinds`."""
        # Imported here, because it takes a tenth of a second, and scenarios are checked without a single turn.
        import networkx as nx

        return nx.DiGraph()

    @property
    def id(self) -> str:
        """Return the episode id, unique in a run."""
        return self.deal.episode

    def copy(self, deal: Deal) -> Trajectory:
        """Return an independent copy of the episode under another deal, to which turns can be added."""
        other = Trajectory(deal, self.start, self.parent)
        other.turns, other.rewards = list(self.turns), list(self.rewards)
        other.findings, other.end = self.findings, self.end
        # A cached property: a trajectory without turns has no graph yet, and copying must not import networkx.
        if "graph" in vars(self):
            other.graph = self.graph.copy()
        return other

    def add(
        self, turn: Turn, reads: Iterable[TurnId], kinds: Mapping[TurnId, Collection[EdgeKind]] | None = None
    ) -> None:
        """Append `turn`, with an edge from each turn in `reads`.

        `kinds` maps a source turn to the kinds of its edge. By default an edge from another agent's turn is `heard`,
        and an edge from the agent's own turn is `self`.
        """
        self.turns.append(turn)
        graph = self.graph
        graph.add_node(turn.id, turn=turn)
        for source in reads:
            edge_kinds = frozenset(kinds.get(source, ())) if kinds else frozenset()
            if not edge_kinds:
                edge_kinds = _SELF if graph.nodes[source]["turn"].agent == turn.agent else _HEARD
            graph.add_edge(source, turn.id, kinds=edge_kinds)

    def edge_kinds(self, source: TurnId, reader: TurnId) -> frozenset[EdgeKind]:
        """Return the kinds of the edge from turn `source` to turn `reader`; empty if there is no edge."""
        edge = self.graph.get_edge_data(source, reader)
        return edge["kinds"] if edge else frozenset()

    def sources(self, reader: TurnId, along: Collection[EdgeKind]) -> list[TurnId]:
        """Return the sources of the edges into `reader` with a kind in `along`, in playing order."""
        edges = self.graph.pred[reader].items()
        return sorted((source for source, edge in edges if not edge["kinds"].isdisjoint(along)), key=_turn_index)

    def readers(self, source: TurnId, along: Collection[EdgeKind]) -> list[TurnId]:
        """Return the targets of the edges out of `source` with a kind in `along`, in playing order."""
        edges = self.graph.succ[source].items()
        return sorted((reader for reader, edge in edges if not edge["kinds"].isdisjoint(along)), key=_turn_index)

    @property
    def returns(self) -> dict[str, float]:
        """Return the total reward of each agent with a reward."""
        totals: dict[str, float] = defaultdict(float)
        for reward in self.rewards:
            totals[reward.agent] += reward.value
        return dict(totals)

    def with_scaled_rewards(self, factor: float) -> Trajectory:
        """Return a trajectory with the same turns and graph, and with every reward multiplied by `factor`."""
        if factor == 1:
            return self
        return self._with_rewards([replace(reward, value=reward.value * factor) for reward in self.rewards])

    def with_rewards_named(self, name: str) -> Trajectory:
        """Return a trajectory with the same turns and graph, and with only the rewards called `name`."""
        return self._with_rewards([reward for reward in self.rewards if reward.name == name])

    def _with_rewards(self, rewards: list[Reward]) -> Trajectory:
        # Not `copy`: the graph may be large, and nothing is added to a trajectory with other rewards.
        other = Trajectory.__new__(Trajectory)
        other.__dict__.update(self.__dict__)
        other.rewards = rewards
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trajectory) and _record(self) == _record(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class _Record:
    """One line of a trajectory file."""

    deal: Deal
    start: str
    parent: TurnId | None
    end: EpisodeEnd
    turns: Annotated[list[Turn], FailFast()]
    edges: Annotated[list[tuple[TurnId, TurnId]], FailFast()]
    """(source turn, turn that read it) of each edge."""
    rewards: Annotated[list[Reward], FailFast()]
    findings: Findings = field(default_factory=Findings)
    kinds: Annotated[list[tuple[EdgeKind, ...]], FailFast()] = field(default_factory=list)
    """Kinds of each of `edges`. Edges beyond the end of this list have the default kind."""


def _record(trajectory: Trajectory) -> _Record:
    t = trajectory
    edges: list[tuple[TurnId, TurnId]] = []
    kinds: list[tuple[EdgeKind, ...]] = []
    for source, reader, edge_kinds in t.graph.edges(data="kinds"):
        edges.append((source, reader))
        # Sorted, because the iteration order of a set of strings differs between processes.
        kinds.append(tuple(sorted(edge_kinds)))
    return _Record(t.deal, t.start, t.parent, t.end, t.turns, edges, t.rewards, t.findings, kinds)


def _trajectory(record: _Record) -> Trajectory:
    position = {turn.id: index for index, turn in enumerate(record.turns)}
    kinds_by_reader: dict[TurnId, dict[TurnId, Collection[EdgeKind]]] = defaultdict(dict)
    for index, (source, reader) in enumerate(record.edges):
        kinds_by_reader[reader][source] = record.kinds[index] if index < len(record.kinds) else ()
        # Also refuses turns of other episodes. Credit walks the graph and would never end in a cycle.
        if not position.get(source, len(position)) < position.get(reader, -1):
            raise ValueError(f"turn {reader} cannot have read turn {source}: a turn reads earlier ones of its episode")
    trajectory = Trajectory(record.deal, record.start, record.parent)
    for turn in record.turns:
        kinds_by_source = kinds_by_reader[turn.id]
        trajectory.add(turn, kinds_by_source, kinds_by_source)
    trajectory.rewards = record.rewards
    trajectory.findings = record.findings
    trajectory.end = record.end
    return trajectory


@cache
def _codec() -> TypeAdapter[_Record]:
    # A log-probability may be -inf (a token outside of truncated sampling), and plain JSON has no number for it.
    return TypeAdapter(with_config(ConfigDict(ser_json_inf_nan="constants"))(_Record))


def write_trajectories(path: Path, trajectories: Sequence[Trajectory]) -> None:
    """Write trajectories as compressed JSON lines (`.jsonl.zst`), without loss. The file is replaced atomically."""
    lines = b"".join(_codec().dump_json(_record(trajectory)) + b"\n" for trajectory in trajectories)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, zstandard.ZstdCompressor(write_checksum=True).compress(lines))


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file that `write_trajectories` wrote.

    Raises:
        ValueError: if the file is damaged, is no trajectory file, or exceeds a limit of `marl/host/data_files.py`.
    """
    for number, line in _lines(path):
        yield _parse_line(path, number, line)


def read_trajectory(path: Path, index: int) -> Trajectory:
    """Return the trajectory in line `index` (from 0) of a trajectory file. Other lines are skipped without parsing.

    Raises:
        ValueError: as `read_trajectories`, and if the file has no such line.
    """
    for number, line in _lines(path):
        if number == index + 1:
            return _parse_line(path, number, line)
    raise ValueError(f"{path}: it has no line {index + 1}")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) for each line of a trajectory file; numbers count from 1."""
    try:
        yield from enumerate(read_lines(path), 1)
    except ValueError as error:
        raise ValueError(f"{path}: not a whole trajectory file ({error})") from error


def _parse_line(path: Path, number: int, line: bytes) -> Trajectory:
    try:
        return _trajectory(_codec().validate_json(line))
    except ValueError as error:
        raise ValueError(f"{path}: line {number} is no trajectory ({summarize_error(error)})") from error


Chat = tuple[Message, ...]
"""Messages of a chat. The last message is the assistant's."""


def conversations(turns: Iterable[Turn]) -> Iterator[tuple[TurnId, Chat]]:
    """Yield (turn id, chat) for each of `turns`, the turns of one agent in one episode in playing order.

    A chat ends with the turn's completion. It begins with the chat of the agent's last turn, if the prompt continues
    it.
    """
    earlier: Chat = ()
    for turn in turns:
        request = turn.request
        prompt = (*earlier, *request.messages) if request.continues else request.messages
        earlier = (*prompt, Message("assistant", turn.completion.text))
        yield turn.id, earlier


def branch_points(trajectories: Iterable[Trajectory]) -> set[TurnId] | None:
    """Return the branch points of all forks, or None if `trajectories` contains no fork.

    The branch points of a fork are its first turn that differs from the parent's, and in a parent that is no fork, the
    first turn at which a fork left it. Only these turns are unbiased samples if an experience continues from episodes
    with good outcomes, because later turns belong to episodes selected for their outcome.
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
