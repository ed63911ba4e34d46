"""Helpers of the tests name functions and modules by text; a name that leads nowhere would let a test wait in vain."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec

from tests.support.paths import ROOT
from tests.support.run_processes import PRELOADED_MODULES
from tests.support.source_tree import sources


def test_every_call_that_a_signal_waits_for_is_a_function_of_the_source() -> None:
    functions: set[str] = set()
    for tree in sources().values():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                functions.add(node.name)
            if isinstance(node, ast.ClassDef):
                functions |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    unknown = []
    for path in (ROOT / "tests").rglob("*.py"):
        for target in re.findall(r'SignalTrigger\(\s*"call",\s*"([^"]+)"', path.read_text(encoding="utf-8")):
            if target not in functions:
                unknown.append(f"{path.name}: {target}")
    assert not unknown


def test_every_preloaded_module_exists() -> None:
    assert not [name for name in PRELOADED_MODULES if find_spec(name) is None]
