"""The trajectory graph: turns of an episode, and edges from each turn to the turns that read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import zstandard
from pydantic import ConfigDict, FailFast, TypeAdapter, with_config

from marl.data_files import problems, read_lines, write_whole
from marl.types import Deal, EdgeKind, End, Findings, Message, Reward, Turn, TurnId

if TYPE_CHECKING:
    import networkx as nx

_HEARD: frozenset[EdgeKind] = frozenset({"heard"})
_SELF: frozenset[EdgeKind] = frozenset({"self"})


def _place(turn: TurnId) -> int:
    """Return the index of a turn in its episode."""
    return turn[1]


class Trajectory:
    """One episode as a DAG: a node per turn, an edge from each turn to every turn that read it."""

    def __init__(self, deal: Deal, start: str, parent: TurnId | None = None) -> None:
        self.deal = deal
        self.start = start
        """Start state of the game; episodes with equal starts are one another's peers."""
        self.parent = parent
        """The turn at which this episode left another one."""
        self.turns: list[Turn] = []
        """In playing order."""
        self.rewards: list[Reward] = []
        self.findings = Findings()
        self.end: End = "no"

    @cached_property
    def graph(self) -> nx.DiGraph[TurnId]:
        """The turns, and edges `kinds` from each to those that it led to."""
        import networkx as nx  # here, as it takes a tenth of a second, and scenarios are checked without a single turn

        return nx.DiGraph()

    @property
    def id(self) -> str:
        """Return the episode's name, unique in a run."""
        return self.deal.episode

    def copy(self, deal: Deal) -> Trajectory:
        """Return the same episode under another deal, to be gone on with by itself."""
        other = Trajectory(deal, self.start, self.parent)
        other.turns, other.rewards = list(self.turns), list(self.rewards)
        other.findings, other.end = self.findings, self.end
        if "graph" in vars(self):
            other.graph = self.graph.copy()
        return other

    def add(
        self, turn: Turn, reads: Iterable[TurnId], kinds: Mapping[TurnId, Collection[EdgeKind]] | None = None
    ) -> None:
        """Append `turn`, which the turns `reads` led to.

        `kinds`: the ways in which they did. Default: it `heard` those of others, and its own are `self`.
        """
        self.turns.append(turn)
        self.graph.add_node(turn.id, turn=turn)
        known = kinds or {}
        self.graph.add_edges_from(
            [(s, turn.id, {"kinds": frozenset(known.get(s, ())) or self._usual_kinds(s, turn)}) for s in reads]
        )

    def _usual_kinds(self, source: TurnId, reader: Turn) -> frozenset[EdgeKind]:
        return _SELF if self.graph.nodes[source]["turn"].agent == reader.agent else _HEARD

    def kinds(self, source: TurnId, reader: TurnId) -> frozenset[EdgeKind]:
        """Return the ways in which the turn `source` led to the turn `reader`; none if it did not."""
        edge = self.graph.get_edge_data(source, reader)
        return edge["kinds"] if edge else frozenset()

    def sources(self, reader: TurnId, along: Collection[EdgeKind]) -> list[TurnId]:
        """Return the turns that led to the turn `reader` in one of the ways `along`, in the order of play."""
        earlier = self.graph.pred[reader].items()
        return sorted((source for source, edge in earlier if not edge["kinds"].isdisjoint(along)), key=_place)

    def readers(self, source: TurnId, along: Collection[EdgeKind]) -> list[TurnId]:
        """Return the turns that the turn `source` led to in one of the ways `along`, in the order of play."""
        later = self.graph.succ[source].items()
        return sorted((reader for reader, edge in later if not edge["kinds"].isdisjoint(along)), key=_place)

    @property
    def returns(self) -> dict[str, float]:
        """Return agent -> total reward."""
        totals: dict[str, float] = defaultdict(float)
        for reward in self.rewards:
            totals[reward.agent] += reward.value
        return dict(totals)

    def scaled(self, factor: float) -> Trajectory:
        """Return the same turns with every reward times `factor`; shares the graph."""
        if factor == 1:
            return self
        return self._paid([replace(reward, value=reward.value * factor) for reward in self.rewards])

    def paid_for(self, name: str) -> Trajectory:
        """Return the same turns with only the rewards of this name; shares the graph."""
        return self._paid([reward for reward in self.rewards if reward.name == name])

    def _paid(self, rewards: list[Reward]) -> Trajectory:
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
    end: End
    turns: Annotated[list[Turn], FailFast()]
    edges: Annotated[list[tuple[TurnId, TurnId]], FailFast()]
    """(turn, turn that it led to)"""
    rewards: Annotated[list[Reward], FailFast()]
    findings: Findings = field(default_factory=Findings)
    kinds: Annotated[list[tuple[EdgeKind, ...]], FailFast()] = field(default_factory=list)
    """Ways in which each of `edges` led; files of earlier versions do not say them."""


def _record(trajectory: Trajectory) -> _Record:
    t = trajectory
    edges = list(t.graph.edges(data="kinds"))
    pairs = [(source, reader) for source, reader, _ in edges]
    kinds = [tuple(sorted(kinds)) for _, _, kinds in edges]
    return _Record(t.deal, t.start, t.parent, t.end, t.turns, pairs, t.rewards, t.findings, kinds)


def _trajectory(record: _Record) -> Trajectory:
    position = {turn.id: index for index, turn in enumerate(record.turns)}
    reads: dict[TurnId, dict[TurnId, Collection[EdgeKind]]] = defaultdict(dict)
    unknown: list[tuple[EdgeKind, ...]] = [()] * (len(record.edges) - len(record.kinds))
    for (source, reader), kinds in zip(record.edges, [*record.kinds, *unknown], strict=False):
        reads[reader][source] = kinds
        if not position.get(source, len(position)) < position.get(reader, -1):
            raise ValueError(f"turn {reader} cannot have read turn {source}: a turn reads earlier ones of its episode")
    trajectory = Trajectory(record.deal, record.start, record.parent)
    for turn in record.turns:
        trajectory.add(turn, reads[turn.id], reads[turn.id])
    trajectory.rewards = record.rewards
    trajectory.findings = record.findings
    trajectory.end = record.end
    return trajectory


@cache
def _codec() -> TypeAdapter[_Record]:
    # A log-probability may be -inf (a token that truncated sampling cannot say); JSON needs it spelled.
    return TypeAdapter(with_config(ConfigDict(ser_json_inf_nan="constants"))(_Record))


def write_trajectories(path: Path, trajectories: Sequence[Trajectory]) -> None:
    """Write JSON lines, compressed (`.jsonl.zst`); nothing is lost. The file appears whole or not at all."""
    lines = b"".join(_codec().dump_json(_record(t)) + b"\n" for t in trajectories)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, zstandard.ZstdCompressor(write_checksum=True).compress(lines))


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield what `write_trajectories` wrote.

    Raises:
        ValueError: if the file is damaged, is no trajectory file, or exceeds a limit of `marl/data_files.py`.
    """
    for number, line in _lines(path):
        yield _read(path, number, line)


def read_trajectory(path: Path, place: int) -> Trajectory:
    """Return the episode in the line `place` (from 0) of what `write_trajectories` wrote; others are not read.

    Raises:
        ValueError: as `read_trajectories`, and if there are fewer lines.
    """
    for number, line in _lines(path):
        if number == place + 1:
            return _read(path, number, line)
    raise ValueError(f"{path}: it has no line {place + 1}")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a trajectory file with their numbers, from 1."""
    try:
        yield from enumerate(read_lines(path), 1)
    except ValueError as error:
        raise ValueError(f"{path}: not a whole trajectory file ({error})") from error


def _read(path: Path, number: int, line: bytes) -> Trajectory:
    try:
        return _trajectory(_codec().validate_json(line))
    except ValueError as error:
        raise ValueError(f"{path}: line {number} is no trajectory ({problems(error)})") from error


Chat = tuple[Message, ...]
"""Messages of which the last is the assistant's."""


def conversations(turns: Iterable[Turn]) -> Iterator[tuple[TurnId, Chat]]:
    """Yield the chat of each turn of one agent in one episode, in order.

    A chat ends with the completion. It holds the agent's earlier turns where the prompt continues them.
    """
    earlier: Chat = ()
    for turn in turns:
        request = turn.request
        prompt = (*earlier, *request.messages) if request.continues else request.messages
        earlier = (*prompt, Message("assistant", turn.completion.text))
        yield turn.id, earlier


def branch_points(trajectories: Iterable[Trajectory]) -> set[TurnId] | None:
    """Return the turns at which forks part: the first turn that each fork does not share, and of an episode that is no
    fork, the first turn at which it was left. None if there are no forks.

    An experience that goes on from what ended well has fair samples at these turns only: later turns stand in episodes
    that were chosen for their end.
    """
    forks = {trajectory.id: trajectory.parent for trajectory in trajectories if trajectory.parent}
    first: dict[str, int] = {}
    for episode, index in forks.values():
        if episode not in forks:
            first[episode] = min(index, first.get(episode, index))
    return {(name, parent[1]) for name, parent in forks.items()} | set(first.items()) if forks else None
