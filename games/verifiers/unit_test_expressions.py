"""Splitting of a test into calls of the model's code, and an expression about their results.

`assert all(is_prime(p) for p in primes(9))` calls `primes(9)` and `[is_prime(p) for p in primes(9)]`. The calls run
with the model's code. `all` runs in another process, on the recorded results, where the code cannot replace it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from marl.games.verifiers import unit_test_harness as harness

_PLAIN_TYPES = (int, float, complex, str, bytes, list, tuple, set, frozenset, dict)
_PLAIN_ATTRIBUTES = frozenset(name for kind in _PLAIN_TYPES for name in dir(kind))
_PREDICATES = frozenset(
    name for name in _PLAIN_ATTRIBUTES if name.startswith(("is", "__")) or name in ("startswith", "endswith")
)
"""Methods of plain data whose result is true or false. An object could have such a method that is always true."""
_HARNESS_FUNCTIONS = frozenset(
    (
        *("all", "any", "isclose", "isinstance", "type", "len", "abs", "bool", "int", "float", "str", "list", "tuple"),
        *("set", "frozenset", "dict", "range", "zip", "enumerate", "map", "filter", "sorted", "round", "Counter"),
    )
)
"""Functions that belong to a test even if the model's code defines them, unless the test calls nothing else."""
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """Expression that is evaluated with the model's code."""

    source: str
    """Python expression for a list of rows (variables, result), one per iteration of surrounding comprehensions."""
    own: tuple[str, ...]
    """Names of built-in functions that refer to the model's functions here, for a task such as "write `max`"."""
    detailed: bool
    """True if another expression uses the result; false if the result is only compared with plain data."""

    def as_json(self) -> Mapping[str, Any]:
        return {"source": self.source, "own": self.own, "detailed": self.detailed}


def overridden_builtins(expression: ast.expr) -> tuple[str, ...]:
    """Return the names of built-in functions in `expression` that refer to functions of the model's code.

    The result is empty if the expression calls any function that is not built in.
    """
    names = list(dict.fromkeys(_names_of_calls(expression)))
    trusted = [name for name in names if name in harness.TRUSTED]
    if len(trusted) < len(names):
        return ()
    return tuple([name for name in trusted if name not in _HARNESS_FUNCTIONS] or trusted)


def _names_of_calls(expression: ast.expr) -> Iterable[str]:
    bound = _bound_names(expression)
    for node in ast.walk(expression):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name not in bound:
                yield name
            case ast.Name(id=name) if name not in bound and name not in harness.TRUSTED:
                yield name


def _bound_names(node: ast.AST) -> frozenset[str]:
    """Return the names that comprehensions, lambdas and `:=` in `node` define."""
    names = [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)]
    return frozenset(names + [inner.arg for inner in ast.walk(node) if isinstance(inner, ast.arg)])


class TestSplitter(ast.NodeTransformer):
    """Replaces the calls of the model's code in a test by their recorded results, and comparisons by safe ones.

    Raises:
        ValueError: if a call depends on a variable of a lambda or of `:=`, so that it cannot be recorded.
    """

    __test__ = False  # keeps pytest from collecting this class, whose name begins with Test

    def __init__(self, expression: ast.expr, own: Sequence[str]) -> None:
        """`own`: built-in names that refer to the model's functions."""
        self._own = tuple(own)
        self._bound = _bound_names(expression)
        self._scopes: list[ast.comprehension] = []
        """Clauses `for x in ...` around the node that is visited."""
        self.calls: list[RecordedCall] = []

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and self.evaluates_answer_code(node):
            return self._record_call(node)
        return super().visit(node)

    def evaluates_answer_code(self, node: ast.expr) -> bool:
        """Return True if `node` is a name of the model's code, or a call, attribute or item of such a name."""
        match node:
            case ast.Name(id=name):
                return name not in self._bound and (name in self._own or name not in harness.TRUSTED)
            case ast.Attribute(value=value, attr=attribute) if attribute in _PREDICATES:
                return isinstance(value, ast.Name) and self.evaluates_answer_code(value)
            case ast.Call(func=function):
                return self.evaluates_answer_code(function)
            case ast.Attribute(value=value, attr=attribute):
                is_foreign = attribute not in _PLAIN_ATTRIBUTES and self._contains_call(value)
                return is_foreign or self.evaluates_answer_code(value)
            case ast.Subscript(value=value):
                return self.evaluates_answer_code(value)
            case ast.BinOp(left=left, right=right):
                # An operator runs the model's code if an operand may be an object of a class that this code defines.
                return self._creates_object(left) or self._creates_object(right)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert(), operand=operand):
                return self._creates_object(operand)
        return False

    def _creates_object(self, node: ast.expr) -> bool:
        """Return True for a call of a class, whose name has a capital letter, and for operations on its objects."""
        match node:
            case ast.Call(func=ast.Name(id=name)):
                return name[:1].isupper() and self.evaluates_answer_code(node)
            case ast.BinOp() | ast.UnaryOp():
                return self.evaluates_answer_code(node)
        return False

    def _contains_call(self, node: ast.expr) -> bool:
        return any(isinstance(inner, ast.expr) and self.evaluates_answer_code(inner) for inner in ast.walk(node))

    def _record_call(self, node: ast.expr) -> ast.expr:
        """Record the call `node`, and return an expression for its recorded result."""
        used = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} & self._bound - _bound_names(node)
        scopes = self._scopes if used else []
        defined = [name for clause in scopes for name in sorted(_bound_names(clause.target))]
        if missing := used.difference(defined):
            raise ValueError(f"{ast.unparse(node)!r} depends on {min(missing)!r}, which only the test knows")
        variables = "".join([f"{name}, " for name in dict.fromkeys(defined)])
        row = f"{harness.ROW}(({variables}), lambda: {ast.unparse(self._with_plain_inner_results(node))})"
        clauses = "".join([f" {ast.unparse(self._clause_for_recording(clause)).strip()}" for clause in scopes])
        source = f"[{row}{clauses}]"
        self.calls.append(RecordedCall(source, self._own, detailed=True))
        arguments = ", ".join([str(len(self.calls) - 1), *dict.fromkeys(defined)])
        return ast.parse(f"{harness.RESULT}({arguments})", mode="eval").body

    def _with_plain_inner_results(self, node: ast.expr) -> ast.expr:
        """Return the call `node`, whose inner results become plain data before a method or an item is looked up."""
        node = deepcopy(node)
        for inner in ast.walk(node):
            match inner:
                case ast.Attribute(value=ast.Call() as value, attr=name) if name in _PLAIN_ATTRIBUTES:
                    inner.value = _call_node(harness.PLAIN, value)
                case ast.Subscript(value=ast.Call() as value):
                    inner.value = _call_node(harness.PLAIN, value)
        return node

    def _clause_for_recording(self, clause: ast.comprehension) -> ast.comprehension:
        """Return `clause` over items of built-in types, without its conditions that call the model's code."""
        items = _call_node(harness.PLAIN, self._with_plain_inner_results(clause.iter))
        conditions = [condition for condition in clause.ifs if not self._contains_call(condition)]
        return ast.comprehension(clause.target, items, conditions, clause.is_async)

    def _visit_comprehension(self, node: _Comprehension) -> ast.expr:
        # The comprehension's clauses are copied before the calls in them are replaced.
        written = deepcopy(node.generators)
        for clause, original in zip(node.generators, written, strict=True):
            clause.iter = self.visit(clause.iter)
            self._scopes.append(original)
            clause.ifs = [self.visit(condition) for condition in clause.ifs]
        if isinstance(node, ast.DictComp):
            node.key, node.value = self.visit(node.key), self.visit(node.value)
        else:
            node.elt = self.visit(node.elt)
        del self._scopes[-len(written) :]
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension  # noqa: N815

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        operands = [self.visit(operand) for operand in (node.left, *node.comparators)]
        parts: list[ast.expr] = []
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            match operator:
                case ast.Eq() | ast.Is():
                    parts.append(_call_node(harness.EQUAL, left, right))
                case ast.NotEq() | ast.IsNot():
                    parts.append(ast.UnaryOp(ast.Not(), _call_node(harness.EQUAL, left, right)))
                case _:
                    parts.append(ast.Compare(left, [operator], [right]))
        return parts[0] if len(parts) == 1 else ast.BoolOp(ast.And(), parts)


def _call_node(function: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(function, ast.Load()), list(arguments), [])
