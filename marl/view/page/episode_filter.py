"""Filters and orders of recorded episodes as SQL conditions. User values are always bound parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Order = Literal["newest", "oldest", "best", "worst", "longest"]


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Selection of episodes. Every non-default field narrows the selection."""

    text: str = ""
    """Words that must all occur; the last word also matches as a prefix."""
    role: str = ""
    """Role with at least one turn."""
    game: str = ""
    group: str = ""
    episode: str = ""
    start: str = ""
    """Start state, as recorded."""
    first: int | None = None
    last: int | None = None
    """First and last step, both inclusive."""
    steps: tuple[int, ...] | None = None
    """Allowed steps (None: all)."""
    unreadable: bool = False
    """True selects episodes with an unreadable turn, of `role` if given."""
    cut_off: bool = False
    """True selects episodes with a turn that ended at `max_tokens`."""
    figure: str = ""
    """Metric bounded by `low` and `high`. "" means the sum of rewards, or the return of `role` if given."""
    low: float | None = None
    high: float | None = None
    order: Order = "newest"

    def condition(self) -> tuple[str, list[Any]]:
        """Return the WHERE clause ("" without conditions) and its parameters."""
        clauses = [*self._of_columns(), *self._of_figures(), *self._of_text()]
        if not clauses:
            return "", []
        parameters: list[Any] = []
        for _, values in clauses:
            parameters += values
        return f"WHERE {' AND '.join(clause for clause, _ in clauses)}", parameters

    def ordering(self) -> tuple[str, list[Any]]:
        """Return the ORDER BY clause and its parameters."""
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
            # One JSON parameter: SQLite limits the number of bound parameters of a statement.
            clauses.append(("step IN (SELECT value FROM json_each(?))", [str(list(self.steps))]))
        if self.unreadable and not self.role:
            clauses.append(("unreadable > 0", []))
        return [*clauses, ("cut_off > 0", [])] if self.cut_off else clauses

    def _of_figures(self) -> list[tuple[str, list[Any]]]:
        has_figure = "episodes.id IN (SELECT id FROM figures WHERE name = ?)"
        clauses: list[tuple[str, list[Any]]] = []
        if self.role:
            clauses.append((has_figure, [f"turns/{self.role}"]))
        if self.role and self.unreadable:
            clauses.append((has_figure, [f"unreadable/{self.role}"]))
        value, values = self._value()
        clauses += [(f"{value} >= ?", [*values, self.low])] if self.low is not None else []
        return [*clauses, (f"{value} <= ?", [*values, self.high])] if self.high is not None else clauses

    def _value(self) -> tuple[str, list[Any]]:
        """Return the SQL expression of the bounded metric, and its parameters."""
        name = self.figure or (f"return/{self.role}" if self.role else "")
        if not name:
            return "paid", []
        return "(SELECT value FROM figures WHERE name = ? AND id = episodes.id)", [name]

    def _of_text(self) -> list[tuple[str, list[Any]]]:
        # Quoted phrases, so that FTS5 reads no word as an operator. A NUL would end the statement's text.
        words = [word.replace('"', '""') for word in self.text.replace("\0", " ").split()]
        if not words:
            return []
        phrases = " ".join(f'"{word}"' for word in words) + "*"
        return [("episodes.id IN (SELECT rowid FROM texts WHERE texts MATCH ?)", [phrases])]
