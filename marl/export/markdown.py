"""Text from models, scenarios and runs in Markdown: it stays the text that it is, whatever it spells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from marl.text import for_terminal, well_formed

CARD = "README.md"
"""File that a hub shows of a repository."""
_SIGNS = re.compile(r"[\\`*_\[\]#!|~$@^]")
"""Signs that are markup in CommonMark, GitHub's tables, or formulas."""
_ADDRESS = re.compile(r"(?i)(:)(?=//)|(?<=\bwww)(\.)")
_BACKTICKS = re.compile("`{3,}+")


class Markup(str):
    """Markdown that was made here, and is not escaped."""

    __slots__ = ()


def in_line(value: object) -> Markup:
    """Return text for a line or the cell of a table: nothing in it is markup, a link or a new line."""
    text = for_terminal(" ".join(well_formed(str(value)).split()))
    text = _SIGNS.sub(r"\\\g<0>", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    return Markup(_ADDRESS.sub(lambda match: f"\\{match[0]}", text))


def block(text: str, language: str = "text") -> Markup:
    """Return text between fences that are longer than any line of backticks in it."""
    shown = for_terminal(well_formed(text)).strip("\n")
    fence = "`" * max([3, *(len(run) + 1 for run in _BACKTICKS.findall(shown))])
    return Markup(f"{fence}{language}\n{shown}\n{fence}")


def front_matter(values: dict[str, object]) -> Markup:
    """Return metadata between two lines of dashes; YAML quotes what would end it."""
    return Markup(f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=False, width=1000)}---")


def write_card(folder: Path, template: str, values: Mapping[str, Any]) -> None:
    """Write README.md from a template of this package: what was made here as Markdown as it is, all else escaped."""
    environment = Environment(
        loader=PackageLoader("marl.export", "templates"),
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else in_line(value),
        keep_trailing_newline=True,
    )
    text = environment.get_template(f"{template}.md.jinja2").render(values)
    (folder / CARD).write_text(text, encoding="utf-8", newline="\n")
