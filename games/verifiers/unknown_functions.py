"""Unknown functions such as f and T in T(n) = 2T(n/2) + n: which letters are functions, and their values as symbols."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

from marl.games.verifiers.formulas import FUNCTIONS, MATRIX_FUNCTIONS, Formula
from marl.games.verifiers.latex_notation import normalize_notation

_KNOWN = FUNCTIONS | {"factorial", "double factorial", "binom"}
_APPLIED = re.compile(
    r"(?:(?<![A-Za-z\\])([A-Za-z])|\\((?:var)?(?:Gamma|zeta|phi|sigma|tau|mu|psi|Phi|Psi)))(?:_\{?\w{1,3}\}?)?(?:'+|\^\{?\(?-?\w\)?\}?)?\s?(?:\\(?:left|[bB]igg?l?)\s?)?\(([^()]*)"
)
"""Letter with an index, primes or an order before an opening bracket, and the beginning of the argument."""
_ALWAYS = frozenset([*"fghF", "Gamma", "zeta"])
"""Letters that are functions before a bracket, unless they also stand alone."""
_USUAL = frozenset([*"GHTEPVSRLpqruvyw", "phi", "sigma", "tau", "mu", "psi", "Phi", "Psi"])
"""Letters that are functions if the question applies them, or a formula defines them or applies them twice.

Other letters are functions if the question applies them twice, or the right answer defines them.
"""
_DEFINED = re.compile(r"^[\s$\\(]*([A-Za-z])\s?\([^()=]{1,20}\)\s*=")
_EVENT = re.compile(r"[A-Z](?:\^|$)|.*(?:\||\\mid\b|\\cap\b|\\cup\b)")
"""Argument of a probability or an expectation: A, X^2, B|A."""
_COMMANDS = re.compile(r"\\(?:text|operatorname|mathrm)\s*\{[^{}]*\}|\\[A-Za-z]+")
_BLACKBOARD = re.compile(
    r"\\(?:mathbb|mathbf|operatorname|mathrm|text)\s*\{?\s*([EP])\b\s*\}?(?=\s*(?:\\left\s*)?[\[(])"
)
_SQUARE = re.compile(r"(?<![A-Za-z\\])([EP])\s*(?:\\left\s*)?\[([^\[\]]{1,80}?)(?:\\right\s*)?\]")
_FUNCTION = r"\s*[A-Za-z](?:_\{?\w\}?|'+|\^\{\s*-\s*1\s*\})?\s*"
_CHAIN = rf"{_FUNCTION}(?:(?:\\circ(?![A-Za-z])|∘){_FUNCTION})+"
_COMPOSED = re.compile(rf"(?:\(({_CHAIN})\)|({_CHAIN}))\s*\(([^()]{{1,60}})\)")
r"""Composition with its argument: (f \circ g)(x) or f \circ g(x)."""
_COMPOSED_IN_BRACKETS = re.compile(rf"\(({_CHAIN})\)(?=\s*(?:\\circ|∘|\)))")
"""Composition in brackets within a longer one, which is associative."""
_MAX_CALLS = 16
"""Maximum number of different values of unknown functions in a comparison."""


def with_standard_call_notation(text: str) -> str:
    r"""Return `text` with E(X) for an expectation E[X] or \mathbb{E}[X], and with f(g(x)) for (f \circ g)(x)."""
    text = _BLACKBOARD.sub(r" \1", text)
    text = _SQUARE.sub(r"\1(\2)", text)
    if "\\circ" not in text and "∘" not in text:
        return text
    for _ in range(_MAX_CALLS):
        text, count = _COMPOSED_IN_BRACKETS.subn(r"\1", text)
        if not count:
            break
    return _COMPOSED.sub(_nested_call, text)


def _nested_call(match: re.Match[str]) -> str:
    """Return f(g(x)) for a match of (f ∘ g)(x)."""
    names = [name.strip() for name in re.split(r"\\circ\b|∘", match[1] or match[2])]
    return "(".join(names) + f"({match[3]})" + ")" * (len(names) - 1)


def function_letters(question: str, gold: str, answer: str) -> frozenset[str]:
    """Return the letters that stand for unknown functions in the texts `gold` and `answer`."""
    asked = _arguments_by_letter(question)
    letters = set[str]()
    for text in (gold, answer):
        defined = _DEFINED.match(text)
        for letter, applied in _arguments_by_letter(text).items():
            is_defined = defined is not None and defined[1] == letter
            is_usual = letter in asked or is_defined or len(applied) > 1 or any(map(_EVENT.match, applied))
            is_named = len(asked.get(letter, ())) > 1 or (is_defined and text == gold)
            if letter in _ALWAYS or is_named or (letter in _USUAL and is_usual):
                letters.add(letter)
    # A letter that also stands alone is a variable, as P in P(1 + r) - P; for f and F the right answer alone decides.
    alone = {letter for letter in letters if _occurs_without_argument(letter, gold)}
    alone |= {letter for letter in letters - asked.keys() - {"f", "F"} if _occurs_without_argument(letter, answer)}
    return frozenset(letters - alone)


def _arguments_by_letter(text: str) -> dict[str, set[str]]:
    """Return the arguments in brackets after each letter of `text`."""
    arguments = dict[str, set[str]]()
    for letter, greek, argument in _APPLIED.findall(text if text.isascii() else normalize_notation(text)):
        arguments.setdefault(letter or greek.removeprefix("var"), set()).add(argument)
    return arguments


def _occurs_without_argument(letter: str, text: str) -> bool:
    """Return True if `letter` occurs in `text` without an argument."""
    name, text = (letter, _COMMANDS.sub(" ", text)) if len(letter) == 1 else (rf"\\(?:var)?{letter}(?![A-Za-z])", text)
    return bool(re.search(rf"{name}(?!['_^(]|\s{{0,3}}(?:\\left\s?)?\()", text))


def is_unknown_call(tree: Formula) -> bool:
    """Return True for the value of an unknown function."""
    return tree.head == "call" and tree.name not in _KNOWN and not tree.name.startswith("arc")


def with_symbols_for_unknown_calls(
    trees: tuple[Formula, Formula], is_same: Callable[[Formula, Formula], bool]
) -> tuple[Formula, Formula]:
    """Return `trees` with a variable for each value of an unknown function; equal values get the same variable."""
    if not any(is_unknown_call(part) for tree in trees for part in tree.walk()):
        return trees
    symbols = list[tuple[Formula, Formula]]()

    def replaced(tree: Formula) -> Formula:
        operands = tuple(map(replaced, tree.operands))
        tree = Formula(tree.head, operands, tree.name, tree.value)
        if not is_unknown_call(tree):
            return tree
        for call, symbol in symbols:
            alike = call.name == tree.name and len(call.operands) == len(operands)
            # Products of matrices do not commute, so arguments of matrix functions must be equal in order.
            is_equal = operator.eq if call.name in MATRIX_FUNCTIONS else is_same
            if alike and all(map(is_equal, call.operands, operands)):
                return symbol
        symbol = Formula("symbol", name=f"{tree.name}()_{len(symbols)}")
        if len(symbols) == _MAX_CALLS:
            return tree  # a call that is not replaced has no value, so a formula with too many calls is never accepted
        symbols.append((tree, symbol))
        return symbol

    return replaced(trees[0]), replaced(trees[1])
