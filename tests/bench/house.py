"""Measure how the source reads: words of docstrings, names, nesting, comments, imports, the walk of a training step.

    python tests/bench/house.py [--source FOLDER …] [--no-walk] [--out FILE]

`--source` counts the files of other projects by the same code. tests/bench/results/house.json holds the figures of two:
nanochat (92d63d4) and prime-rl's `src` (559b447). The figures are signs, not aims: readers decide (CONTRIBUTING.md).
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from _bench import ROOT, parser, report

FOLDERS = ("marl", "games", "roles", "credit", "trainers")
POINTING_WORDS = frozenset(["what", "that", "which", "it", "its", "those", "such", "one"])
RETURN_CLAUSE = re.compile(
    r"(Returns?|Yields?) ((the|a|an|all) \w+ )?"
    r"(what|how|whether|everything|all|whatever|who|where|when|why|those|as many|that|which)\b"
)
VAGUE_NAMES = frozenset(
    [
        "place",
        "places",
        "each",
        "known",
        "paid",
        "many",
        "wanted",
        "whole",
        "rest",
        "most",
        "held",
        "made",
        "said",
        "told",
        "found",
        "given",
        "asked",
        "kept",
        "others",
    ]
)
"""Names that say how a value came about or how much of it there is, not what it holds."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of the module, its classes and functions, and the texts below fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and (text := ast.get_docstring(node)):
            yield text
        if isinstance(node, ast.Module | ast.ClassDef):
            for field, text_node in zip(node.body, node.body[1:], strict=False):
                is_field = isinstance(field, ast.Assign | ast.AnnAssign)
                if is_field and isinstance(text_node, ast.Expr) and isinstance(text_node.value, ast.Constant):
                    yield str(text_node.value.value)


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield the name of every binding: variables, parameters, attributes, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, Function | ast.ClassDef):
            yield node.name


def inner_imports(tree: ast.Module) -> int:
    """Return the number of import statements inside functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, Function):
            found |= {id(inner) for inner in ast.walk(node) if isinstance(inner, ast.Import | ast.ImportFrom)}
    return len(found)


def figures_of(files: list[Path]) -> dict[str, float]:
    """Return the figures of a set of Python files, rounded as printed."""
    counts: Counter[str] = Counter()
    for path in files:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        counts["files"] += 1
        counts["lines"] += text.count("\n")
        counts["type_checking"] += "if TYPE_CHECKING:" in text
        inner = inner_imports(tree)
        counts["inner_imports"] += inner
        counts["files_with_inner_imports"] += inner > 0
        for docstring in docstrings(tree):
            words = re.findall(r"[a-z']+", docstring.lower())
            counts["words"] += len(words)
            counts["pointing"] += sum(word in POINTING_WORDS for word in words)
            counts["docstrings"] += 1
            counts["return_clause"] += bool(RETURN_CLAUSE.match(docstring))
        for name in bound_names(tree):
            counts["bindings"] += 1
            counts["vague"] += name.strip("_") in VAGUE_NAMES
        for node in ast.walk(tree):
            counts["functions"] += isinstance(node, Function)
            counts["comprehensions"] += isinstance(node, Comprehension)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            is_comment = token.type == tokenize.COMMENT
            counts["comments"] += is_comment and not re.match(r"#!|# ?(type|pyright|noqa|fmt|ruff)", token.string)
    thousands = counts["lines"] / 1000
    return {
        "lines": counts["lines"],
        "pointing words of docstrings, %": round(100 * counts["pointing"] / counts["words"], 1),
        "docstrings 'Return what …', %": round(100 * counts["return_clause"] / counts["docstrings"], 1),
        "vague bindings, %": round(100 * counts["vague"] / counts["bindings"], 1),
        "comprehensions a thousand lines": round(counts["comprehensions"] / thousands, 1),
        "comments a thousand lines": round(counts["comments"] / thousands, 1),
        "functions a thousand lines": round(counts["functions"] / thousands, 1),
        "files with TYPE_CHECKING, %": round(100 * counts["type_checking"] / counts["files"], 1),
        "imports inside functions": counts["inner_imports"],
        "files with imports inside functions": counts["files_with_inner_imports"],
    }


def walk() -> dict[str, int]:
    """Train one step of Kuhn poker; count the files whose functions run, and the frames down to the decode.

    The model comes from the cache, so that its warm-up, a training run of its own, is not counted.
    """
    import marl

    changes = ["schedule.steps=1", "schedule.groups=4", "policies.actor.model.warm_up.steps=2", "evaluate={}"]
    functions: dict[str, set[str]] = defaultdict(set)
    functions_of_step: dict[str, set[str]] = defaultdict(set)
    deepest = 0
    step_runs = False

    def watch(frame: FrameType, event: str, _: Any) -> None:
        nonlocal deepest, step_runs
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if event not in ("call", "return") or not own_file(file) or frame.f_code.co_name.startswith("<"):
            return
        if name == "TrainingLoop.step":
            step_runs = event == "call"
        functions[file].add(name)
        if step_runs:
            functions_of_step[file].add(name)
        if event == "call" and "engines/transformers/" in file and frame.f_code.co_name == "decode":
            depth = 0
            above: FrameType | None = frame
            while above is not None:
                depth += own_file(above.f_code.co_filename) and not above.f_code.co_name.startswith("<")
                above = above.f_back
            deepest = max(deepest, depth)

    with tempfile.TemporaryDirectory() as folder:
        marl.train(marl.load(ROOT / "scenarios/kuhn_self_play.yaml", changes), folder)
        sys.setprofile(watch)
        try:
            scenario = marl.load(ROOT / "scenarios/kuhn_self_play.yaml", changes)
            marl.train(scenario, folder, overwrite=True)
        finally:
            sys.setprofile(None)
    return {
        "files of which 3 or more functions run from marl.load to the end": sum(
            len(n) >= 3 for n in functions.values()
        ),
        "files of which 3 or more functions run in the step": sum(len(n) >= 3 for n in functions_of_step.values()),
        "frames from marl.train to the decode": deepest,
    }


def own_file(name: str) -> bool:
    return any(name.startswith(f"{ROOT / folder}/") for folder in FOLDERS)


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--source", nargs="*", type=Path, default=[], help="source folders of other projects")
    command.add_argument("--no-walk", action="store_true", help="leave out the figures of a training step")
    options = command.parse_args()
    own = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    figures: dict[str, Any] = {"marl": figures_of(own)}
    if not options.no_walk:
        figures["marl"] |= walk()
    for source in options.source:
        figures[source.name] = figures_of(sorted(source.rglob("*.py")))
    report(figures, options.out, seeds=[0])


if __name__ == "__main__":
    main()
