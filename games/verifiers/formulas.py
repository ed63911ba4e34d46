"""Guards before a formula is handed to computer algebra: it must be one formula, worked out, and small enough."""

from __future__ import annotations

import re
from math import prod

from games.verifiers.reading import HEDGES, closing, squashed

_LONGEST = 400
_DEEPEST = 20
_TALLEST = 2
_UNICODE = str.maketrans(
    {
        "−": "-",  # noqa: RUF001 (these are what is looked for)
        "–": "-",  # noqa: RUF001
        "×": "\\times ",  # noqa: RUF001
        "·": "\\cdot ",
        "÷": "\\div ",
        "π": "\\pi ",
        "θ": "\\theta ",
        "∞": "\\infty ",
        "≤": "\\le ",
        "≥": "\\ge ",
        "≠": "\\ne ",
        "±": "\\pm ",
        "∪": "\\cup ",  # noqa: RUF001
        "∩": "\\cap ",
        "∈": "\\in ",
        "²": "^{2}",
        "³": "^{3}",
        "⁄": "/",  # noqa: RUF001
    }
)
_NAMES = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp sqrt pi mod max min"
_FUNCTIONS = frozenset(_NAMES.split())
_COMMAND = re.compile(r"\\[A-Za-z]+\*?|\\.")
_TEXT = re.compile(r"\\(?:text|textrm|textbf|mathrm|mbox|operatorname)\s*\{([^{}]*)\}")
_WORD = re.compile(r"[^\W\d_]{2,}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[a-z]+\*?\}(?:\{[clr|]*\})?")
_RELATIONS = re.compile(r"\\(?:ne|neq|leq?|geq?|lt|gt|in|notin|pm|mp|to|approx|sim|lor|vee|lnot|neg|mid)\b|[=<>~!?;]")
_ALIKE: dict[str, str] = {
    "\\neq": "\\ne",
    **dict.fromkeys(("<", ">", "\\lt", "\\gt"), "order"),
    **dict.fromkeys(("\\le", "\\leq", "\\ge", "\\geq"), "weak order"),
}
_OPEN_WORK = re.compile(r"\\(?:sum|prod|i*int|oint|lim|limsup|liminf|max|min)(?![a-z])")
_ARITHMETIC = re.compile(r"(?:\\frac|\\dfrac|\\tfrac|\\times|\\cdot|\\div|\\left|\\right|[\d\s.,+\-*/^(){}])+")
_TOWER = re.compile(r"\^\s*[\w.]+\s*\^")


def canonical(text: str) -> str:
    """The formula in LaTeX, where it was written in Unicode."""
    text = re.sub(r"√\s*(\d+|[A-Za-z])", r"\\sqrt{\1}", text.translate(_UNICODE))
    text = re.sub(r"√\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    return text.replace("**", "^").strip()


def as_list(text: str) -> str:
    """`text` with the "and" between two solutions as a comma, as problem sets write it."""
    return re.sub(r"\s+(?:and|\\text\{\s*and\s*\})\s+", ", ", text)


def amiss(said: str, gold: str, gold_is_number: bool) -> str:
    """Why `said` cannot be put to computer algebra as an answer like `gold`; "" if it can."""
    checks = (
        (not said, "no answer"),
        (len(said) > _LONGEST or depth(said) > _DEEPEST, "too long or too deep to be an answer"),
        (_unbalanced(said), "a brace is missing"),
        ("$" in said or "\\boxed" in said, "more than one formula"),
        (_prose(said, gold), "words beside the formula"),
        (_relations(said) != _relations(gold), "another relation than the right answer has"),
        (_commas(said) != _commas(gold), "another number of values"),
        (bool(_OPEN_WORK.search(said)) and not _OPEN_WORK.search(gold), "still to be worked out"),
        (gold_is_number and _sum_of_numbers(said), "still to be worked out"),
        (_towering(said), "numbers too large to be worked out"),
    )
    return next((why for wrong, why in checks if wrong), "")


def depth(text: str) -> int:
    """How deep brackets of any kind are nested."""
    deepest = level = 0
    for sign in text:
        level += (sign in "([{") - (sign in ")]}")
        deepest = max(deepest, level)
    return deepest


def _unbalanced(text: str) -> bool:
    return closing(text + "}", 0) != len(text) + 1


def _prose(said: str, gold: str) -> bool:
    """Whether there are words that are no functions, no product of the right answer's variables and not in it."""
    letters = {letter for letter in _letters(gold) if len(letter) == 1}
    known = _FUNCTIONS | set(_letters(gold))
    words = _letters(said)
    return any(
        word.lower() in HEDGES or (word not in known and len(word) > 1 and not set(word) <= letters) for word in words
    )


def _letters(text: str) -> list[str]:
    """Words, and single variables, of a formula."""
    text = _TEXT.sub(r" \1 ", _ENVIRONMENT.sub(" ", text))
    return re.findall(r"[^\W\d_]+", _COMMAND.sub(" ", text))


def _relations(text: str) -> list[str]:
    """Its relation signs, sorted. `x > 3` and `3 < x` are the same set: computer algebra sees to the direction."""
    text = text.replace("<=", "\\le ").replace(">=", "\\ge ")
    found: list[str] = _RELATIONS.findall(text)
    return sorted([_ALIKE.get(sign, sign) for sign in found])


def _commas(text: str) -> int:
    return len(re.findall(r",", re.sub(r"\\,|\{,\}|(?<=\d),(?=\d{3}(?!\d))", "", text)))


def _sum_of_numbers(said: str) -> bool:
    """2 + 3 is no answer where 5 is; -5, 1/2 and 2^10 may be."""
    body = said.lstrip("-+ ")
    return bool(_ARITHMETIC.fullmatch(said)) and bool(
        re.search(r"[-+*]|\\times|\\cdot|\\div", re.sub(r"\^\{?-?\d+\}?", "", body))
    )


def _towering(text: str) -> bool:
    """Whether working it out could take for ever: towers of powers, huge exponents, factorials of factorials."""
    exponents = [int(found[:9]) for found in re.findall(r"\^\s*[{(]?\s*-?(\d+)", text)]
    factorials = re.findall(r"(\d*)\s*!", text)
    chosen = re.findall(r"\\[dt]?binom\s*\{?\s*(\d+)", text)
    return (
        bool(_TOWER.search(text))
        or _exponent_depth(text) > _TALLEST
        or prod(max(1, exponent) for exponent in exponents) > 1000
        or any(len(number) > 30 for number in re.findall(r"\d+", text))
        or len(factorials) > 2
        or any(not number or int(number[:9]) > 500 for number in factorials)
        or any(int(number[:9]) > 1000 for number in chosen)
    )


def _exponent_depth(text: str) -> int:
    """2 in e^{x^2}."""
    deepest, open_braces = 0, []
    raised = False
    for sign in squashed(text):
        if sign == "{":
            open_braces.append(raised)
        elif sign == "}" and open_braces:
            open_braces.pop()
        raised = sign == "^"
        deepest = max(deepest, sum(open_braces) + raised)
    return deepest
