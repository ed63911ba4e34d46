"""Analysis of the source of expressions and templates: the facts that they look at, and how, before any evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import lru_cache

from jinja2 import nodes

from games.team.expressions import tree_of

_SPOKEN_FACTS = ("move", "score")
"""Facts that an unreadable answer leaves empty or 0."""
_METHODS = ("get", "items", "keys", "values")
"""Ways to look at any fact of a mapping."""
_RELATED = ("of", "before")
"""Facts that are facts of an agent themselves."""
_LEAVING_OUT = ("majority", "agreement", "voted", "best")
"""Functions that leave unreadable answers out of their first argument."""


@lru_cache(maxsize=1024)
def secrets_in(template: str, secret: frozenset[str]) -> tuple[str, ...]:
    """Return the secret facts of the problem that a template looks at; `given` if it may look at any of them."""
    if not secret:
        return ()
    looks = dict.fromkeys(_problem_facts(tree_of(template, template=True)))
    return tuple(name for name in looks if name in {*secret, "given"})


def _problem_facts(node: nodes.Node) -> Iterator[str]:
    """Yield the names of the facts of `given` that are looked at, and `given` where it is used as a whole."""
    name = _attribute(node)
    if name is not None and _is_name(_owner(node), "given"):
        yield "given" if name in _METHODS else name
    elif _is_name(node, "given"):
        yield "given"
    else:
        for child in node.iter_child_nodes():
            yield from _problem_facts(child)


def unguarded(source: str, agents: Set[str], *, condition: bool) -> list[str]:
    """Return the agents whose move or score an expression uses without reading their `readable`.

    Args:
        agents: names that stand for an agent, or for the agents of a role or a stage.
        condition: True if an unreadable move can only make the expression false where it compares the move with given
            words, so that this needs no `readable`.
    """
    tree = tree_of(source)
    guarded = {path for path, fact in _looks(tree, agents, exempt=False) if fact == "readable"}
    used = (path for path, fact in _looks(tree, agents, exempt=condition) if fact != "readable")
    return [path for path in dict.fromkeys(used) if path not in guarded]


def _looks(node: nodes.Node, agents: Set[str], *, exempt: bool) -> Iterator[tuple[str, str]]:
    """Yield (agent, fact) for each look at a fact that says something about a move; "" for any fact.

    `exempt`: the value of `node` decides a condition by itself, or by `and` and `or`.
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
    for child in _counting(node):
        yield from _looks(child, agents, exempt=exempt and isinstance(node, nodes.And | nodes.Or))


def _counting(node: nodes.Node) -> Iterator[nodes.Node]:
    """Yield the children of a node, but not the moves or scores of which a function leaves unreadable ones out."""
    leaves_out = isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name in _LEAVING_OUT
    for child in node.iter_child_nodes():
        first = leaves_out and isinstance(node, nodes.Call) and bool(node.args) and child is node.args[0]
        if not (first and _attribute(child) in _SPOKEN_FACTS):
            yield child


def _compares_words(node: nodes.Compare) -> bool:
    """Return True if a move is compared with words, none of them empty: `== 'yes'`, `in ['yes', 'no']`."""
    if len(node.ops) != 1:
        return False
    [(move, words, operator)] = [(node.expr, node.ops[0].expr, node.ops[0].op)]
    if operator == "eq" and _is_words(move):
        move, words = words, move
    several = isinstance(words, nodes.List | nodes.Tuple)
    return _is_move(move) and _is_words(words) and (operator == "eq" or (operator == "in" and several))


def _is_move(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, int):
        node = node.node
    return _attribute(node) == "move"


def _is_words(node: nodes.Node) -> bool:
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(map(_is_words, node.items))
    return isinstance(node, nodes.Const) and isinstance(node.value, str) and bool(node.value)


def _path(node: nodes.Node, agents: Set[str]) -> str | None:
    """Return `own.before.score` for such an expression; None if it does not begin with an agent."""
    if isinstance(node, nodes.Name):
        return node.name if node.name in agents else None
    name, owner = _attribute(node), _owner(node)
    path = _path(owner, agents) if owner is not None and name is not None else None
    # An attribute of a move, such as `solver.move.lower()`, belongs to the move.
    if path is None or path.rpartition(".")[2] in _SPOKEN_FACTS:
        return path
    return f"{path}.{name}"


def never_holds(condition: str, split: str) -> bool:
    """Return True if a condition is false in this split, whatever else there is."""
    return _truth(tree_of(condition), split) is False


def _truth(node: nodes.Node, split: str) -> bool | None:
    """Return the truth of a node in a split; None if it depends on other facts."""
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
    """Return the truth of `split == 'train'`, `split in ['train', 'pool']` and their opposites."""
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
    """Return the name in `owner.name` and `owner['name']`."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
        return node.arg.value
    return None
