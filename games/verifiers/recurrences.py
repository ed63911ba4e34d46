"""Recurrences and sequences, whose index may be shifted or renamed: a_{n+1} = 2a_n is a_k = 2a_{k-1}."""

from __future__ import annotations

import re

from marl.games.verifiers.formulas import Formula, number_formula
from marl.games.verifiers.unknown_functions import is_unknown_call

_INDEXED = re.compile(r"([A-Za-z])_([ijkmnrt])([+-]\d{1,3})?")
_VARIABLES = frozenset("ijkmnrt")
_FIBONACCI = re.compile(r"\bFibonacci\b", re.I)
_MAX_STEPS = 40


def with_standard_index(tree: Formula) -> Formula:
    """Return an equation between members of a sequence with the index n of its last member, or `tree` itself.

    The index must occur elsewhere, too: v_i = 3 is about a label, and no sequence.
    """
    if tree.head != "relation" or tree.name != "=":
        return tree
    members = [
        (name, index, shift)
        for part in tree.walk()
        if (member := _sequence_term(part))
        for name, index, shift in [member]
    ]
    indices = {index for _, index, _ in members}
    if len(indices) != 1 or len({name for name, _, _ in members}) != 1:
        return tree
    (index,) = indices
    if len({shift for _, _, shift in members}) < 2 and not _has_symbol(tree, index):
        return tree
    return _shifted(tree, index, max(shift for _, _, shift in members))


def with_two_fibonacci_numbers(tree: Formula, question: str) -> Formula:
    """Return `tree` with F_n and F_{n+1} for all Fibonacci numbers near F_n, if `question` is about these numbers."""
    if not _FIBONACCI.search(question) or tree.head == "relation":
        return tree
    operands = tuple(with_two_fibonacci_numbers(part, question) for part in tree.operands)
    member = _sequence_term(tree) if tree.head == "symbol" else None
    if member is None or abs(member[2]) > _MAX_STEPS:
        return Formula(tree.head, operands, tree.name, tree.value)
    name, index, shift = member
    # Fibonacci's addition formula reduces any member to two: F_{n+s} = F_s F_{n+1} + F_{s-1} F_n.
    first, second = (Formula("symbol", name=f"{name}_{index}{suffix}") for suffix in ("", "+1"))
    pairs = ((_fibonacci(shift), second), (_fibonacci(shift - 1), first))
    return Formula("sum", tuple(Formula("product", (number_formula(factor), symbol)) for factor, symbol in pairs))


def _fibonacci(index: int) -> int:
    if index < 0:
        return -((-1) ** -index) * _fibonacci(-index)
    number, following = 0, 1
    for _ in range(index):
        number, following = following, number + following
    return number


def _sequence_term(tree: Formula) -> tuple[str, str, int] | None:
    """Return name, index and shift of a member of a sequence: (a, n, 1) for a_{n+1} and for a(n+1)."""
    if tree.head == "symbol" and (match := _INDEXED.fullmatch(tree.name)):
        return match[1], match[2], int(match[3] or 0)
    if not is_unknown_call(tree) or len(tree.operands) != 1:
        return None
    argument = tree.operands[0]
    if argument.head == "symbol" and argument.name in _VARIABLES:
        return tree.name, argument.name, 0
    if argument.head != "sum" or len(argument.operands) != 2 or argument.operands[0].head != "symbol":
        return None
    index, shift = argument.operands
    value = -shift.operands[0].value if shift.head == "negative" else shift.value
    is_number = (shift.operands[0] if shift.head == "negative" else shift).head == "number"
    is_shift = is_number and value.denominator == 1 and index.name in _VARIABLES
    return (tree.name, index.name, int(value)) if is_shift else None


def _has_symbol(tree: Formula, name: str) -> bool:
    """Return True if the variable `name` occurs in `tree` outside of an index or an argument."""
    if _sequence_term(tree):
        return False
    return (tree.head == "symbol" and tree.name == name) or any(_has_symbol(part, name) for part in tree.operands)


def _shifted(tree: Formula, index: str, shift: int) -> Formula:
    """Return `tree` with n - `shift` for the variable `index`."""
    if member := _sequence_term(tree):
        offset = member[2] - shift
        return Formula("symbol", name=f"{member[0]}_n{offset:+d}" if offset else f"{member[0]}_n")
    if tree.head == "symbol" and tree.name == index:
        variable = Formula("symbol", name="n")
        return Formula("sum", (variable, number_formula(-shift))) if shift else variable
    return Formula(tree.head, tuple(_shifted(part, index, shift) for part in tree.operands), tree.name, tree.value)
