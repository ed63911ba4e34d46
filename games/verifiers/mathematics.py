"""Accepts a formula that is the same as the right answer."""

from __future__ import annotations

import re
from typing import ClassVar

from games.verifiers.formulas import amiss, as_list, canonical
from games.verifiers.numeric import Numeric, measured
from games.verifiers.reading import Read, answer_of, copied, phrased, plain, refused, squashed
from marl.protocols import VerifierConfig
from marl.types import Case, Verdict

_NAMED = re.compile(r"^[A-Za-z]\s*=(?!.*=)\s*")
_NUMERIC = Numeric()


class Math(VerifierConfig):
    """Accepts a formula that equals the right answer: numbers as `numeric` does, the rest by `math-verify`.

    Guards stand before and after it: by itself it accepts "not 5", answers that are copied from the question and lists
    that hold the right answer, and it may compute for ever.
    """

    kind: str = "math"
    imports: ClassVar[tuple[str, ...]] = ("games.verifiers.symbolic",)
    read: Read = "answer"

    def __call__(self, case: Case) -> Verdict:
        said, gold = answer_of(case, self.read), plain(case.problem.answer)
        if not said or not gold:
            return refused("no answer" if gold else "the problem has no answer to compare with")
        if _letters(said) == _letters(gold):
            return Verdict(1.0)
        if copied(said, case.problem.question, gold):
            return refused("copied from the question")
        right, number = measured(gold, case.problem), measured(said, case.problem)
        if right and number:
            equal = not number.undone and _NUMERIC.agree(right, number)
            return Verdict(1.0) if equal else refused(f"{said[:80]!r} is not {gold}")
        if number and number.decimal:
            return refused(f"{said[:80]!r} is a rounded number; the right answer is {gold}")
        return _symbolic(said, gold, right is not None)

    def phrase(self, answer: str) -> str:
        return phrased(answer, self.read)


def _letters(text: str) -> str:
    r"""The formula letter by letter: \text{no solution} is "no solution", but "1 1" is not 11."""
    bare = re.sub(r"\\(?:text|mathrm|textbf)\s*\{([^{}]*)\}", r"\1", text)
    return squashed(re.sub(r"(?<=\d)\s+(?=\d)", "_", bare))


def _symbolic(said: str, gold: str, gold_is_number: bool) -> Verdict:
    said, gold = as_list(canonical(said)), as_list(canonical(gold))
    if ("=" in said) != ("=" in gold):
        said, gold = _NAMED.sub("", said), _NAMED.sub("", gold)
    if why := amiss(said, gold, gold_is_number):
        return refused(why)
    from games.verifiers.symbolic import same

    why = same(gold, said)
    return refused(why) if why else Verdict(1.0)
