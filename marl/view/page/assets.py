"""Files of the front end, served individually or bundled into a report."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

LIBRARIES = ("htm-preact.js", "uplot.js", "marked.js", "temml.js")
"""Vendored libraries: plain scripts that define `htmPreact`, `uPlot`, `marked` and `temml`.

A page of the server loads the last two when it first shows a text as Markdown.
"""
MODULES = (
    *("words.js", "store.js", "text.js", "meanings.js", "run_state.js", "tokens.js", "graph.js"),
    *("paper.js", "curves.js", "chart_files.js", "chart.js"),
    *("markdown.js", "conversation.js", "comparison.js", "neighbours.js"),
    *("cards.js", "role_worth.js", "forecasts.js", "instructions.js", "board.js", "chain.js", "credit_rules.js"),
    *("episode.js", "episodes.js", "overview.js", "steps.js", "states.js", "held_out.js", "app.js"),
)
"""Modules of the page, each after its imports."""
STYLES = ("uplot.css", "page.css")
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
"""Suffix -> media type."""
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|const|class) (\w+)", re.MULTILINE)


@cache
def read_page_asset(file_name: str) -> bytes:
    """Return the content of the front-end file `file_name`.

    Raises:
        LookupError: if the name is unknown.
    """
    if file_name not in (*LIBRARIES, *MODULES, *STYLES, "index.html", "icon.svg"):
        raise LookupError(f"no file {file_name!r}")
    return files("marl.view.page").joinpath("static", file_name).read_bytes()


def bundle_page_script() -> str:
    """Return libraries and modules as one plain script.

    Each module becomes an immediately called function that returns the module's exports. Our modules use one form of
    `import` and one of `export`, so no bundler is needed.
    """
    scripts = [read_page_asset(name).decode() for name in LIBRARIES]
    scripts.append('"use strict"; const modules = {};')
    for name in MODULES:
        source = read_page_asset(name).decode()
        exports = ", ".join(match[2] for match in _EXPORT.finditer(source))
        source = _IMPORT.sub(lambda m: f'const {{{m[1].replace(" as ", ": ")}}} = modules["{m[2]}"];', source)
        # `export` is removed, because it is a syntax error in a report's scripts, which are no modules.
        source = _EXPORT.sub(r"\1 \2", source)
        scripts.append(f'modules["{name}"] = (() => {{\n{source}\nreturn {{ {exports} }};\n}})();')
    return "\n".join(scripts)
