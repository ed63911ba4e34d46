"""Files of the front end: served one by one, or put together into the one file of a report."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

LIBRARIES = ("htm-preact.js", "uplot.js")
"""Vendored libraries, which are plain scripts: they leave `htmPreact` and `uPlot` behind."""
MODULES = (
    *("words.js", "store.js", "text.js", "tokens.js", "graph.js", "chart.js", "board.js", "chain.js"),
    *("episode.js", "episodes.js", "overview.js", "steps.js", "states.js", "held_out.js", "app.js"),
)
"""Modules of the page, each after those that it imports."""
STYLES = ("uplot.css", "page.css")
KINDS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
"""Suffix -> media type."""
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|const|class) (\w+)", re.MULTILINE)


@cache
def asset(name: str) -> bytes:
    """Return a file of the front end.

    Raises:
        LookupError: if there is none of this name.
    """
    if name not in (*LIBRARIES, *MODULES, *STYLES, "index.html", "icon.svg"):
        raise LookupError(f"no file {name!r}")
    return files("marl.view.page").joinpath("static", name).read_bytes()


def media_type(name: str) -> str:
    """Return the media type of a file of the front end."""
    return f"{KINDS[name[name.rindex('.') :]]}; charset=utf-8"


def script() -> str:
    """Return libraries and modules as one plain script.

    A module becomes a function that is called at once and returns what the module exports. Ours keep to one form of
    `import` and one of `export`, so that no bundler is needed.
    """
    libraries = [asset(name).decode() for name in LIBRARIES]
    return "\n".join([*libraries, '"use strict"; const modules = {};', *map(_as_function, MODULES)])


def _as_function(name: str) -> str:
    source = asset(name).decode()
    exports = [match[2] for match in _EXPORT.finditer(source)]
    source = _IMPORT.sub(lambda match: f'const {{{match[1].replace(" as ", ": ")}}} = modules["{match[2]}"];', source)
    source = _EXPORT.sub(r"\1 \2", source)
    return f'modules["{name}"] = (() => {{\n{source}\nreturn {{ {", ".join(exports)} }};\n}})();'


def style() -> str:
    """Return all style sheets as one."""
    return "\n".join(asset(name).decode() for name in STYLES)
