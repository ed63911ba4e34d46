"""Parameters of the page's URLs: numbers, and filters of episodes."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from marl.core.config import shorten
from marl.view.page.episode_filter import EpisodeFilter

MAX_ROWS = 200
"""Maximum number of episodes or steps in one answer."""
Query = Mapping[str, str]
"""Name of a URL parameter -> its value."""
_FILTERS = TypeAdapter(EpisodeFilter)


def parse_episode_filter(query: Query) -> EpisodeFilter:
    """Return the filter of a query. Empty values are ignored.

    Raises:
        ValueError: if a value has the wrong type or the order is unknown.
    """
    fields = EpisodeFilter.__dataclass_fields__.keys() - {"steps"}
    given = {name: value for name, value in query.items() if name in fields and value}
    try:
        return _FILTERS.validate_python(given)
    except ValidationError as error:
        problems = [
            f"{problem['loc'][0]}: {shorten(repr(problem['input']))}: {problem['msg']}" for problem in error.errors()
        ]
        raise ValueError("; ".join(problems)) from None


def integer_parameter(query: Query, name: str) -> int:
    """Return the parameter `name` of a URL as a whole number, or raise ValueError."""
    try:
        number = int(query[name])
    except (KeyError, ValueError):
        raise ValueError(f"{name}: must be a whole number, got {shorten(repr(query.get(name)))}") from None
    # SQLite's integers have 64 bits.
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name}: must be a whole number of at most 63 bits, got {shorten(query[name])}")
    return number


def optional_step_parameter(query: Query, name: str) -> int | None:
    """Return the parameter `name` of a URL as a step, or None if it is missing or empty."""
    return integer_parameter(query, name) if query.get(name) else None


def offset_and_limit(query: Query) -> tuple[int, int]:
    """Return (index of the first row, maximum number of rows) of the page that a URL asks for."""
    offset = integer_parameter(query, "offset") if "offset" in query else 0
    limit = integer_parameter(query, "limit") if "limit" in query else 50
    return max(0, offset), min(max(1, limit), MAX_ROWS)
