r"""Chemical formulas and equations: H_2O, 2H_2 + O_2 \to 2H_2O, whose terms have no order on either side."""

from __future__ import annotations

import re
from collections import Counter

from marl.games.verifiers.latex_notation import plain_words

_ARROW = re.compile(
    r"\\(?:to|rightarrow|longrightarrow|Rightarrow|rightleftharpoons|leftrightarrow)\b|<?=+>|-+>|[→⟶⇌⇒]"
)
_ELEMENTS = r"(?:[A-Z][a-z]?\d*|\((?:[A-Z][a-z]?\d*)+\)\d*)+(?:\^?\d*[+-])?"
_SPECIES = re.compile(rf"(\d*)({_ELEMENTS}|e-|e\^-)(?:\((?:s|l|g|aq)\))?")
_CHARGE = re.compile(r"(\d*)([+-])(\d*)")
_ASKS_FOR_CHARGE = re.compile(r"\b(?:charge|oxidation (?:state|number)|ions?)\b", re.I)
_WRAPPER = re.compile(r"\\ce\s*\{(.*)\}", re.S)
_ASKS_FOR_FORMULA = re.compile(r"\b(?:chemical|molecular|empirical|sum) formula\b", re.I)
_ASKS_FOR_SYMBOL = re.compile(r"\b(?:chemical|element|symbol|case[- ]sensitive)\b", re.I)


def is_letter_case_significant(gold: str, question: str) -> bool:
    """Return True if `question` asks for a symbol such as `gold` whose capital letters count: Co is not CO."""
    return bool(re.fullmatch("[A-Z][a-z]?", gold)) and gold != "No" and bool(_ASKS_FOR_SYMBOL.search(question))


def matches_chemistry(gold: str, answer: str, question: str) -> bool | None:
    """Return True if two chemical formulas, equations or charges are equal, None if `gold` is none of these."""
    right, stated = _without_markup(gold), _without_markup(answer)
    if (charge := _CHARGE.fullmatch(right)) and _ASKS_FOR_CHARGE.search(question):
        other = _CHARGE.fullmatch(stated)
        return other is not None and (charge[2], charge[1] + charge[3]) == (other[2], other[1] + other[3])
    if _ARROW.search(right):
        # Without digits or element symbols, as in A → B, the arrow is an implication and no reaction.
        sides = _species_of_sides(right) if re.search(r"\d|[A-Z][a-z]|\+", right) else None
        return None if sides is None else sides == _species_of_sides(stated)
    is_formula = (
        re.fullmatch(_ELEMENTS, right) and re.search(r"[A-Z].*\d", right) and re.search(r"_|[A-Z]\w*[A-Z]", gold)
    )
    if is_formula and _ASKS_FOR_FORMULA.search(question):
        return right == stated
    return True if is_formula and right == stated else None


def _without_markup(text: str) -> str:
    """Return `text` without spaces, marks of indices and text commands."""
    if len(text) > 300:
        return ""
    text = _WRAPPER.sub(r"\1", text.strip().strip("$"))
    return re.sub(r"[\s_{}*]", "", _ARROW.sub("→", plain_words(text))).strip(".")


def _species_of_sides(equation: str) -> tuple[Counter[str], Counter[str]] | None:
    """Return the species with their coefficients on both sides, or None if the text is no chemical equation."""
    parts = equation.split("→")
    sides = list[Counter[str]]()
    for part in parts:
        side = Counter[str]()
        for term in re.split(r"(?<![\^\d])\+|(?<=[A-Za-z)\d])\+(?=\d*[A-Z(e])", part):
            match = _SPECIES.fullmatch(term)
            if match is None:
                return None
            side[match[2]] += int(match[1] or 1)
        sides.append(side)
    return (sides[0], sides[1]) if len(sides) == 2 else None
