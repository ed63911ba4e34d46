"""What a seat that verifies is asked: the case, as the information state of its turn.

The problem with its answer travels in `Request.state`, which no language model is shown; the text to be verified is the
last message, as the seat heard it.
"""

from __future__ import annotations

import json
from dataclasses import fields

from marl.types import Case, Problem, Request

_FIELDS = [field.name for field in fields(Problem)]


def state_of(problem: Problem, answer: str | None) -> str:
    """The information state of a seat that verifies `answer`."""
    # Not `asdict`: it would copy all facts, tests and all, for every answer.
    told = {field: getattr(problem, field) for field in _FIELDS}
    return json.dumps({"problem": told, "answer": answer}, sort_keys=True)


def case_of(request: Request) -> Case:
    """The case that `request` asks about.

    Raises:
        ValueError: if its state is none that `state_of` made.
    """
    try:
        known = json.loads(request.state)
        problem = Problem(**known["problem"] | {"wrong": tuple(known["problem"]["wrong"])})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"policy {request.policy!r} verifies, but was asked about no problem: {error!r}") from error
    return Case(problem, request.messages[-1].content if request.messages else "", known["answer"])
