"""Attribute grammars: random derivations, their text, and what they claim.

A grammar maps each symbol to effects, and each effect to templates. In a template `@name` is a derivation of the symbol
`name`, and `@NAME` one of the texts that the puzzle provides under that name. The effect turns what the parts claim
into what the whole claims, so that the meaning of a text is known from its derivation, not from reading it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

Effect = Callable[[list[list[Any]]], list[Any]]
Rules = Mapping[str, Mapping[Effect, Sequence[str]]]
_SLOT = re.compile(r"@([A-Z]+|[a-z]+)")
_MAX_DEPTH = 9
_INDICES = 8
"""Indices of a puzzle's texts; each is taken modulo the number of texts that there are."""


class Slots(Protocol):
    """Texts of a puzzle by name, each with what it claims."""

    def slot(self, name: str, index: int) -> tuple[str, list[Any]]: ...


@dataclass(frozen=True, slots=True)
class Leaf:
    """One of the puzzle's texts."""

    name: str
    index: int


@dataclass(frozen=True, slots=True)
class Node:
    """Application of one rule."""

    symbol: str
    effect: Effect
    template: str
    children: tuple[Node | Leaf, ...]


class Grammar:
    """Derivations of `start` by rules."""

    def __init__(self, start: str, *rules: Rules) -> None:
        self.start = start
        self._rules: dict[str, list[tuple[Effect, str]]] = {}
        for rule in rules:
            for symbol, effects in rule.items():
                self._rules.setdefault(symbol, []).extend(
                    (effect, template) for effect, templates in effects.items() for template in templates
                )
        self._depth = self._least_depths()

    def derive(self, rng: random.Random, symbol: str = "", budget: int = _MAX_DEPTH) -> Node | Leaf:
        """Return a random derivation, at most `budget` deep where the rules allow it."""
        symbol = symbol or self.start
        if symbol not in self._rules:
            return Leaf(symbol, rng.randrange(_INDICES))
        rules = [rule for rule in self._rules[symbol] if self._template_depth(rule[1]) < budget]
        effect, template = rng.choice(rules or self._shallowest(symbol))
        children = tuple(self.derive(rng, name, budget - 1) for name in _SLOT.findall(template))
        return Node(symbol, effect, template, children)

    def mutate(self, rng: random.Random, tree: Node | Leaf) -> Node | Leaf:
        """Return the tree with one subtree derived anew."""
        path, part = rng.choice(list(_walk(tree)))
        symbol = part.symbol if isinstance(part, Node) else part.name
        return _put(tree, path, self.derive(rng, symbol, max(1, _MAX_DEPTH - len(path))))

    def cross(self, rng: random.Random, tree: Node | Leaf, other: Node | Leaf) -> Node | Leaf:
        """Return the tree with one subtree replaced by a subtree of `other` for the same symbol, if it has one."""
        donors: dict[str, list[Node]] = {}
        for _, part in _walk(other):
            if isinstance(part, Node):
                donors.setdefault(part.symbol, []).append(part)
        places = [(path, part) for path, part in _walk(tree) if isinstance(part, Node) and part.symbol in donors]
        if not places:
            return tree
        path, part = rng.choice(places)
        return _put(tree, path, rng.choice(donors[part.symbol])) if len(list(_walk(tree))) < 200 else tree

    def simpler(self, tree: Node | Leaf) -> Iterator[Node | Leaf]:
        """Yield trees with a subtree replaced by a part of itself for the same symbol, a shorter rule, or a
        plainest derivation."""
        for path, part in _walk(tree):
            if not isinstance(part, Node):
                continue
            for _, inner in _walk(part):
                if isinstance(inner, Node) and inner is not part and inner.symbol == part.symbol:
                    yield _put(tree, path, inner)
            slots = _SLOT.findall(part.template)
            for effect, template in self._rules[part.symbol]:
                if _SLOT.findall(template) == slots and len(template) < len(part.template):
                    yield _put(tree, path, Node(part.symbol, effect, template, part.children))
            for seed in range(3):
                yield _put(tree, path, self.derive(random.Random(seed), part.symbol, 0))

    def _shallowest(self, symbol: str) -> list[tuple[Effect, str]]:
        least = min(self._template_depth(template) for _, template in self._rules[symbol])
        return [rule for rule in self._rules[symbol] if self._template_depth(rule[1]) == least]

    def _template_depth(self, template: str) -> int:
        return max((self._depth.get(name, 0) for name in _SLOT.findall(template)), default=0)

    def _least_depths(self) -> dict[str, int]:
        depths = dict.fromkeys(self._rules, 10**6)
        self._depth = depths
        for _ in self._rules:
            depths.update(
                {name: 1 + min(self._template_depth(text) for _, text in rules) for name, rules in self._rules.items()}
            )
        return depths


def write(tree: Node | Leaf, slots: Slots) -> str:
    """Return the text of a derivation."""
    if isinstance(tree, Leaf):
        return slots.slot(tree.name, tree.index)[0]
    texts = iter([write(child, slots) for child in tree.children])
    return _SLOT.sub(lambda _: next(texts), tree.template)


def claims(tree: Node | Leaf, slots: Slots) -> list[Any]:
    """Return what a derivation claims."""
    if isinstance(tree, Leaf):
        return slots.slot(tree.name, tree.index)[1]
    return tree.effect([claims(child, slots) for child in tree.children])


def shape(tree: Node | Leaf) -> str:
    """Return the text of a derivation with the puzzle's texts left open."""
    if isinstance(tree, Leaf):
        return f"@{tree.name}"
    texts = iter([shape(child) for child in tree.children])
    return _SLOT.sub(lambda _: next(texts), tree.template)


def effects(tree: Node | Leaf) -> frozenset[str]:
    """Return the names of the effects in a derivation."""
    return frozenset(part.effect.__name__ for _, part in _walk(tree) if isinstance(part, Node))


def _walk(tree: Node | Leaf, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Node | Leaf]]:
    yield path, tree
    if isinstance(tree, Node):
        for number, child in enumerate(tree.children):
            yield from _walk(child, (*path, number))


def _put(tree: Node | Leaf, path: tuple[int, ...], part: Node | Leaf) -> Node | Leaf:
    if not path:
        return part
    assert isinstance(tree, Node)
    first, *rest = path
    children = list(tree.children)
    children[first] = _put(children[first], tuple(rest), part)
    return replace(tree, children=tuple(children))
