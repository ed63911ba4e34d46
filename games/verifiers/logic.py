r"""Formulas of logic and of sets, compared by truth tables: \neg p \lor q, p \to q, A \cap B^c, \exists x\,\neg P(x).

A quantified formula counts as one variable, whose name is the truth table of its body with numbers for bound names.
"""

# ruff: noqa: RUF001 (signs of logic that look like letters)

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

_MAX_LENGTH, _MAX_NAMES, _MAX_DEPTH = 400, 10, 40
_TOKEN = re.compile(
    r"\s*(?:(?P<not>\\neg\b|\\lnot\b|[¬~])|(?P<and>\\land\b|\\wedge\b|\\cap\b|[∧&∩])"
    r"|(?P<or>\\lor\b|\\vee\b|\\cup\b|[∨∪])|(?P<minus>\\setminus\b|\\backslash\b|∖)|(?P<complement>\^\s*\{?\s*(?:c|\\complement)\b\s*\}?|')"
    r"|(?P<xor>\\oplus\b|⊕)|(?P<iff>\\leftrightarrow\b|\\Leftrightarrow\b|\\iff\b|[↔⇔])"
    r"|(?P<then>\\to\b|\\rightarrow\b|\\Rightarrow\b|\\implies\b|\\supset\b|[→⇒])"
    r"|(?P<exists>\\exists\b|∃)|(?P<forall>\\forall\b|∀)"
    r"|(?P<open>[(\[])|(?P<close>[)\]])|(?P<name>[A-Za-z](?:_\{?\w\}?)?(?![A-Za-z])))"
)
_BOUND = re.compile(
    r"\s*(?P<name>[A-Za-z](?:_\{?\w\}?)?)(?P<domain>\s*(?:\\in\b|∈)\s*(?:\\mathbb\s*\{?\s*\w\s*\}?|[A-Zℝℤℕℚ]))?\s*\)?\s*[:.,]?"
)
"""Name after a quantifier, with its domain and the sign after it."""
_PREDICATE = re.compile(r"\s*[A-Za-z]\s*\(\s*[A-Za-z](?:_\{?\w\}?)?(?:\s*,\s*[A-Za-z](?:_\{?\w\}?)?)*\s*\)")
_TERM = r"(?:[A-Za-z0-9+*/^{}. -]|\\(?:cdot|mathbb)\b){1,40}"
_RELATION = re.compile(rf"\s*(?P<left>{_TERM}?)\s*(?P<sign>\\leq?\b|\\geq?\b|\\neq?\b|[<>=≤≥≠])\s*(?P<right>{_TERM})")
_RELATION_SIGNS = {
    **dict.fromkeys(("<", "\\ge", "\\geq", "≥"), "<"),
    **dict.fromkeys((">", "\\le", "\\leq", "≤"), ">"),
    **dict.fromkeys(("=", "\\ne", "\\neq", "≠"), "="),
}
"""Sign of a relation -> the sign itself, or the sign of the relation that it denies."""
_WORDS = (
    (re.compile(r"^\s*if\s+(.{1,100}?),?\s+then\s+(.{1,100})$", re.I), r"(\1) → (\2)"),
    (re.compile(r"(?<!\\)\b(?:if and only if|iff|is equivalent to)\b", re.I), "↔"),
    (re.compile(r"(?<!\\)\b(?:implies|only if)\b", re.I), "→"),
    (re.compile(r"\bxor\b", re.I), "⊕"),
    (re.compile(r"(?<!\\)\bnot\b", re.I), "¬"),
    (re.compile(r"\band\b", re.I), "∧"),
    (re.compile(r"\bor\b", re.I), "∨"),
    (re.compile(r"\\text\s*\{\s*([¬∧∨→↔⊕])\s*\}"), r"\1"),
)
"""Connectives in words."""
_OVERLINED = re.compile(r"\\(?:overline|bar)\s*\{?\s*([A-Za-z])\s*\}?")
_ASKS_FOR_IMPLICATION = re.compile(r"\b(?:contrapositive|converse|inverse)\b", re.I)
_REWRITES_FORMULA = re.compile(
    r"(?:\\(?:neg|lnot|to|rightarrow|Rightarrow|implies|iff|leftrightarrow|oplus|overline)\b|[¬→⇒↔⇔⊕])(?=\s*[A-Za-z({])"
    r"|\b(?:negat\w*|denial|de morgan\w*"
    r"|simplif\w*|rewrite|equivalent|without|only|normal form|contrapositive|converse|inverse|complement|implies|if)\b",
    re.I,
)
"""Questions with a formula to be rewritten, or for a form: an equivalent formula may then be no answer."""
_SIGN = re.compile(r"\\(?:neg|lnot|land|lor|wedge|vee|to|rightarrow)\b|[¬∧∨→]")
_IN_DOLLARS = re.compile(r"\$([^$]{1,200})\$")
_SPACING = re.compile(
    r"\\(?:left(?!right|arrow)|right(?!arrow)|[bB]ig+[lr]?\b|[,;:! ]|q?quad\b)|\$|\\[()\[\]]|\\text\{\s*\}"
)
_STRENGTH = {"iff": 1, "then": 2, "xor": 3, "or": 4, "and": 5, "minus": 5}
"""Binary connectives, the weakest first."""


class _NoLogicError(ValueError):
    """Error for a text that is no propositional formula."""


@dataclass(slots=True)
class Proposition:
    """A propositional formula."""

    names: list[str]
    """Names of the variables in the formula."""
    operations: frozenset[str]
    """Kinds of the connectives in the formula; `not of a formula` is a negation of more than one variable."""
    program: list[tuple[str, str]] = field(default_factory=list)
    """The formula in postfix notation: pairs of an operation and a name ("" for connectives)."""

    def truth_value(self, truth: Mapping[str, bool]) -> bool:
        """Return the truth value of the formula for the truth values of its variables."""
        stack = list[bool]()
        for operation, name in self.program:
            if operation == "name":
                stack.append(truth[name])
            elif operation == "not":
                stack.append(not stack.pop())
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(_TRUTH[operation](left, right))
        return stack[0]


_TRUTH = {
    "and": lambda left, right: left and right,
    "or": lambda left, right: left or right,
    "minus": lambda left, right: left and not right,
    "xor": lambda left, right: left != right,
    "then": lambda left, right: not left or right,
    "iff": lambda left, right: left == right,
}


def read_proposition(text: str) -> Proposition | None:
    """Return the propositional formula `text`, or None for any other text, also for a single variable."""
    if len(text) > _MAX_LENGTH or not any(sign in text for sign in "\\¬~∧∨&→⇒↔⇔⊕∩∪∖∃∀"):
        return None
    try:
        reader = _Reader(_SPACING.sub(" ", text))
        reader.read_operation(1)
    except _NoLogicError:
        return None
    names = sorted({name for _, name in reader.program} - {""})
    if reader.kind or len(names) > _MAX_NAMES or not reader.operations:
        return None
    return Proposition(names, frozenset(reader.operations), reader.program)


def read_in_notation_of(gold: Proposition, answer: str) -> Proposition | None:
    """Return the formula `answer` in the notation of `gold`, also with connectives in words, or None for other texts.

    Sets may have a minus sign for their difference and a bar for their complement.
    """
    if not gold.operations.isdisjoint(("then", "iff", "xor", "exists", "forall")) or not _is_about_sets(gold):
        for pattern, sign in _WORDS:
            answer = pattern.sub(sign, answer)
    else:
        answer = _OVERLINED.sub(r" \1^c", answer)
        answer = re.sub(r"(?<=[A-Za-z)}])\s*[-−]\s*(?=[A-Z(])", " ∖ ", answer)
    return read_proposition(answer)


def _is_about_sets(proposition: Proposition) -> bool:
    return all(name[:1].isupper() for name in proposition.names)


def is_right_proposition(gold: Proposition, answer: Proposition, question: str) -> bool:
    """Return True if `answer` is the formula that `question` asks for, whose right form is `gold`.

    A formula of the question is no answer. If the question asks for a contrapositive, converse or inverse, both sides
    of the implication are compared: the converse has the truth table of the inverse.
    """
    if not has_same_truth_table_and_connectives(gold, answer, _connectives_allowed(question)):
        return False
    if answer.program != gold.program:
        for formula in _IN_DOLLARS.findall(question):
            asked = read_proposition(formula)
            if asked and asked.program == answer.program:
                return False
    if _ASKS_FOR_IMPLICATION.search(question) and gold.program[-1][0] == "then":
        sides, stated = _sides_of_implication(gold), _sides_of_implication(answer)
        return bool(stated) and all(map(_has_same_truth_table, sides, stated))
    return True


def _sides_of_implication(implication: Proposition) -> list[Proposition]:
    """Return both sides of an implication, or [] for any other formula."""
    program = implication.program
    if program[-1][0] != "then":
        return []
    start, missing = len(program) - 1, 1
    while missing:
        start -= 1
        missing += {"name": -1, "not": 0}.get(program[start][0], 1)
    parts = program[:start], program[start:-1]
    return [Proposition(sorted({name for _, name in part} - {""}), frozenset(), part) for part in parts]


def _connectives_allowed(question: str) -> frozenset[str]:
    """Return the connectives that an answer may use beside those of the right one.

    A question that shows no formula to be rewritten, and asks for no form, leaves the choice.
    """
    if not question.strip() or _REWRITES_FORMULA.search(question):
        return frozenset()
    return frozenset(["not of a formula", *(() if _SIGN.search(question) else _TRUTH)])


def has_same_truth_table_and_connectives(
    gold: Proposition, answer: Proposition, other_connectives: frozenset[str] = frozenset()
) -> bool:
    """Return True if two formulas have the same truth table, and `answer` uses no connectives that are not allowed.

    Those of `gold`, `other_connectives`, and, or and the negation of a variable are allowed: an answer may apply De
    Morgan's law to `gold`.
    """
    allowed = (
        other_connectives
        | gold.operations
        | {"and", "or", "not", "minus"}
        | ({"then"} if "iff" in gold.operations else set())
    )
    if not answer.operations <= allowed:
        return False
    return _has_same_truth_table(gold, answer)


def _has_same_truth_table(gold: Proposition, answer: Proposition) -> bool:
    names = sorted({*gold.names, *answer.names})
    if len(names) > _MAX_NAMES:
        return False
    for values in product((False, True), repeat=len(names)):
        truth = dict(zip(names, values, strict=True))
        if gold.truth_value(truth) != answer.truth_value(truth):
            return False
    return True


class _Reader:
    """Parser of formulas of logic by precedence climbing; implications group to the right."""

    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text.rstrip(), 0, 0
        self.program = list[tuple[str, str]]()
        self.operations = set[str]()
        self.has_quantifiers = bool(re.search(r"\\(?:exists|forall)\b|[∃∀]", text))

    @property
    def kind(self) -> str:
        """Return the kind of the next token, or "" at the end of the text."""
        return self.peek()[0]

    def peek(self) -> tuple[str, str, int]:
        """Return kind, name and end of the next token; the kind is "" at the end of the text."""
        if self.position >= len(self.text):
            return "", "", self.position
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            raise _NoLogicError
        kind = match.lastgroup or ""
        return kind, match[kind] if kind == "name" else "", match.end()

    def skip(self) -> None:
        """Consume the next token."""
        self.position = self.peek()[2]

    def read_operation(self, weakest: int) -> None:
        """Read operands joined by connectives that are at least as strong as `weakest`."""
        self.read_operand()
        while (strength := _STRENGTH.get(self.kind, 0)) >= weakest:
            operation = self.kind
            self.skip()
            self.read_operation(strength if operation == "then" else strength + 1)
            self.program.append((operation, ""))
            self.operations.add(operation)

    def read_operand(self) -> None:
        """Read a variable, a negation or a formula in brackets, and the sign of a complement after it."""
        start = len(self.program)
        self.depth += 1
        if self.has_quantifiers and self.read_atom():
            self.depth -= 1
            return
        kind, name, self.position = self.peek()
        if kind == "name":
            self.program.append(("name", name))
        elif kind in ("exists", "forall") and self.depth < _MAX_DEPTH:
            self.read_quantified(kind)
        elif kind == "not":
            self.read_operand()
            self.negate_since(start)
        elif kind == "open" and self.depth < _MAX_DEPTH:
            if self.kind in ("exists", "forall") and _BOUND.match(self.text, self.peek()[2]):
                self.read_bracketed_quantifier()
            else:
                self.read_operation(1)
                if self.kind != "close":
                    raise _NoLogicError
                self.skip()
        else:
            raise _NoLogicError
        while self.kind == "complement":
            self.skip()
            self.negate_since(start)
        self.depth -= 1

    def negate_since(self, start: int) -> None:
        """Append the negation of the operand that begins at index `start` of the program."""
        is_variable = len(self.program) == start + 1
        self.operations.add("not" if is_variable else "not of a formula")
        self.program.append(("not", ""))

    def read_atom(self) -> bool:
        """Read a predicate such as P(x, y) or a relation such as x^2 < 2, and return True if one comes next."""
        if predicate := _PREDICATE.match(self.text, self.position):
            self.program.append(("name", _marked_names(predicate[0])))
            self.position = predicate.end()
            return True
        relation = _RELATION.match(self.text, self.position)
        if relation is None or not relation["left"].strip():
            return False
        sign = _RELATION_SIGNS[relation["sign"]]
        left, right = relation["left"], relation["right"]
        if sign == ">":
            left, right = right, left
        self.program.append(("name", _marked_names(f"{left}{'=' if sign == '=' else '<'}{right}")))
        if sign != relation["sign"]:
            self.program.append(("not", ""))
        self.position = relation.end()
        return True

    def read_bracketed_quantifier(self) -> None:
        """Read a formula in brackets that begins with a quantifier: the brackets may end before the body."""
        kind, _, self.position = self.peek()
        bound = _BOUND.match(self.text, self.position)
        is_alone = bound is not None and ")" in bound[0]
        self.read_quantified(kind)
        if not is_alone:
            if self.kind != "close":
                raise _NoLogicError
            self.skip()

    def read_quantified(self, kind: str) -> None:
        """Read the bound name and the body of a quantifier, and append the quantified formula as one variable."""
        bound = _BOUND.match(self.text, self.position)
        if bound is None:
            raise _NoLogicError
        self.position = bound.end()
        start = len(self.program)
        self.read_operand()
        body = self.program[start:]
        del self.program[start:]
        if kind == "forall":  # "all x have P" is stored as "no x is without P"
            body.append(("not", ""))
        domain = re.sub(r"\s", "", bound["domain"] or "")
        self.program.append(("name", _name_of_quantified(bound["name"], domain, body)))
        if kind == "forall":
            self.program.append(("not", ""))
        self.operations.add(kind)


def _marked_names(text: str) -> str:
    """Return an atomic formula without spaces, with marks around each name, so that names can be replaced."""
    return re.sub(r"([A-Za-z](?:_\{?\w\}?)?)", r"<\1>", re.sub(r"\s", "", text))


def _name_of_quantified(bound: str, domain: str, body: list[tuple[str, str]]) -> str:
    """Return a text that is the same for equal quantified formulas: the truth table of the body, without its names."""
    height = 1 + max((int(number) for _, name in body for number in re.findall(r"<#(\d+)>", name)), default=0)
    program = [(operation, name.replace(f"<{bound}>", f"<#{height}>")) for operation, name in body]
    names = sorted({name for _, name in program} - {""})
    if len(names) > _MAX_NAMES:
        raise _NoLogicError
    formula = Proposition(names, frozenset(), program)
    rows = product((False, True), repeat=len(names))
    table = "".join(str(int(formula.truth_value(dict(zip(names, values, strict=True))))) for values in rows)
    return f"exists<#{height}>{domain}[{';'.join(names)}:{table}]"
