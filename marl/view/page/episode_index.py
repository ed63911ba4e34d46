"""Index of a run's recorded episodes: an SQLite file in the cache folder, by which they are filtered and searched.

The run's own folder is only read. The index grows step by step, newest first, also while the run goes on; a step whose
file was written anew is indexed anew.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl.errors import FolderError
from marl.graph import Trajectory
from marl.places import cache_folder
from marl.runs.run_folder import RunFolder
from marl.view.page.filters import EpisodeFilter

_VERSION = 1
"""Of the tables; an index of another version is made anew."""
_TABLES = """
CREATE TABLE steps (step INTEGER PRIMARY KEY, stamp TEXT NOT NULL, problem TEXT NOT NULL);
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY, step INTEGER NOT NULL, place INTEGER NOT NULL, episode TEXT NOT NULL,
    peers TEXT NOT NULL, game TEXT NOT NULL, start TEXT NOT NULL, ended TEXT NOT NULL,
    turns INTEGER NOT NULL, unreadable INTEGER NOT NULL, cut_off INTEGER NOT NULL, paid REAL NOT NULL
);
CREATE INDEX of_step ON episodes (step, place);
CREATE INDEX of_name ON episodes (episode);
CREATE INDEX of_start ON episodes (start, step);
CREATE TABLE figures (
    name TEXT NOT NULL, id INTEGER NOT NULL, value REAL NOT NULL, PRIMARY KEY (name, id)
) WITHOUT ROWID;
CREATE INDEX of_episode ON figures (id);
CREATE VIRTUAL TABLE texts USING fts5(text);
"""
_LONGEST_TEXT = 100_000
"""Most characters of an episode that can be searched."""
_BUSY_S = 10.0
"""Longest wait for another page that writes to the same index."""


@dataclass(frozen=True, slots=True)
class IndexedEpisode:
    """An episode as lists show it."""

    step: int
    place: int
    """Place in the step's file, from 0."""
    episode: str
    group: str
    game: str
    start: str
    end: str
    turns: int
    unreadable: int
    """Turns in which no legal move could be read."""
    cut_off: int
    """Turns that ended at `max_tokens`."""
    paid: float
    """Sum of all rewards."""
    figures: Mapping[str, float]
    """`return/ROLE`, `agent/AGENT` (its return), `turns/ROLE`, `unreadable/ROLE` and `measure/NAME`."""


class EpisodeIndex:
    """The index of one run. Instances in several threads may read while one writes."""

    def __init__(self, run: Path) -> None:
        """Open the index of a run, which is made where there is none.

        Raises:
            FolderError: if the cache folder cannot be written.
        """
        self.home = RunFolder(run)
        name = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:20]
        self.file = cache_folder() / "page" / f"{name}.sqlite3"
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise FolderError(f"{self.file} cannot be written: {error}; MARL_CACHE names another folder") from error

    def _prepare(self) -> None:
        with closing(self._connect()) as tables, tables:
            tables.execute("PRAGMA journal_mode = WAL")
            tables.execute("BEGIN IMMEDIATE")
            if tables.execute("PRAGMA user_version").fetchone()[0] == _VERSION:
                return
            for (table,) in tables.execute("SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE %TABLE%'").fetchall():
                tables.execute(f'DROP TABLE IF EXISTS "{table}"')
            for statement in filter(str.strip, _TABLES.split(";")):
                tables.execute(statement)
            tables.execute(f"PRAGMA user_version = {_VERSION}")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.file, timeout=_BUSY_S, isolation_level=None)
        connection.execute("PRAGMA synchronous = OFF")  # it can be made again
        return connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connect()) as tables:
            tables.execute("PRAGMA query_only = 1")
            yield tables

    # --- growing ---------------------------------------------------------------------------------------------------

    def missing(self) -> list[int]:
        """Return the recorded steps that are not in the index as they are now, newest first; forget those removed."""
        stamps = self.home.stamps()
        with closing(self._connect()) as tables:
            known = dict(tables.execute("SELECT step, stamp FROM steps"))
            for step in known.keys() - stamps.keys():
                with tables:
                    tables.execute("BEGIN IMMEDIATE")
                    _forget(tables, step)
        return sorted((step for step, stamp in stamps.items() if known.get(step) != stamp), reverse=True)

    def add(self, step: int) -> None:
        """Index one recorded step. One that cannot be read is remembered with the problem, and has no episodes."""
        stamp = self.home.stamps().get(step)
        if stamp is None:
            return
        problem, episodes = "", []
        try:
            episodes = self.home.episodes(step)
        except (ValueError, FolderError) as error:
            problem = str(error)
        with closing(self._connect()) as tables, tables:
            tables.execute("BEGIN IMMEDIATE")
            _forget(tables, step)
            tables.execute("INSERT INTO steps VALUES (?, ?, ?)", (step, stamp, problem))
            for place, trajectory in enumerate(episodes):
                _insert(tables, step, place, trajectory)

    def update(self) -> None:
        """Index all that is recorded now."""
        for step in self.missing():
            self.add(step)

    # --- reading ---------------------------------------------------------------------------------------------------

    def progress(self) -> dict[str, Any]:
        """Return how many steps are recorded and indexed, how many episodes that makes, and what could not be read."""
        with self._reading() as tables:
            (steps,) = tables.execute("SELECT count(*) FROM steps").fetchone()
            (episodes,) = tables.execute("SELECT count(*) FROM episodes").fetchone()
            problems = [text for (text,) in tables.execute("SELECT problem FROM steps WHERE problem != ''")]
        return {"recorded": len(self.home.recorded()), "indexed": steps, "episodes": episodes, "problems": problems}

    def steps(self) -> list[int]:
        """Return the indexed steps that have episodes, oldest first."""
        with self._reading() as tables:
            return [step for (step,) in tables.execute("SELECT DISTINCT step FROM episodes ORDER BY step")]

    def names(self) -> list[str]:
        """Return the names of all figures by which episodes can be filtered and ordered."""
        with self._reading() as tables:
            # Leaps from name to name along the primary key; DISTINCT would walk over every row.
            names, name = [], ""
            while (
                name := tables.execute("SELECT min(name) FROM figures WHERE name > ?", (name,)).fetchone()[0]
            ) is not None:
                names.append(name)
            return names

    def select(self, chosen: EpisodeFilter, offset: int = 0, limit: int = 50) -> tuple[int, list[IndexedEpisode]]:
        """Return the number of episodes that match, and those of one page of them, in order."""
        condition, values = chosen.condition()
        order, order_values = chosen.ordering()
        with self._reading() as tables:
            (count,) = tables.execute(f"SELECT count(*) FROM episodes {condition}", values).fetchone()
            rows = tables.execute(
                f"SELECT episodes.* FROM episodes {condition} {order} LIMIT ? OFFSET ?",
                [*values, *order_values, limit, offset],
            ).fetchall()
            return count, _with_figures(tables, rows)

    def find(self, step: int, episode: str) -> IndexedEpisode | None:
        """Return an episode of a step; None if it is not in the index."""
        _, episodes = self.select(EpisodeFilter(first=step, last=step, episode=episode), limit=1)
        return episodes[0] if episodes else None

    def same_start(self, start: str) -> list[tuple[int, str]]:
        """Return (step, episode) of the first episode of each step that began with this start, oldest first."""
        with self._reading() as tables:
            rows = tables.execute(
                "SELECT step, episode, min(place) FROM episodes WHERE start = ? GROUP BY step ORDER BY step", (start,)
            )
            return [(step, episode) for step, episode, _ in rows]


def _forget(tables: sqlite3.Connection, step: int) -> None:
    of_step = "(SELECT id FROM episodes WHERE step = ?)"
    tables.execute(f"DELETE FROM texts WHERE rowid IN {of_step}", (step,))
    tables.execute(f"DELETE FROM figures WHERE id IN {of_step}", (step,))
    tables.execute("DELETE FROM episodes WHERE step = ?", (step,))
    tables.execute("DELETE FROM steps WHERE step = ?", (step,))


def _insert(tables: sqlite3.Connection, step: int, place: int, trajectory: Trajectory) -> None:
    deal, turns = trajectory.deal, trajectory.turns
    row = (
        *(step, place, trajectory.id, deal.group, deal.game, trajectory.start, trajectory.end, len(turns)),
        sum(turn.action is None for turn in turns),
        sum(turn.completion.finish == "length" for turn in turns),
        sum(reward.value for reward in trajectory.rewards),
    )
    number = tables.execute(f"INSERT INTO episodes VALUES (NULL{', ?' * len(row)})", row).lastrowid
    figures = _figures(trajectory).items()
    tables.executemany("INSERT INTO figures VALUES (?, ?, ?)", [(name, number, value) for name, value in figures])
    tables.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (number, _text(trajectory)))


def _figures(trajectory: Trajectory) -> dict[str, float]:
    seats = trajectory.deal.seats
    turns = Counter(turn.role for turn in trajectory.turns)
    unreadable = Counter(turn.role for turn in trajectory.turns if turn.action is None)
    returns: dict[str, float] = defaultdict(float, dict.fromkeys(seats.values(), 0.0))
    for reward in trajectory.rewards:
        returns[seats.get(reward.agent, reward.agent)] += reward.value
    return {
        **{f"return/{role}": value for role, value in returns.items()},
        **{f"agent/{agent}": value for agent, value in trajectory.returns.items()},
        **{f"turns/{role}": float(count) for role, count in turns.items()},
        **{f"unreadable/{role}": float(count) for role, count in unreadable.items()},
        **{f"measure/{name}": value for name, value in trajectory.findings.measures.items()},
    }


def _text(trajectory: Trajectory) -> str:
    """Return what can be searched: the start, what was asked last and what was answered."""
    parts = [trajectory.id, trajectory.start]
    for turn in trajectory.turns:
        parts += [turn.agent, *(message.content for message in turn.request.messages[-1:]), turn.completion.text]
    return "\n".join(parts)[:_LONGEST_TEXT]


def _with_figures(tables: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> list[IndexedEpisode]:
    figures: dict[int, dict[str, float]] = defaultdict(dict)
    marks = ", ".join("?" * len(rows))
    known: Iterable[tuple[int, str, float]] = tables.execute(
        f"SELECT id, name, value FROM figures WHERE id IN ({marks}) ORDER BY name", [row[0] for row in rows]
    )
    for number, name, value in known:
        figures[number][name] = value
    return [IndexedEpisode(*row[1:], figures=figures[row[0]]) for row in rows]
