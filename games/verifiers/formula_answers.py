"""Verdicts on formulas, also with a rounded value beside them or with other names for constants."""

from __future__ import annotations

import re

from marl.core.types import Verdict
from marl.games.verifiers.answer_verifier import quote, reject
from marl.games.verifiers.antiderivatives import is_same_antiderivative
from marl.games.verifiers.approximations import split_exact_and_rounded
from marl.games.verifiers.arbitrary_constants import constant_names_allowed, with_gold_names, without_declared_constants
from marl.games.verifiers.closed_form import is_scalar, variables
from marl.games.verifiers.combinations import with_binomials
from marl.games.verifiers.congruences import read_congruence
from marl.games.verifiers.formulas import VECTOR_OPERATORS, read_formula
from marl.games.verifiers.latex_notation import plain_words, with_cases
from marl.games.verifiers.logic import is_right_proposition, read_in_notation_of, read_proposition
from marl.games.verifiers.recurrences import with_standard_index, with_two_fibonacci_numbers
from marl.games.verifiers.standard_symbols import with_standard_symbols
from marl.games.verifiers.tokens import UnreadableFormulaError
from marl.games.verifiers.unknown_functions import function_letters, with_standard_call_notation
from marl.games.verifiers.vector_signs import with_separate_terms
from marl.protocols.tasks import UNKNOWN_REASON

_FOR_ALL = re.compile(
    r"\s*,?\s*(?:\\[,;: ]\s*|\\q?quad\s*)*\(?"
    r"(?:(?:\\text\{\s*)?for (?:all|every|each|any)(?: real)?\s*\}?|\\forall|∀)\s*\$?[a-z](?:,\s*[a-z])?\$?\)?\s*\.?$",
    re.I,
)
"""Quantifier after an identity: f(-x) = f(x) for all x."""
_EMPTY = re.compile(
    r"(?:[a-z]\s*\\in\s*)?(?:\\emptyset|\\\{\s*\\\}|\{\s*\})|(?:the\s+)?empty\s+set"
    r"|(?:(?:there\s+(?:is|are)|(?:the|this)\s+(?:equation|system|inequality|congruence)\s+has)\s+)?"
    r"(?:no\s+(?:real\s+|integer\s+)?solutions?(?:\s+exists?)?|keine\s+(?:reellen?\s+)?Lösung(?:en)?|aucune\s+solution(?:\s+réelle)?"
    r"|(?:no\s+hay|ninguna)\s+soluci(?:ón|ones)|(?:não\s+há|nenhuma)\s+soluç(?:ão|ões)|нет\s+решений|无解|解なし)",
    re.I,
)

_ASKS_FOR_INTEGERS = re.compile(r"\bcongruen|\bmod(?:ulo)?\b|\\p?mod|\\equiv|\ball integers\b", re.I)
_SPACES = re.compile(r"\\[,;:! ]")
_RELATION = re.compile(r"[<>,;:!\u3001\uff0c\u2260\u2264\u2265]|\\(?:le|ge|ne|lt|gt)(?![A-Za-z])|\\(?:leq|geq|neq)")
_UNREAD = re.compile(
    r"[\s$]*(?:\\d?frac\s*\{\s*d\s*\}|d/d[a-z]\b|\([^()]{1,40}(?:\([^()]{1,20}\))?\)'|\\(?:int|i+nt|oint|sum|prod|lim)(?![A-Za-z])|\\begin\s*\{vmatrix\}|(?:\\left\s*)?\[.{1,80}\]\s*_|(?:\\left\s*)?[.|].{1,80}\|\s*_)"
)
"""Beginning of a formula that is not read, and is no answer without its value."""


def is_number(text: str) -> bool:
    """Return True if `text` is a number, possibly irrational: a formula without variables, sets or words."""
    try:
        tree = read_formula(text)
    except UnreadableFormulaError:
        return False
    return is_scalar(tree) and not variables(tree)


def means_empty_set(text: str) -> bool:
    """Return True if `text` means the empty set: as a sign, or in words such as "no solution"."""
    return bool(_EMPTY.fullmatch(plain_words(text).strip(" .")))


def has_unit(text: str) -> bool:
    """Return True if `text` is a formula with words after it, such as the unit in "5 km"."""
    try:
        return read_formula(text).head == "measured"
    except UnreadableFormulaError:
        return False


def _in_notation_of_gold(gold: str, answer: str) -> tuple[str, str]:
    """Return both texts with the usual notation of calls, binomial coefficients and cases, where `gold` has these."""
    gold, answer = with_standard_call_notation(gold), with_standard_call_notation(answer)
    gold, answer = _FOR_ALL.sub("", gold), _FOR_ALL.sub("", answer)
    gold, answer = without_declared_constants(gold), without_declared_constants(answer)
    if "binom" in gold or "choose" in gold:
        gold, answer = with_binomials(gold), with_binomials(answer)
    return gold, with_cases(answer) if "cases" in gold else answer


def compare_formulas(answer: str, gold: str, question: str) -> Verdict:
    """Return the verdict on `answer` for a right answer that is no rational number, such as a set or an equation."""
    if means_empty_set(gold) and means_empty_set(answer):
        return Verdict(1.0)
    congruence = read_congruence(gold, reads_general_solution=bool(_ASKS_FOR_INTEGERS.search(question)))
    residues = read_congruence(answer, reads_general_solution=True) if congruence else None
    if congruence and residues and residues[1:] == congruence[1:] and residues[0] in ("", congruence[0]):
        return Verdict(1.0)
    proposition = read_proposition(gold)
    stated = read_in_notation_of(proposition, answer) if proposition else None
    if proposition and stated:
        is_right = is_right_proposition(proposition, stated, question)
        return Verdict(1.0) if is_right else reject(f"{quote(answer)} has another truth table or form")
    # Imported here, so that `marl check` does not load python-flint.
    from marl.games.verifiers.answer_comparison import AnswerComparison
    from marl.games.verifiers.ordered_products import ordered_names
    from marl.games.verifiers.solution_families import is_same_family

    gold, answer = _in_notation_of_gold(gold, answer)
    functions = function_letters(question, gold, answer)
    try:
        right = read_formula(gold, None, functions)
    except UnreadableFormulaError:
        # The parser cannot read the right answer (an integral, for example), and the caller has compared the texts.
        return reject("not the right answer letter by letter, which alone can be compared")
    try:
        # A word made of the right answer's variables is a product (ab is a times b); any other word is text.
        letters = frozenset(name for name in variables(right) if len(name) == 1) | constant_names_allowed(question)
        letters |= {"j"} if "i" in right.symbols() else set()
        formula = read_formula(answer, letters, functions)
    except UnreadableFormulaError as error:
        left, sign, value = answer.rpartition("=")
        is_equation = sign and not _RELATION.search(_SPACES.sub("", left))
        if is_equation and right.head != "relation" and _UNREAD.match(left):
            # An answer such as "\int ... = 5" repeats the integral before its value, so only the value is compared.
            return compare_formulas(value, gold, question)
        return reject(f"{quote(answer)} cannot be read: {error}")
    right, formula = (with_standard_symbols(tree, right, question) for tree in (right, formula))
    right, formula = (with_two_fibonacci_numbers(tree, question) for tree in (right, formula))
    if any(f"\\{name} " in gold for name in VECTOR_OPERATORS):
        right, formula = with_separate_terms(right), with_separate_terms(formula)
    renamed = with_gold_names(right, formula, question)
    if is_same_antiderivative(right, renamed, question) or is_same_family(right, formula, question):
        return Verdict(1.0)

    comparison = AnswerComparison(question, ordered_names(right, renamed, question, gold))
    for reading in (renamed, *map(read_formula, split_exact_and_rounded(answer, gold))):
        if comparison.is_same(right, reading):
            return Verdict(1.0)
    sequence, stated_sequence = with_standard_index(right), with_standard_index(formula)
    if (sequence, stated_sequence) != (right, formula) and comparison.is_same(sequence, stated_sequence):
        return Verdict(1.0)
    if comparison.is_undecided:
        # The verifier counts and removes the prefix; the rest is the reason of any wrong answer, and reveals nothing.
        return reject(f"{UNKNOWN_REASON}{quote(answer)} is not right")
    return reject(f"{quote(answer)} is not right")
