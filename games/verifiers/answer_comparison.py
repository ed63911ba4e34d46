"""Comparison of an answer with the right answer by structure: set, tuple, matrix, equation, interval or words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from marl.games.verifiers.closed_form import exact_value, is_scalar, is_worked_out, variables
from marl.games.verifiers.copied_formulas import is_copied_relation
from marl.games.verifiers.formulas import Formula, number_formula
from marl.games.verifiers.latex_notation import normalize_notation
from marl.games.verifiers.plus_minus import sign_alternatives
from marl.games.verifiers.real_sets import assigned_name, has_condition, is_same_set, is_simple, read_set
from marl.games.verifiers.scalars import is_same_scalar
from marl.games.verifiers.symbolic import has_same_zeros, is_equal
from marl.games.verifiers.unit_vectors import vector_components

_MAX_MEMBERS = 40
"""Maximum number of members of a set that is compared member by member (quadratic time)."""
_LINE = re.compile(r"\bequations? (?:of|for)\b|\b(?:asymptotes?|axis|directrix|tangent)\b", re.I)


class AnswerComparison:
    """Recursive comparison of two formulas as answers to one question."""

    def __init__(self, question: str) -> None:
        self._question = question

    def is_same(self, gold: Formula, answer: Formula) -> bool:
        """Return True if `answer` states the right answer `gold`, in any notation: the answer is accepted."""
        if gold == answer:
            return True
        if is_scalar(gold) and is_scalar(answer) and not sign_alternatives(gold) and not sign_alternatives(answer):
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

    def _same_names(self, gold: Formula, answer: Formula) -> bool:
        """Compare x = 5 with 5, and x = 1, y = 2 with (1, 2)."""
        right, stated = _assignments(gold), _assignments(answer)
        if right and stated:
            if len(right) == 1 and _is_equation(gold):
                return False
            return right.keys() == stated.keys() and all(self.is_same(right[name], stated[name]) for name in right)
        if not right and not stated:
            return False
        if len(right or stated) == 1:
            (value,) = (right or stated).values()
            unnamed = answer if right else gold
            if value.head == "relation" or unnamed.head == "relation":
                return False
            return self.is_same(value, unnamed) if right else self.is_same(unnamed, value)
        if right:
            return self._same_items(Formula("sequence", tuple(right.values()), "()"), answer)
        # An answer may list its names in any order; a point has them in alphabetical order.
        coordinates = tuple(stated[name] for name in sorted(stated))
        return self._same_items(gold, Formula("sequence", coordinates, "()"))

    def _same_restated(self, gold: Formula, answer: Formula) -> bool:
        """Compare a number with an answer that repeats the number, as in x = 3/4 = 0.75 or "3/4 or 0.75"."""
        alternatives = answer.head == "list" and answer.name == "or"
        equations = answer.head == "relation" and set(answer.name.split()) == {"="}
        if not is_scalar(gold) or variables(gold) or not (alternatives or equations):
            return False
        parts = answer.operands[1:] if equations and assigned_name(answer.operands[0]) else answer.operands
        return all(is_scalar(part) and self.is_same(gold, part) for part in parts)

    def _same_members(self, gold: Formula, answer: Formula) -> bool:
        """Compare sets, and solutions between commas, "or" or after a plus-minus sign, in any order."""
        if _assignments(gold) and len(_assignments(answer)) > 1:
            return False  # x_1 = 1, x_2 = 2 are solutions in any order unless the right answer names them, too
        members, stated = _members(gold), _members(answer)
        if members is None or stated is None or max(len(members), len(stated)) > _MAX_MEMBERS:
            return False
        for member in members:
            if not any(self.is_same(member, candidate) for candidate in stated):
                return False
        # The other direction rejects surplus solutions; repeated solutions count once.
        return all(any(self.is_same(member, candidate) for member in members) for candidate in stated)

    def _same_items(self, gold: Formula, answer: Formula) -> bool:
        """Compare points, vectors and lists, item by item."""
        alike = gold.head == answer.head == "sequence" and gold.name == answer.name != "{}"
        return alike and self._same_pairwise(gold.operands, answer.operands)

    def _same_pairwise(self, gold: tuple[Formula, ...], answer: tuple[Formula, ...]) -> bool:
        return len(gold) == len(answer) and all(map(self.is_same, gold, answer))

    def _same_vector(self, gold: Formula, answer: Formula) -> bool:
        """Compare columns, points and sums of unit vectors. For a column, [a, b, c] is accepted, too."""
        column, brackets = _column(gold), ("()", "[]") if _column(gold) else ("()",)
        right = column or (gold.operands if gold.head == "sequence" and gold.name == "()" else ())
        stated = _column(answer) or (answer.operands if answer.head == "sequence" and answer.name in brackets else ())
        right, stated = right or vector_components(gold, len(stated)), stated or vector_components(answer, len(right))
        return len(right) > 1 and self._same_pairwise(right, stated)

    def _same_matrix(self, gold: Formula, answer: Formula) -> bool:
        """Compare matrices row by row; [[1, 2], [3, 4]] is accepted for a matrix."""
        rows, stated = _rows(gold), _rows(answer)
        if rows and answer.head == "sequence" and {answer.name, *(row.name for row in answer.operands)} == {"[]"}:
            stated = [row.operands for row in answer.operands]
        if not rows or not stated or len(rows) != len(stated):
            return False
        return all(map(self._same_pairwise, rows, stated))

    def _same_relation(self, gold: Formula, answer: Formula) -> bool:
        """Compare equations and inequalities; terms may be moved from one side to the other."""
        if gold.head != "relation" or answer.head != "relation":
            return False
        if _assignments(gold) and not _is_equation(gold):
            # For x = -4, only a question for a line accepts the rearranged x + 4 = 0: elsewhere it is still to solve.
            asks_for_line = not self._question.strip() or _LINE.search(self._question)
            if not (asks_for_line and _is_line(answer)):
                return False
        (relations, operands), (answer_relations, answer_operands) = _ascending(gold), _ascending(answer)
        if relations != answer_relations or len(operands) != len(answer_operands):
            return False
        if relations in (["in"], ["notin"], [":"]) or len(operands) > 2:
            return self._same_pairwise(operands, answer_operands)
        if not all(map(is_scalar, (*operands, *answer_operands))):
            return False
        if is_copied_relation(answer, gold, self._question):
            return False
        left, right = _difference(operands), _difference(answer_operands)
        return has_same_zeros(left, right) if relations in (["="], ["ne"]) else is_equal(left, right)

    def _same_real_set(self, gold: Formula, answer: Formula) -> bool:
        """Compare sets of real numbers: intervals, inequalities, unions, complements."""
        gold_variables, answer_variables = variables(gold), variables(answer)
        if gold_variables and answer_variables and gold_variables != answer_variables:
            return False
        gold_names, answer_names = _assignments(gold).keys(), _assignments(answer).keys()
        if gold_names and answer_names and gold_names != answer_names:
            return False  # f(2) = 5 and f(3) = 5
        if _has_absolute_value(answer) and not _has_absolute_value(gold) and "|" in normalize_notation(self._question):
            return False  # an inequality of the question, which is still to be solved
        right, stated = read_set(gold), read_set(answer)
        if right is None or stated is None or not is_same_set(right, stated) or not is_simple(stated):
            return False
        numbers = list(_numbers(gold))
        if not numbers:
            return True
        for stated_number in _numbers(answer):
            if not any(is_worked_out(stated_number, number, self._question) for number in numbers):
                return False
        return True


def _has_absolute_value(tree: Formula) -> bool:
    return any(part.head == "call" and part.name == "abs" for part in tree.walk())


def _numbers(tree: Formula) -> Iterator[Formula]:
    """Yield the numbers in a structure: all formulas without variables and infinities, both values of ±."""
    if not is_scalar(tree):
        for part in tree.operands:
            yield from _numbers(part)
    elif alternatives := sign_alternatives(tree):
        yield from alternatives
    else:
        if not variables(tree) and not any(part.name in ("infty", "reals", "emptyset") for part in tree.walk()):
            yield tree


def _same_words(gold: Formula, answer: Formula) -> bool:
    """Compare words, up to case, brackets and full stops."""
    if gold.head != "text" or answer.head not in ("text", "symbol"):
        return False
    return gold.name.casefold().strip("().") == answer.name.casefold().strip("().")


# --- assignments -----------------------------------------------------------------------------------------------------


def _assignments(tree: Formula) -> dict[str, Formula]:
    """Return name -> value of x = 1, y = 2 or (x, y) = (1, 2) or x = 5, or {} for any other formula."""
    if tree.head == "list" and tree.name != "or":
        values = dict(filter(None, map(_assignment, tree.operands)))
        # x = 1, x = 2 are two solutions, not two assignments.
        return values if len(values) == len(tree.operands) else {}
    if tree.head != "relation" or tree.name != "=":
        return {}
    left, right = tree.operands[0], tree.operands[-1]
    if left.head == "sequence" and right.head == "sequence" and len(left.operands) == len(right.operands):
        names = [part.name for part in left.operands if part.head == "symbol"]
        return dict(zip(names, right.operands, strict=True)) if len(set(names)) == len(right.operands) else {}
    pair = _assignment(tree)
    return {pair[0]: pair[1]} if pair else {}


def _assignment(tree: Formula) -> tuple[str, Formula] | None:
    """Return name and value of x = 5 or 5 = x or f(x) = x^2, or None for any other formula."""
    if tree.head != "relation" or tree.name != "=" or len(tree.operands) != 2:
        return None
    for side, value in (tree.operands, tree.operands[::-1]):
        name = assigned_name(side)
        if name and name not in variables(value):
            return name, value
    return None


def _is_equation(tree: Formula) -> bool:
    """Return True if `tree` may be rearranged, as y = 2x + 3 may; x = 5 may not."""
    pair = _assignment(tree)
    return pair is None or (is_scalar(pair[1]) and bool(variables(pair[1])))


def _is_line(tree: Formula) -> bool:
    """Return True for x + 4 = 0."""
    left, right = tree.operands[0], tree.operands[-1]
    terms = left.operands if left.head == "sum" else ()
    is_sum = len(terms) == 2 and terms[0].head == "symbol" and exact_value(terms[1]) is not None
    return tree.name == "=" and len(tree.operands) == 2 and right == number_formula(0) and is_sum


# --- sets ------------------------------------------------------------------------------------------------------------


def _members(tree: Formula) -> tuple[Formula, ...] | None:
    """Return the members of a set, the solutions of a list or both values of ±, or None for any other formula."""
    if tree.head == "relation" and (pair := _assignment(tree)):
        return _members(pair[1])
    if tree.head == "relation" and tree.name == "in" and tree.operands[0].head == "symbol":
        return _members(tree.operands[1])
    if tree == Formula("symbol", name="emptyset"):
        return ()
    if (tree.head == "sequence" and tree.name == "{}" and not has_condition(tree)) or tree.head == "list":
        members = list[Formula]()
        for part in _without_names(tree.operands):
            # A set within a set is one member; ± and a nested list are several.
            members.extend((part,) if part.head == "sequence" else _members(part) or (part,))
        return tuple(members) or None
    return sign_alternatives(tree)


def _without_names(parts: tuple[Formula, ...]) -> tuple[Formula, ...]:
    """Return the values of x = 1, x = 2 or x = 1, 2, or () if the parts name different variables."""
    names, values = set[str](), list[Formula]()
    for part in parts:
        name, value = _assignment(part) or ("", part)
        values.append(value)
        if name:
            names.add(re.sub(r"_[0-9]+$", "", name))  # x_1 and x_2 are solutions for x
    return tuple(values) if len(names) < 2 else ()


# --- matrices, relations ---------------------------------------------------------------------------------------------


def _rows(tree: Formula) -> list[tuple[Formula, ...]]:
    """Return the rows of a matrix, also of a matrix times or divided by a formula, or [] for any other formula."""
    if tree.head == "matrix":
        return [row.operands for row in tree.operands]
    if tree.head not in ("product", "negative", "quotient"):
        return []
    indices = [i for i, part in enumerate(tree.operands) if any(inner.head == "matrix" for inner in part.walk())]
    divides = (tree.head, indices) == ("quotient", [1])
    if len(indices) != 1 or divides:
        return []
    (index,) = indices
    rows = list[tuple[Formula, ...]]()
    for row in _rows(tree.operands[index]):
        rows.append(tuple(_scaled(tree, index, cell) for cell in row))
    return rows


def _column(tree: Formula) -> tuple[Formula, ...]:
    """Return the items of a matrix with one column, or () for any other formula."""
    rows = _rows(tree)
    return tuple(row[0] for row in rows) if rows and len(rows[0]) == 1 else ()


def _scaled(tree: Formula, index: int, cell: Formula) -> Formula:
    """Return `tree` with `cell` for the matrix at operand `index`, evaluated if the result is a rational number."""
    scaled = Formula(tree.head, (*tree.operands[:index], cell, *tree.operands[index + 1 :]), tree.name)
    value = exact_value(scaled) if cell.head in ("number", "negative", "quotient") else None
    return scaled if value is None else number_formula(value)


def _ascending(relation: Formula) -> tuple[list[str], tuple[Formula, ...]]:
    """Return the relations and operands of a chain in ascending order: 3 < x for x > 3."""
    relations = relation.name.split()
    if not any(sign in (">", "ge") for sign in relations):
        return relations, relation.operands
    mirrored = {">": "<", "ge": "le", "<": ">", "le": "ge"}
    return [mirrored.get(sign, sign) for sign in reversed(relations)], relation.operands[::-1]


def _difference(sides: tuple[Formula, ...]) -> Formula:
    """Return left side minus right side, which is zero in every solution of the equation."""
    return Formula("sum", (sides[0], Formula("negative", (sides[1],))))
