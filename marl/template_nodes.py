"""Changes in the syntax tree of templates, by which they count what they cost and tell what they depend on.

They call filters that `marl/templating.py` defines.
"""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite
from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.visitor import NodeTransformer

from marl.provenance import WatchedDict

MAX_DEPTH = 100
"""Nesting of a template or an expression. Python's compiler gives up at about 200 brackets."""


MAX_SOURCE = 100_000
"""Characters of a template or an expression."""
OF_FACTS = frozenset(dir(WatchedDict))
"""Attributes of facts, which names of facts do not hide."""


def too_deep() -> str:
    """Return the message about a template or an expression that Python's compiler gives up at."""
    return f"nested too deeply; the limit is {MAX_DEPTH}"


def check_length(source: str) -> None:
    """Raise TemplateSyntaxError if a template or an expression is too long."""
    if len(source) > MAX_SOURCE:
        raise TemplateSyntaxError(f"{len(source):,} characters are too many; the limit is {MAX_SOURCE:,}", 1)


def check_tree(tree: nodes.Node) -> None:
    """Raise TemplateSyntaxError if a tree is too deep, or holds a number that is too large."""
    level, depth = [tree], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise TemplateSyntaxError(too_deep(), level[0].lineno or 1)
        for node in level:
            # Infinity has no literal in the code that jinja2 makes.
            if isinstance(node, nodes.Const) and isinstance(node.value, float) and not isfinite(node.value):
                raise TemplateSyntaxError("a number is too large", node.lineno)
        level = [child for node in level for child in node.iter_child_nodes()]


class Meter(NodeTransformer):
    """Makes a template charge rounds of loops and the values that jinja2's sandbox cannot intercept, and tell where
    what it puts out depends on marked values without being made of them."""

    def __init__(self, item: int, template: nodes.Template, marked: Collection[str] | None) -> None:
        """`item`: cost of an item of a list. `marked`: names of the facts that may be marked; None: any may."""
        self._item = item
        # What stands outside of blocks is not put out by a template that extends another one.
        self._silent = template.find(nodes.Extends) is not None
        names = {name.name for name in template.find_all(nodes.Name) if name.ctx != "load"}
        self._marked = None if marked is None else names.union(marked)

    def _may_look(self, condition: nodes.Node) -> bool:
        """Return whether a condition may look at marked values."""
        # `find_all` leaves the node itself out.
        names = {name.name for name in nodes.Output([condition]).find_all(nodes.Name)}  # type: ignore[list-item]
        return self._marked is None or not names.isdisjoint(self._marked)

    def visit_Block(self, node: nodes.Node) -> nodes.Node:  # noqa: N802 (jinja2 names it)
        silent, self._silent = self._silent, False
        self.generic_visit(node)
        self._silent = silent
        return node

    def visit_For(self, node: nodes.For) -> list[nodes.Node]:  # noqa: N802
        self.generic_visit(node)
        cost = self._item + sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        node.iter = _filtered(node.iter, "_count", nodes.Const(cost))
        node.test = node.test and _filtered(node.test, "_decide")
        return [_begin(node), node, _put_out("_end", node)]

    def visit_If(self, node: nodes.If) -> list[nodes.Node]:  # noqa: N802
        branches, node.elif_ = [node, *node.elif_], []
        for branch in branches:
            self.generic_visit(branch)
        node.elif_ = branches[1:]
        if not any(self._may_look(branch.test) for branch in branches):
            return [node]
        for branch in branches:
            branch.test = _filtered(branch.test, "_decide", nodes.Const(branch is node))
        # What a branch sets, or does not as it is not taken, is seen by all that follows.
        sets = any(node.find(kind) for kind in (nodes.Assign, nodes.AssignBlock))
        end = _put_out("_end", node, nodes.Const(sets))
        return [_begin(node), node, end, *([_put_out("_rest", node)] if sets else [])]

    def visit_Assign(self, node: nodes.Assign) -> list[nodes.Node]:  # noqa: N802
        self.generic_visit(node)
        node.node = _filtered(node.node, "_assign", nodes.Const(self._silent))
        return [node, _put_out("_rest", node)]

    def visit_With(self, node: nodes.With) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.values = [_filtered(value, "_assign") for value in node.values]
        node.body.insert(0, _put_out("_rest", node))
        return node

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:  # noqa: N802
        self.visit_Block(node)
        node.defaults = [_filtered(value, "_assign") for value in node.defaults]
        node.body.insert(0, _put_out("_rest", node))
        return node

    visit_CallBlock = visit_Macro  # noqa: N815

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        # All other comparisons are methods of the marked value.
        if any(operand.op in ("in", "notin") for operand in node.ops):
            node.expr = _filtered(node.expr, "_look")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "_concatenate")

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        target = isinstance(node, nodes.Tuple) and node.ctx == "store"
        return node if target else _filtered(node, "_charge")

    visit_Tuple = visit_Dict = visit_List  # noqa: N815


class BoundaryGenerator(CodeGenerator):
    """Makes the code of templates, in which what `_output` returns is put out as it is, and so are boundaries."""

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if not is_boundary(node):
            escaped = frame.eval_ctx.volatile or frame.eval_ctx.autoescape
            super()._output_child_pre(node, frame, finalize) if escaped else self.write(f"({finalize.src}")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if not is_boundary(node):
            super()._output_child_post(node, frame, finalize)


def statement_of(expression: nodes.Expr) -> nodes.Template:
    """Return a template that works out an expression and hands its value to the filter `_result`."""
    return nodes.Template([nodes.ExprStmt(_filtered(expression, "_result"), lineno=1)], lineno=1)


def is_boundary(node: nodes.Node) -> bool:
    """Return whether an expression makes a boundary, and no text."""
    match node:
        case nodes.Filter():
            return node.name in ("_end", "_rest")
        case nodes.EnvironmentAttribute():
            return node.name == "begin"
    return False


def _filtered(node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _put_out(name: str, place: nodes.Node, *args: nodes.Expr) -> nodes.Output:
    """Return a statement that puts out what the filter `name` makes."""
    return nodes.Output([_filtered(nodes.Const(None, lineno=place.lineno), name, *args)], lineno=place.lineno)


def _begin(place: nodes.Node) -> nodes.Output:
    """Return a statement that puts out the beginning of an `if` or a `for`."""
    return nodes.Output([nodes.EnvironmentAttribute("begin", lineno=place.lineno)], lineno=place.lineno)
