"""Determinants and traces: numbers of which the laws of matrices are known."""

from __future__ import annotations

import pytest
from grading import verdict

RIGHT = [
    (r"\det A", r"\det(A)"),
    (r"\det(A)^2", r"(\det A)^2"),
    (r"\det(AB)", r"\det A \det B"),
    (r"\det(A^{-1})", r"\frac{1}{\det A}"),
    (r"\operatorname{tr}(AB)", r"\mathrm{tr}(BA)"),
    (r"\operatorname{tr}(ABC)", r"\operatorname{tr}(CAB)"),
    (r"\operatorname{tr}(A)+1", r"1+\operatorname{Tr}(A)"),
    (r"\det(A)\operatorname{tr}(B)", r"\operatorname{tr}(B)\det(A)"),
]
WRONG = [
    (r"\det A", r"\det B"),
    (r"\det A", r"\operatorname{tr} A"),
    (r"2\det A", r"\det(2A)"),
    (r"\det(A+B)", r"\det A + \det B"),
    (r"\operatorname{tr}(ABC)", r"\operatorname{tr}(ACB)"),
    (r"\operatorname{tr}(AB)", r"\operatorname{tr}(A)\operatorname{tr}(B)"),
    (r"\det(A^{-1})", r"\det A"),
]


@pytest.mark.parametrize("question", ["", "Let A, B and C be square matrices."])
@pytest.mark.parametrize(
    ("gold", "answer", "right"), [(*pair, True) for pair in RIGHT] + [(*pair, False) for pair in WRONG]
)
def test_determinants_and_traces_obey_the_laws_of_matrices(gold: str, answer: str, right: bool, question: str) -> None:
    assert (verdict("math", gold, answer, question).score == 1) is right
