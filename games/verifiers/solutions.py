"""Comparison of answers by structure: sets, tuples, assignments, matrices, equations, intervals, words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from games.verifiers.closed_form import exact, is_scalar, is_worked_out, symbols
from games.verifiers.copying import is_copied_relation
from games.verifiers.formulas import Tree, number
from games.verifiers.notation import plain
from games.verifiers.plus_minus import alternatives
from games.verifiers.real_sets import has_condition, is_same_set, is_simple, label, read_set
from games.verifiers.scalars import is_same_scalar
from games.verifiers.symbolic import equal, has_same_zeros
from games.verifiers.unit_vectors import components

_MAX_MEMBERS = 40
_LINE = re.compile(r"\bequations? (?:of|for)\b|\b(?:asymptotes?|axis|directrix|tangent)\b", re.I)


class Solutions:
    """Compares answers to a question, recursively."""

    def __init__(self, question: str) -> None:
        self._question = question

    @property
    def _asks_for_line(self) -> bool:
        """True where an equation is the answer, so that it may be rearranged; no unknown is to be found."""
        return not self._question.strip() or bool(_LINE.search(self._question))

    def same(self, gold: Tree, answer: Tree) -> bool:
        """Return True if an answer is the right one, in this or another notation."""
        if gold == answer:
            return True
        if is_scalar(gold) and is_scalar(answer) and not alternatives(gold) and not alternatives(answer):
            return is_same_scalar(gold, answer, self._question)
        return (
            self._same_names(gold, answer)
            or self._same_restated(gold, answer)
            or self._same_members(gold, answer)
            or self._same_items(gold, answer)
            or self._same_vector(gold, answer)
            or self._same_matrix(gold, answer)
            or self._same_relation(gold, answer)
            or self._same_real_set(gold, answer)
            or _same_words(gold, answer)
        )

    def _same_names(self, gold: Tree, answer: Tree) -> bool:
        """Compare x = 5 with 5, and x = 1, y = 2 with (1, 2)."""
        names, answered = _assignments(gold), _assignments(answer)
        if not names and not answered:
            return False
        if names and answered:
            same = names.keys() == answered.keys() and all(self.same(names[name], answered[name]) for name in names)
            return same and not (len(names) == 1 and _is_equation(gold))
        if len(names or answered) == 1:
            left, right = [*names.values(), gold][0], [*answered.values(), answer][0]
            return left.head != "relation" and right.head != "relation" and self.same(left, right)
        values = tuple(names.values()) if names else tuple(answered[name] for name in sorted(answered))
        point = Tree("sequence", values, "()")
        return self._same_items(point, answer) if names else self._same_items(gold, point)

    def _same_restated(self, gold: Tree, answer: Tree) -> bool:
        """Compare a number with one that is stated several times, as in x = 3/4 = 0.75 or "3/4 or 0.75"."""
        alternatives = answer.head == "list" and answer.name == "or"
        equations = answer.head == "relation" and set(answer.name.split()) == {"="}
        if not is_scalar(gold) or symbols(gold) or not (alternatives or equations):
            return False
        parts = answer.parts[1:] if equations and label(answer.parts[0]) else answer.parts
        return all(is_scalar(part) and self.same(gold, part) for part in parts)

    def _same_members(self, gold: Tree, answer: Tree) -> bool:
        """Compare sets, and solutions between commas, "or" or after a plus-minus sign, in any order."""
        if _assignments(gold) and len(_assignments(answer)) > 1:
            return False  # x_1 = 1, x_2 = 2 are solutions in any order unless the right answer names them, too
        members, answered = _members(gold), _members(answer)
        if members is None or answered is None or max(len(members), len(answered)) > _MAX_MEMBERS:
            return False
        return all(any(self.same(member, other) for other in answered) for member in members) and all(
            any(self.same(member, other) for member in members) for other in answered
        )

    def _same_items(self, gold: Tree, answer: Tree) -> bool:
        """Compare points, vectors and lists, item by item."""
        alike = gold.head == answer.head == "sequence" and gold.name == answer.name != "{}"
        return alike and self._same_each(gold.parts, answer.parts)

    def _same_each(self, gold: tuple[Tree, ...], answer: tuple[Tree, ...]) -> bool:
        return len(gold) == len(answer) and all(map(self.same, gold, answer))

    def _same_vector(self, gold: Tree, answer: Tree) -> bool:
        """Compare columns, points and sums of unit vectors; [a, b, c] may stand for a column, too."""
        column, brackets = _column(gold), ("()", "[]") if _column(gold) else ("()",)
        right = column or (gold.parts if gold.head == "sequence" and gold.name == "()" else ())
        stated = _column(answer) or (answer.parts if answer.head == "sequence" and answer.name in brackets else ())
        right, stated = right or components(gold, len(stated)), stated or components(answer, len(right))
        return len(right) > 1 and self._same_each(right, stated)

    def _same_matrix(self, gold: Tree, answer: Tree) -> bool:
        rows, answered = _rows(gold), _rows(answer)
        if rows and answer.head == "sequence" and {answer.name, *(row.name for row in answer.parts)} == {"[]"}:
            answered = [row.parts for row in answer.parts]  # [[1, 2], [3, 4]]
        if not rows or not answered or len(rows) != len(answered):
            return False
        return all(map(self._same_each, rows, answered))

    def _same_relation(self, gold: Tree, answer: Tree) -> bool:
        """Compare equations and inequalities; what stands on one side may be moved to the other."""
        if gold.head != "relation" or answer.head != "relation":
            return False
        if _assignments(gold) and not _is_equation(gold) and not (self._asks_for_line and _is_line(answer)):
            return False
        (relations, operands), (answer_relations, answer_operands) = _ascending(gold), _ascending(answer)
        if relations != answer_relations or len(operands) != len(answer_operands):
            return False
        if relations in (["in"], ["notin"], [":"]) or len(operands) > 2:
            return self._same_each(operands, answer_operands)
        if not all(map(is_scalar, (*operands, *answer_operands))):
            return False
        if is_copied_relation(answer, gold, self._question):
            return False
        left, right = _difference(operands), _difference(answer_operands)
        return has_same_zeros(left, right) if relations in (["="], ["ne"]) else equal(left, right)

    def _same_real_set(self, gold: Tree, answer: Tree) -> bool:
        variables, answered = symbols(gold), symbols(answer)
        if variables and answered and variables != answered:
            return False
        names = [set(_assignments(tree)) for tree in (gold, answer)]
        if all(names) and names[0] != names[1]:
            return False  # f(2) = 5 and f(3) = 5
        if _has_absolute_value(answer) and not _has_absolute_value(gold) and "|" in plain(self._question):
            return False  # an inequality of the question, which is still to be solved
        right, stated = read_set(gold), read_set(answer)
        if right is None or stated is None or not is_same_set(right, stated) or not is_simple(stated):
            return False
        numbers = list(_numbers(gold))
        return not numbers or all(
            any(is_worked_out(part, each, self._question) for each in numbers) for part in _numbers(answer)
        )


def _has_absolute_value(tree: Tree) -> bool:
    return any(part.head == "call" and part.name == "abs" for part in tree.walk())


def _numbers(tree: Tree) -> Iterator[Tree]:
    """Yield the numbers in a structure: its formulas without variables and infinities."""
    if both := alternatives(tree) if is_scalar(tree) else None:
        yield from both
    elif is_scalar(tree):
        if not symbols(tree) and not any(part.name in ("infty", "reals", "emptyset") for part in tree.walk()):
            yield tree
    else:
        for part in tree.parts:
            yield from _numbers(part)


def _same_words(gold: Tree, answer: Tree) -> bool:
    names = [tree.name.casefold().strip("().") for tree in (gold, answer) if tree.head in ("text", "symbol")]
    return len(names) == 2 and names[0] == names[1] and gold.head == "text"


# --- assignments -----------------------------------------------------------------------------------------------------


def _assignments(tree: Tree) -> dict[str, Tree]:
    """Return name -> value of x = 1, y = 2 or (x, y) = (1, 2) or x = 5; {} for everything else."""
    if tree.head == "list" and tree.name != "or":
        pairs = [_assignment(part) for part in tree.parts]
        names = {pair[0]: pair[1] for pair in pairs if pair}
        return names if len(names) == len(pairs) else {}
    if tree.head != "relation" or tree.name != "=":
        return {}
    left, right = tree.parts[0], tree.parts[-1]
    if left.head == "sequence" and right.head == "sequence" and len(left.parts) == len(right.parts):
        names = [part.name for part in left.parts if part.head == "symbol"]
        return dict(zip(names, right.parts, strict=True)) if len(set(names)) == len(right.parts) else {}
    pair = _assignment(tree)
    return {pair[0]: pair[1]} if pair else {}


def _assignment(tree: Tree) -> tuple[str, Tree] | None:
    """Return name and value of x = 5 or 5 = x or f(x) = x^2; None for other equations."""
    if tree.head != "relation" or tree.name != "=" or len(tree.parts) != 2:
        return None
    for side, value in (tree.parts, tree.parts[::-1]):
        if (name := label(side)) and name not in symbols(value):
            return name, value
    return None


def _is_equation(tree: Tree) -> bool:
    """Return True for y = 2x + 3, which may be rearranged, unlike x = 5."""
    pair = _assignment(tree)
    return pair is None or (is_scalar(pair[1]) and bool(symbols(pair[1])))


def _is_line(tree: Tree) -> bool:
    """Return True for x + 4 = 0."""
    left, right = tree.parts[0], tree.parts[-1]
    terms = left.parts if left.head == "sum" else ()
    is_sum = len(terms) == 2 and terms[0].head == "symbol" and exact(terms[1]) is not None
    return tree.name == "=" and len(tree.parts) == 2 and right == number(0) and is_sum


# --- sets ------------------------------------------------------------------------------------------------------------


def _members(tree: Tree) -> tuple[Tree, ...] | None:
    """Return the members of a set, the solutions of a list, both values of ±; None for everything else."""
    if tree.head == "relation" and (pair := _assignment(tree)):
        return _members(pair[1])
    if tree.head == "relation" and tree.name == "in" and tree.parts[0].head == "symbol":
        return _members(tree.parts[1])
    if tree == Tree("symbol", name="emptyset"):
        return ()
    if (tree.head == "sequence" and tree.name == "{}" and not has_condition(tree)) or tree.head == "list":
        parts = _without_names(tree.parts)
        return tuple(member for part in parts for member in _flat(part)) if parts else None
    return alternatives(tree)


def _flat(part: Tree) -> tuple[Tree, ...]:
    """Return what a part of a set stands for: both values of ±, all of a list, itself; a set in a set is a member."""
    return (part,) if part.head == "sequence" else _members(part) or (part,)


def _without_names(parts: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """Return the values of x = 1, x = 2 or x = 1, 2; () where different names stand."""
    pairs = [_assignment(part) if part.head == "relation" else None for part in parts]
    names = {re.sub(r"_[0-9]+$", "", pair[0]) for pair in pairs if pair}
    if len(names) > 1:
        return ()
    return tuple(pair[1] if pair else part for pair, part in zip(pairs, parts, strict=True))


# --- matrices, relations ---------------------------------------------------------------------------------------------


def _rows(tree: Tree) -> list[tuple[Tree, ...]]:
    """Return the rows of a matrix, or of one times or divided by a formula; [] for everything else."""
    if tree.head == "matrix":
        return [row.parts for row in tree.parts]
    places = [place for place, part in enumerate(tree.parts) if any(inner.head == "matrix" for inner in part.walk())]
    divides = (tree.head, places) == ("quotient", [1])
    if tree.head not in ("product", "negative", "quotient") or len(places) != 1 or divides:
        return []
    (place,) = places
    return [tuple(_scaled(tree, place, cell) for cell in row) for row in _rows(tree.parts[place])]


def _column(tree: Tree) -> tuple[Tree, ...]:
    """Return the items of a matrix of one column; () for everything else."""
    rows = _rows(tree)
    return tuple(row[0] for row in rows) if rows and len(rows[0]) == 1 else ()


def _scaled(tree: Tree, place: int, cell: Tree) -> Tree:
    """Return the product in which a cell stands in the place of its matrix, worked out if it is a rational number."""
    scaled = Tree(tree.head, (*tree.parts[:place], cell, *tree.parts[place + 1 :]), tree.name)
    value = exact(scaled) if cell.head in ("number", "negative", "quotient") else None
    return scaled if value is None else number(value)


def _ascending(relation: Tree) -> tuple[list[str], tuple[Tree, ...]]:
    """Return relations and operands, turned around if they descend: 3 < x for x > 3."""
    relations = relation.name.split()
    if not any(sign in (">", "ge") for sign in relations):
        return relations, relation.parts
    turned = {">": "<", "ge": "le", "<": ">", "le": "ge"}
    return [turned.get(sign, sign) for sign in reversed(relations)], relation.parts[::-1]


def _difference(operands: tuple[Tree, ...]) -> Tree:
    return Tree("sum", (operands[0], Tree("negative", (operands[1],))))
