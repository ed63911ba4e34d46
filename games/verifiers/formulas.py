r"""Reading of formulas in LaTeX or plain text into trees. Nothing is worked out: 2+3 stays a sum.

Heads of trees, with their parts: `number`; `symbol`; `text`; `sum`, `negative`, `product`, `quotient`, `power` (base,
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

from games.verifiers.notation import plain
from games.verifiers.tokens import Token, UnreadableError, tokenize

MAX_LENGTH, MAX_DEPTH = 1000, 24
"""Characters and nested parts of a formula; what is larger is no answer."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A formula: its outermost operation and what it is applied to."""

    head: str
    parts: tuple[Tree, ...] = ()
    name: str = ""
    value: Fraction = Fraction(0)
    """Of a number."""

    def walk(self) -> Iterator[Tree]:
        """Yield this tree and all within it."""
        yield self
        for part in self.parts:
            yield from part.walk()


def number(value: int | Fraction) -> Tree:
    """Return the tree of a number."""
    return Tree("number", value=Fraction(value))


@lru_cache(1024)
def read_formula(text: str, variables: frozenset[str] | None = None) -> Tree:
    """Return the tree of a formula; raise UnreadableError for everything else.

    A word is a product of variables if `variables` holds all of its letters, otherwise it is text. None: words of up
    to three letters are products, which suits a right answer.
    """
    if len(text) > MAX_LENGTH:
        raise UnreadableError("too long")
    parser = _Parser(tokenize(plain(text)), variables)
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
"""Names of functions that are applied to what follows them."""
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
    """Recursive descent, from what binds least (a list of solutions) to what binds most (a number)."""

    def __init__(self, tokens: list[Token], variables: frozenset[str] | None) -> None:
        self.tokens, self.variables = tokens, variables
        self.position = self.depth = self.sets = self.bars = self.chained = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.position]

    def take(self, *texts: str) -> str:
        """Return the next token and go past it if it is one of `texts`; else ""."""
        if self.next.kind in ("sign", "command", "word") and self.next.text in texts:
            self.position += 1
            return self.tokens[self.position - 1].text
        return ""

    def expect(self, *texts: str) -> str:
        """Return the next token, which must be one of `texts`, and go past it."""
        return self.take(*texts) or self.fail()

    def nested(self, head: str, *parts: Tree, name: str = "") -> Tree:
        """Return a tree that makes the one before it deeper; raise UnreadableError where a chain of these is long."""
        self.chained += 1
        if self.chained > 2 * MAX_DEPTH:
            raise UnreadableError("too deep")
        return Tree(head, parts, name)

    def fail(self) -> str:
        raise UnreadableError(f"unexpected {self.next.text!r}")

    def items(self) -> Tree:
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
        return Tree("list", tuple(items), words.pop() if words else ",")

    def separator(self) -> str:
        comma = self.take(",", ";")
        return self.take("or", "and") or comma.replace(";", ",")

    def relation(self) -> Tree:
        """Read a chain such as 1 < x <= 2."""
        operands, relations = [self.union()], list[str]()
        bars = ("|", "mid") if self.sets and not self.bars else ()
        while sign := self.take(*_RELATIONS, *bars):
            relations.append({"approx": "=", "|": ":", "mid": ":"}.get(sign, sign))
            operands.append(self.union())
        return Tree("relation", tuple(operands), " ".join(relations)) if relations else operands[0]

    def union(self) -> Tree:
        left = self.sum()
        while sign := self.take(*_SETS):
            left = self.nested(_SETS[sign], left, self.sum())
        return left

    def sum(self) -> Tree:
        sign = self.take("+", "-", "pm", "mp")
        left = self.added(None, sign) if sign else self.product()
        while sign := self.take("+", "-", "pm", "mp"):
            left = self.added(left, sign)
        if left.head != "text" and (unit := self.unit()):
            return Tree("measured", (left,), unit)
        return left

    def added(self, left: Tree | None, sign: str) -> Tree:
        right = self.product()
        if sign in ("pm", "mp"):
            return self.nested("plus_minus" if sign == "pm" else "minus_plus", left or number(0), right)
        term = Tree("negative", (right,)) if sign == "-" else right
        if left is None:
            return term
        return Tree("sum", (*left.parts, term) if left.head == "sum" else (left, term))

    def unit(self) -> str:
        """Read the name of a unit after a formula."""
        pieces = list[str]()
        while self.is_text() or (pieces and self.next.text in ("^", "/") and self.next.kind == "sign"):
            power = self.take("^")
            pieces.append(f"^{self.exponent().value}" if power else self.next.text)
            self.position += not power
        return " ".join(pieces)

    def product(self) -> Tree:
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

    def implicit_factor(self) -> Tree:
        """Read what follows without a sign. Two numbers side by side are no product."""
        bracket = self.next.text in ("(", "[")
        factor = self.power()
        if factor.head == "number" and not bracket:
            raise UnreadableError("two numbers side by side")
        return factor

    def factor(self) -> Tree:
        """Read a factor that may have a sign, as in 2 * -3."""
        return Tree("negative", (self.power(),)) if self.take("-") else self.power()

    def power(self) -> Tree:
        is_word = self.next.kind == "word"
        base = self.postfix(self.atom())
        if not self.take("^"):
            return base
        exponent = self.exponent()
        if self.next.text == "^":
            raise UnreadableError("a tower of powers")
        if is_word and base.head == "product":  # xe^2 is x times e^2
            return Tree("product", (*base.parts[:-1], Tree("power", (base.parts[-1], exponent))))
        return Tree("power", (base, exponent))

    def exponent(self) -> Tree:
        return Tree("negative", (self.argument(),)) if self.take("-") else self.argument()

    def postfix(self, tree: Tree) -> Tree:
        while sign := self.take("!", "°", "%", "'"):
            if sign == "'":
                tree = Tree("symbol", name=f"{tree.name}'") if tree.head == "symbol" else Tree(self.fail())
            else:
                head, name = ("call", "factorial") if sign == "!" else ("measured", sign)
                tree = self.nested(head, tree, name=name)
        return tree

    def atom(self) -> Tree:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnreadableError("too deep")
        tree = self.inner_atom()
        self.depth -= 1
        return tree

    def inner_atom(self) -> Tree:
        token = self.next
        if self.is_text():
            return self.text()
        self.position += 1
        if token.kind == "number":
            return Tree("number", value=token.value)
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
        """Return True if the next token is words."""
        token = self.next
        if token.kind != "word":
            return token.kind == "text"
        known = self.variables
        product = len(token.text) < 4 if known is None else set(token.text) <= known | {"e", "i"}
        product = product or len(token.text) == 1 or token.text in _PLAIN_WORDS or token.text in ("or", "and")
        return not (product and token.text.isascii())

    def text(self) -> Tree:
        words = list[str]()
        while self.is_text():
            words.append(self.next.text)
            self.position += 1
        return Tree("text", name=" ".join(" ".join(words).split()))

    def letters(self, word: str) -> Tree:
        """Read a variable, or a product of several."""
        if word in ("or", "and"):
            self.fail()
        *before, last = (Tree("symbol", name=letter) for letter in word)
        last = self.symbol(last.name)
        return Tree("product", (*before, last)) if before else last

    def symbol(self, name: str) -> Tree:
        """Read the index of a variable, if there is one."""
        if not self.take("_"):
            return Tree("symbol", name=name)
        start = self.position
        self.argument()
        return Tree("symbol", name=name + "_" + "".join(t.text for t in self.tokens[start : self.position]).strip("{}"))

    # --- operands

    def is_operand(self) -> bool:
        """Return True if an operand follows, so that a product is meant."""
        token = self.next
        if token.kind == "sign":
            return token.text in ("(", "[", "{") or (token.text == "|" and not self.bars and not self.sets)
        if token.kind == "command":
            return token.text in _SYMBOLS or token.text in FUNCTIONS or token.text in _OPERANDS
        return token.kind in ("number", "begin") or (
            token.kind == "word" and not self.is_text() and token.text not in ("or", "and")
        )

    def argument(self) -> Tree:
        """Read what a command is applied to: a group in braces, or one atom."""
        if not self.take("{"):
            return self.atom()
        inner = self.items()
        self.expect("}")
        return inner

    def command(self, name: str) -> Tree:
        if name in ("frac", "binom"):
            parts = (self.argument(), self.argument())
            return Tree("quotient", parts) if name == "frac" else Tree("call", parts, "binom")
        if name == "sqrt":
            return self.root()
        if name in FUNCTIONS:
            return self.call(name)
        if name in _ROUNDED:
            inner = self.sum()
            self.expect(_ROUNDED[name][0])
            return Tree("call", (inner,), _ROUNDED[name][1])
        if name == "mathbb":
            return Tree("symbol", name=f"mathbb {self.argument().name}")
        if name in _PLAIN_WORDS or name in _SYMBOLS:
            return self.symbol({"infinity": "infty", "R": "reals"}.get(name, name))
        raise UnreadableError(f"\\{name} is still to be worked out")

    def root(self) -> Tree:
        index = number(2)
        if self.take("["):
            index = self.sum()
            self.expect("]")
        return Tree("root", (self.argument(), index))

    def call(self, name: str) -> Tree:
        r"""Read a function with its argument, as in \sin^2 x, \log_2(8) and \cos 2x."""
        base = (self.argument(),) if self.take("_") else ()
        power = self.exponent() if self.take("^") else None
        argument = self.atom() if self.next.text in ("(", "{", "[") else self.bare_argument()
        arguments = argument.parts if argument.head == "sequence" else (argument,)
        if power == Tree("negative", (number(1),)) or (power and power.value == -1):
            if name not in _INVERTIBLE:
                raise UnreadableError("an inverse function")
            return Tree("call", arguments, f"arc{name}")
        tree = _called(name, arguments + base)
        return Tree("power", (tree, power)) if power else tree

    def bare_argument(self) -> Tree:
        """Read the argument of a function that has no brackets: factors up to the next sign or function."""
        argument = self.factor()
        while self.is_operand() and self.next.text not in FUNCTIONS and self.next.text != "(":
            argument = _multiplied(argument, self.implicit_factor())
        return argument

    # --- brackets

    def bracketed(self, opening: str) -> Tree:
        self.sets += opening == "\\{"
        bars, self.bars = self.bars, 0
        if opening == "\\{" and self.take("\\}"):
            self.sets -= 1
            return Tree("symbol", name="emptyset")
        inner = self.items()
        closing = self.expect(*_CLOSING[opening])
        self.sets -= opening == "\\{"
        self.bars = bars
        return _in_brackets(inner, opening, closing)

    def absolute(self) -> Tree:
        self.bars += 1
        inner = self.sum()
        self.expect("|")
        self.bars -= 1
        return Tree("call", (inner,), "abs")

    def matrix(self, environment: str) -> Tree:
        rows, cells = list[Tree](), list[Tree]()
        while True:
            cells.append(self.sum())
            if self.take("&"):
                continue
            rows.append(Tree("sequence", tuple(cells), "()"))
            cells = []
            if not self.take("cr") or self.next.kind == "end":
                break
        if self.next.kind != "end" or self.next.text != environment or len({len(row.parts) for row in rows}) > 1:
            self.fail()
        self.position += 1
        return Tree("matrix", tuple(rows))


_OPERANDS = frozenset(("frac", "binom", "sqrt", "begingroup", "mathbb", *_ROUNDED))


def _multiplied(left: Tree, right: Tree) -> Tree:
    return Tree("product", (*left.parts, right) if left.head == "product" else (left, right))


def _called(name: str, arguments: tuple[Tree, ...]) -> Tree:
    if name == "exp":
        return Tree("power", (Tree("symbol", name="e"), *arguments))
    return Tree("call", (*arguments, number(10)) if name == "lg" else arguments, "log" if name == "lg" else name)


def _in_brackets(inner: Tree, opening: str, closing: str) -> Tree:
    """Return the content of brackets: (x) is x, but (1, 2), [x] and {x} are something else."""
    if opening in ("begingroup", "{") and inner.head != "list":
        return inner
    if opening == "begingroup":
        return inner
    items = inner.parts if inner.head == "list" and inner.name == "," else (inner,)
    if inner.head == "matrix" or ((opening, closing) == ("(", ")") and len(items) == 1):
        return inner
    if opening + closing in ("(]", "[)") and len(items) != 2:
        raise UnreadableError("brackets that do not match")
    return Tree("sequence", items, {"\\{": "{}", "{": "{}", "langle": "()"}.get(opening, opening + closing))
