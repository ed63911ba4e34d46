"""Verifier of numbers, formulas, sets, points, intervals, matrices and equations, in LaTeX or plain text."""

from __future__ import annotations

import re
from typing import ClassVar

from games.verifiers.closed_form import is_worked_out
from games.verifiers.formula_answers import compare_formulas, has_unit
from games.verifiers.measurements import measure
from games.verifiers.notation import plain, without_text_commands
from games.verifiers.numeric import NumericVerifier
from games.verifiers.quantities import FUNCTION_VALUE
from games.verifiers.reading import AnswerVerifier, quote, reject, unwrap
from games.verifiers.units import PURE
from marl.types import Problem, Verdict

_NUMERIC = NumericVerifier()
_GROUP = re.compile(r"\\(?:begin|end)group\b")
_NAME = re.compile(rf"({FUNCTION_VALUE}|[A-Za-z]\w*)\s*=")
_INDEX = re.compile(r"(?<=[0-9A-F])_\s*\{\s*([0-9]+)\s*\}")
"""Base of a numeral: 1101_{2}."""
_WORDS = re.compile(r"[^\W\d_]+(?:[\s'-]+[^\W\d_]+)*")


class MathVerifier(AnswerVerifier):
    """Accepts what equals the right answer: a number as `numeric` does, a formula, set, point, interval or equation.

    Structures are compared part by part, single formulas at random points. A number must be worked out: 2+3 is not 5.
    """

    kind: str = "math"
    imports: ClassVar[tuple[str, ...]] = ("games.verifiers.solutions",)

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
    """Return True for x = 5 and y = 5."""
    names = [re.sub(r"\s", "", match[1]) for match in map(_NAME.match, (gold, answer)) if match]
    return len(set(names)) == 2


def _spelling(text: str) -> str:
    r"""Return a formula letter by letter: \text{no solution} is "No solution", but "1 1" is not 11."""
    text = without_text_commands(plain(text))
    words = " ".join(text.split())
    if len(words) > 1 and _WORDS.fullmatch(words):
        return words.casefold()
    text = _INDEX.sub(r"_\1", _GROUP.sub(" ", text))
    return re.sub(r"\s", "", re.sub(r"(?<=[0-9])\s+(?=[0-9])", "~", text))
