"""Verifier of numbers, formulas, sets, points, intervals, matrices and equations, in LaTeX or plain text."""

from __future__ import annotations

import re
from typing import ClassVar

from marl.core.types import Problem, Verdict
from marl.games.verifiers.answer_verifier import AnswerVerifier, quote, reject, unwrap
from marl.games.verifiers.closed_form import is_worked_out
from marl.games.verifiers.formula_answers import compare_formulas, has_unit
from marl.games.verifiers.latex_notation import GROUP_COMMAND, normalize_notation, without_text_commands
from marl.games.verifiers.measurements import measure
from marl.games.verifiers.numeric import NumericVerifier
from marl.games.verifiers.quantities import FUNCTION_VALUE
from marl.games.verifiers.units import PURE

_NUMERIC = NumericVerifier()
_NAME = re.compile(rf"({FUNCTION_VALUE}|[A-Za-z]\w*)\s*=")
_INDEX = re.compile(r"(?<=[0-9A-F])_\s*\{\s*([0-9]+)\s*\}")
"""Base of a numeral: 1101_{2}."""
_WORDS = re.compile(r"[^\W\d_]+(?:[\s'-]+[^\W\d_]+)*")


class MathVerifier(AnswerVerifier):
    """Accepts a number (as `numeric` does), formula, set, point, interval or equation equal to the right answer.

    Structures are compared part by part, single formulas at random points. A number must be worked out: 2+3 is not 5.
    """

    kind: str = "math"
    imports: ClassVar[tuple[str, ...]] = ("marl.games.verifiers.answer_comparison",)

    def grade(self, answer: str, problem: Problem) -> Verdict:
        gold = unwrap(problem.answer)
        if not answer or not gold:
            return reject("no answer" if gold else "the problem has no answer to compare with")
        if _spelling(answer) == _spelling(gold):
            return Verdict(1.0)
        right, number = measure(gold, problem), measure(answer, problem)
        if right and right.unit == PURE and right.unit_name and _WORDS.fullmatch(without_text_commands(gold).strip()):
            right = None  # "one solution" is no number
        if not (right and number) or _have_other_names(gold, answer):
            if right and right.unit.powers and has_unit(answer):
                return reject(f"{quote(answer)} is no number with a single unit")
            return compare_formulas(answer, gold, problem.question)
        if not is_worked_out(number.formula, right.formula, problem.question):
            return reject(f"{quote(answer)} is still to be worked out")
        return Verdict(1.0) if _NUMERIC.agree(right, number, problem) else reject(f"{quote(answer)} is not right")


def _have_other_names(gold: str, answer: str) -> bool:
    """Return True if both texts name their value, by different names: x = 5 and y = 5."""
    right, stated = _NAME.match(gold), _NAME.match(answer)
    if right is None or stated is None:
        return False
    return re.sub(r"\s", "", right[1]) != re.sub(r"\s", "", stated[1])


def _spelling(text: str) -> str:
    r"""Return `text` for comparison letter by letter: \text{no solution} is "No solution", but "1 1" is not 11."""
    text = without_text_commands(normalize_notation(text))
    words = " ".join(text.split())
    if len(words) > 1 and _WORDS.fullmatch(words):
        return words.casefold()
    text = _INDEX.sub(r"_\1", GROUP_COMMAND.sub(" ", text))
    return re.sub(r"\s", "", re.sub(r"(?<=[0-9])\s+(?=[0-9])", "~", text))
