"""Default values of a chat template's variables, such as `enable_thinking`, written into the template itself.

Every later renderer gets the defaults: engines, learners, and programs that load a saved tokenizer. This module does
not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

RENDERER_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
"""Variables that the renderer itself sets."""


def with_defaults(template: str, values: Mapping[str, Any]) -> str:
    """Return `template` with `values` as defaults of its variables; a renderer may pass other values.

    Variables that the template does not read are left out.
    """
    lines = ""
    for name, value in values.items():
        if uses_variable(template, name):
            lines += f"{{%- set {name} = {name} if {name} is defined else {_literal(value)} %}}\n"
    return lines + template


def uses_variable(template: str, name: str) -> bool:
    """Return True if `template` may read the variable `name`."""
    return re.search(rf"\b{re.escape(name)}\b", template) is not None


def _literal(value: Any) -> str:
    """Return a JSON value as a jinja2 literal: Python's, but for `none`, `true` and `false`."""
    match value:
        case None | bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case dict():
            entries = [f"{name!r}: {_literal(inner)}" for name, inner in value.items()]
            return f"{{{', '.join(entries)}}}"
    return repr(value)
