"""Regular expressions of scenarios, matched by RE2 in time proportional to the text.

Python's own engine may need exponential time: `(x+x+)+y` on forty characters of x takes hours.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2

from marl.core.config import shorten

_MAX_MEMORY = 8 << 20
"""Maximum memory of a compiled pattern, in bytes; RE2's default."""


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> Any:
    """Return the compiled pattern, with the methods of Python's `re.Pattern` (`search`, `fullmatch`, `groups`, ...).

    Raises:
        ValueError: if the pattern is not in RE2's syntax, which has no lookahead, lookbehind or backreference.
    """
    options = re2.Options()
    options.max_mem = _MAX_MEMORY
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error
        raise ValueError(
            f"{shorten(repr(pattern))} is no regular expression of RE2 (https://github.com/google/re2/wiki/Syntax; it "
            f"has no lookahead and no backreferences): {reason}"
        ) from error


def check_linear_pattern(pattern: str) -> str:
    """Return `pattern` unchanged. Raises as `compile_pattern`."""
    compile_pattern(pattern)
    return pattern
