"""Names that an answer may choose: the integer parameter of a general solution, the constant of integration."""

from __future__ import annotations

import re
from collections import Counter

from marl.games.verifiers.closed_form import variables
from marl.games.verifiers.formulas import Formula
from marl.games.verifiers.unknown_functions import is_unknown_call

_CONSTANTS = frozenset("CcKk")
_FREE_NAMES = frozenset("ABCKck")
_DIFFERENTIAL_EQUATION = re.compile(r"\bdifferential equation|y'|\\frac\{dy\}\{d[xt]\}|\bdy/d[xt]\b|\\dot", re.I)
_COMMANDS = re.compile(r"\\[A-Za-z]+|[A-Za-z]{2,}")
_NAMES = r"\$?\s*(?:[A-EKac-ek]|C_\{?\d\}?|c_\{?\d\}?)\s*\$?"
_NAMES = rf"{_NAMES}(?:(?:,|and|,\s*and)\s*{_NAMES}){{0,2}}"
_DECLARATION = re.compile(
    rf"[,;]?\s*(?:\\[,;: ]\s*|\\q?quad\s*)*\(?\s*(?:\b(?:where|with|for|and)\s)?\s*"
    rf"(?:(?:an?|any|some|all|every)\s)?(?:(?:arbitrary|real)\s){{0,2}}"
    rf"(?:constants?\s{_NAMES}|{_NAMES}\s*(?:is|are)?\s*(?:an?\s|any\s)?(?:(?:arbitrary|real)\s){{0,2}}constants?"
    rf"|{_NAMES}\s*(?:\\in|∈)\s*(?:\\mathbb\s*\{{?\s*[RC]\s*\}}?|[\u211d\u2102RC]))\s*\)?\s*\$?\s*\.?$",
    re.I,
)
"""Declaration of the constants at the end of a general solution."""
_INTEGERS = Formula("symbol", name="mathbb Z")


def with_gold_names(gold: Formula, answer: Formula, question: str) -> Formula:
    """Return `answer` with its integer parameter and constant of integration renamed to those of `gold`."""
    for names_in in (_integer_parameters, added_constants, _free_constants, _argument_of_definition):
        gold_names, answer_names = names_in(gold, question), names_in(answer, question)
        # A name is replaced if each formula has exactly one of this kind, and neither uses the other's name elsewhere.
        is_single = len(gold_names) == len(answer_names) == 1
        if is_single and not gold_names & variables(answer) and not answer_names & variables(gold):
            answer = _with_renamed_symbol(answer, *answer_names, *gold_names)
    return answer


def _integer_parameters(tree: Formula, _question: str) -> set[str]:
    r"""Return the names declared as integers in a list of conditions: k in "k \in \mathbb{Z}"."""
    names = set[str]()
    for part in tree.operands:
        if part.head == "relation" and part.name == "in" and part.operands[1] == _INTEGERS:
            names |= part.operands[0].symbols() if part.operands[0].head == "symbol" else set()
    return names


def _argument_of_definition(tree: Formula, _question: str) -> set[str]:
    """Return the name of the argument in the definition of a function: x in f(x) = 2x + 1."""
    left = tree.operands[0] if tree.head == "relation" and tree.name == "=" else tree
    if (
        left is not tree
        and len(variables(tree)) == 1
        and all(any(map(is_unknown_call, side.walk())) for side in tree.operands)
    ):
        return set(variables(tree))  # an identity in one variable, such as f(-x) = f(x)
    if left is tree or not is_unknown_call(left) or [part.head for part in left.operands] != ["symbol"]:
        return set()
    # An equation between function values, such as T(n) = 2T(n/2) + n, is no definition, nor is P(A) = 0.6.
    name, value = left.operands[0].name, tree.operands[-1]
    return set() if any(map(is_unknown_call, value.walk())) or name not in variables(value) else {name}


def added_constants(tree: Formula, question: str) -> set[str]:
    """Return the names among C, c, K and k that occur once in `tree`, as a term, and not in the question."""
    side = tree.operands[-1] if tree.head == "relation" and tree.name == "=" else tree
    terms = side.operands if side.head == "sum" else ()
    occurrences = Counter(part.name for part in tree.walk() if part.head == "symbol")
    added = set[str]()
    for term in terms:
        if term.name in _CONSTANTS and occurrences[term.name] == 1:
            is_in_question = re.search(rf"(?<![A-Za-z]){term.name}(?![A-Za-z])", question)
            added |= set() if is_in_question else {term.name}
    return added


def without_declared_constants(text: str) -> str:
    r"""Return `text` without a declaration of its constants, such as "where C is a constant" or "C \in \mathbb{R}"."""
    return _DECLARATION.sub("", text) if "onst" in text or "\\in" in text or "∈" in text else text


def constant_names_allowed(question: str) -> frozenset[str]:
    """Return the names allowed for the constant of a general solution; none without a differential equation."""
    return _FREE_NAMES if _DIFFERENTIAL_EQUATION.search(question) else frozenset()


def _free_constants(tree: Formula, question: str) -> set[str]:
    """Return the constant of the general solution of a differential equation, such as C in y = C e^(2x)."""
    if not constant_names_allowed(question) or tree.head != "relation" or tree.name != "=":
        return set()
    in_question = set(re.findall(r"[A-Za-z]", _COMMANDS.sub(" ", question)))
    return {name for name in variables(tree) if name in _FREE_NAMES and name not in in_question}


def _with_renamed_symbol(tree: Formula, old: str, new: str) -> Formula:
    """Return `tree` with the variable `old` renamed to `new`."""
    name = new if tree.head == "symbol" and tree.name == old else tree.name
    operands = [_with_renamed_symbol(operand, old, new) for operand in tree.operands]
    return Formula(tree.head, tuple(operands), name, tree.value)
