"""The source as syntax trees, for tests that read rules from it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from tests.support.paths import ROOT

PACKAGES = ("marl", "games", "roles", "credit", "trainers")
"""Folders that hold the source; all but the first are linked into the package `marl`."""
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def sources() -> dict[str, ast.Module]:
    """Return module -> its syntax tree."""
    trees = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            module = name if package == "marl" else f"marl.{name}"
            trees[module] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def imports(tree: ast.AST, *, in_functions: bool) -> Iterator[str]:
    """Yield the modules that are imported at run time; `if TYPE_CHECKING:` is for readers only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "relative imports hide where a name comes from"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in sources() else node.module for name in full)
        elif in_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(node, in_functions=in_functions)


def definitions() -> Iterator[tuple[str, Definition]]:
    """Yield every class and function with the name of its module."""
    for module, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, Definition):
                yield module, node
