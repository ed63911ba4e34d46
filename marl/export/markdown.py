"""Text from models, scenarios and runs in Markdown: it stays the text that it is, whatever it spells."""

from __future__ import annotations

import re

import yaml

from marl.text import for_terminal, well_formed

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


def shown(value: object) -> str:
    """Return what a template shows of a value: Markdown that was made here as it is, all else escaped."""
    return value if isinstance(value, Markup) else in_line(value)
