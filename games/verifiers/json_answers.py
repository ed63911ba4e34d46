"""Verifier of JSON: the answer is the right value, however it is laid out."""

from __future__ import annotations

from typing import Any, Literal

from games.verifiers.reading import reject
from marl.json_text import last_json, read_json
from marl.protocols import VerifierConfig
from marl.types import Case, Verdict


class JsonVerifier(VerifierConfig):
    """Accepts JSON that equals the right answer: the whole answer, or its last object or array."""

    kind: str = "json"
    read: Literal["answer", "text"] = "answer"
    """Text that is compared: the answer that the role parsed, or the whole text."""

    def __call__(self, case: Case) -> Verdict:
        try:
            right = read_json(case.problem.answer)
        except ValueError:
            return reject("the right answer is no JSON")
        try:
            value = last_json((case.answer if self.read == "answer" else case.text) or "")
        except ValueError as error:
            return reject(f"no JSON: {error}")
        return Verdict(1.0) if _equal(value, right) else reject("another value")


def _equal(value: Any, right: Any) -> bool:
    """Return True if two values are the same JSON: 1 is 1.0, but neither true nor "1"; objects have no order."""
    if isinstance(value, dict) and isinstance(right, dict):
        return value.keys() == right.keys() and all(_equal(value[key], right[key]) for key in right)
    if isinstance(value, list) and isinstance(right, list):
        return len(value) == len(right) and all(map(_equal, value, right))
    return isinstance(value, bool) == isinstance(right, bool) and value == right
