"""Where files of the checkout are on the site, and links between documents rewritten to match."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

ROOT = Path(__file__).resolve().parents[1]
PAGES = ".site/pages"
GLOSSARY = "marl/view/glossary.md"
_ASSETS = (".png", ".json", ".svg")
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"^(\s*)```.*?^\1```\s*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CELL_CODE = re.compile(r"`[^`\n]*`")


def page_of(file: str) -> str:
    """Return the path on the site of a file of the checkout: `credit/README.md` is `credit/index.md`.

    README.md itself is `overview.md`, because the site has a home page of its own.

    Scenarios have a page of the gallery, pictures and figures are copied, and other files are shown as they are.
    """
    if file.startswith(f"{PAGES}/"):
        return file.removeprefix(f"{PAGES}/")
    path = Path(file)
    if file == "README.md":
        return "overview.md"
    if file == GLOSSARY:
        return "glossary.md"
    if path.name == "README.md":
        return str(path.with_name("index.md"))
    if path.suffix == ".md":
        return str(path.with_name(path.name.lower()))
    if path.suffix in _ASSETS:
        return file
    if path.suffix == ".yaml" and path.parts[0] == "scenarios" and path.parts[1] != "suites":
        return str(path.with_suffix(".md"))
    return f"source/{file}.md"


def target_of(document: str, link: str) -> str:
    """Return the file of the checkout that a link of a document leads to.

    Raises:
        ValueError: if there is none.
    """
    file = normpath(join(dirname(document), link))
    if (ROOT / file).is_dir():
        file = join(file, "README.md")
    if file.startswith("..") or not (ROOT / file).is_file():
        raise ValueError(f"{document}: the link {link} leads nowhere")
    return file


def linked_files(document: str, text: str) -> set[str]:
    """Return the files of the checkout that a document links to."""
    links = [match[2].partition("#")[0] for match in _LINK.finditer(_FENCE.sub("", text)) if "://" not in match[2]]
    return {target_of(document, link) for link in links if link}


def as_page(document: str, text: str) -> str:
    """Return a document as a page: links lead to pages, and tables and comments are written as the renderer needs."""

    def moved(match: re.Match[str]) -> str:
        link, hash_, anchor = match[2].partition("#")
        if not link or "://" in match[2]:
            return match[0]
        page = relpath(page_of(target_of(document, link)), dirname(page_of(document)) or ".")
        return f"{match[1]}{page}{hash_}{anchor}{match[3]}"

    return _outside_fences(text, lambda prose: _tables(_COMMENT.sub("", _LINK.sub(moved, prose))))


def _tables(prose: str) -> str:
    """Return prose whose pipes within code in tables are written for Python-Markdown, which needs no backslash."""
    lines = prose.split("\n")
    return "\n".join(
        _CELL_CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line
        for line in lines
    )


def _outside_fences(text: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def slug(heading: str, separator: str) -> str:
    """Return the anchor of a heading, as on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)
