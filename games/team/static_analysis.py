"""Static analysis of expressions and templates: the facts they use, found in the syntax tree before any evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import lru_cache

from jinja2 import nodes

from marl.games.team.expressions import syntax_tree

_SPOKEN_FACTS = ("move", "score")
"""Facts left empty or 0 by an unreadable answer."""
_METHODS = ("get", "items", "keys", "values")
"""Methods of a mapping with access to any fact."""
_RELATED = ("of", "before")
"""Facts with the facts of an agent as their value."""
_LEAVING_OUT = ("majority", "agreement", "voted", "best")
"""Functions that ignore unreadable answers in their first argument."""


@lru_cache(maxsize=1024)
def secret_facts_in(template: str, secret: frozenset[str]) -> tuple[str, ...]:
    """Return the problem's secret facts used by a template, or `given` where the template may use any fact."""
    if not secret:
        return ()
    names = dict.fromkeys(_problem_facts(syntax_tree(template, template=True)))
    return tuple(name for name in names if name in {*secret, "given"})


def _problem_facts(node: nodes.Node) -> Iterator[str]:
    """Yield the name of each fact of `given` in use, and `given` itself where all of its facts are in use."""
    name = _attribute(node)
    if name is not None and _is_name(_owner(node), "given"):
        yield "given" if name in _METHODS else name
    elif _is_name(node, "given"):
        yield "given"
    else:
        for child in node.iter_child_nodes():
            yield from _problem_facts(child)


def agents_without_readable_check(source: str, agents: Set[str], *, condition: bool) -> list[str]:
    """Return the agents whose move or score an expression uses without a look at their `readable`.

    Args:
        agents: names of agents, or of roles and stages for their agents.
        condition: True if the expression is a condition. A comparison of a move with given words then needs no
            `readable`, as an unreadable move only makes the comparison false.
    """
    tree = syntax_tree(source)
    guarded = {path for path, fact in _used_facts(tree, agents, exempt=False) if fact == "readable"}
    used = (path for path, fact in _used_facts(tree, agents, exempt=condition) if fact != "readable")
    return [path for path in dict.fromkeys(used) if path not in guarded]


def _used_facts(node: nodes.Node, agents: Set[str], *, exempt: bool) -> Iterator[tuple[str, str]]:
    """Yield (agent, fact) for each use of a fact derived from a move; the fact is "" if any fact may be used.

    `exempt`: the value of `node` decides a condition directly or through `and` and `or`, so a comparison of a move with
    words is skipped.
    """
    if exempt and isinstance(node, nodes.Compare) and _compares_words(node):
        return
    path = _path(node, agents)
    if path is not None:
        agent, _, fact = path.rpartition(".")
        if fact in (*_SPOKEN_FACTS, "readable"):
            yield agent, fact
        elif not agent or fact in _RELATED or fact in _METHODS:
            yield (agent if fact in _METHODS else path), ""
        return
    ignored = None
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name in _LEAVING_OUT:
        # Such a function ignores unreadable moves and scores in its first argument.
        ignored = node.args[0] if node.args and _attribute(node.args[0]) in _SPOKEN_FACTS else None
    for child in node.iter_child_nodes():
        if child is not ignored:
            yield from _used_facts(child, agents, exempt=exempt and isinstance(node, nodes.And | nodes.Or))


def _compares_words(node: nodes.Compare) -> bool:
    """Return True for a comparison of a move with non-empty words: `== 'yes'`, `in ['yes', 'no']`."""
    if len(node.ops) != 1:
        return False
    move, words, operator = node.expr, node.ops[0].expr, node.ops[0].op
    if operator == "eq" and _is_words(move):
        move, words = words, move
    # `in` needs a list: a move can be a part of a single word by accident, and the empty move always is.
    membership = operator == "in" and isinstance(words, nodes.List | nodes.Tuple)
    # A stage of several agents has a list of moves, of which an index picks one.
    if isinstance(move, nodes.Getitem) and isinstance(move.arg, nodes.Const) and isinstance(move.arg.value, int):
        move = move.node
    return _attribute(move) == "move" and _is_words(words) and (operator == "eq" or membership)


def _is_words(node: nodes.Node) -> bool:
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(map(_is_words, node.items))
    return isinstance(node, nodes.Const) and isinstance(node.value, str) and bool(node.value)


def _path(node: nodes.Node, agents: Set[str]) -> str | None:
    """Return the dotted path of an attribute such as `own.before.score`, or None unless the path starts at an agent."""
    if isinstance(node, nodes.Name):
        return node.name if node.name in agents else None
    name, owner = _attribute(node), _owner(node)
    path = _path(owner, agents) if owner is not None and name is not None else None
    # An attribute of a move, as in `solver.move.lower()`, counts as a use of the move.
    if path is None or path.rpartition(".")[2] in _SPOKEN_FACTS:
        return path
    return f"{path}.{name}"


def is_always_false(condition: str, split: str) -> bool:
    """Return True if `condition` is false for every state of a game in `split`."""
    return _truth(syntax_tree(condition), split) is False


def _truth(node: nodes.Node, split: str) -> bool | None:
    """Return the truth value of a node in `split`, or None if other facts decide it."""
    match node:
        case nodes.And():
            both = (_truth(node.left, split), _truth(node.right, split))
            return False if False in both else None if None in both else True
        case nodes.Or():
            both = (_truth(node.left, split), _truth(node.right, split))
            return True if True in both else None if None in both else False
        case nodes.Not():
            inner = _truth(node.node, split)
            return None if inner is None else not inner
        case nodes.Compare(expr=left, ops=[nodes.Operand(op=operator, expr=right)]):
            return _compared(left, right, operator, split)
        case nodes.Const():
            return bool(node.value)
    return None


def _compared(left: nodes.Node, right: nodes.Node, operator: str, split: str) -> bool | None:
    """Return the truth value of `split == 'train'`, `split in ['train', 'pool']` and their negations, else None."""
    if _is_name(right, "split"):
        left, right = right, left
    match operator, right:
        case (("eq" | "ne"), nodes.Const(value=str() as word)) if _is_name(left, "split"):
            return (split == word) == (operator == "eq")
        case (("in" | "notin"), (nodes.List(items=items) | nodes.Tuple(items=items))) if _is_name(left, "split"):
            words = [item.value if isinstance(item, nodes.Const) else None for item in items]
            return None if None in words else (split in words) == (operator == "in")
    return None


def _is_name(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


def _owner(node: nodes.Node) -> nodes.Node | None:
    return node.node if isinstance(node, nodes.Getattr | nodes.Getitem) else None


def _attribute(node: nodes.Node) -> str | None:
    """Return the name in `owner.name` or `owner['name']`, else None."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
        return node.arg.value
    return None
