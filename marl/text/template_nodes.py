"""Transformation of jinja2's syntax trees, so that templates charge their costs and mark text with its origins.

The inserted nodes call filters of `marl/text/template_filters.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite
from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.visitor import NodeTransformer

from marl.text.origins import WatchedDict

MAX_DEPTH = 100
"""Maximum nesting of a template or an expression. Python's compiler fails at about 200 brackets."""
MAX_SOURCE = 100_000
"""Maximum number of characters of a template or an expression."""
FACT_ATTRIBUTES = frozenset(dir(WatchedDict))
"""Attributes and methods of a dict of facts. A fact of the same name does not hide them."""


def too_deep() -> str:
    """Return the error message for a template or an expression that is nested too deeply."""
    return f"nested too deeply; the limit is {MAX_DEPTH}"


def check_length(source: str) -> None:
    """Raise TemplateSyntaxError if a template or an expression is too long."""
    if len(source) > MAX_SOURCE:
        raise TemplateSyntaxError(f"{len(source):,} characters are too many; the limit is {MAX_SOURCE:,}", 1)


def check_tree(tree: nodes.Node) -> None:
    """Raise TemplateSyntaxError if a tree is too deep, or contains an infinite number."""
    # Level by level, because a recursive walk could exceed Python's recursion limit.
    level, depth = [tree], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise TemplateSyntaxError(too_deep(), level[0].lineno or 1)
        for node in level:
            # jinja2 writes constants as literals into Python code, and infinity has no literal.
            if isinstance(node, nodes.Const) and isinstance(node.value, float) and not isfinite(node.value):
                raise TemplateSyntaxError("a number is too large", node.lineno)
        level = [child for node in level for child in node.iter_child_nodes()]


class BudgetTransformer(NodeTransformer):
    """Inserts filters that charge for loop rounds and for values that jinja2's sandbox does not intercept, and filters
    that emit the boundaries of text with origins (`marl.text.origins.Boundary`)."""

    def __init__(self, item: int, template: nodes.Template, marked: Collection[str] | None) -> None:
        """`item` is the cost of a list item; `marked` has the names of facts that may be marked, or is None for all."""
        self._item = item
        # A template that extends another one emits no text outside of blocks, so boundaries there would be lost.
        self._silent = template.find(nodes.Extends) is not None
        names = {name.name for name in template.find_all(nodes.Name) if name.ctx != "load"}
        self._marked = None if marked is None else names.union(marked)

    def _may_look(self, condition: nodes.Node) -> bool:
        """Return True if `condition` may read marked values, so that its branch needs boundaries."""
        # `find_all` omits the node itself, hence the `Output` around it.
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
        return [_begin(node), node, _emit("_end", node)]

    def visit_If(self, node: nodes.If) -> list[nodes.Node]:  # noqa: N802
        branches, node.elif_ = [node, *node.elif_], []
        for branch in branches:
            self.generic_visit(branch)
        node.elif_ = branches[1:]
        if not any(self._may_look(branch.test) for branch in branches):
            return [node]
        for branch in branches:
            branch.test = _filtered(branch.test, "_decide", nodes.Const(branch is node))
        # All following text depends on the condition if a branch sets variables, even if the branch is not taken.
        sets = any(node.find(kind) for kind in (nodes.Assign, nodes.AssignBlock))
        end = _emit("_end", node, nodes.Const(sets))
        return [_begin(node), node, end, *([_emit("_rest", node)] if sets else [])]

    def visit_Assign(self, node: nodes.Assign) -> list[nodes.Node]:  # noqa: N802
        self.generic_visit(node)
        node.node = _filtered(node.node, "_assign", nodes.Const(self._silent))
        return [node, _emit("_rest", node)]

    def visit_With(self, node: nodes.With) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.values = [_filtered(value, "_assign") for value in node.values]
        node.body.insert(0, _emit("_rest", node))
        return node

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:  # noqa: N802
        self.visit_Block(node)
        node.defaults = [_filtered(value, "_assign") for value in node.defaults]
        node.body.insert(0, _emit("_rest", node))
        return node

    visit_CallBlock = visit_Macro  # noqa: N815

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        # All other comparisons are methods of the marked value, which record its origins.
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
    """Code generator whose templates emit marked texts and boundaries unchanged; jinja2's calls `str` on every
    output."""

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if not is_boundary(node):
            escaped = frame.eval_ctx.volatile or frame.eval_ctx.autoescape
            super()._output_child_pre(node, frame, finalize) if escaped else self.write(f"({finalize.src}")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if not is_boundary(node):
            super()._output_child_post(node, frame, finalize)


def expression_template(expression: nodes.Expr) -> nodes.Template:
    """Return a template that evaluates an expression and passes its value to the filter `_result`."""
    return nodes.Template([nodes.ExprStmt(_filtered(expression, "_result"), lineno=1)], lineno=1)


def is_boundary(node: nodes.Node) -> bool:
    """Return True if the expression `node` emits a boundary instead of text."""
    match node:
        case nodes.Filter():
            return node.name in ("_end", "_rest")
        case nodes.EnvironmentAttribute():
            return node.name == "begin"
    return False


def _filtered(node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    """Return the syntax node of `node` with filter `name` applied."""
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _emit(name: str, position: nodes.Node, *args: nodes.Expr) -> nodes.Output:
    """Return a statement that emits the output of filter `name`, with the line number of `position`."""
    return nodes.Output([_filtered(nodes.Const(None, lineno=position.lineno), name, *args)], lineno=position.lineno)


def _begin(position: nodes.Node) -> nodes.Output:
    """Return a statement that emits the boundary at the beginning of an `if` or a `for`."""
    return nodes.Output([nodes.EnvironmentAttribute("begin", lineno=position.lineno)], lineno=position.lineno)
