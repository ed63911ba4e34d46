"""SQLite index of a run's recorded episodes in the cache folder, for filters and full-text search.

The run's folder is only read. The index grows step by step, newest first, even during training. A step whose file
changed is indexed again.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl.core.errors import RunFolderError
from marl.core.graph import Trajectory
from marl.host.paths import cache_folder
from marl.runs.run_folder import RunFolder
from marl.view.page.episode_filter import EpisodeFilter

_VERSION = 2
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
    """Indexed figures of one episode, as shown in the page's lists of episodes."""

    step: int
    """Step whose file holds the episode."""
    place: int
    """Position of the episode in the step's file, from 0."""
    episode: str
    """Name of the episode."""
    group: str
    """Name of the episode's group."""
    game: str
    """Name of the game, or "" in a run with one game."""
    start: str
    """Start state, as recorded."""
    end: str
    """Reason for the episode's end."""
    turns: int
    """Number of turns."""
    unreadable: int
    """Number of turns without a parsed legal move."""
    cut_off: int
    """Number of turns that ended at `max_tokens`."""
    paid: float
    """Sum of all rewards."""
    figures: Mapping[str, float]
    """Metric -> value: `return/ROLE`, `agent/AGENT` (a return), `turns/ROLE`, `unreadable/ROLE`, `measure/NAME`."""


class EpisodeIndex:
    """Index of one run. Several threads may read while one writes."""

    def __init__(self, run: Path) -> None:
        """Open the index of a run, creating it if necessary.

        Raises:
            RunFolderError: if the cache folder cannot be written.
        """
        self.home = RunFolder(run)
        name = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:20]
        self.file = cache_folder() / "page" / f"{name}.sqlite3"
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with closing(self._connect_to_index()) as tables, tables:
                # In WAL mode, readers go on while the indexing thread writes.
                tables.execute("PRAGMA journal_mode = WAL")
                tables.execute("BEGIN IMMEDIATE")
                # The version is read inside the transaction, since another page may just have built the tables.
                if tables.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                    query = "SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE %TABLE%'"
                    for (table,) in tables.execute(query).fetchall():
                        tables.execute(f'DROP TABLE IF EXISTS "{table}"')
                    for statement in filter(str.strip, _TABLES.split(";")):
                        tables.execute(statement)
                    tables.execute(f"PRAGMA user_version = {_VERSION}")
        except (OSError, sqlite3.Error) as error:
            raise RunFolderError(f"{self.file} cannot be written: {error}; MARL_CACHE names another folder") from error

    def _connect_to_index(self) -> sqlite3.Connection:
        """Return a connection to the index, without automatic transactions."""
        connection = sqlite3.connect(self.file, timeout=_BUSY_S, isolation_level=None)
        # Without synchronous writes, a crash may destroy the index, which is then rebuilt from the run.
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    @contextmanager
    def _open_for_reading(self) -> Iterator[sqlite3.Connection]:
        """Open a read-only connection to the index."""
        with closing(self._connect_to_index()) as tables:
            tables.execute("PRAGMA query_only = 1")
            yield tables

    # --- methods that index new steps ------------------------------------------------------------------------------

    def unindexed_steps(self) -> list[int]:
        """Return the recorded steps that the index lacks or holds in an outdated version, newest first.

        Steps removed from the run are deleted from the index, unless the whole run's folder is missing."""
        if not (self.home.path / "scenario.yaml").is_file():
            return []
        stamps = self.home.trajectory_file_stamp_by_step()
        with closing(self._connect_to_index()) as tables:
            indexed = dict(tables.execute("SELECT step, stamp FROM steps"))
            for step in indexed.keys() - stamps.keys():
                with tables:
                    tables.execute("BEGIN IMMEDIATE")
                    _delete_step(tables, step)
        return sorted((step for step, stamp in stamps.items() if indexed.get(step) != stamp), reverse=True)

    def index_step(self, step: int) -> None:
        """Index one recorded step. For an unreadable step the index stores the problem and no episodes."""
        stamp = self.home.trajectory_file_stamp_by_step().get(step)
        if stamp is None:
            return
        problem, episodes = "", []
        # Episodes are loaded before the transaction, which blocks other writers.
        try:
            episodes = self.home.load_trajectories(step)
        except FileNotFoundError:  # the run's folder has been moved away meanwhile
            return
        except (ValueError, RunFolderError) as error:
            problem = str(error)
        with closing(self._connect_to_index()) as tables, tables:
            tables.execute("BEGIN IMMEDIATE")
            _delete_step(tables, step)
            tables.execute("INSERT INTO steps VALUES (?, ?, ?)", (step, stamp, problem))
            for index, trajectory in enumerate(episodes):
                deal, turns = trajectory.deal, trajectory.turns
                # `texts` are searchable: the last prompt message and the answer of each turn.
                texts, unreadable, cut_off = [trajectory.id, trajectory.start], 0, 0
                for turn in turns:
                    unreadable += turn.action is None
                    cut_off += turn.completion.finish == "length"
                    texts.append(turn.agent)
                    if turn.request.messages:
                        texts.append(turn.request.messages[-1].content)
                    texts.append(turn.completion.text)
                row = (
                    *(step, index, trajectory.id, deal.group, deal.game, trajectory.start, trajectory.end, len(turns)),
                    *(unreadable, cut_off, sum(reward.value for reward in trajectory.rewards)),
                )
                number = tables.execute(f"INSERT INTO episodes VALUES (NULL{', ?' * len(row)})", row).lastrowid
                figures = [(name, number, value) for name, value in _episode_metrics(trajectory).items()]
                tables.executemany("INSERT INTO figures VALUES (?, ?, ?)", figures)
                text = "\n".join(texts)[:_LONGEST_TEXT]
                tables.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (number, text))

    def index_new_steps(self) -> None:
        """Index every step recorded so far."""
        for step in self.unindexed_steps():
            self.index_step(step)

    # --- methods that read the index -------------------------------------------------------------------------------

    def index_counts_and_unreadable_steps(self) -> dict[str, Any]:
        """Return the numbers of recorded steps, indexed steps and episodes, and the problems of unreadable steps."""
        with self._open_for_reading() as tables:
            (steps,) = tables.execute("SELECT count(*) FROM steps").fetchone()
            (episodes,) = tables.execute("SELECT count(*) FROM episodes").fetchone()
            problems = [text for (text,) in tables.execute("SELECT problem FROM steps WHERE problem != ''")]
        return {
            "recorded": len(self.home.recorded_steps()),
            "indexed": steps,
            "episodes": episodes,
            "problems": problems,
        }

    def indexed_steps(self) -> list[int]:
        """Return the indexed steps with episodes, oldest first."""
        with self._open_for_reading() as tables:
            return [step for (step,) in tables.execute("SELECT DISTINCT step FROM episodes ORDER BY step")]

    def metric_names(self) -> list[str]:
        """Return the names of all metrics by which episodes can be filtered and ordered."""
        with self._open_for_reading() as tables:
            # Each name takes one index lookup, whereas SELECT DISTINCT would scan every row of the table.
            query = "SELECT min(name) FROM figures WHERE name > ?"
            names, name = list[str](), ""
            while (name := tables.execute(query, (name,)).fetchone()[0]) is not None:
                names.append(name)
            return names

    def query_episodes(
        self, episode_filter: EpisodeFilter, offset: int = 0, limit: int = 50
    ) -> tuple[int, list[IndexedEpisode]]:
        """Return the number of matching episodes, and one page of them in order."""
        condition, values = episode_filter.where_clause_and_values()
        order, order_values = episode_filter.order_clause_and_values()
        with self._open_for_reading() as tables:
            (count,) = tables.execute(f"SELECT count(*) FROM episodes {condition}", values).fetchone()
            rows = tables.execute(
                f"SELECT episodes.* FROM episodes {condition} {order} LIMIT ? OFFSET ?",
                [*values, *order_values, limit, offset],
            ).fetchall()
            figures: dict[int, dict[str, float]] = defaultdict(dict)
            marks = ", ".join("?" * len(rows))
            figure_rows: Iterable[tuple[int, str, float]] = tables.execute(
                f"SELECT id, name, value FROM figures WHERE id IN ({marks}) ORDER BY name", [row[0] for row in rows]
            )
            for number, name, value in figure_rows:
                figures[number][name] = value
        return count, [IndexedEpisode(*row[1:], figures=figures[row[0]]) for row in rows]

    def find_episode(self, step: int, episode: str) -> IndexedEpisode | None:
        """Return an episode of a step, or None if it is not indexed."""
        _, episodes = self.query_episodes(EpisodeFilter(first=step, last=step, episode=episode), limit=1)
        return episodes[0] if episodes else None

    def first_episode_per_step(self, start_state: str) -> list[tuple[int, str]]:
        """Return (step, episode) of the first episode with this start in each step, oldest first."""
        with self._open_for_reading() as tables:
            rows = tables.execute(
                "SELECT step, episode, min(place) FROM episodes WHERE start = ? GROUP BY step ORDER BY step",
                (start_state,),
            )
            return [(step, episode) for step, episode, _ in rows]


def _delete_step(tables: sqlite3.Connection, step: int) -> None:
    """Delete a step with its episodes from the index."""
    of_step = "(SELECT id FROM episodes WHERE step = ?)"
    tables.execute(f"DELETE FROM texts WHERE rowid IN {of_step}", (step,))
    tables.execute(f"DELETE FROM figures WHERE id IN {of_step}", (step,))
    tables.execute("DELETE FROM episodes WHERE step = ?", (step,))
    tables.execute("DELETE FROM steps WHERE step = ?", (step,))


def _episode_metrics(trajectory: Trajectory) -> dict[str, float]:
    """Return the metrics of an episode, as listed at `IndexedEpisode.figures`."""
    figures: dict[str, float] = defaultdict(float)
    seats = trajectory.deal.seats
    for role in seats.values():
        figures[f"return/{role}"] = 0.0
    for reward in trajectory.rewards:
        figures[f"return/{seats.get(reward.agent, reward.agent)}"] += reward.value
    # An agent that sampled an answer and got no reward has the return 0; a verifier without rewards has none.
    sampling_agents = {turn.agent for turn in trajectory.turns if turn.completion.token_ids}
    for agent, value in (dict.fromkeys(sampling_agents, 0.0) | trajectory.returns).items():
        figures[f"agent/{agent}"] = value
    for turn in trajectory.turns:
        figures[f"turns/{turn.role}"] += 1.0
        if turn.action is None:
            figures[f"unreadable/{turn.role}"] += 1.0
    for name, value in trajectory.findings.measures.items():
        figures[f"measure/{name}"] = value
    return figures
