"""The rooms and who may enter which: read from the source, so that a wrong import fails before it becomes a habit."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("marl", "games", "roles", "credit", "trainers")
HEAVY = ("torch", "transformers", "vllm", "ray")
LIGHT = """
    credit.assign.advantage_estimation credit.assign.coalitions credit.assign.coma credit.assign.counterfactual
    credit.assign.gae credit.assign.outcome credit.assign.playing credit.assign.process credit.assign.replay
    credit.assign.shapley credit.assign.trajectory credit.assign.value_decomposition credit.baselines.agents
    credit.baselines.group credit.baselines.joint credit.baselines.peers credit.baselines.reinforce
    credit.baselines.value credit.baselines.whiten credit.validation.command games.base games.coalition
    games.communication games.hint games.kuhn_poker games.matrix games.nim games.stopping games.taboo
    games.tasks.arithmetic games.tasks.code games.tasks.countdown games.tasks.logic_grids games.tasks.strings
    games.tasks.tables games.team.settings games.tic_tac_toe games.tools games.two_step games.verifiers.countdown
    games.verifiers.form games.verifiers.mathematics games.verifiers.numeric games.verifiers.text
    games.verifiers.unit_tests marl.commands.cli marl.commands.play marl.config marl.controllers marl.conversations
    marl.engines.openai.settings marl.engines.reward_model.settings marl.engines.scripted
    marl.engines.transformers.settings marl.engines.workers.settings marl.evaluation.evaluate
    marl.evaluation.game_tree marl.evaluation.graders marl.evaluation.held_out marl.experience.dynamic_sampling
    marl.experience.recorded marl.experience.rollouts marl.experience.start_pool marl.experience.tree_search
    marl.graph marl.judging.diagnostics marl.judging.judge marl.judging.overlong marl.judging.token_penalties
    marl.metrics.alarms marl.models.adapter marl.models.hf_folder marl.models.pretrained marl.models.tiny
    marl.models.trained marl.parts marl.protocols marl.rollout.casting marl.rollout.episode marl.rollout.simulator
    marl.runs.best_checkpoint marl.sandbox marl.scenario.checks marl.scenario.explain marl.scenario.load
    marl.scenario.notes marl.scenario.schema marl.statistics marl.templating marl.training.rejudge marl.training.run
    marl.training.samples marl.training.update_schedule marl.training.warm_up marl.types roles.aggregator roles.base
    roles.challenger roles.critic roles.debater roles.judge roles.planner roles.player roles.solver roles.verifier
    trainers.settings
"""


@cache
def sources() -> dict[str, ast.Module]:
    """Module -> its syntax tree."""
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text())
    return found


def imports(tree: ast.AST, *, in_functions: bool) -> Iterator[str]:
    """Modules that are imported at run time; `if TYPE_CHECKING:` is for readers only."""
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


def test_games_roles_credit_and_trainers_never_import_each_other() -> None:
    crossings = [
        f"{module} imports {name}"
        for module, tree in sources().items()
        for name in imports(tree, in_functions=True)
        if module.split(".")[0] != "marl"
        and name.split(".")[0] in ROOMS
        and name.split(".")[0] not in ("marl", module.split(".")[0])
    ]
    assert not crossings


def test_the_framework_never_imports_the_packages_that_hold_parts() -> None:
    crossings = [
        f"{module} imports {name}"
        for module, tree in sources().items()
        for name in imports(tree, in_functions=True)
        if module.split(".")[0] == "marl" and name.split(".")[0] in ROOMS[1:]
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


def test_no_file_is_longer_than_300_lines() -> None:
    lengths = {
        str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for r in ROOMS for p in (ROOT / r).rglob("*.py")
    }
    assert not {name: lines for name, lines in lengths.items() if lines > 300}


def test_functions_are_short_and_take_few_parameters() -> None:
    functions = [
        (f"{module}.{node.name}", node)
        for module, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]
    lengths = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in functions}
    assert not {name: lines for name, lines in lengths.items() if lines > 30}
    assert sorted(lengths.values())[int(len(lengths) * 0.9)] <= 15
    parameters = {name: [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs] for name, node in functions}
    counted = {name: len([p for p in all_ if p.arg not in ("self", "cls")]) for name, all_ in parameters.items()}
    assert not {name: many for name, many in counted.items() if many > 6}


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
    loaded = f"print([m for m in {HEAVY!r} if m in sys.modules])"
    code = f"import sys\nfor name in {LIGHT!r}.split(): __import__(name)\n{loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
