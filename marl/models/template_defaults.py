"""Values of a chat template's own variables, such as `enable_thinking`, written into the template.

So whoever renders it gets them: engines, learners, and whoever loads the tokenizer that a learner has saved. Light: no
torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
"""Variables that the renderer itself gives."""


def with_defaults(template: str, values: Mapping[str, Any]) -> str:
    """Return a chat template in which variables have these values, unless its caller gives others.

    Variables that the template does not read are left out.
    """
    lines = [
        f"{{%- set {name} = {name} if {name} is defined else {_literal(value)} %}}\n"
        for name, value in values.items()
        if reads(template, name)
    ]
    return "".join(lines) + template


def reads(template: str, name: str) -> bool:
    """Return whether a template may read a variable."""
    return re.search(rf"\b{re.escape(name)}\b", template) is not None


def _literal(value: Any) -> str:
    """Return a value of JSON as jinja2 writes it, which is as Python does, apart from `none`, `true` and `false`."""
    match value:
        case None | bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case dict():
            return f"{{{', '.join(f'{name!r}: {_literal(inner)}' for name, inner in value.items())}}}"
    return repr(value)
