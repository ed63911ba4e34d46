"""Accepts what math-verify accepts: the peer that our verifiers are compared with. Worker processes import it."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from math_verify import parse, verify

from marl.core.types import Verdict, VerifierCase
from marl.protocols import VerifierConfig

_DELIMITED = re.compile(r"\$|\\boxed|\\\(|\\\[")


class MathVerifyAlone(VerifierConfig):
    """Accepts an answer if math-verify, with its own defaults, finds it equal to the gold answer.

    It reads formulas only between delimiters, so a text without any is handed over as a formula, and as plain text if
    nothing is found in it. Of three ways to hand answers over, this one was right most often on `answers.yaml`.
    """

    kind: str = "math_verify_alone"
    imports: ClassVar[tuple[str, ...]] = ("math_verify",)

    def __call__(self, case: VerifierCase) -> Verdict:
        return Verdict(float(verify(_parsed(case.problem.answer), _parsed(case.text))))


def _parsed(text: str) -> Any:
    if _DELIMITED.search(text):
        return parse(text)
    return parse(f"${text}$") or parse(text)
