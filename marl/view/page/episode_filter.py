"""Filters and orders of recorded episodes as SQL conditions. User values are always bound parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

_Step = Annotated[int, Field(ge=0, lt=2**63)]
"""Number of a step; SQLite stores whole numbers in 64 bits."""
Order = Literal["newest", "oldest", "best", "worst", "longest", "shortest"]


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Selection of episodes. Every non-default field narrows the selection."""

    text: str = ""
    """Words that must all occur in the episode's texts; the last word also matches as a prefix ("": any texts)."""
    role: str = ""
    """Role with at least one turn in the episode ("": any role)."""
    game: str = ""
    """Name of the game ("": any game)."""
    group: str = ""
    """Name of the episodes' group ("": any group)."""
    episode: str = ""
    """Name of the episode ("": any episode)."""
    start: str = ""
    """Start state of the episodes, as recorded ("": any start)."""
    first: _Step | None = None
    """Smallest step of a selected episode (None: no limit)."""
    last: _Step | None = None
    """Largest step of a selected episode (None: no limit)."""
    steps: tuple[int, ...] | None = None
    """Allowed steps (None: all)."""
    unreadable: bool = False
    """True selects episodes with an unreadable turn, of `role` if given."""
    cut_off: bool = False
    """True selects episodes with a turn that ended at `max_tokens`."""
    figure: str = ""
    """Metric between `low` and `high` ("": the sum of rewards, or the return of `role` if given)."""
    low: float | None = None
    """Minimum of the metric `figure` (None: no limit)."""
    high: float | None = None
    """Maximum of the metric `figure` (None: no limit)."""
    order: Order = "newest"
    """Order of the episodes. `best` and `worst` are by the metric `figure`; of equal ones, `worst` begins with those of
    most unreadable and cut-off turns, then with the longest, and `best` with the opposite."""

    def where_clause_and_values(self) -> tuple[str, list[Any]]:
        """Return the SQL WHERE clause of the filter ("" without conditions), and the clause's parameters."""
        clauses: list[str] = []
        parameters: list[Any] = []

        def add_condition(clause: str, *values: Any) -> None:
            clauses.append(clause)
            parameters.extend(values)

        columns = {"game": self.game, "peers": self.group, "episode": self.episode, "start": self.start}
        for column, text in columns.items():
            if text:
                add_condition(f"{column} = ?", text)
        if self.first is not None:
            add_condition("step >= ?", self.first)
        if self.last is not None:
            add_condition("step <= ?", self.last)
        if self.steps is not None:
            # The steps are one JSON parameter, because SQLite limits the number of bound parameters of a statement.
            add_condition("step IN (SELECT value FROM json_each(?))", str(list(self.steps)))
        if self.unreadable and not self.role:
            add_condition("unreadable > 0")
        if self.cut_off:
            add_condition("cut_off > 0")
        if self.role:
            for figure in (f"turns/{self.role}", *([f"unreadable/{self.role}"] if self.unreadable else [])):
                add_condition("episodes.id IN (SELECT id FROM figures WHERE name = ?)", figure)
        bounded, values = self._metric_sql_and_values()
        for sign, bound in ((">=", self.low), ("<=", self.high)):
            if bound is not None:
                add_condition(f"{bounded} {sign} ?", *values, bound)
        # Words are quoted, so that FTS5 reads none as an operator; a NUL would end the statement and is replaced.
        words = [word.replace('"', '""') for word in self.text.replace("\0", " ").split()]
        if words:
            phrases = '"' + '" "'.join(words) + '"*'
            add_condition("episodes.id IN (SELECT rowid FROM texts WHERE texts MATCH ?)", phrases)
        return (f"WHERE {' AND '.join(clauses)}" if clauses else ""), parameters

    def order_clause_and_values(self) -> tuple[str, list[Any]]:
        """Return the SQL ORDER BY clause of `order`, and the clause's parameters."""
        if self.order in ("best", "worst"):
            metric, values = self._metric_sql_and_values()
            first, ties = ("DESC", "ASC") if self.order == "best" else ("ASC", "DESC")
            failed = f"unreadable + cut_off {ties}, turns {ties}"
            return f"ORDER BY {metric} {first} NULLS LAST, {failed}, step DESC, place", values
        orders = {
            **{"newest": "step DESC, place", "oldest": "step, place"},
            **{"longest": "turns DESC, step DESC, place", "shortest": "turns, step DESC, place"},
        }
        return f"ORDER BY {orders[self.order]}", []

    def _metric_sql_and_values(self) -> tuple[str, list[Any]]:
        """Return the SQL expression of an episode's metric `figure`, and the expression's parameters."""
        name = self.figure or (f"return/{self.role}" if self.role else "")
        if not name:
            return "paid", []
        return "(SELECT value FROM figures WHERE name = ? AND id = episodes.id)", [name]
