"""Words: one public name is one thing, names are plain, docstrings begin with what is returned or done."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator

from paths import ROOT
from source_tree import PACKAGES, definitions, sources

from marl.parts import GROUPS, RENAMED, names

BANNED = frozenset(
    (
        *("said", "told", "found", "given", "own", "beside", "others", "asked", "ways", "purse", "inquiry", "masters"),
        *("kept", "wording", "bonus", "sides", "modes", "pace", "purity", "signs", "charges", "pots", "tried"),
        *("repaid", "inherited", "spoken", "laid", "teller", "heard_of", "others_too"),
    )
)
"""Words of the private dialect that this code once had. They say how something came about, not what it holds."""
RIDDLES = re.compile(r"(What|Whether|Who|Whose|Whoever|Whatever|How|Those|Where|Which|Why|When)\b")


def test_no_public_class_name_is_defined_twice() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module, node in definitions():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            homes[node.name].append(module)
    assert not {name: modules for name, modules in homes.items() if len(modules) > 1}


def test_no_kind_stands_in_two_groups() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    groups: dict[str, list[str]] = defaultdict(list)
    for group, parts in points.items():
        for kind in parts:
            groups[kind].append(group)
    assert not {kind: places for kind, places in groups.items() if len(places) > 1}


def test_old_kinds_lead_to_kinds_that_there_are() -> None:
    assert RENAMED.keys() <= set(GROUPS)
    for group, renamed in RENAMED.items():
        assert set(renamed.values()) <= set(names(group))
        assert not renamed.keys() & set(names(group))


def test_names_are_plain_english() -> None:
    used = [f"{module}:{line} {name}" for module, tree in sources().items() for line, name in _bound(tree)]
    assert not [place for place in used if place.split()[-1] in BANNED]


def _bound(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield every name that a module binds: variables, parameters, attributes, functions and classes.

    Fields of settings are left out: scenarios on disk use them.
    """
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr.lstrip("_")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name.lstrip("_").lower()


def test_docstrings_begin_with_what_is_returned_or_done() -> None:
    riddles = [
        f"{module}: {docstring.splitlines()[0][:60]}"
        for module, docstring in _docstrings()
        if RIDDLES.match(docstring.strip())
    ]
    assert not riddles


def _docstrings() -> Iterator[tuple[str, str]]:
    """Yield the docstrings of modules, classes and functions, and the strings that document attributes."""
    for module, tree in sources().items():
        for node in ast.walk(tree):
            for statement in getattr(node, "body", []) if isinstance(node, ast.Module | ast.ClassDef) else []:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    yield module, str(statement.value.value)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (docstring := ast.get_docstring(node)):
                yield module, docstring


def test_every_message_names_the_package_as_it_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    documents = [*ROOT.glob("*.md"), *(path for top in PACKAGES for path in (ROOT / top).rglob("*") if path.is_file())]
    advice = [
        (path.name, *match.groups())
        for path in documents
        if path.suffix in (".py", ".md")
        for match in re.finditer(r"pip install [\"']?([\w.-]+)\[(\w+)\]", path.read_text())
    ]
    assert len(advice) > 3
    assert not [row for row in advice if row[1] not in (project["name"], ".")]
    assert not [row for row in advice if row[2] not in project["optional-dependencies"]]
