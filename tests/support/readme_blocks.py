"""Blocks of code in all documents that a user reads, READMEs and pages of the site, for tests that run them."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

DOCUMENTS = (
    *("README.md", "CONTRIBUTING.md", "marl/README.md", "games/README.md", "roles/README.md", "credit/README.md"),
    *("trainers/README.md", "scenarios/README.md", "scenarios/real/README.md", "tests/bench/README.md"),
    *("marl/cluster/README.md", "marl/engines/vllm/README.md", "marl/gateway/README.md"),
    *(str(page.relative_to(ROOT)) for page in sorted((ROOT / ".site" / "pages").rglob("*.md"))),
)

TYPED = tuple(f".site/pages/tutorials/{name}.md" for name in ("team_on_your_csv", "function_to_team", "langgraph"))
"""The tutorials whose blocks also write files: `tests/transcripts/` types them."""

PROGRAM_PYTHON = ".verifiers/bin/python"
"""Interpreter of a block whose program has packages of its own."""


class Block(NamedTuple):
    """A piece of code in a document."""

    document: str
    line: int
    language: str
    text: str
    base: str
    """The scenario that a fragment changes; "" if it stands alone."""

    @property
    def module(self) -> str:
        """The name of the module that it is; "" if it is none."""
        named = re.match(r"# (\w+)\.py\n", self.text)
        return named[1] if named and self.language == "python" else ""


def read_blocks(document: str) -> Iterator[Block]:
    """Yield the blocks of a document, in order."""
    lines = (ROOT / document).read_text().splitlines()
    number, comment = 0, ""
    while number < len(lines):
        first, start = lines[number], number
        if fence := re.match(r"\s*```(\S*)", first):
            end = next(i for i in range(start + 1, len(lines)) if lines[i].strip() == "```")
            number = end + 1
            yield Block(document, start + 1, fence[1], "\n".join(lines[start + 1 : end]) + "\n", _base(comment))
        elif first.startswith("    ") and not (start and lines[start - 1].strip()):
            while number < len(lines) and lines[number].startswith("    "):
                number += 1
            yield Block(document, start + 1, "bash", "\n".join(lines[start:number]) + "\n", "")
        else:
            number += 1
        if first.strip():
            comment = first


def _base(comment: str) -> str:
    named = re.fullmatch(r"<!-- fragment of (\S+) -->", comment.strip())
    return named[1] if named else ""


BLOCKS = [block for document in DOCUMENTS for block in read_blocks(document)]


def write_modules(document: str, folder: Path) -> None:
    """Write the modules of a document into a folder, so that they can be imported from there."""
    for block in BLOCKS:
        if block.document == document and block.module:
            (folder / f"{block.module}.py").write_text(block.text)
            sys.modules.pop(block.module, None)  # two documents may have a module of one name
        if block.document == document and block.language == "yaml" and PROGRAM_PYTHON in block.text:
            if not (ROOT / PROGRAM_PYTHON).is_file():
                pytest.skip("no .verifiers: `make verifiers` sets it up")
            (folder / ".verifiers").symlink_to(ROOT / ".verifiers")
            shutil.copy(ROOT / "scenarios" / "programs" / "verifiers_v1.py", folder)
    importlib.invalidate_caches()
