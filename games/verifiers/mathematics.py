"""Verifier of numbers, formulas, sets, points, intervals, matrices and equations, in LaTeX or plain text."""

from __future__ import annotations

import re
from typing import ClassVar

from games.verifiers.closed_form import is_worked_out, symbols
from games.verifiers.formulas import read_formula
from games.verifiers.notation import plain, without_text_commands
from games.verifiers.numeric import NumericVerifier, measure
from games.verifiers.reading import AnswerVerifier, quote, reject, unwrap
from games.verifiers.tokens import UnreadableError
from marl.types import Problem, Verdict

_NUMERIC = NumericVerifier()
_GROUP = re.compile(r"\\(?:begin|end)group\b")
_NAME = re.compile(r"([A-Za-z]\w*)\s*=")
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
        if not (right and number) or _have_other_names(gold, answer):
            return _compare_formulas(answer, gold, problem.question)
        if not is_worked_out(number.formula, right.formula, problem.question):
            return reject(f"{quote(answer)} is still to be worked out")
        return Verdict(1.0) if _NUMERIC.agree(right, number, problem) else reject(f"{quote(answer)} is not right")


def _have_other_names(gold: str, answer: str) -> bool:
    """Return True for x = 5 and y = 5."""
    names = [match[1] for match in map(_NAME.match, (gold, answer)) if match]
    return len(set(names)) == 2


def _spelling(text: str) -> str:
    r"""Return a formula letter by letter: \text{no solution} is "No solution", but "1 1" is not 11."""
    text = without_text_commands(plain(text))
    words = " ".join(text.split())
    if len(words) > 1 and _WORDS.fullmatch(words):
        return words.casefold()
    return re.sub(r"\s", "", re.sub(r"(?<=[0-9])\s+(?=[0-9])", "_", _GROUP.sub(" ", text)))


def _compare_formulas(answer: str, gold: str, question: str) -> Verdict:
    try:
        right = read_formula(gold)
    except UnreadableError:
        return reject("not the right answer letter by letter, which alone can be compared")  # an integral, say
    try:
        formula = read_formula(answer, frozenset(name for name in symbols(right) if len(name) == 1))
    except UnreadableError as error:
        return reject(f"{quote(answer)} cannot be read: {error}")
    from games.verifiers.solutions import Solutions

    return Verdict(1.0) if Solutions(question).same(right, formula) else reject(f"{quote(answer)} is not right")
