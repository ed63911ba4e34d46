"""The table of answer pairs as verifiers and cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from marl.parts import find
from marl.protocols import VerifierConfig
from marl.types import Case, Problem


@dataclass(frozen=True)
class Row:
    """One pair with the verdict that it must get."""

    check: VerifierConfig
    case: Case
    right: bool
    adversarial: bool


@cache
def rows() -> tuple[Row, ...]:
    groups = yaml.safe_load((Path(__file__).parent / "answers.yaml").read_text(encoding="utf-8"))
    return tuple(row for number, group in enumerate(groups) for row in _rows(number, group))


def _rows(number: int, group: dict[str, Any]) -> Iterator[Row]:
    check = find("verifiers", group["check"]["kind"]).model_validate(group["check"])
    assert isinstance(check, VerifierConfig)
    facts = {"choices": group["choices"]} if "choices" in group else {}
    for index, (gold, answer) in enumerate(group["pairs"]):
        text = answer if isinstance(answer, str) else answer["repeat"] * answer["times"]
        problem = Problem(f"{number}.{index}", group.get("question", ""), gold, facts=facts)
        parsed = None if group.get("said") == "text" else text
        yield Row(check, Case(problem, text, parsed), group["expect"] == "accept", group.get("adversarial", False))
