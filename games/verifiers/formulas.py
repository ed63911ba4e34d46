r"""Parser of formulas in LaTeX or plain text. Nothing is evaluated: 2+3 stays a sum."""

from __future__ import annotations

from functools import lru_cache

from marl.games.verifiers.formula_trees import MIXED, Formula, number_formula
from marl.games.verifiers.latex_notation import normalize_notation
from marl.games.verifiers.quantities import is_exactly_written
from marl.games.verifiers.tokens import Token, UnreadableFormulaError, tokenize

MAX_LENGTH, MAX_DEPTH = 1000, 24
"""Maximum length (in characters) and nesting depth of a formula; anything larger is no answer."""


@lru_cache(1024)
def read_formula(
    text: str, variables: frozenset[str] | None = None, functions: frozenset[str] = frozenset()
) -> Formula:
    """Return the tree of the formula `text`; raise UnreadableFormulaError for any other text.

    A word is a product of variables if all its letters are in `variables`, else text. If `variables` is None, words of
    up to three letters are products: right answers are read in this way. A letter in `functions` before a bracket is an
    unknown function, else a factor.
    """
    if len(text) > MAX_LENGTH:
        raise UnreadableFormulaError("too long")
    parser = _Parser(tokenize(normalize_notation(text)), variables, functions)
    tree = parser.read_formula_list()
    if parser.next.kind != "stop":
        parser.fail()
    return tree


_RELATIONS = ("=", "<", ">", "le", "ge", "ne", "in", "notin", "approx", ":")
_SETS = {"cup": "union", "cap": "intersection", "setminus": "difference"}
_INVERTIBLE = frozenset(["sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"])
TRIGONOMETRIC = _INVERTIBLE | {f"arc{name}" for name in _INVERTIBLE}
FUNCTIONS = TRIGONOMETRIC | {"log", "ln", "lg", "exp", "max", "min", "abs", "floor", "ceil"}
"""Names of functions. A function is applied to the formula that follows its name."""
MATRIX_FUNCTIONS = frozenset(["det", "tr"])
"""Functions of a matrix whose value is a number. Nothing but laws of matrices is known of them."""
VECTOR_OPERATORS = frozenset(["gradient", "divergence", "curl", "laplacian"])
"""Differential operators, which are linear in the formula after them."""
_PLAIN_WORDS = FUNCTIONS | {"det", "sqrt", "pi", "infty", "infinity"}
_GREEK = """
    alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega Gamma Delta
    Theta Lambda Sigma Phi Psi Omega ell nabla
"""
_SYMBOLS = frozenset(_GREEK.split()) | {"infty", "emptyset", "R"}
_ENVIRONMENTS = frozenset(["matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"])
_CLOSING = {"(": ")]", "[": ")]", "\\{": ("\\}",), "{": "}", "langle": ("rangle",), "begingroup": ("endgroup",)}
_ROUNDED = {"lfloor": ("rfloor", "floor"), "lceil": ("rceil", "ceil")}


class _Parser:
    """Recursive-descent parser, from the weakest binding (a list of solutions) to the strongest (a number).

    Attributes:
        depth: number of atoms that are being read, one within the other.
        sets: number of open set braces, within which a bar means "such that".
        bars: number of open absolute values, within which a bar closes the innermost value.
        chained: number of operations so far that deepen the tree without brackets.
    """

    def __init__(self, tokens: list[Token], variables: frozenset[str] | None, functions: frozenset[str]) -> None:
        self.tokens, self.variables, self.functions = tokens, variables, functions
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
        """Consume and return the next token; raise UnreadableFormulaError if it is none of `texts`."""
        return self.take(*texts) or self.fail()

    def nested_formula(self, head: str, *parts: Formula, name: str = "") -> Formula:
        """Return the operation `head` on `parts`; raise UnreadableFormulaError if a chain such as x!!!! is too long."""
        self.chained += 1
        if self.chained > 2 * MAX_DEPTH:
            raise UnreadableFormulaError("too deep")
        return Formula(head, parts, name)

    def fail(self) -> str:
        raise UnreadableFormulaError(f"unexpected {self.next.text!r}")

    def read_formula_list(self) -> Formula:
        """Read formulas between commas, "and" or "or"; a single formula is no list."""
        items, words = [self.read_relation()], set[str]()
        while True:
            comma = self.take(",", ";")
            word = self.take("or", "and")  # "or" and "and" may also follow a comma, as in "1, 2, and 3"
            if not comma and not word:
                break
            words |= {word} - {""}
            items.append(self.read_relation())
        if len(words) > 1:
            raise UnreadableFormulaError("both 'and' and 'or'")
        return Formula("list", tuple(items), words.pop() if words else ",") if len(items) > 1 else items[0]

    def read_relation(self) -> Formula:
        """Read an equation, or a chain of inequalities such as 1 < x <= 2."""
        operands, signs = [self.read_union()], []
        bars = ("|", "mid") if self.sets and not self.bars else ()
        while sign := self.take(*_RELATIONS, *bars):
            signs.append({"approx": "=", "|": ":", "mid": ":"}.get(sign, sign))
            operands.append(self.read_union())
        return Formula("relation", tuple(operands), " ".join(signs)) if signs else operands[0]

    def read_union(self) -> Formula:
        """Read sums with the signs of union, intersection or set difference between them."""
        left = self.read_sum()
        while sign := self.take(*_SETS):
            left = self.nested_formula(_SETS[sign], left, self.read_sum())
        return left

    def read_sum(self) -> Formula:
        """Parse a sum of products, and the unit behind the sum."""
        sign = self.take("+", "-", "pm", "mp")
        left = self.read_added_term(None, sign) if sign else self.read_product()
        while sign := self.take("+", "-", "pm", "mp"):
            left = self.read_added_term(left, sign)
        if left.head == "text":
            return left
        unit = list[str]()
        while self.next_is_text() or (unit and self.next.text in ("^", "/") and self.next.kind == "sign"):
            power = self.take("^")
            unit.append(f"^{self.read_exponent().value}" if power else self.next.text)
            self.position += not power
        return Formula("measured", (left,), " ".join(unit)) if unit else left

    def read_added_term(self, left: Formula | None, sign: str) -> Formula:
        """Read a product after `sign` and return its sum with `left`, which is None at the beginning of a sum."""
        right = self.read_product()
        if sign in ("pm", "mp"):
            return self.nested_formula("plus_minus" if sign == "pm" else "minus_plus", left or number_formula(0), right)
        term = Formula("negative", (right,)) if sign == "-" else right
        if left is None:
            return term
        return Formula("sum", (*left.operands, term) if left.head == "sum" else (left, term))

    def read_product(self) -> Formula:
        """Read factors with signs of multiplication or division, or without a sign, between them."""
        left = self.read_power()
        while True:
            if self.take("*"):
                left = _multiply(left, self.read_factor())
            elif self.take("cross"):
                left = self.nested_formula("cross", left, self.read_power())
            elif self.take("/"):
                left = self.nested_formula("quotient", left, self.read_factor())
            elif self.next_is_operand():
                left = _multiply(left, self.read_implicit_factor())
            else:
                return left

    def read_implicit_factor(self) -> Formula:
        """Read a factor without a sign before it: 2(3) is a product, but 2 3 is not."""
        bracket = self.next.text in ("(", "[")
        factor = self.read_power()
        if factor.head == "sequence" and factor.name == "[]" and factor.operands[0].head == "sum":
            return factor.operands[0] if len(factor.operands) == 1 else factor
        if factor.head == "number" and not bracket:
            raise UnreadableFormulaError("two numbers side by side")
        return factor

    def read_factor(self) -> Formula:
        """Read a factor that may have a sign, as in 2 * -3."""
        return Formula("negative", (self.read_power(),)) if self.take("-") else self.read_power()

    def read_power(self) -> Formula:
        """Read an atom with the signs after it (factorial, degree, per cent, prime) and its exponent."""
        is_word = self.next.kind == "word"
        base = self.read_atom()
        while sign := self.take("!", "°", "%", "'"):
            if sign == "!" and self.take("!"):
                if self.next.text == "!":
                    self.fail()
                base = self.nested_formula("call", base, name="double factorial")
            elif sign != "'":
                head, name = ("call", "factorial") if sign == "!" else ("measured", sign)
                base = self.nested_formula(head, base, name=name)
            elif base.head == "symbol":
                base = Formula("symbol", name=f"{base.name}'")
            else:
                self.fail()
        if not self.take("^"):
            return base
        self.split_word_before_power()
        exponent = self.read_exponent()
        if self.next.text == "^":
            raise UnreadableFormulaError("a tower of powers")
        if is_word and base.head == "product":  # the power in xe^2 belongs to the last letter: x times e^2
            return Formula("product", (*base.operands[:-1], Formula("power", (base.operands[-1], exponent))))
        return Formula("power", (base, exponent))

    def split_word_before_power(self) -> None:
        """Split the next word if another power follows: e^xe^y is e^x times e^y."""
        word, sign = (
            self.tokens[self.position : self.position + 2] if self.position + 1 < len(self.tokens) else (self.next,) * 2
        )
        if word.kind == "word" and sign.text == "^" and len(word.text) > 1 and word.text not in _PLAIN_WORDS:
            parts = [Token("word", word.text[0]), Token("word", word.text[1:])]
            self.tokens[self.position : self.position + 1] = parts

    def read_exponent(self) -> Formula:
        return Formula("negative", (self.read_argument(),)) if self.take("-") else self.read_argument()

    def read_atom(self) -> Formula:
        """Read a number, a variable, a command or a formula in brackets."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnreadableFormulaError("too deep")
        if self.next_is_text():
            words = list[str]()
            while self.next_is_text():
                words.append(self.next.text)
                self.position += 1
            tree = Formula("text", name=" ".join(" ".join(words).split()))
        else:
            token = self.next
            self.position += 1
            if token.kind == "number":
                tree = Formula("number", value=token.value, name=MIXED if is_exactly_written(token.text) else "")
            elif token.kind == "begin" and token.text in ("cases", "dcases"):
                tree = self.read_cases(token.text)
            elif token.kind == "begin" and token.text in _ENVIRONMENTS:
                tree = self.read_matrix(token.text)
            elif token.text in _CLOSING:
                tree = self.read_bracketed(token.text)
            elif token.text == "|" and not self.bars:
                self.bars += 1
                tree = Formula("call", (self.read_sum(),), "abs")
                self.expect("|")
                self.bars -= 1
            elif token.kind == "command" or (token.kind == "word" and token.text in _PLAIN_WORDS):
                tree = self.read_command(token.text)
            elif token.kind == "word":
                tree = self.read_letters(token.text)
            else:
                raise UnreadableFormulaError(f"unexpected {token.text!r}")
        self.depth -= 1
        return tree

    # --- words

    def next_is_text(self) -> bool:
        """Return True if the next token is a word of prose, such as a unit, and no product of variables."""
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

    def read_letters(self, word: str) -> Formula:
        """Return `word` as a variable, or as a product of one variable per letter."""
        if word in ("or", "and"):
            self.fail()
        *before, last = (Formula("symbol", name=letter) for letter in word)
        last = self.read_symbol(last.name)
        return Formula("product", (*before, last)) if before else last

    def read_symbol(self, name: str) -> Formula:
        """Return the variable `name` with the index that may follow it, or the value of a function of that name."""
        letter = name
        if self.take("_"):
            start = self.position
            self.read_argument()
            index = "".join([token.text for token in self.tokens[start : self.position]])
            name = f"{name}_{index.strip('{}')}"
        return (self.read_unknown_call(name) if letter in self.functions else None) or Formula("symbol", name=name)

    def read_unknown_call(self, name: str) -> Formula | None:
        r"""Read the argument of the function `name`, as in f(x), f'(x) and f^{-1}(x); None if no argument follows."""
        start = self.position
        while self.take("'"):
            name += "'"
        if self.take("^"):
            power = self.read_exponent()
            is_order = power.head == "negative" or self.tokens[start + 1].text == "("
            name = f"{name}^{power}" if is_order else ""
        if not name or self.next.text != "(":
            self.position = start
            return None
        self.position += 1
        # Bars are not absolute values inside of a call, because P(A|B) is a conditional probability.
        sets, self.sets, bars, self.bars = self.sets, 1, self.bars, 0
        inner = self.read_formula_list()
        self.expect(")")
        self.sets, self.bars = sets, bars
        return Formula("call", inner.operands if inner.head == "list" and inner.name == "," else (inner,), name)

    def next_is_operand(self) -> bool:
        """Return True if the next token begins a formula: without a sign between them, two formulas are a product."""
        token = self.next
        if token.kind == "sign":
            return token.text in ("(", "[", "{") or (token.text == "|" and not self.bars and not self.sets)
        if token.kind == "command":
            return token.text in _SYMBOLS or token.text in FUNCTIONS or token.text in _OPERANDS
        return token.kind in ("number", "begin") or (
            token.kind == "word" and not self.next_is_text() and token.text not in ("or", "and")
        )

    def read_argument(self) -> Formula:
        """Read the argument of a command: a group in braces, or one atom."""
        if not self.take("{"):
            return self.read_atom()
        inner = self.read_formula_list()
        self.expect("}")
        return inner

    def read_command(self, name: str) -> Formula:
        """Read the arguments of the command `name`; raise UnreadableFormulaError for an integral, a limit and the
        like."""
        if name in ("frac", "binom"):
            parts = (self.read_argument(), self.read_argument())
            return Formula("quotient", parts) if name == "frac" else Formula("call", parts, "binom")
        if name == "sqrt":
            index = number_formula(2)
            if self.take("["):
                index = self.read_sum()
                self.expect("]")
            return Formula("root", (self.read_argument(), index))
        if name in FUNCTIONS:
            return self.read_call(name)
        if name in MATRIX_FUNCTIONS | VECTOR_OPERATORS:
            return Formula("call", (self.read_atom() if self.next.text == "(" else self.read_power(),), name)
        if name in _ROUNDED:
            inner = self.read_sum()
            self.expect(_ROUNDED[name][0])
            return Formula("call", (inner,), _ROUNDED[name][1])
        if name == "overline" and self.next.kind != "number":
            argument = self.read_argument()
            if not argument.node_heads() <= {"symbol", "sum", "product", "negative"}:
                self.fail()
            return Formula("call", (argument,), "overline")
        if name == "mathbb":
            return Formula("symbol", name=f"mathbb {self.read_argument().name}")
        if name in _PLAIN_WORDS or name in _SYMBOLS:
            return self.read_symbol({"infinity": "infty", "R": "reals"}.get(name, name))
        raise UnreadableFormulaError(f"\\{name} is still to be worked out")

    def read_call(self, name: str) -> Formula:
        r"""Read a function with its argument, as in \sin^2 x, \log_2(8) and \cos 2x."""
        base = (self.read_argument(),) if self.take("_") else ()
        power = self.read_exponent() if self.take("^") else None
        if self.next.text in ("(", "{", "["):
            argument = self.read_atom()
        else:
            # The argument of a function without brackets ends at the next sign, bracket or function.
            argument = self.read_factor()
            while self.next_is_operand() and self.next.text not in FUNCTIONS and self.next.text != "(":
                argument = _multiply(argument, self.read_implicit_factor())
        arguments = argument.operands if argument.head == "sequence" else (argument,)
        if power == Formula("negative", (number_formula(1),)) or (power and power.value == -1):
            if name not in _INVERTIBLE:
                raise UnreadableFormulaError("an inverse function")
            return Formula("call", arguments, f"arc{name}")
        arguments += base
        if name == "exp":
            tree = Formula("power", (Formula("symbol", name="e"), *arguments))
        elif name == "lg":
            tree = Formula("call", (*arguments, number_formula(10)), "log")
        else:
            tree = Formula("call", arguments, name)
        return Formula("power", (tree, power)) if power else tree

    def read_bracketed(self, opening: str) -> Formula:
        """Read a formula after the bracket `opening`: (x) is x, but (1, 2), [x] and {x} are sequences."""
        first = self.position - 1
        is_in_set = self.tokens[first - 1].text == "," if first > 1 else first == 1 and self.tokens[0].text == "{"
        self.sets += opening == "\\{"
        # A bar inside of brackets cannot close an absolute value that was opened outside.
        bars, self.bars = self.bars, 0
        if self.take("}" if opening == "{" else "\\}"):
            self.sets -= opening == "\\{"
            return Formula("symbol", name="emptyset")
        inner = self.read_formula_list()
        closing = self.expect(*_CLOSING[opening])
        self.sets -= opening == "\\{"
        self.bars = bars
        is_group = opening == "{" and not is_in_set and inner.head != "list" and inner.name != "emptyset"
        if opening == "begingroup" or is_group:
            return inner
        items = inner.operands if inner.head == "list" and inner.name == "," else (inner,)
        if inner.head == "matrix" or ((opening, closing) == ("(", ")") and len(items) == 1):
            return inner
        if opening + closing in ("(]", "[)") and len(items) != 2:
            raise UnreadableFormulaError("brackets that do not match")
        return Formula("sequence", items, {"\\{": "{}", "{": "{}", "langle": "()"}.get(opening, opening + closing))

    def read_matrix(self, environment: str) -> Formula:
        """Read the rows of a matrix up to the end of its environment."""
        rows, cells = list[Formula](), list[Formula]()
        while True:
            cells.append(self.read_sum())
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

    def read_cases(self, environment: str) -> Formula:
        """Read the rows of cases, each a value and its condition; rows without conditions are a list of equations."""
        rows = list[Formula]()
        while self.next.kind != "end":
            row = [self.read_relation()]
            self.take(",", ";")
            if self.take("&"):
                while self.next.kind in ("word", "text") and self.next.text.lower() in ("if", "for", "when"):
                    self.position += 1
                row.append(self.read_formula_list())
                self.take(",", ";", ".")
            rows.append(Formula("sequence", tuple(row), "()") if len(row) > 1 else row[0])
            if not self.take("cr"):
                break
        if self.next.kind != "end" or self.next.text != environment or len({row.head for row in rows}) != 1:
            self.fail()
        self.position += 1
        if rows[0].head == "sequence":
            return Formula("cases", tuple(rows))
        return Formula("list", tuple(rows), "and") if len(rows) > 1 else rows[0]


_OPERANDS = frozenset(("frac", "binom", "sqrt", "begingroup", "mathbb", "overline", *_ROUNDED))
_OPERANDS |= MATRIX_FUNCTIONS | VECTOR_OPERATORS


def _multiply(left: Formula, right: Formula) -> Formula:
    return Formula("product", (*left.operands, right) if left.head == "product" else (left, right))
