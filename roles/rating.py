"""What roles share that judge what others said: numbers on a scale, verdicts within JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from roles import parsing
from roles.answer import AnsweringRole

_RANGE = {"unit": (0.0, 1.0), "ten": (1.0, 10.0), "sage": (0.0, 10.0)}


class RatingRole(AnsweringRole):
    """Gives a verdict; what else it says, others hear. With `answer: json`, the verdict is the field `tag`."""

    tag: str = Field(default="verdict", pattern=r"^[A-Za-z][\w-]*$")
    scale: Literal["unit", "ten", "sage"] = "unit"
    """Of scores: from 0 to 1; from 1 to 10; or as SAGE (arXiv 2603.15255) reads them, from 0 to 1 as they are and from
    above 1 to 10 as from 1 to 10. The move is a number from 0 to 1 with at most four decimals."""

    def read(self, text: str) -> str | None:
        if self.answer != "json":
            return super().read(text)
        value = (parsing.json_object(text, self.json_schema) or {}).get(self.tag)
        if isinstance(value, float):
            return f"{value:.12f}"
        return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None

    def write(self, said: str) -> str:
        if self.answer != "json":
            return super().write(said)
        number = parsing.json_value(said)
        return parsing.compact({self.tag: number if isinstance(number, int | float) else said})

    def rated(self, said: str) -> str | None:
        """The score in `said` as a move; never a neutral one where there is none."""
        low, high = _RANGE[self.scale]
        value = parsing.score(said, low, high)
        if value is None:
            return None
        if self.scale == "ten" or (self.scale == "sage" and value > 1):
            value = (value - 1) / 9
        # Adding 0 makes 0 of -0.
        return f"{value + 0.0:.4f}".rstrip("0").rstrip(".")

    def rating(self, move: str) -> str:
        """The score that is `move`.

        Raises:
            ValueError: if it is none.
        """
        value = parsing.score(move, 0.0, 1.0)
        if value is None:
            raise ValueError(f"role {self.kind}: {move!r} is no score from 0 to 1")
        return f"{1 + 9 * value:.12g}" if self.scale == "ten" else move
