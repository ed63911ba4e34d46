"""Verifier of formulas: guards before computer algebra, so that it gets one small formula that is worked out."""

from __future__ import annotations

import re
from math import prod
from typing import ClassVar

from games.verifiers.numeric import NumericVerifier, measure
from games.verifiers.reading import HEDGES, AnswerVerifier, closing_brace, is_copied, reject, strip_spaces, unwrap
from marl.types import Case, Verdict

_ASSIGNMENT = re.compile(r"^[A-Za-z]\s*=(?!.*=)\s*")
_NUMERIC = NumericVerifier()
_MAX_LENGTH, _MAX_DEPTH, _MAX_TOWER = 400, 20, 2
"""Bounds on characters, nested brackets and nested exponents."""
_SYMBOLS = "×times ·cdot ÷div πpi θtheta ∞infty ≤le ≥ge ≠ne ±pm ∪cup ∩cap ∈in"  # noqa: RUF001 (deliberately ambiguous)
_PLAIN_SIGNS = {"−": "-", "–": "-", "⁄": "/", "²": "^{2}", "³": "^{3}"}  # noqa: RUF001
_UNICODE = str.maketrans(_PLAIN_SIGNS | {symbol[0]: f"\\{symbol[1:]} " for symbol in _SYMBOLS.split()})
_NAMES = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp sqrt pi mod max min"
_FUNCTIONS = frozenset(_NAMES.split())
_COMMAND = re.compile(r"\\[A-Za-z]+\*?|\\.")
_TEXT = re.compile(r"\\(?:text|textrm|textbf|mathrm|mbox|operatorname)\s*\{([^{}]*)\}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[a-z]+\*?\}(?:\{[clr|]*\})?")
_RELATIONS = re.compile(r"\\(?:ne|neq|leq?|geq?|lt|gt|in|notin|pm|mp|to|approx|sim|lor|vee|lnot|neg|mid)\b|[=<>~!?;]")
_SAME_RELATION: dict[str, str] = {
    "\\neq": "\\ne",
    **dict.fromkeys(("<", ">", "\\lt", "\\gt"), "order"),
    **dict.fromkeys(("\\le", "\\leq", "\\ge", "\\geq"), "weak order"),
}
_UNEVALUATED = re.compile(r"\\(?:sum|prod|i*int|oint|lim|limsup|liminf|max|min)(?![a-z])")
_ARITHMETIC = re.compile(r"(?:\\frac|\\dfrac|\\tfrac|\\times|\\cdot|\\div|\\left|\\right|[\d\s.,+\-*/^(){}])+")
_TOWER = re.compile(r"\^\s*[\w.]+\s*\^")


class MathVerifier(AnswerVerifier):
    """Accepts a formula that equals the right answer: numbers as `numeric` does, the rest by `math-verify`.

    Guards stand before and after it: by itself math-verify accepts "not 5", answers that are copied from the question
    and lists that hold the right answer, and it may compute for ever.
    """

    kind: str = "math"
    imports: ClassVar[tuple[str, ...]] = ("games.verifiers.symbolic",)

    def __call__(self, case: Case) -> Verdict:
        answer, gold = self.answer(case), unwrap(case.problem.answer)
        if not answer or not gold:
            return reject("no answer" if gold else "the problem has no answer to compare with")
        if _plain_letters(answer) == _plain_letters(gold):
            return Verdict(1.0)
        if is_copied(answer, case.problem.question, gold):
            return reject("copied from the question")
        right, number = measure(gold, case.problem), measure(answer, case.problem)
        if right and number:
            equal = not number.quantity.unevaluated and _NUMERIC.agree(right, number)
            return Verdict(1.0) if equal else reject(f"{answer[:80]!r} is not {gold}")
        if number and number.quantity.decimal:
            return reject(f"{answer[:80]!r} is a rounded number; the right answer is {gold}")
        return _compare_formulas(answer, gold, right is not None)


def _plain_letters(text: str) -> str:
    r"""Return the formula letter by letter: \text{no solution} is "no solution", but "1 1" is not 11."""
    bare = re.sub(r"\\(?:text|mathrm|textbf)\s*\{([^{}]*)\}", r"\1", text)
    return strip_spaces(re.sub(r"(?<=\d)\s+(?=\d)", "_", bare))


def _compare_formulas(answer: str, gold: str, gold_is_number: bool) -> Verdict:
    answer, gold = _to_latex(answer), _to_latex(gold)
    if ("=" in answer) != ("=" in gold):
        answer, gold = _ASSIGNMENT.sub("", answer), _ASSIGNMENT.sub("", gold)
    if why := _fault(answer, gold, gold_is_number):
        return reject(why)
    from games.verifiers.symbolic import difference

    why = difference(gold, answer)
    return reject(why) if why else Verdict(1.0)


def _to_latex(text: str) -> str:
    """Return the formula with its Unicode symbols in LaTeX, and a comma for the "and" between two solutions."""
    text = re.sub(r"√\s*(\d+|[A-Za-z])", r"\\sqrt{\1}", text.translate(_UNICODE))
    text = re.sub(r"√\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    return re.sub(r"\s+(?:and|\\text\{\s*and\s*\})\s+", ", ", text.replace("**", "^").strip())


def _fault(answer: str, gold: str, gold_is_number: bool) -> str:
    """Return the reason why `answer` cannot be an answer like `gold`; "" if computer algebra may compare them."""
    checks = (
        (not answer, "no answer"),
        (len(answer) > _MAX_LENGTH or _depth(answer) > _MAX_DEPTH, "too long or too deep to be an answer"),
        (closing_brace(answer + "}", 0) != len(answer) + 1, "a brace is missing"),
        ("$" in answer or "\\boxed" in answer, "more than one formula"),
        (_has_prose(answer, gold), "words beside the formula"),
        (_relations(answer) != _relations(gold), "another relation than the right answer has"),
        (_commas(answer) != _commas(gold), "another number of values"),
        (bool(_UNEVALUATED.search(answer)) and not _UNEVALUATED.search(gold), "still to be worked out"),
        (gold_is_number and _is_calculation(answer), "still to be worked out"),
        (_is_huge(answer), "numbers too large to be worked out"),
    )
    return next((why for wrong, why in checks if wrong), "")


def _depth(text: str) -> int:
    """Return the depth of nested brackets of any kind."""
    deepest = level = 0
    for sign in text:
        level += (sign in "([{") - (sign in ")]}")
        deepest = max(deepest, level)
    return deepest


def _has_prose(answer: str, gold: str) -> bool:
    """Return True if a word is no function, no product of the right answer's variables and not in that answer."""
    variables = {word for word in _words(gold) if len(word) == 1}
    known = _FUNCTIONS | set(_words(gold))
    return any(
        word.lower() in HEDGES or (word not in known and len(word) > 1 and not set(word) <= variables)
        for word in _words(answer)
    )


def _words(text: str) -> list[str]:
    """Return the words and single variables of a formula."""
    text = _TEXT.sub(r" \1 ", _ENVIRONMENT.sub(" ", text))
    return re.findall(r"[^\W\d_]+", _COMMAND.sub(" ", text))


def _relations(text: str) -> list[str]:
    """Return the relation symbols, sorted; `<` and `>` count as the same, as computer algebra checks the direction."""
    text = text.replace("<=", "\\le ").replace(">=", "\\ge ")
    relations: list[str] = _RELATIONS.findall(text)
    return sorted([_SAME_RELATION.get(relation, relation) for relation in relations])


def _commas(text: str) -> int:
    return len(re.findall(r",", re.sub(r"\\,|\{,\}|(?<=\d),(?=\d{3}(?!\d))", "", text)))


def _is_calculation(text: str) -> bool:
    """Return True for 2 + 3, but not for -5, 1/2 and 2^10."""
    body = text.lstrip("-+ ")
    return bool(_ARITHMETIC.fullmatch(text)) and bool(
        re.search(r"[-+*]|\\times|\\cdot|\\div", re.sub(r"\^\{?-?\d+\}?", "", body))
    )


def _is_huge(text: str) -> bool:
    """Return True for towers of powers, huge exponents and factorials, whose evaluation may never end."""
    exponents = [int(digits[:9]) for digits in re.findall(r"\^\s*[{(]?\s*-?(\d+)", text)]
    factorials = re.findall(r"(\d*)\s*!", text)
    binomials = re.findall(r"\\[dt]?binom\s*\{?\s*(\d+)", text)
    return (
        bool(_TOWER.search(text))
        or _exponent_depth(text) > _MAX_TOWER
        or prod(max(1, exponent) for exponent in exponents) > 1000
        or any(len(number) > 30 for number in re.findall(r"\d+", text))
        or len(factorials) > 2
        or any(not number or int(number[:9]) > 500 for number in factorials)
        or any(int(number[:9]) > 1000 for number in binomials)
    )


def _exponent_depth(text: str) -> int:
    """Return the number of nested exponents, 2 in e^{x^2}."""
    deepest, open_braces = 0, []
    raised = False
    for sign in strip_spaces(text):
        if sign == "{":
            open_braces.append(raised)
        elif sign == "}" and open_braces:
            open_braces.pop()
        raised = sign == "^"
        deepest = max(deepest, sum(open_braces) + raised)
    return deepest
