"""Static analysis of expressions and templates: the facts that they use, found in their syntax trees."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import lru_cache

from jinja2 import nodes

from marl.games.team.expressions import attribute_nodes_in, parse_jinja_source

_MOVE_FACTS = ("move", "score")
"""Names of the facts that an unreadable answer leaves empty or 0."""
_MAPPING_METHODS = ("get", "items", "keys", "values")
"""Methods of a mapping, through which an expression can use any of its facts."""
_NESTED_FACTS = ("of", "before")
"""Names of facts whose value is again a mapping of facts: of the partner (`of`), or of the previous turn."""
_FUNCTIONS_WITHOUT_UNREADABLE = ("majority", "agreement", "voted", "best")
"""Functions of expressions that ignore unreadable answers in their first argument."""


def attribute_names_read_from(source: str, variable_names: Set[str], *, is_template: bool) -> set[str]:
    """Return the attributes of `variable_names` that an expression (or template) reads: `move` in `solver.move`."""
    facts: set[str] = set()
    for access in attribute_nodes_in(source, is_template=is_template):
        if isinstance(access.node, nodes.Name) and access.node.name in variable_names:
            facts.add(access.attr)
    return facts


@lru_cache(maxsize=1024)
def secret_fact_names_in_template(template: str, secret_names: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the secret facts that a template uses, or `given` for all facts of the problem."""
    if not secret_names:
        return ()
    names: dict[str, None] = {}
    pending = [parse_jinja_source(template, is_template=True)]
    while pending:
        node = pending.pop()
        name = _attribute_name(node)
        if (
            name is not None
            and isinstance(node, nodes.Getattr | nodes.Getitem)
            and _is_variable_named(node.node, "given")
        ):
            names["given" if name in _MAPPING_METHODS else name] = None
        elif _is_variable_named(node, "given"):
            names["given"] = None
        else:
            # The children are reversed, so that `pending.pop` visits them in the order of the template.
            pending += reversed(list(node.iter_child_nodes()))
    return tuple(name for name in names if name in {*secret_names, "given"})


def agents_used_without_readable_check(source: str, agents: Set[str], *, is_condition: bool) -> list[str]:
    """Return the agents whose move or score an expression uses although it does not use their fact `readable`.

    Args:
        agents: names of agents, and of roles and stages, which stand for their agents.
        is_condition: True if the expression is a condition. A condition may compare a move with given words without
            `readable`, as an unreadable move only makes the comparison false.
    """
    tree = parse_jinja_source(source)
    checked: set[str] = set()
    for agent, fact in _iter_used_move_facts(tree, agents, skip_comparisons=False):
        if fact == "readable":
            checked.add(agent)
    unchecked: dict[str, None] = {}
    for agent, fact in _iter_used_move_facts(tree, agents, skip_comparisons=is_condition):
        if fact != "readable" and agent not in checked:
            unchecked[agent] = None
    return list(unchecked)


def _iter_used_move_facts(node: nodes.Node, agents: Set[str], *, skip_comparisons: bool) -> Iterator[tuple[str, str]]:
    """Yield (agent, fact) for each use of a fact that depends on a move; the fact is "" if any fact may be used.

    `skip_comparisons`: comparisons of a move with words are skipped, where they decide a condition directly or through
    `and` and `or`.
    """
    if skip_comparisons and isinstance(node, nodes.Compare) and _compares_move_with_words(node):
        return
    path = _dotted_fact_path(node, agents)
    if path is not None:
        agent, _, fact = path.rpartition(".")
        if fact in (*_MOVE_FACTS, "readable"):
            yield agent, fact
        elif not agent or fact in _NESTED_FACTS or fact in _MAPPING_METHODS:
            yield (agent if fact in _MAPPING_METHODS else path), ""
        return
    ignored = None
    if (
        isinstance(node, nodes.Call)
        and isinstance(node.node, nodes.Name)
        and node.node.name in _FUNCTIONS_WITHOUT_UNREADABLE
    ):
        # Functions such as `majority` skip unreadable moves, so their first argument needs no check of `readable`.
        ignored = node.args[0] if node.args and _attribute_name(node.args[0]) in _MOVE_FACTS else None
    for child in node.iter_child_nodes():
        if child is not ignored:
            yield from _iter_used_move_facts(
                child, agents, skip_comparisons=skip_comparisons and isinstance(node, nodes.And | nodes.Or)
            )


def _compares_move_with_words(node: nodes.Compare) -> bool:
    """Return True if `node` compares a move with non-empty words: `== 'yes'`, `in ['yes', 'no']`."""
    if len(node.ops) != 1:
        return False
    move, words, operator = node.expr, node.ops[0].expr, node.ops[0].op
    if operator == "eq" and _is_nonempty_text(move):
        move, words = words, move
    # Membership counts only in a list: `move in "text"` is a substring test, which an empty move passes, too.
    membership = operator == "in" and isinstance(words, nodes.List | nodes.Tuple)
    # In a stage of several agents, `move` is a list, and a constant index selects one agent's move.
    if isinstance(move, nodes.Getitem) and isinstance(move.arg, nodes.Const) and isinstance(move.arg.value, int):
        move = move.node
    return _attribute_name(move) == "move" and _is_nonempty_text(words) and (operator == "eq" or membership)


def _is_nonempty_text(node: nodes.Node) -> bool:
    """Return True if `node` is a non-empty text, or a list of non-empty texts."""
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(map(_is_nonempty_text, node.items))
    return isinstance(node, nodes.Const) and isinstance(node.value, str) and bool(node.value)


def _dotted_fact_path(node: nodes.Node, agents: Set[str]) -> str | None:
    """Return the dotted path of an attribute, such as `own.before.score`, or None if its root is no agent."""
    if isinstance(node, nodes.Name):
        return node.name if node.name in agents else None
    name, path = _attribute_name(node), None
    if name is not None and isinstance(node, nodes.Getattr | nodes.Getitem):
        path = _dotted_fact_path(node.node, agents)
    # An attribute of a move, such as `solver.move.lower`, counts as a use of the move.
    if path is None or path.rpartition(".")[2] in _MOVE_FACTS:
        return path
    return f"{path}.{name}"


def is_always_false(condition: str, split: str) -> bool:
    """Return True if `condition` is false in every episode on a problem of `split`, whatever the agents do."""
    return _constant_truth_in_split(parse_jinja_source(condition), split) is False


def _constant_truth_in_split(node: nodes.Node, split: str) -> bool | None:
    """Return the truth value of `node` in all episodes of `split`, or None if it may differ between them."""
    match node:
        case nodes.And() | nodes.Or():
            # One false operand decides an `and`, and one true operand decides an `or`.
            deciding = isinstance(node, nodes.Or)
            operands = (_constant_truth_in_split(node.left, split), _constant_truth_in_split(node.right, split))
            return deciding if deciding in operands else None if None in operands else not deciding
        case nodes.Not():
            inner = _constant_truth_in_split(node.node, split)
            return None if inner is None else not inner
        case nodes.Compare(expr=left, ops=[nodes.Operand(op=operator, expr=right)]):
            if _is_variable_named(right, "split"):
                left, right = right, left
            elif not _is_variable_named(left, "split"):
                return None
            match operator, right:
                case (("eq" | "ne"), nodes.Const(value=str() as word)):
                    return (split == word) == (operator == "eq")
                case (("in" | "notin"), (nodes.List(items=items) | nodes.Tuple(items=items))):
                    words = [item.value if isinstance(item, nodes.Const) else None for item in items]
                    return None if None in words else (split in words) == (operator == "in")
        case nodes.Const():
            return bool(node.value)
    return None


def _is_variable_named(node: nodes.Node, name: str) -> bool:
    """Return True if `node` is the variable `name`."""
    return isinstance(node, nodes.Name) and node.name == name


def _attribute_name(node: nodes.Node) -> str | None:
    """Return the attribute name in `owner.name` or `owner['name']`, else None."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
        return node.arg.value
    return None
