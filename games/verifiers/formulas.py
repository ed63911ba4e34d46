r"""Parser of formulas in LaTeX or plain text. Nothing is evaluated: 2+3 stays a sum.

Heads of trees, with operands: `number`; `symbol`; `text`; `sum`, `negative`, `product`, `quotient`, `power` (base,
exponent), `root` (radicand, index), `call` (arguments; `name` is the function), `plus_minus` and `minus_plus` (two
terms), `measured` (a formula; `name` is its unit), `sequence` (items; `name` is its two brackets), `list` (items
without brackets; `name` is "," or "and" or "or"), `relation` (sides; `name` is its signs), `union`, `intersection`,
`difference`, `matrix` (rows, each a `sequence`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from marl.games.verifiers.latex_notation import normalize_notation
from marl.games.verifiers.tokens import Token, UnreadableError, tokenize

MAX_LENGTH, MAX_DEPTH = 1000, 24
"""Maximum length (in characters) and nesting depth of a formula; anything larger is no answer."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula as a tree: its outermost operation (`head`) and the operands."""

    head: str
    operands: tuple[Formula, ...] = ()
    name: str = ""
    value: Fraction = Fraction(0)
    """Value of a number, else 0."""

    def walk(self) -> Iterator[Formula]:
        """Yield this tree and all its subtrees, parents first."""
        yield self
        for part in self.operands:
            yield from part.walk()


def number_formula(value: int | Fraction) -> Formula:
    """Return the tree of the number `value`."""
    return Formula("number", value=Fraction(value))


@lru_cache(1024)
def read_formula(text: str, variables: frozenset[str] | None = None) -> Formula:
    """Return the tree of the formula `text`; raise UnreadableError for any other text.

    A word is a product of variables if all its letters are in `variables`, else text. With None, which suits a right
    answer, words of up to three letters are products.
    """
    if len(text) > MAX_LENGTH:
        raise UnreadableError("too long")
    parser = _Parser(tokenize(normalize_notation(text)), variables)
    tree = parser.items()
    if parser.next.kind != "stop":
        parser.fail()
    return tree


# --- grammar ---------------------------------------------------------------------------------------------------------

_RELATIONS = ("=", "<", ">", "le", "ge", "ne", "in", "notin", "approx", ":")
_SETS = {"cup": "union", "cap": "intersection", "setminus": "difference"}
_INVERTIBLE = frozenset(["sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"])
TRIGONOMETRIC = _INVERTIBLE | {f"arc{name}" for name in _INVERTIBLE}
FUNCTIONS = TRIGONOMETRIC | {"log", "ln", "lg", "exp", "max", "min", "abs", "floor", "ceil"}
"""Names of functions applied to the formula after them."""
_PLAIN_WORDS = FUNCTIONS | {"sqrt", "pi", "infty", "infinity"}
_GREEK = """
    alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega Gamma Delta
    Theta Lambda Sigma Phi Psi Omega ell
"""
_SYMBOLS = frozenset(_GREEK.split()) | {"infty", "emptyset", "R"}
_ENVIRONMENTS = frozenset(["matrix", "pmatrix", "bmatrix", "Bmatrix", "array"])
_CLOSING = {"(": ")]", "[": ")]", "\\{": ("\\}",), "{": "}", "langle": ("rangle",), "begingroup": ("endgroup",)}
_ROUNDED = {"lfloor": ("rfloor", "floor"), "lceil": ("rceil", "ceil")}


class _Parser:
    """Recursive-descent parser, from the weakest binding (a list of solutions) to the strongest (a number).

    Attributes:
        depth: current nesting of atoms.
        sets: number of open set braces, within which a bar is "such that".
        bars: number of open absolute values, within which a bar closes.
        chained: number of operations so far that deepen the tree without brackets.
    """

    def __init__(self, tokens: list[Token], variables: frozenset[str] | None) -> None:
        self.tokens, self.variables = tokens, variables
        self.position = self.depth = self.sets = self.bars = self.chained = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.position]

    def take(self, *texts: str) -> str:
        """Consume and return the next token if it is one of `texts`, else return ""."""
        if self.next.kind in ("sign", "command", "word") and self.next.text in texts:
            self.position += 1
            return self.tokens[self.position - 1].text
        return ""

    def expect(self, *texts: str) -> str:
        """Consume and return the next token; raise UnreadableError if it is none of `texts`."""
        return self.take(*texts) or self.fail()

    def nested(self, head: str, *parts: Formula, name: str = "") -> Formula:
        """Return a tree around the one before it; raise UnreadableError if a chain such as x!!!! is too long."""
        self.chained += 1
        if self.chained > 2 * MAX_DEPTH:
            raise UnreadableError("too deep")
        return Formula(head, parts, name)

    def fail(self) -> str:
        raise UnreadableError(f"unexpected {self.next.text!r}")

    def items(self) -> Formula:
        """Read formulas between commas, "and" or "or"."""
        items, separators = [self.relation()], set[str]()
        while separator := self.separator():
            separators.add(separator)
            items.append(self.relation())
        if len(items) == 1:
            return items[0]
        words = separators - {","}
        if len(words) > 1:
            raise UnreadableError("both 'and' and 'or'")
        return Formula("list", tuple(items), words.pop() if words else ",")

    def separator(self) -> str:
        """Read a comma, "and" or "or", or a comma before a word; return "" if none follows."""
        comma = self.take(",", ";")
        return self.take("or", "and") or comma.replace(";", ",")

    def relation(self) -> Formula:
        """Read a chain such as 1 < x <= 2."""
        operands, relations = [self.union()], list[str]()
        bars = ("|", "mid") if self.sets and not self.bars else ()
        while sign := self.take(*_RELATIONS, *bars):
            relations.append({"approx": "=", "|": ":", "mid": ":"}.get(sign, sign))
            operands.append(self.union())
        return Formula("relation", tuple(operands), " ".join(relations)) if relations else operands[0]

    def union(self) -> Formula:
        """Read sums joined by operations on sets."""
        left = self.sum()
        while sign := self.take(*_SETS):
            left = self.nested(_SETS[sign], left, self.sum())
        return left

    def sum(self) -> Formula:
        """Read products with signs between them, and a unit after them."""
        sign = self.take("+", "-", "pm", "mp")
        left = self.added(None, sign) if sign else self.product()
        while sign := self.take("+", "-", "pm", "mp"):
            left = self.added(left, sign)
        if left.head != "text" and (unit := self.unit()):
            return Formula("measured", (left,), unit)
        return left

    def added(self, left: Formula | None, sign: str) -> Formula:
        """Read a product after `sign` and return its sum with `left` (None: nothing precedes the sign)."""
        right = self.product()
        if sign in ("pm", "mp"):
            return self.nested("plus_minus" if sign == "pm" else "minus_plus", left or number_formula(0), right)
        term = Formula("negative", (right,)) if sign == "-" else right
        if left is None:
            return term
        return Formula("sum", (*left.operands, term) if left.head == "sum" else (left, term))

    def unit(self) -> str:
        """Read the words after a formula, the name of its unit."""
        pieces = list[str]()
        while self.is_text() or (pieces and self.next.text in ("^", "/") and self.next.kind == "sign"):
            power = self.take("^")
            pieces.append(f"^{self.exponent().value}" if power else self.next.text)
            self.position += not power
        return " ".join(pieces)

    def product(self) -> Formula:
        """Read factors with signs of multiplication and division, or none, between them."""
        left = self.power()
        while True:
            if self.take("*"):
                left = _multiplied(left, self.factor())
            elif self.take("/"):
                left = self.nested("quotient", left, self.factor())
            elif self.is_operand():
                left = _multiplied(left, self.implicit_factor())
            else:
                return left

    def implicit_factor(self) -> Formula:
        """Read a factor without a sign before it. Two numbers side by side are no product."""
        bracket = self.next.text in ("(", "[")
        factor = self.power()
        if factor.head == "number" and not bracket:  # 2(3) is a product, 2 3 is none
            raise UnreadableError("two numbers side by side")
        return factor

    def factor(self) -> Formula:
        """Read a factor that may have a sign, as in 2 * -3."""
        return Formula("negative", (self.power(),)) if self.take("-") else self.power()

    def power(self) -> Formula:
        """Read an atom with its postfix signs and exponent."""
        is_word = self.next.kind == "word"
        base = self.postfix(self.atom())
        if not self.take("^"):
            return base
        exponent = self.exponent()
        if self.next.text == "^":
            raise UnreadableError("a tower of powers")
        if is_word and base.head == "product":  # xe^2 is x times e^2
            return Formula("product", (*base.operands[:-1], Formula("power", (base.operands[-1], exponent))))
        return Formula("power", (base, exponent))

    def exponent(self) -> Formula:
        return Formula("negative", (self.argument(),)) if self.take("-") else self.argument()

    def postfix(self, tree: Formula) -> Formula:
        """Read factorials, degrees, per cent and primes after `tree`."""
        while sign := self.take("!", "°", "%", "'"):
            if sign == "'":
                tree = Formula("symbol", name=f"{tree.name}'") if tree.head == "symbol" else Formula(self.fail())
            else:
                head, name = ("call", "factorial") if sign == "!" else ("measured", sign)
                tree = self.nested(head, tree, name=name)
        return tree

    def atom(self) -> Formula:
        """Read a number, a variable, a command or a formula in brackets."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnreadableError("too deep")
        tree = self.inner_atom()
        self.depth -= 1
        return tree

    def inner_atom(self) -> Formula:
        token = self.next
        if self.is_text():
            return self.text()
        self.position += 1
        if token.kind == "number":
            return Formula("number", value=token.value)
        if token.kind == "begin" and token.text in _ENVIRONMENTS:
            return self.matrix(token.text)
        if token.text in _CLOSING:
            return self.bracketed(token.text)
        if token.text == "|" and not self.bars:
            return self.absolute()
        if token.kind == "command":
            return self.command(token.text)
        if token.kind == "word":
            return self.command(token.text) if token.text in _PLAIN_WORDS else self.letters(token.text)
        raise UnreadableError(f"unexpected {token.text!r}")

    # --- words

    def is_text(self) -> bool:
        """Return True if the next token is a word of text, not a product of variables."""
        token = self.next
        if token.kind != "word":
            return token.kind == "text"
        if not token.text.isascii():
            return True
        if len(token.text) == 1 or token.text in _PLAIN_WORDS or token.text in ("or", "and"):
            return False
        if self.variables is None:
            return len(token.text) >= 4
        return not set(token.text) <= self.variables | {"e", "i"}

    def text(self) -> Formula:
        """Read the words up to the next other token."""
        words = list[str]()
        while self.is_text():
            words.append(self.next.text)
            self.position += 1
        return Formula("text", name=" ".join(" ".join(words).split()))

    def letters(self, word: str) -> Formula:
        """Read a variable, or a product of several."""
        if word in ("or", "and"):
            self.fail()
        *before, last = (Formula("symbol", name=letter) for letter in word)
        last = self.symbol(last.name)
        return Formula("product", (*before, last)) if before else last

    def symbol(self, name: str) -> Formula:
        """Read the index, if any, of the variable `name`."""
        if not self.take("_"):
            return Formula("symbol", name=name)
        start = self.position
        self.argument()
        index = "".join([token.text for token in self.tokens[start : self.position]])
        return Formula("symbol", name=f"{name}_{index.strip('{}')}")

    # --- operands

    def is_operand(self) -> bool:
        """Return True if an operand comes next, which makes a product with the operand before it."""
        token = self.next
        if token.kind == "sign":
            return token.text in ("(", "[", "{") or (token.text == "|" and not self.bars and not self.sets)
        if token.kind == "command":
            return token.text in _SYMBOLS or token.text in FUNCTIONS or token.text in _OPERANDS
        return token.kind in ("number", "begin") or (
            token.kind == "word" and not self.is_text() and token.text not in ("or", "and")
        )

    def argument(self) -> Formula:
        """Read the argument of a command: a group in braces, or one atom."""
        if not self.take("{"):
            return self.atom()
        inner = self.items()
        self.expect("}")
        return inner

    def command(self, name: str) -> Formula:
        """Read the arguments of the command `name`; raise UnreadableError for an integral, a limit and the like."""
        if name in ("frac", "binom"):
            parts = (self.argument(), self.argument())
            return Formula("quotient", parts) if name == "frac" else Formula("call", parts, "binom")
        if name == "sqrt":
            return self.root()
        if name in FUNCTIONS:
            return self.call(name)
        if name in _ROUNDED:
            inner = self.sum()
            self.expect(_ROUNDED[name][0])
            return Formula("call", (inner,), _ROUNDED[name][1])
        if name == "mathbb":
            return Formula("symbol", name=f"mathbb {self.argument().name}")
        if name in _PLAIN_WORDS or name in _SYMBOLS:
            return self.symbol({"infinity": "infty", "R": "reals"}.get(name, name))
        raise UnreadableError(f"\\{name} is still to be worked out")

    def root(self) -> Formula:
        index = number_formula(2)
        if self.take("["):
            index = self.sum()
            self.expect("]")
        return Formula("root", (self.argument(), index))

    def call(self, name: str) -> Formula:
        r"""Read a function with its argument, as in \sin^2 x, \log_2(8) and \cos 2x."""
        base = (self.argument(),) if self.take("_") else ()
        power = self.exponent() if self.take("^") else None
        argument = self.atom() if self.next.text in ("(", "{", "[") else self.bare_argument()
        arguments = argument.operands if argument.head == "sequence" else (argument,)
        if power == Formula("negative", (number_formula(1),)) or (power and power.value == -1):
            if name not in _INVERTIBLE:
                raise UnreadableError("an inverse function")
            return Formula("call", arguments, f"arc{name}")
        tree = _called(name, arguments + base)
        return Formula("power", (tree, power)) if power else tree

    def bare_argument(self) -> Formula:
        """Read the argument of a function that has no brackets: factors up to the next sign or function."""
        argument = self.factor()
        while self.is_operand() and self.next.text not in FUNCTIONS and self.next.text != "(":
            argument = _multiplied(argument, self.implicit_factor())
        return argument

    # --- brackets

    def bracketed(self, opening: str) -> Formula:
        """Read a formula in brackets after the bracket `opening`."""
        self.sets += opening == "\\{"
        # A bar within brackets cannot close an absolute value outside.
        bars, self.bars = self.bars, 0
        if opening == "\\{" and self.take("\\}"):
            self.sets -= 1
            return Formula("symbol", name="emptyset")
        inner = self.items()
        closing = self.expect(*_CLOSING[opening])
        self.sets -= opening == "\\{"
        self.bars = bars
        return _in_brackets(inner, opening, closing)

    def absolute(self) -> Formula:
        """Read an absolute value after its first bar."""
        self.bars += 1
        inner = self.sum()
        self.expect("|")
        self.bars -= 1
        return Formula("call", (inner,), "abs")

    def matrix(self, environment: str) -> Formula:
        """Read the rows of a matrix up to the end of its environment."""
        rows, cells = list[Formula](), list[Formula]()
        while True:
            cells.append(self.sum())
            if self.take("&"):
                continue
            rows.append(Formula("sequence", tuple(cells), "()"))
            cells = []
            if not self.take("cr") or self.next.kind == "end":
                break
        if self.next.kind != "end" or self.next.text != environment or len({len(row.operands) for row in rows}) > 1:
            self.fail()
        self.position += 1
        return Formula("matrix", tuple(rows))


_OPERANDS = frozenset(("frac", "binom", "sqrt", "begingroup", "mathbb", *_ROUNDED))


def _multiplied(left: Formula, right: Formula) -> Formula:
    return Formula("product", (*left.operands, right) if left.head == "product" else (left, right))


def _called(name: str, arguments: tuple[Formula, ...]) -> Formula:
    """Return the function `name` of `arguments`, with exp as a power and lg as a logarithm to base 10."""
    if name == "exp":
        return Formula("power", (Formula("symbol", name="e"), *arguments))
    if name == "lg":
        return Formula("call", (*arguments, number_formula(10)), "log")
    return Formula("call", arguments, name)


def _in_brackets(inner: Formula, opening: str, closing: str) -> Formula:
    """Return the formula `inner` in brackets: (x) is x, but (1, 2), [x] and {x} are sequences."""
    if opening == "begingroup" or (opening == "{" and inner.head != "list"):
        return inner
    items = inner.operands if inner.head == "list" and inner.name == "," else (inner,)
    if inner.head == "matrix" or ((opening, closing) == ("(", ")") and len(items) == 1):
        return inner
    if opening + closing in ("(]", "[)") and len(items) != 2:
        raise UnreadableError("brackets that do not match")
    return Formula("sequence", items, {"\\{": "{}", "{": "{}", "langle": "()"}.get(opening, opening + closing))
