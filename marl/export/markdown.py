"""Markdown with escaped foreign text: no input from models, scenarios or runs becomes markup."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from marl.host.untrusted_text import escape_for_terminal, replace_surrogates

CARD_FILE = "README.md"
"""File that the hub displays for a repository."""
_SIGNS = re.compile(r"[\\`*_\[\]#!|~$@^]")
"""Characters with a meaning in CommonMark, GitHub's tables or formulas."""
_ADDRESS = re.compile(r"(?i)(:)(?=//)|(?<=\bwww)(\.)")
"""Characters that make GitHub turn text into a link: the colon before `//`, and the dot after `www`."""
_BACKTICKS = re.compile("`{3,}+")


class RawMarkdown(str):
    """Markdown from this package, which the template inserts without escaping."""

    __slots__ = ()


def escape_inline_markdown(value: object) -> RawMarkdown:
    """Return `value` as Markdown text for a line or table cell, without markup, links and line breaks."""
    text = escape_for_terminal(" ".join(replace_surrogates(str(value)).split()))
    text = _SIGNS.sub(r"\\\g<0>", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    # GitHub turns bare addresses into links even in escaped text, so the characters of `_ADDRESS` are escaped, too.
    return RawMarkdown(_ADDRESS.sub(lambda match: f"\\{match[0]}", text))


def fenced_block(text: str, language: str = "text") -> RawMarkdown:
    """Return a fenced code block whose fence is longer than any run of backticks in `text`."""
    escaped = escape_for_terminal(replace_surrogates(text)).strip("\n")
    longest = max(_BACKTICKS.findall(escaped), key=len, default="``")
    fence = longest + "`"
    return RawMarkdown(f"{fence}{language}\n{escaped}\n{fence}")


def yaml_front_matter(values: dict[str, object]) -> RawMarkdown:
    """Return YAML metadata between two lines of dashes. YAML quotes text that would end the block."""
    return RawMarkdown(f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=False, width=1000)}---")


def write_card(folder: Path, template_name: str, values: Mapping[str, Any]) -> None:
    """Render a template of this package to README.md, escaping every value except `RawMarkdown`."""
    environment = Environment(
        loader=PackageLoader("marl.export", "templates"),
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, RawMarkdown) else escape_inline_markdown(value),
        keep_trailing_newline=True,
    )
    text = environment.get_template(f"{template_name}.md.jinja2").render(values)
    (folder / CARD_FILE).write_text(text, encoding="utf-8", newline="\n")
