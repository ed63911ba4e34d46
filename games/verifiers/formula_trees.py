"""Trees of formulas.

Heads of trees, with operands: `number`; `symbol`; `text`; `sum`, `negative`, `product`, `quotient`, `power` (base,
exponent), `root` (radicand, index), `call` (arguments; `name` is the function), `plus_minus` and `minus_plus` (two
terms), `cross` (two vectors), `measured` (a formula; `name` is its unit), `sequence` (items; `name` is its two
brackets), `list` (items without brackets; `name` is "," or "and" or "or"), `relation` (sides; `name` is its signs),
`union`, `intersection`, `difference`, `matrix` (rows, each a `sequence`), `cases` (rows, each a value and its
condition).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

MIXED = "mixed"
"""Name of a number that is written exactly: a mixed number such as 2 1/3, a repeating decimal, or words."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula as a tree: its outermost operation (`head`) and the operands."""

    head: str
    """Kind of the outermost operation; the first lines of this module list all kinds."""
    operands: tuple[Formula, ...] = ()
    """Formulas to which the operation is applied, from left to right."""
    name: str = ""
    """Name of a symbol, function or unit, or the sign of a relation or list; "" for other formulas."""
    value: Fraction = Fraction(0)
    """Value of the formula if it is a number, else 0."""

    def walk(self) -> Iterator[Formula]:
        """Yield this tree and all its subtrees, parents first."""
        remaining = [self]
        while remaining:
            tree = remaining.pop()
            yield tree
            remaining += reversed(tree.operands)

    def node_heads(self) -> set[str]:
        """Return the operations in this formula: the `head` of the formula and of all its subtrees."""
        return {part.head for part in self.walk()}

    def symbols(self) -> set[str]:
        """Return the names of all variables and constants in this formula."""
        return {part.name for part in self.walk() if part.head == "symbol"}


def number_formula(number: int | Fraction) -> Formula:
    """Return `number` as a formula."""
    return Formula("number", value=Fraction(number))
