"""Files of the front end, served individually or bundled into a report."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

LIBRARIES = ("htm-preact.js", "uplot.js")
"""Vendored libraries: plain scripts that define `htmPreact` and `uPlot`."""
MODULES = (
    *("words.js", "store.js", "text.js", "tokens.js", "graph.js", "chart.js", "board.js", "chain.js"),
    *("episode.js", "episodes.js", "overview.js", "steps.js", "states.js", "held_out.js", "app.js"),
)
"""Modules of the page, each after its imports."""
STYLES = ("uplot.css", "page.css")
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
"""Suffix -> media type."""
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|const|class) (\w+)", re.MULTILINE)


@cache
def read_asset(name: str) -> bytes:
    """Return a file of the front end.

    Raises:
        LookupError: if the name is unknown.
    """
    if name not in (*LIBRARIES, *MODULES, *STYLES, "index.html", "icon.svg"):
        raise LookupError(f"no file {name!r}")
    return files("marl.view.page").joinpath("static", name).read_bytes()


def media_type(name: str) -> str:
    """Return the media type of a front-end file."""
    return f"{MEDIA_TYPES[name[name.rindex('.') :]]}; charset=utf-8"


def bundle_script() -> str:
    """Return libraries and modules as one plain script.

    Each module becomes an immediately called function that returns the module's exports. Our modules use one form of
    `import` and one of `export`, so no bundler is needed.
    """
    libraries = [read_asset(name).decode() for name in LIBRARIES]
    return "\n".join([*libraries, '"use strict"; const modules = {};', *map(_as_function, MODULES)])


def _as_function(name: str) -> str:
    source = read_asset(name).decode()
    exports = [match[2] for match in _EXPORT.finditer(source)]
    source = _IMPORT.sub(lambda match: f'const {{{match[1].replace(" as ", ": ")}}} = modules["{match[2]}"];', source)
    # A report has no module loader, so `export` would be a syntax error.
    source = _EXPORT.sub(r"\1 \2", source)
    return f'modules["{name}"] = (() => {{\n{source}\nreturn {{ {", ".join(exports)} }};\n}})();'


def bundle_style() -> str:
    """Return the style sheets, joined into one text."""
    return "\n".join(read_asset(name).decode() for name in STYLES)
