"""Default values of a chat template's variables, such as `enable_thinking`, which are written into the template.

All users of the template get these defaults: engines, learners, and programs that load a saved tokenizer. This module
does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

RENDERER_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
"""Variables of chat templates that Transformers sets itself."""


def add_variable_defaults(template: str, defaults: Mapping[str, Any]) -> str:
    """Return `template` with `defaults` as defaults of those variables that the template reads."""
    lines = ""
    for name, value in defaults.items():
        if uses_variable(template, name):
            lines += f"{{%- set {name} = {name} if {name} is defined else {_jinja_literal(value)} %}}\n"
    return lines + template


def uses_variable(template: str, variable_name: str) -> bool:
    """Return True if `template` may read the variable `variable_name`."""
    return re.search(rf"\b{re.escape(variable_name)}\b", template) is not None


def _jinja_literal(value: Any) -> str:
    """Return a JSON value as a literal of jinja2: a Python literal, except for `none`, `true` and `false`."""
    match value:
        case None | bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(map(_jinja_literal, value))}]"
        case dict():
            entries = [f"{name!r}: {_jinja_literal(inner)}" for name, inner in value.items()]
            return f"{{{', '.join(entries)}}}"
    return repr(value)
