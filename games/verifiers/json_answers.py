"""Verifier of JSON: compares values, whatever their layout."""

from __future__ import annotations

from typing import Any, Literal

from marl.core.types import Verdict, VerifierCase
from marl.games.verifiers.answer_verifier import reject
from marl.protocols import VerifierConfig
from marl.text.json_text import last_json_value, parse_strict_json


class JsonVerifier(VerifierConfig):
    """Accepts JSON equal to the right answer: the full answer, or its last object or array."""

    kind: str = "json"
    read: Literal["answer", "text"] = "answer"
    """Compared text: the answer parsed by the role, or the full text."""

    def __call__(self, case: VerifierCase) -> Verdict:
        try:
            right = parse_strict_json(case.problem.answer)
        except ValueError:
            return reject("the right answer is no JSON")
        try:
            value = last_json_value((case.answer if self.read == "answer" else case.text) or "")
        except ValueError as error:
            return reject(f"no JSON: {error}")
        return Verdict(1.0) if _is_equal_json(value, right) else reject("another value")


def _is_equal_json(value: Any, right: Any) -> bool:
    """Return True if two JSON values are equal: 1 is 1.0, but neither true nor "1"; objects have no order."""
    if isinstance(value, dict) and isinstance(right, dict):
        return value.keys() == right.keys() and all(_is_equal_json(value[key], right[key]) for key in right)
    if isinstance(value, list) and isinstance(right, list):
        return len(value) == len(right) and all(map(_is_equal_json, value, right))
    # True == 1 in Python, so types are compared, too.
    return isinstance(value, bool) == isinstance(right, bool) and value == right
