"""Transformation of jinja2's syntax trees, so that templates count their costs and mark text with its origins.

The inserted nodes call filters of `marl/text/template_filters.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from math import isfinite
from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.visitor import NodeTransformer

from marl.text.origins import OriginRecordingDict

MAX_DEPTH = 100
"""Maximum nesting of a template or an expression. Python's compiler fails at about 200 brackets."""
MAX_SOURCE = 100_000
"""Maximum number of characters of a template or an expression."""
TOO_DEEP = f"nested too deeply; the limit is {MAX_DEPTH}"
"""Error message for a template or an expression that is nested deeper than `MAX_DEPTH`."""
FACT_ATTRIBUTES = frozenset(dir(OriginRecordingDict))
"""Names of Python attributes of a dict of facts: in a template, `facts.NAME` is then the attribute and not a fact."""


def check_source_length(source: str) -> None:
    """Raise TemplateSyntaxError if the source of a template or an expression is longer than `MAX_SOURCE`."""
    if len(source) > MAX_SOURCE:
        raise TemplateSyntaxError(f"{len(source):,} characters are too many; the limit is {MAX_SOURCE:,}", 1)


def check_tree_limits(tree: nodes.Node) -> None:
    """Raise TemplateSyntaxError if a syntax tree is deeper than `MAX_DEPTH`, or contains an infinite number."""
    # The tree is walked level by level, because recursion could exceed Python's limit.
    level, depth = [tree], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise TemplateSyntaxError(TOO_DEEP, level[0].lineno or 1)
        for node in level:
            # jinja2 compiles constants to Python literals, and Python has no literal for infinity.
            if isinstance(node, nodes.Const) and isinstance(node.value, float) and not isfinite(node.value):
                raise TemplateSyntaxError("a number is too large", node.lineno)
        level = list(chain.from_iterable(map(nodes.Node.iter_child_nodes, level)))


class BudgetTransformer(NodeTransformer):
    """Syntax-tree transformer that inserts filters, which count costs and emit boundaries.

    Costs are those of loop rounds, and of values that jinja2's sandbox does not intercept. Boundaries
    (`marl.text.origins.OriginBoundary`) mark the text that depends on conditions and assignments.
    """

    def __init__(self, item_cost: int, template: nodes.Template, marked: Collection[str] | None) -> None:
        """`marked`: names of the facts that may carry marks of origin, or None if all may."""
        self._item_cost = item_cost
        # A template that extends another one renders only its blocks, so boundaries outside of blocks would be lost.
        self._silent = template.find(nodes.Extends) is not None
        assigned_names = {name.name for name in template.find_all(nodes.Name) if name.ctx != "load"}
        self._marked = None if marked is None else assigned_names.union(marked)

    def visit_Block(self, node: nodes.Node) -> nodes.Node:  # noqa: N802 (jinja2 names it)
        silent, self._silent = self._silent, False
        self.generic_visit(node)
        self._silent = silent
        return node

    def visit_For(self, node: nodes.For) -> list[nodes.Node]:  # noqa: N802
        self.generic_visit(node)
        cost = self._item_cost + sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        node.iter = _filter_node(node.iter, "_count", nodes.Const(cost))
        node.test = node.test and _filter_node(node.test, "_decide")
        return [_branch_begin_node(node), node, _filter_output_node("_end", node)]

    def visit_If(self, node: nodes.If) -> list[nodes.Node]:  # noqa: N802
        branches, node.elif_ = [node, *node.elif_], []
        for branch in branches:
            self.generic_visit(branch)
        node.elif_ = branches[1:]
        # `find_all` visits only descendants, so the conditions get a common parent node.
        conditions = nodes.Output([branch.test for branch in branches])  # type: ignore[misc]
        names = {name.name for name in conditions.find_all(nodes.Name)}
        if self._marked is not None and names.isdisjoint(self._marked):
            return [node]  # the conditions read no values with origins, so the branches have none
        for branch in branches:
            branch.test = _filter_node(branch.test, "_decide", nodes.Const(branch is node))
        # Even if not taken, a branch that sets variables changes all later text: `_rest` gives it the branch's origins.
        sets = any(map(node.find, (nodes.Assign, nodes.AssignBlock)))
        end = _filter_output_node("_end", node, nodes.Const(sets))
        return [_branch_begin_node(node), node, end, *([_filter_output_node("_rest", node)] if sets else [])]

    def visit_Assign(self, node: nodes.Assign) -> list[nodes.Node]:  # noqa: N802
        self.generic_visit(node)
        node.node = _filter_node(node.node, "_assign", nodes.Const(self._silent))
        return [node, _filter_output_node("_rest", node)]

    def visit_With(self, node: nodes.With) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.values = [_filter_node(value, "_assign") for value in node.values]
        node.body.insert(0, _filter_output_node("_rest", node))
        return node

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:  # noqa: N802
        self.visit_Block(node)
        node.defaults = [_filter_node(value, "_assign") for value in node.defaults]
        node.body.insert(0, _filter_output_node("_rest", node))
        return node

    visit_CallBlock = visit_Macro  # noqa: N815

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        # `x in y` calls no method of x that could record its origins; the other comparisons do.
        if {"in", "notin"}.intersection(operand.op for operand in node.ops):
            node.expr = _filter_node(node.expr, "_look")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter_node(nodes.List(node.nodes, lineno=node.lineno), "_concatenate")

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        target = isinstance(node, nodes.Tuple) and node.ctx == "store"
        return node if target else _filter_node(node, "_charge")

    visit_Tuple = visit_Dict = visit_List  # noqa: N815


class MarkedTextCodeGenerator(CodeGenerator):
    """Code generator for templates whose outputs keep marks and boundaries; jinja2's generator would call `str`."""

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if not _is_boundary(node):
            escaped = frame.eval_ctx.volatile or frame.eval_ctx.autoescape
            super()._output_child_pre(node, frame, finalize) if escaped else self.write(f"({finalize.src}")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if not _is_boundary(node):
            super()._output_child_post(node, frame, finalize)


def expression_template(expression: nodes.Expr) -> nodes.Template:
    """Return a template that evaluates `expression` and passes the value to the filter `_result`."""
    return nodes.Template([nodes.ExprStmt(_filter_node(expression, "_result"), lineno=1)], lineno=1)


def _is_boundary(node: nodes.Node) -> bool:
    """Return True if the expression `node` emits a boundary instead of text."""
    match node:
        case nodes.Filter():
            return node.name in ("_end", "_rest")
        case nodes.EnvironmentAttribute():
            return node.name == "begin"
    return False


def _filter_node(node: nodes.Node, filter_name: str, *args: nodes.Expr) -> nodes.Filter:
    """Return the syntax node that applies filter `filter_name` to the expression `node`."""
    return nodes.Filter(node, filter_name, list(args), [], None, None, lineno=node.lineno)


def _filter_output_node(filter_name: str, line_node: nodes.Node, *args: nodes.Expr) -> nodes.Output:
    """Return a statement that emits the output of filter `filter_name`, with the line number of `line_node`."""
    return nodes.Output(
        [_filter_node(nodes.Const(None, lineno=line_node.lineno), filter_name, *args)], lineno=line_node.lineno
    )


def _branch_begin_node(line_node: nodes.Node) -> nodes.Output:
    """Return a statement that emits the boundary at the beginning of an `if` or a `for`."""
    return nodes.Output([nodes.EnvironmentAttribute("begin", lineno=line_node.lineno)], lineno=line_node.lineno)
