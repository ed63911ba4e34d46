"""The rooms and their order, read from the source, so that a wrong import fails before it becomes a habit."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.support.paths import ROOT
from tests.support.source_tree import PACKAGES, definitions, imports, sources

PLUGIN_PACKAGES = ("marl.games", "marl.roles", "marl.credit", "marl.trainers")
ORDER = (
    *("host", "core", "text", "protocols", "models", "gateway", "engines", "sandbox", "plug-in packages", "rollout"),
    *("search", "experience", "scenario", "credit_stage", "runs", "metrics", "evaluation", "memory", "view", "export"),
    *("training", "cluster", "commands", "top"),
)
"""Rooms of `marl` from the lowest to the highest. `plug-in packages` are games, roles, credit and trainers; `top` is
`marl` itself and `python -m marl`, which users import or start."""
HEAVY = ("torch", "transformers", "vllm", "ray")
LIGHT_ROOMS = (
    *("host", "core", "text", "protocols", "rollout", "search", "experience", "scenario", "credit_stage", "runs"),
    *("metrics", "evaluation", "memory", "view", "export", "training", "commands", "top"),
)
"""Rooms of which every module can be imported without loading a heavy package."""


def room(module: str) -> str:
    if plugin_package(module):
        return "plug-in packages"
    first = module.removeprefix("marl").strip(".").partition(".")[0]
    return first if first in ORDER else "top"


def plugin_package(module: str) -> str:
    """Return the plug-in package that holds a module, or an empty string."""
    return next((package for package in PLUGIN_PACKAGES if f"{module}.".startswith(f"{package}.")), "")


def test_the_top_of_marl_holds_at_most_five_files_and_only_rooms() -> None:
    files = [path for path in (ROOT / "marl").iterdir() if path.is_file()]
    assert len(files) <= 5
    links = {path.name for path in (ROOT / "marl").iterdir() if path.is_symlink()}
    assert {f"marl.{name}" for name in links} == set(PLUGIN_PACKAGES)
    folders = {path.name for path in (ROOT / "marl").iterdir() if (path / "__init__.py").is_file()} - links
    assert folders == set(ORDER) - {"plug-in packages", "top"}


def test_lower_rooms_never_import_higher_ones() -> None:
    upward = [
        f"{module} ({room(module)}) imports {name} ({room(name)})"
        for module, tree in sources().items()
        for name in imports(tree, in_functions=True)
        if name in sources() and ORDER.index(room(module)) < ORDER.index(room(name))
    ]
    assert not upward


def test_only_the_credit_check_imports_from_a_plug_in_package_of_another() -> None:
    crossings = [
        f"{module} imports {name}"
        for module, tree in sources().items()
        for name in imports(tree, in_functions=True)
        if plugin_package(name) not in ("", plugin_package(module))
        and not (module.startswith("marl.commands.credit_check.") and plugin_package(name) == "marl.credit")
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


def test_names_of_test_files_are_unique() -> None:
    # Folders of tests are no packages, so pytest takes two files of one name for the same module.
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name, files in names.items() if files > 1]


def test_functions_take_few_parameters() -> None:
    crowded = {}
    for module, node in definitions():
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name == "__init__":
            continue
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = len([parameter for parameter in parameters if parameter.arg not in ("self", "cls")])
        if count > 6:
            crowded[f"{module}.{node.name}"] = count
    assert not crowded


def test_no_public_class_name_is_defined_twice() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module, node in definitions():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            homes[node.name].append(module)
    assert not {name: modules for name, modules in homes.items() if len(modules) > 1}


def test_only_what_a_paper_describes_together_has_one_kind_in_several_groups() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    groups: dict[str, set[str]] = defaultdict(set)
    for group, kinds in points.items():
        for kind in kinds:
            groups[kind].add(group)
    # A paper such as GSPO's is a loss and a learner's preset; RLOO's a baseline, too.
    of_a_paper = {"marl.trainers", "marl.losses", "marl.baselines"}
    # A program's role and its engine belong together and are never chosen apart.
    groups.pop("program")
    # Search is an agent's tool, and a way of playing; a scenario names them in different places.
    groups.pop("search")
    assert not {kind: names for kind, names in groups.items() if len(names) > 1 and not names <= of_a_paper}


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
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    named = {path.partition(":")[0] for group in points.values() for path in group.values()}
    light = [module for module in sources() if room(module) in LIGHT_ROOMS and module != "marl.__main__"]
    light += sorted(named - set(light))
    assert len(light) > 100
    loaded = f"print([m for m in {HEAVY!r} if m in sys.modules])"
    code = f"import sys\nfor name in {light!r}: __import__(name)\n{loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
