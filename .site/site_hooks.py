"""Hook of MkDocs: adds to the written pages what is made at build time. Nothing that is made here is committed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from site_api import api_pages
from site_commands import command_page
from site_gallery import gallery_pages
from site_games import PAGE as GAMES_PAGE
from site_games import games_page
from site_links import GLOSSARY, PAGES, ROOT, as_page, linked_files, page_of, slug
from site_settings import settings_pages

READMES = (
    *("README.md", "CONTRIBUTING.md", "marl/README.md", "marl/engines/vllm/README.md", "marl/cluster/README.md"),
    "marl/gateway/README.md",
    *("games/README.md", "roles/README.md", "credit/README.md", "trainers/README.md", "scenarios/README.md"),
    *("scenarios/real/README.md", "tests/bench/README.md"),
)
"""Documents that are pages where they stand."""


UNSEARCHED = ("source/", "tests/")
"""Beginnings of the pages that the search leaves out."""
MEASUREMENTS = "tests/bench/index.md"
"""Page among the tests that the search finds, because users read it."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name anchors as GitHub does, and list the generated pages in the navigation."""
    # PettingZoo says so of its own way to name environments, when scenarios are read.
    warnings.filterwarnings("ignore", message="The old environment creation API", category=DeprecationWarning)
    config.mdx_configs["toc"]["slugify"] = slug
    lists = {"settings": settings_pages(), "api": api_pages()}
    for entry in config.nav or []:
        for title, target in entry.items():
            if isinstance(target, str) and target in lists:
                entry[title] = [{heading: page} for page, (heading, _) in lists[target].items()]
    config.watch += [str(ROOT / name) for name in READMES]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add READMEs, settings, the Python reference, the gallery, and every file that one of these links to."""
    made = settings_pages() | api_pages() | gallery_pages()
    made[GAMES_PAGE] = games_page()
    made["commands.md"], made["glossary.md"] = ("Commands", command_page()), ("Glossary", glossary_page())
    for page, (_, text) in made.items():
        files.append(File.generated(config, page, content=text))
    for name in READMES:
        files.append(File.generated(config, page_of(name), content=(ROOT / name).read_text()))
    linked: set[str] = set().union(*(linked_files(name, text) for name, text in written()))
    for file in sorted(linked):
        if files.get_file_from_path(page_of(file)) is None:
            files.append(_shown(file, config))
    return files


def on_page_markdown(markdown: str, *, page: Page, **context: Any) -> str:  # noqa: ARG001
    """Rewrite the links of what is written by hand; generated pages are right as they are.

    The search finds neither files of the source nor of the tests, which few readers look for.
    """
    if page.file.src_uri.startswith(UNSEARCHED) and page.file.src_uri != MEASUREMENTS:
        page.meta["search"] = {"exclude": True}
    documents = {page_of(name): name for name, _ in written()}
    document = documents.get(page.file.src_uri)
    return as_page(document, markdown) if document else markdown


def written() -> Iterator[tuple[str, str]]:
    """Yield (document, its text) for all that is written by hand."""
    pages = sorted(str(file.relative_to(ROOT)) for file in (ROOT / PAGES).rglob("*.md"))
    linked = ["tests/transcripts/adapter_of_another_run.md", "tests/transcripts/self_play_of_a_folder.md"]
    for name in (*READMES, *pages, *linked):
        yield name, (ROOT / name).read_text()


def glossary_page() -> str:
    """Return the page of the project's words."""
    return as_page(GLOSSARY, (ROOT / GLOSSARY).read_text())


def _shown(file: str, config: MkDocsConfig) -> File:
    """Return a file of the checkout as a page that shows it, or as it is if it is a picture or holds figures."""
    page = page_of(file)
    if page == file or not page.endswith(".md"):
        return File.generated(config, page, abs_src_path=str(ROOT / file))
    text = (ROOT / file).read_text()
    if file.endswith(".md"):
        return File.generated(config, page, content=text)
    return File.generated(config, page, content=f"# {file}\n\n{fenced(text, Path(file).suffix.lstrip('.'))}")


def fenced(text: str, language: str) -> str:
    """Return a block of code that holds the text whatever it is."""
    ticks = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}\n"
