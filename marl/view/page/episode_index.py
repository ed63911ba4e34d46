"""SQLite index of a run's recorded episodes in the cache folder, for filters and full-text search.

The run's folder is only read. The index grows step by step, newest first, even during training. A step whose file
changed is indexed again.
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

from marl.core.errors import FolderError
from marl.core.graph import Trajectory
from marl.host.paths import cache_folder
from marl.runs.run_folder import RunFolder
from marl.view.page.episode_filter import EpisodeFilter

_VERSION = 1
"""Schema version. An index with another version is rebuilt."""
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
"""Length limit of an episode's searchable text [characters]."""
_BUSY_S = 10.0
"""Maximum wait for another process that writes to the same index [s]."""


@dataclass(frozen=True, slots=True)
class IndexedEpisode:
    """Episode as shown in lists."""

    step: int
    place: int
    """Index of the episode in the step's file, from 0."""
    episode: str
    group: str
    game: str
    start: str
    end: str
    turns: int
    unreadable: int
    """Number of turns without a parsed legal move."""
    cut_off: int
    """Number of turns that ended at `max_tokens`."""
    paid: float
    """Sum of all rewards."""
    figures: Mapping[str, float]
    """`return/ROLE`, `agent/AGENT` (the agent's return), `turns/ROLE`, `unreadable/ROLE` and `measure/NAME`."""


class EpisodeIndex:
    """Index of one run. Several threads may read while one writes."""

    def __init__(self, run: Path) -> None:
        """Open the index of a run, creating it if necessary.

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
            # Readers continue while the indexing thread writes.
            tables.execute("PRAGMA journal_mode = WAL")
            tables.execute("BEGIN IMMEDIATE")
            # Read inside the transaction: another page may have built the tables in the meantime.
            if tables.execute("PRAGMA user_version").fetchone()[0] == _VERSION:
                return
            for (table,) in tables.execute("SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE %TABLE%'").fetchall():
                tables.execute(f'DROP TABLE IF EXISTS "{table}"')
            for statement in filter(str.strip, _TABLES.split(";")):
                tables.execute(statement)
            tables.execute(f"PRAGMA user_version = {_VERSION}")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.file, timeout=_BUSY_S, isolation_level=None)
        connection.execute("PRAGMA synchronous = OFF")  # a lost index is rebuilt from the run
        return connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connect()) as tables:
            tables.execute("PRAGMA query_only = 1")
            yield tables

    # --- growing ---------------------------------------------------------------------------------------------------

    def unindexed_steps(self) -> list[int]:
        """Return the recorded steps that are missing from the index or outdated, newest first. Removed steps are
        deleted."""
        stamps = self.home.trajectory_file_stamps()
        with closing(self._connect()) as tables:
            indexed = dict(tables.execute("SELECT step, stamp FROM steps"))
            for step in indexed.keys() - stamps.keys():
                with tables:
                    tables.execute("BEGIN IMMEDIATE")
                    _forget(tables, step)
        return sorted((step for step, stamp in stamps.items() if indexed.get(step) != stamp), reverse=True)

    def add(self, step: int) -> None:
        """Index one recorded step. For an unreadable step the index stores the problem and no episodes."""
        stamp = self.home.trajectory_file_stamps().get(step)
        if stamp is None:
            return
        problem, episodes = "", []
        # Loaded before the transaction, which blocks other writers.
        try:
            episodes = self.home.load_trajectories(step)
        except (ValueError, FolderError) as error:
            problem = str(error)
        with closing(self._connect()) as tables, tables:
            tables.execute("BEGIN IMMEDIATE")
            _forget(tables, step)
            tables.execute("INSERT INTO steps VALUES (?, ?, ?)", (step, stamp, problem))
            for index, trajectory in enumerate(episodes):
                _insert(tables, step, index, trajectory)

    def update(self) -> None:
        """Index every step recorded so far."""
        for step in self.unindexed_steps():
            self.add(step)

    # --- reading ---------------------------------------------------------------------------------------------------

    def index_status(self) -> dict[str, Any]:
        """Return the numbers of recorded steps, indexed steps and episodes, and the problems of unreadable steps."""
        with self._reading() as tables:
            (steps,) = tables.execute("SELECT count(*) FROM steps").fetchone()
            (episodes,) = tables.execute("SELECT count(*) FROM episodes").fetchone()
            problems = [text for (text,) in tables.execute("SELECT problem FROM steps WHERE problem != ''")]
        return {
            "recorded": len(self.home.recorded_steps()),
            "indexed": steps,
            "episodes": episodes,
            "problems": problems,
        }

    def steps(self) -> list[int]:
        """Return the indexed steps with episodes, oldest first."""
        with self._reading() as tables:
            return [step for (step,) in tables.execute("SELECT DISTINCT step FROM episodes ORDER BY step")]

    def names(self) -> list[str]:
        """Return the names of all metrics for filters and orders."""
        with self._reading() as tables:
            # One index lookup per name; SELECT DISTINCT would scan every row of the table.
            names, name = [], ""
            while (
                name := tables.execute("SELECT min(name) FROM figures WHERE name > ?", (name,)).fetchone()[0]
            ) is not None:
                names.append(name)
            return names

    def select(self, chosen: EpisodeFilter, offset: int = 0, limit: int = 50) -> tuple[int, list[IndexedEpisode]]:
        """Return the number of matching episodes, and one page of them in order."""
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
        """Return an episode of a step, or None if it is not indexed."""
        _, episodes = self.select(EpisodeFilter(first=step, last=step, episode=episode), limit=1)
        return episodes[0] if episodes else None

    def same_start(self, start: str) -> list[tuple[int, str]]:
        """Return (step, episode) of the first episode with this start in each step, oldest first."""
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


def _insert(tables: sqlite3.Connection, step: int, index: int, trajectory: Trajectory) -> None:
    deal, turns = trajectory.deal, trajectory.turns
    row = (
        *(step, index, trajectory.id, deal.group, deal.game, trajectory.start, trajectory.end, len(turns)),
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
    """Return the searchable text: start, last prompt message and answer of each turn."""
    parts = [trajectory.id, trajectory.start]
    for turn in trajectory.turns:
        parts += [turn.agent, *(message.content for message in turn.request.messages[-1:]), turn.completion.text]
    return "\n".join(parts)[:_LONGEST_TEXT]


def _with_figures(tables: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> list[IndexedEpisode]:
    figures: dict[int, dict[str, float]] = defaultdict(dict)
    marks = ", ".join("?" * len(rows))
    figure_rows: Iterable[tuple[int, str, float]] = tables.execute(
        f"SELECT id, name, value FROM figures WHERE id IN ({marks}) ORDER BY name", [row[0] for row in rows]
    )
    for number, name, value in figure_rows:
        figures[number][name] = value
    return [IndexedEpisode(*row[1:], figures=figures[row[0]]) for row in rows]
