"""The rooms and their order, read from the source, so that a wrong import fails before it becomes a habit."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import pytest
from paths import ROOT
from source_tree import PACKAGES, definitions, imports, sources

PARTS = PACKAGES[1:]
VOCABULARY = frozenset(
    (
        *("answer_text", "config", "data_files", "errors", "graph", "json_text", "parts", "places", "processes"),
        *("provenance", "seeds", "state", "statistics", "template_nodes", "templating", "text", "types", "watchdog"),
        "zero_sum",
    )
)
ORDER = (
    *("vocabulary", "protocols", "models", "engines", "sandbox", "part packages", "rollout", "search", "experience"),
    *("scenario", "judging", "runs", "metrics", "evaluation", "memory", "view", "export", "training", "cluster"),
    *("commands", "top"),
)
"""Rooms of `marl` from the lowest to the highest. `part packages` are games, roles, credit and trainers; `top` is what
users import or start: `marl` itself, `python -m marl`, and commands that packages of parts add."""
COMMANDS_OF_PARTS = ("credit.validation",)
HEAVY = ("torch", "transformers", "vllm", "ray")
LIGHT_ROOMS = (
    *("vocabulary", "protocols", "rollout", "search", "experience", "scenario", "judging", "runs", "metrics"),
    *("evaluation", "memory", "view", "export", "training", "commands", "top"),
)
"""Rooms of which every module can be imported without loading a heavy package."""
LIGHT_PARTS = "games roles credit.assign credit.baselines credit.validation.command trainers.settings"
"""Packages of parts whose modules hold settings; heavy ones among them are imported by `build()` alone."""


def room(module: str) -> str:
    package, _, rest = module.partition(".")
    if package in PARTS:
        return "top" if module.startswith(COMMANDS_OF_PARTS) else "part packages"
    first, _, inner = rest.partition(".")
    if inner or first in ORDER:
        return first
    return "vocabulary" if first in VOCABULARY else "top"


def test_the_top_of_marl_holds_the_vocabulary_and_nothing_else() -> None:
    files = {path.stem for path in (ROOT / "marl").glob("*.py")}
    assert files == VOCABULARY | {"__init__", "__main__"}
    folders = {path.name for path in (ROOT / "marl").iterdir() if (path / "__init__.py").is_file()}
    assert folders == set(ORDER) - {"vocabulary", "part packages", "top"}


def test_lower_rooms_never_import_higher_ones() -> None:
    upward = [
        f"{module} ({room(module)}) imports {name} ({room(name)})"
        for module, tree in sources().items()
        for name in imports(tree, in_functions=True)
        if name in sources() and ORDER.index(room(module)) < ORDER.index(room(name))
    ]
    assert not upward


def test_packages_of_parts_never_import_each_other() -> None:
    crossings = [
        f"{module} imports {name}"
        for module, tree in sources().items()
        for name in imports(tree, in_functions=True)
        if module.split(".")[0] in PARTS and name.split(".")[0] in PARTS and name.split(".")[0] != module.split(".")[0]
    ]
    assert not crossings


def test_the_framework_never_imports_the_packages_that_hold_parts() -> None:
    crossings = [
        f"{module} imports {name}"
        for module, tree in sources().items()
        for name in imports(tree, in_functions=True)
        if module.split(".")[0] == "marl" and name.split(".")[0] in PARTS
    ]
    assert not crossings


@pytest.mark.parametrize("in_functions", [False, True], ids=["at_module_level", "in_functions_too"])
def test_no_modules_import_each_other_in_a_circle(in_functions: bool) -> None:
    graph = {
        module: {name for name in imports(tree, in_functions=in_functions) if name in sources()}
        for module, tree in sources().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_file_is_longer_than_450_lines() -> None:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in paths}
    assert not {name: lines for name, lines in lengths.items() if lines > 450}


def test_functions_are_short_and_take_few_parameters() -> None:
    functions = [(m, node) for m, node in definitions() if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {f"{module}.{node.name}": (node.end_lineno or 0) - node.lineno + 1 for module, node in functions}
    assert not {name: lines for name, lines in lengths.items() if lines > 30}
    assert sorted(lengths.values())[int(len(lengths) * 0.9)] <= 15
    crowded = {}
    for module, node in functions:
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = len([p for p in parameters if p.arg not in ("self", "cls")])
        if count > 6 and node.name != "__init__":
            crowded[f"{module}.{node.name}"] = count
    assert not crowded


def test_errors_are_caught_by_name_and_attributes_are_never_probed() -> None:
    caught = [
        f"{module}:{node.lineno}"
        for module, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
    ]
    probed = [
        f"{module}:{node.lineno}"
        for module, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (ast.unparse(node.func) == "hasattr" or (ast.unparse(node.func) == "getattr" and len(node.args) == 3))
    ]
    assert not caught
    assert not probed


def test_everything_up_to_check_is_light() -> None:
    light = [
        module
        for module in sources()
        if (room(module) in LIGHT_ROOMS and module != "marl.__main__")
        or f"{module}.".startswith(tuple(f"{name}." for name in LIGHT_PARTS.split()))
    ]
    assert len(light) > 100
    loaded = f"print([m for m in {HEAVY!r} if m in sys.modules])"
    code = f"import sys\nfor name in {light!r}: __import__(name)\n{loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
