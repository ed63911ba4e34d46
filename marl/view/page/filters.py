"""Filters and orders of recorded episodes, as conditions of SQL. Values never become part of a statement's text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Order = Literal["newest", "oldest", "best", "worst", "longest"]


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Selection of episodes; every field narrows it."""

    text: str = ""
    """Words that all occur; the last one may be the beginning of a word."""
    role: str = ""
    """A role that has a turn."""
    game: str = ""
    group: str = ""
    episode: str = ""
    start: str = ""
    """The start state, as it is recorded."""
    first: int | None = None
    last: int | None = None
    """First and last step."""
    steps: tuple[int, ...] | None = None
    """Only these steps; None: any."""
    unreadable: bool = False
    """Only episodes with a turn that could not be read: of the role, if one is chosen."""
    cut_off: bool = False
    """Only episodes with a turn that ended at `max_tokens`."""
    figure: str = ""
    """Name of a figure that `low` and `high` bound; "": the sum of rewards, or of the role, what it was paid."""
    low: float | None = None
    high: float | None = None
    order: Order = "newest"

    def condition(self) -> tuple[str, list[Any]]:
        """Return the WHERE clause, "" if everything matches, and its values."""
        clauses = [*self._of_columns(), *self._of_figures(), *self._of_text()]
        where = " AND ".join(clause for clause, _ in clauses)
        return (f"WHERE {where}" if where else ""), [value for _, values in clauses for value in values]

    def ordering(self) -> tuple[str, list[Any]]:
        """Return the ORDER BY clause and its values."""
        if self.order in ("best", "worst"):
            value, values = self._value()
            direction = "DESC" if self.order == "best" else "ASC"
            return f"ORDER BY {value} {direction} NULLS LAST, step DESC, place", values
        orders = {"newest": "step DESC, place", "oldest": "step, place", "longest": "turns DESC, step DESC, place"}
        return f"ORDER BY {orders[self.order]}", []

    def _of_columns(self) -> list[tuple[str, list[Any]]]:
        equal = {"game": self.game, "peers": self.group, "episode": self.episode, "start": self.start}
        clauses: list[tuple[str, list[Any]]] = [(f"{column} = ?", [value]) for column, value in equal.items() if value]
        clauses += [("step >= ?", [self.first])] if self.first is not None else []
        clauses += [("step <= ?", [self.last])] if self.last is not None else []
        if self.steps is not None:
            clauses.append(("step IN (SELECT value FROM json_each(?))", [str(list(self.steps))]))
        if self.unreadable and not self.role:
            clauses.append(("unreadable > 0", []))
        return [*clauses, ("cut_off > 0", [])] if self.cut_off else clauses

    def _of_figures(self) -> list[tuple[str, list[Any]]]:
        known = "episodes.id IN (SELECT id FROM figures WHERE name = ?)"
        clauses: list[tuple[str, list[Any]]] = []
        if self.role:
            clauses.append((known, [f"turns/{self.role}"]))
        if self.role and self.unreadable:
            clauses.append((known, [f"unreadable/{self.role}"]))
        value, values = self._value()
        clauses += [(f"{value} >= ?", [*values, self.low])] if self.low is not None else []
        return [*clauses, (f"{value} <= ?", [*values, self.high])] if self.high is not None else clauses

    def _value(self) -> tuple[str, list[Any]]:
        """Return the figure that is bounded and ordered by, as an expression of SQL."""
        name = self.figure or (f"return/{self.role}" if self.role else "")
        if not name:
            return "paid", []
        return "(SELECT value FROM figures WHERE name = ? AND id = episodes.id)", [name]

    def _of_text(self) -> list[tuple[str, list[Any]]]:
        words = [word.replace('"', '""') for word in self.text.replace("\0", " ").split()]
        if not words:
            return []
        phrases = " ".join(f'"{word}"' for word in words) + "*"
        return [("episodes.id IN (SELECT rowid FROM texts WHERE texts MATCH ?)", [phrases])]
