"""Comparison of an answer with the right answer by structure: set, tuple, matrix, equation, interval or words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from marl.games.verifiers.closed_form import SCALARS, exact_value, is_fully_evaluated, is_scalar, variables
from marl.games.verifiers.copied_formulas import holds_copied_formula, is_copied_relation
from marl.games.verifiers.formulas import Formula, number_formula
from marl.games.verifiers.general_solutions import is_same_progression
from marl.games.verifiers.latex_notation import normalize_notation
from marl.games.verifiers.ordered_products import compare_ordered
from marl.games.verifiers.parametric_points import are_same_points_along_line, scaled_items
from marl.games.verifiers.piecewise import is_same_piecewise
from marl.games.verifiers.plus_minus import sign_alternatives
from marl.games.verifiers.real_sets import (
    assigned_name,
    changes_at_every_endpoint,
    condition_of_set,
    is_same_set,
    read_set,
)
from marl.games.verifiers.scalars import compare_scalars
from marl.games.verifiers.symbolic import Comparison, approximate, compare, has_same_zeros
from marl.games.verifiers.unit_vectors import vector_components
from marl.games.verifiers.unknown_functions import is_unknown_call

_MAX_MEMBERS = 40
"""Maximum number of members of two sets whose members are compared pairwise (in quadratic time)."""
_ASKS_FOR_LINE = re.compile(r"\bequations? (?:of|for)\b|\b(?:asymptotes?|axis|directrix|tangent)\b", re.I)

_COUNTS_REPETITIONS = re.compile(r"\bmultiplicit", re.I)
_ASKS_FOR_VECTOR = re.compile(r"\bvectors?\b", re.I)
_ASKS_FOR_ORDER = re.compile(
    r"\bin (?:\w+ )?order\b|\b(?:ascending|descending|increasing|decreasing)\b.{0,20}\border\b"
    r"|\b(?:least|smallest|largest) to (?:greatest|largest|smallest)\b|^\W*(?:order|rank|sort|arrange)\b"
    r"|\b(?:smallest|largest|least|greatest|highest|lowest|shortest|longest|oldest|youngest|earliest) first\b"
    r"|\brespectively\b|\bterms of the sequence\b"
    r"|\b(?:first|next|last) \w+ (?:terms|numbers|digits|elements)\b",
    re.I,
)
"""Pattern of a question whose answer lists values in a given order, unlike the solutions of an equation."""


class AnswerComparison:
    """Recursive comparison of two formulas as answers to one question."""

    def __init__(self, question: str, ordered_names: frozenset[str]) -> None:
        self._question = question
        self._ordered_names = ordered_names
        self.is_undecided = False
        """True once two formulas were compared of which it is unknown whether they are equal."""

    def is_same(self, gold: Formula, answer: Formula) -> bool:
        """Return True if `answer` states the right answer `gold`, in any notation: the answer is accepted."""
        if gold == answer:
            return True
        if (ordered := self._compare_ordered(gold, answer)) is not None:
            return ordered
        if is_scalar(gold) and is_scalar(answer) and not sign_alternatives(gold) and not sign_alternatives(answer):
            return self._is_equal_outcome(compare_scalars(gold, answer, self._question))
        return (
            self._have_same_assigned_values(gold, answer)
            or self._describe_same_graph(gold, answer)
            or self._repeats_formula(gold, answer)
            or self._have_same_set_elements(gold, answer)
            or self._are_equal_sequences(gold, answer)
            or self._are_equal_vectors(gold, answer)
            or self._are_equal_matrices(gold, answer)
            or self._have_same_cases(gold, answer)
            or is_same_progression(gold, answer)
            or is_same_piecewise(gold, answer, self._question)
            or are_same_points_along_line(gold, answer, self._question)
            or self._are_equal_relations(gold, answer)
            or self._are_equal_real_sets(gold, answer)
            # Two texts are equal if they differ only in case, brackets and full stops.
            or (
                gold.head == "text"
                and answer.head in ("text", "symbol")
                and gold.name.casefold().strip("().") == answer.name.casefold().strip("().")
            )
        )

    def _compare_ordered(self, gold: Formula, answer: Formula) -> bool | None:
        """Return True if formulas or equations with ordered factors are equal, else False; None for other formulas."""
        if gold.head == answer.head == "relation" and gold.name == answer.name == "=":
            if len(gold.operands) != 2 or len(answer.operands) != 2:
                return None
            left, right = _left_minus_right(gold.operands), _left_minus_right(answer.operands)
            outcome = self._compare_ordered(left, right)
            return None if outcome is None else outcome or self._compare_ordered(Formula("negative", (left,)), right)
        if not gold.node_heads() | answer.node_heads() <= SCALARS | {"cross"}:
            return None
        outcome = compare_ordered(gold, answer, self._ordered_names, self._question)
        if outcome is None:
            return None

        def is_same_product(left: Formula, other: Formula) -> bool:
            return bool(compare_ordered(left, other, self._ordered_names))

        is_copied = bool(outcome) and holds_copied_formula(answer, gold, self._question, is_same_product)
        return self._is_equal_outcome(outcome) and not is_copied

    def _is_equal_outcome(self, outcome: Comparison) -> bool:
        """Return True if `outcome` is `EQUAL`; set `is_undecided` if `outcome` is `UNKNOWN`."""
        self.is_undecided |= outcome is Comparison.UNKNOWN
        return bool(outcome)

    def _have_same_assigned_values(self, gold: Formula, answer: Formula) -> bool:
        """Return True if both formulas assign equal values to variables: x = 5 and 5, or x = 1, y = 2 and (1, 2)."""
        right, stated = _assigned_values(gold), _assigned_values(answer)
        if right and stated:
            if right.keys() != stated.keys() or (len(right) == 1 and _can_be_rearranged(gold)):
                return False
            return self._are_equal_pairwise(tuple(right.values()), tuple(map(stated.__getitem__, right)))
        if not right and not stated:
            return False
        if len(right or stated) == 1:
            (value,) = (right or stated).values()
            unnamed = answer if right else gold
            if value.head == "relation" or unnamed.head == "relation":
                return False
            return self.is_same(value, unnamed) if right else self.is_same(unnamed, value)
        if right:
            return self._are_equal_sequences(Formula("sequence", tuple(right.values()), "()"), answer)
        # An answer may list named values in any order; the coordinates of a point follow the alphabet (x, y, z).
        coordinates = tuple(stated[name] for name in sorted(stated))
        return self._are_equal_sequences(gold, Formula("sequence", coordinates, "()"))

    def _describe_same_graph(self, gold: Formula, answer: Formula) -> bool:
        """Return True if one formula is y = v and the other one f(x) = v, for equal values v in x."""
        if not all(tree.head == "relation" and tree.name == "=" and len(tree.operands) == 2 for tree in (gold, answer)):
            return False
        (left, value), (other, stated) = gold.operands, answer.operands
        function, variable = (left, other) if is_unknown_call(left) else (other, left)
        is_graph = is_unknown_call(function) and variable == Formula("symbol", name="y") and len(function.operands) == 1
        if not is_graph or variables(value) != function.operands[0].symbols():
            return False
        return self.is_same(value, stated)

    def _repeats_formula(self, gold: Formula, answer: Formula) -> bool:
        """Return True if `answer` states `gold` several times, as in x = 3/4 = 0.75, "3/4 or 0.75" or (2t)^2 = 4t^2."""
        alternatives = answer.head == "list" and answer.name == "or" and not variables(gold)
        equations = answer.head == "relation" and set(answer.name.split()) == {"="}
        if not is_scalar(gold) or not (alternatives or equations):
            return False
        sides = answer.operands[1:] if equations and assigned_name(answer.operands[0]) else answer.operands
        if not all(map(is_scalar, sides)):
            return False
        if not variables(gold) and all(self.is_same(gold, side) for side in sides):
            return True
        # An answer such as A = 3 + 5 = 8 states its last side, provided that the calculation is right.
        *steps, last = sides
        is_named = equations and (sides is not answer.operands or bool(self._question.strip()))
        return is_named and self.is_same(gold, last) and all(self._is_right_step(gold, step) for step in steps)

    def _is_right_step(self, gold: Formula, step: Formula) -> bool:
        """Return True if a side of a calculation equals its result, or has variables, so that this is not known."""
        ordered = compare_ordered(gold, step, self._ordered_names)
        if ordered is None and variables(step) and not variables(gold):
            return True
        return self._is_equal_outcome(compare(gold, step) if ordered is None else ordered)

    def _have_same_set_elements(self, gold: Formula, answer: Formula) -> bool:
        """Return True for equal sets or solutions, in any order: in braces, between commas or "or", or after ±."""
        if self._has_fixed_names(gold, answer):
            return False
        if _have_other_connectives(gold, answer):
            return False
        if gold.head == answer.head == "list" and _ASKS_FOR_ORDER.search(self._question):
            return self._are_equal_pairwise(gold.operands, answer.operands)
        members, stated = _set_elements(gold), _set_elements(answer)
        if members is None or stated is None or max(len(members), len(stated)) > _MAX_MEMBERS:
            return False
        if _COUNTS_REPETITIONS.search(self._question):
            return len(members) == len(stated) and self._have_equal_elements(members, stated)
        surplus = set(stated)
        for member in members:
            equal = {candidate for candidate in stated if self.is_same(member, candidate)}
            if not equal:
                return False  # a member of the right answer is missing in `answer`
            surplus -= equal
        # `stated` may repeat a solution: only members that are not right count as surplus.
        return not surplus

    def _have_equal_elements(self, gold_elements: tuple[Formula, ...], answer_elements: tuple[Formula, ...]) -> bool:
        remaining = list(answer_elements)
        for member in gold_elements:
            found = next((candidate for candidate in remaining if self.is_same(member, candidate)), None)
            if found is None:
                return False
            remaining.remove(found)
        return True

    def _has_fixed_names(self, gold: Formula, answer: Formula) -> bool:
        """Return True if the values of `answer` must be compared by name, because both formulas name their values.

        Names with an index, such as x_1 and x_2, are solutions for x, unless the question names them.
        """
        names, stated = _assigned_values(gold), _assigned_values(answer)
        if not names or len(stated) < 2:
            return False
        stems = {re.sub(r"_\d$", "", name) for name in (*names, *stated)}
        is_indexed = all(re.search(r"_\d$", name) for name in stated)
        question = self._question
        is_free = len(stems) == 1 and is_indexed and question.strip() and not re.search(r"[A-Za-z]_\{?\d", question)
        return not is_free

    def _are_equal_sequences(self, gold: Formula, answer: Formula) -> bool:
        """Return True for points, vectors or lists in the same brackets with equal items."""
        alike = gold.head == answer.head == "sequence" and gold.name == answer.name != "{}"
        if {gold.head, answer.head} == {"list", "sequence"} and _ASKS_FOR_ORDER.search(self._question):
            alike = "{}" not in (gold.name, answer.name) and "or" not in (gold.name, answer.name)
        return alike and self._are_equal_pairwise(gold.operands, answer.operands)

    def _are_equal_pairwise(self, gold: tuple[Formula, ...], answer: tuple[Formula, ...]) -> bool:
        return len(gold) == len(answer) and all(map(self.is_same, gold, answer))

    def _are_equal_vectors(self, gold: Formula, answer: Formula) -> bool:
        """Return True for equal vectors: columns, points, sums of unit vectors; [a, b, c] is accepted for a column."""
        column = _column_items(gold)
        brackets = ("()", "[]") if column or _ASKS_FOR_VECTOR.search(self._question) else ("()",)
        right = column or (gold.operands if gold.head == "sequence" and gold.name == "()" else ())
        stated = _column_items(answer) or (
            answer.operands if answer.head == "sequence" and answer.name in brackets else ()
        )
        right, stated = right or scaled_items(gold), stated or scaled_items(answer)
        right, stated = right or vector_components(gold, len(stated)), stated or vector_components(answer, len(right))
        return len(right) > 1 and self._are_equal_pairwise(right, stated)

    def _are_equal_matrices(self, gold: Formula, answer: Formula) -> bool:
        """Return True for equal matrices; [[1, 2], [3, 4]] is accepted for a matrix."""
        rows, stated = _matrix_rows(gold), _matrix_rows(answer)
        if rows and answer.head == "sequence" and {answer.name, *(row.name for row in answer.operands)} == {"[]"}:
            stated = [row.operands for row in answer.operands]
        return bool(rows) and len(rows) == len(stated) and all(map(self._are_equal_pairwise, rows, stated))

    def _have_same_cases(self, gold: Formula, answer: Formula) -> bool:
        """Return True for equal functions by cases: the same values under the same conditions, in any order."""
        if gold.head != "cases" or answer.head != "cases" or len(gold.operands) != len(answer.operands):
            return False
        remaining = list(answer.operands)
        for row in gold.operands:
            found = next((other for other in remaining if self._are_equal_pairwise(row.operands, other.operands)), None)
            if found is None:
                return False
            remaining.remove(found)
        return True

    def _are_equal_relations(self, gold: Formula, answer: Formula) -> bool:
        """Return True for equal equations or inequalities; terms may be moved from one side to the other."""
        if gold.head != "relation" or answer.head != "relation":
            return False
        if _assigned_values(gold) and not _can_be_rearranged(gold):
            # x + 4 = 0 leaves x = -4 to be solved, so it is no answer, unless the question asks for a line.
            if self._question.strip() and not _ASKS_FOR_LINE.search(self._question):
                return False
            terms = answer.operands[0].operands if answer.operands[0].head == "sum" else ()
            if answer.name != "=" or answer.operands[1] != number_formula(0) or len(terms) != 2:
                return False
            if terms[0].head != "symbol" or exact_value(terms[1]) is None:
                return False
        (relations, operands), (answer_relations, answer_operands) = _ascending_chain(gold), _ascending_chain(answer)
        if relations != answer_relations or len(operands) != len(answer_operands):
            return False
        if relations in (["in"], ["notin"], [":"]) or len(operands) > 2:
            return self._are_equal_pairwise(operands, answer_operands)
        if not all(map(is_scalar, (*operands, *answer_operands))):
            return False
        if is_copied_relation(answer, gold, self._question):
            return False
        left, right = _left_minus_right(operands), _left_minus_right(answer_operands)
        is_equation = relations in (["="], ["ne"])
        return self._is_equal_outcome(has_same_zeros(left, right) if is_equation else compare(left, right))

    def _are_equal_real_sets(self, gold: Formula, answer: Formula) -> bool:
        """Return True for equal sets of real numbers: intervals, inequalities, unions, complements."""
        gold_variables, answer_variables = variables(gold), variables(answer)
        if gold_variables and answer_variables and gold_variables != answer_variables:
            return False
        gold_names, answer_names = _assigned_values(gold).keys(), _assigned_values(answer).keys()
        if gold_names and answer_names and gold_names != answer_names:
            return False  # f(2) = 5 and f(3) = 5 give values of different names
        if _has_absolute_value(answer) and not _has_absolute_value(gold) and "|" in normalize_notation(self._question):
            return False  # the answer repeats an inequality of the question instead of solving it
        right, stated = read_set(gold), read_set(answer)
        if right is None or stated is None or not is_same_set(right, stated) or not changes_at_every_endpoint(stated):
            return False
        numbers = list(_numbers_in(gold))
        for stated_number in _numbers_in(answer) if numbers else ():
            if not any(is_fully_evaluated(stated_number, number, self._question) for number in numbers):
                return False
            if not self._is_proven_endpoint(stated_number, numbers) and not _has_absolute_value(answer):
                return False
        return True

    def _is_proven_endpoint(self, number: Formula, endpoints: list[Formula]) -> bool:
        """Return False if `number` only looks equal to one of `endpoints`, because both round to the same decimals.

        Sets are compared by rounded ends, so that irrational ends are compared once more here.
        """
        for end in endpoints:
            is_rounded = exact_value(number) is None or exact_value(end) is None
            looks_equal = is_rounded and approximate(number) == approximate(end)
            if looks_equal and not self._is_equal_outcome(compare(end, number)):
                return False
        return True


def _has_absolute_value(tree: Formula) -> bool:
    return any(part.head == "call" and part.name == "abs" for part in tree.walk())


def _numbers_in(tree: Formula) -> Iterator[Formula]:
    """Yield the numbers in a formula or set: every part without variables and infinities, and both values of ±."""
    if not is_scalar(tree):
        for part in tree.operands:
            yield from _numbers_in(part)
    elif alternatives := sign_alternatives(tree):
        yield from alternatives
    elif not variables(tree) and tree.symbols().isdisjoint(("infty", "reals", "emptyset")):
        yield tree


def _assigned_values(tree: Formula) -> dict[str, Formula]:
    """Return the value of each name in x = 1, y = 2 or (x, y) = (1, 2) or x = 5, or {} for any other formula."""
    if tree.head == "list" and tree.name != "or":
        values = dict(filter(None, map(_name_and_value, tree.operands)))
        # Two values of one name, as in x = 1, x = 2, are solutions and not assignments.
        return values if len(values) == len(tree.operands) else {}
    if tree.head != "relation" or tree.name != "=":
        return {}
    left, right = tree.operands[0], tree.operands[-1]
    if left.head == "sequence" and right.head == "sequence" and len(left.operands) == len(right.operands):
        names = [part.name for part in left.operands if part.head == "symbol"]
        return dict(zip(names, right.operands, strict=True)) if len(set(names)) == len(right.operands) else {}
    return dict(filter(None, [_name_and_value(tree)]))


def _name_and_value(tree: Formula) -> tuple[str, Formula] | None:
    """Return the name and the value in x = 5 or 5 = x or f(x) = x^2, or None for any other formula."""
    if tree.head != "relation" or tree.name != "=" or len(tree.operands) != 2:
        return None
    for side, value in (tree.operands, tree.operands[::-1]):
        name = assigned_name(side)
        if name and name not in variables(value):
            return name, value
    return None


def _can_be_rearranged(tree: Formula) -> bool:
    """Return True if terms of the equation `tree` may change sides: y = 2x + 3 is an equation, x = 5 a solution."""
    pair = _name_and_value(tree)
    if pair is not None and pair[0].startswith("["):
        return False  # [A, B] = AB - BA defines a commutator, so its sides stay
    return pair is None or (is_scalar(pair[1]) and bool(variables(pair[1])))


def _set_elements(tree: Formula) -> tuple[Formula, ...] | None:
    """Return the members of a set, the solutions of a list or both values of ±, or None for any other formula.

    Values of different variables, as in x = 1, y = 2, are no solutions of one question.
    """
    if tree.head == "relation" and (pair := _name_and_value(tree)):
        return _set_elements(pair[1])
    if tree.head == "relation" and tree.name == "in" and tree.operands[0].head == "symbol":
        return _set_elements(tree.operands[1])
    if tree == Formula("symbol", name="emptyset"):
        return ()
    if (tree.head == "sequence" and tree.name == "{}" and condition_of_set(tree) is None) or tree.head == "list":
        names, members = set[str](), list[Formula]()
        for part in tree.operands:
            name, value = _name_and_value(part) or ("", part)
            if name:
                # x_1 and x_2 are two solutions for x, so their indices are dropped.
                names.add(re.sub(r"_[0-9]+$", "", name))
            # A set inside of a set is one member, but a formula with ± or a nested list has several.
            members.extend((value,) if value.head == "sequence" else _set_elements(value) or (value,))
        return tuple(members) if members and len(names) < 2 else None
    return sign_alternatives(tree)


def _have_other_connectives(gold: Formula, answer: Formula) -> bool:
    """Return True if one list of conditions or names is joined by "or", and the other one by "and".

    Between solutions, such as x = 2 and x = 3, both words mean the same.
    """
    if {gold.name, answer.name} != {"and", "or"} or gold.head != "list" or answer.head != "list":
        return False
    parts = (*gold.operands, *answer.operands)
    return any(part.head == "symbol" or (part.head == "relation" and part.name != "=") for part in parts)


def _matrix_rows(tree: Formula) -> list[tuple[Formula, ...]]:
    """Return the rows of a matrix, also of a matrix times or divided by a formula, or [] for any other formula."""
    if tree.head == "matrix":
        return [row.operands for row in tree.operands]
    if tree.head not in ("product", "negative", "quotient"):
        return []
    indices = [i for i, operand in enumerate(tree.operands) if "matrix" in operand.node_heads()]
    if len(indices) != 1 or (tree.head == "quotient" and indices == [1]):
        return []  # only a product or quotient of one matrix and a scalar can be computed cell by cell
    (index,) = indices
    rows = list[tuple[Formula, ...]]()
    for row in _matrix_rows(tree.operands[index]):
        scaled_row = list[Formula]()
        for cell in row:
            # The scalar factor multiplies each cell; a rational product is evaluated.
            scaled = Formula(tree.head, (*tree.operands[:index], cell, *tree.operands[index + 1 :]), tree.name)
            value = exact_value(scaled) if cell.head in ("number", "negative", "quotient") else None
            scaled_row.append(scaled if value is None else number_formula(value))
        rows.append(tuple(scaled_row))
    return rows


def _column_items(tree: Formula) -> tuple[Formula, ...]:
    """Return the items of a matrix with one column, or of a transposed row (1, 2)^T, or () for any other formula."""
    if tree.head == "power" and tree.operands[0].head == "sequence" and tree.operands[1].name in ("T", "t"):
        return tree.operands[0].operands if tree.operands[0].name != "{}" else ()
    rows = _matrix_rows(tree)
    return tuple(row[0] for row in rows) if rows and len(rows[0]) == 1 else ()


def _ascending_chain(relation: Formula) -> tuple[list[str], tuple[Formula, ...]]:
    """Return the signs and the operands of an inequality in ascending order: x > 3 is returned as 3 < x."""
    signs = relation.name.split()
    if {">", "ge"}.isdisjoint(signs):
        return signs, relation.operands
    mirrored = {">": "<", "ge": "le", "<": ">", "le": "ge"}
    return [mirrored.get(sign, sign) for sign in reversed(signs)], relation.operands[::-1]


def _left_minus_right(sides: tuple[Formula, ...]) -> Formula:
    """Return the left side of an equation minus its right side: the difference is zero in every solution."""
    return Formula("sum", (sides[0], Formula("negative", (sides[1],))))
