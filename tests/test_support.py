"""Helpers of the tests name functions and modules by text; a name that leads nowhere would let a test wait in vain."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_a_long_run_that_is_named_runs_at_every_commit(tmp_path: Path) -> None:
    """By the hash of this commit, the file's only such test would be left out."""
    (tmp_path / "git").write_text("#!/bin/sh\necho 0000000100000000\n")
    (tmp_path / "git").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment.pop("ALL_LONG_RUNS", None)
    file, name = (
        "tests/runs/test_run_lock.py",
        "test_a_folder_that_is_trained_in_is_refused_unharmed_until_its_process_dies",
    )

    def collected(target: str) -> str:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", target]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False).stdout

    assert name not in collected(file)
    assert name in collected(f"{file}::{name}")
