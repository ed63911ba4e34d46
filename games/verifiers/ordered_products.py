r"""Products whose factors keep their order: matrices, operators, vectors with \times.

A formula becomes a sum of words, each a product of ordered names with integer powers, with a coefficient that commutes.
Two formulas are equal if their words have equal coefficients.
"""

from __future__ import annotations

import re

from marl.games.verifiers.closed_form import exact_value
from marl.games.verifiers.formulas import MATRIX_FUNCTIONS, Formula, number_formula
from marl.games.verifiers.symbolic import Comparison, compare

Word = tuple[tuple[str, int], ...]
"""Product of ordered names with their exponents: (("A", 2), ("B", -1)) is A²B⁻¹."""
_Sum = dict[Word, Formula]
"""Sum of ordered products: word -> coefficient."""
_CROSS_PRODUCT = re.compile(r"\[(\w+) x (\w+)\]")
_ASKS_FOR_VOLUME = re.compile(r"\btriple product|\bvolume\b|\bSpatprodukt|\bproduit mixte", re.I)
_MAX_WORDS, _MAX_POWER, _MAX_FACTORS = 200, 12, 60
_MATRICES = re.compile(
    r"\b(?:matri(?:x|ces)|operators?|quaternions?|commutators?|commute"
    r"|linear (?:maps?|transformations?)|invertible|transposes?)\b|matrices|Matriz|Matrix|matrice",
    re.I,
)
_OPERATORS = re.compile(r"\boperators?\b|\bquaternions?\b|\bgroup elements?\b", re.I)
_MAPS = re.compile(
    r"\b(?:permutations?|group elements?|elements? of (?:a|the) (?:[\w-]+ ){0,3}(?:group|ring|algebra)|symmetric group"
    r"|in (?:an?|any|every|the) (?:[\w-]+ ){0,2}group|group (?:theory|operation|axioms)"
    r"|dihedral|composition of|non-?abelian|non-?commut\w*)\b",
    re.I,
)
_VECTOR_NAMES = frozenset("bvuwxyz")
"""Lower-case letters that are vectors beside matrices, rather than numbers."""
_INVERSE_LETTERS = re.compile(r"(?<![A-Za-z\\])[a-z]\s*\^\s*\{\s*-\s*1\s*\}\s*[a-z]\s*\^\s*\{\s*-\s*1\s*\}")
_INVERSE_FACTOR = re.compile(
    r"[A-Z]\s*\^\s*\{?\s*(?:-\s*1|T|\\top|\\dagger)\s*\}?\s*(?:\\cdot\s*)?[A-Z]|[A-Z]\s*[A-Z]\s*\^\s*\{?\s*-\s*1"
)


def ordered_names(gold: Formula, answer: Formula, question: str, gold_text: str) -> frozenset[str]:
    """Return the symbols whose products do not commute: matrices and operators that the question speaks of."""
    symbols = {name for name in gold.symbols() | answer.symbols() if name not in ("pi", "e", "i", "infty", "reals")}
    capitals = {name for name in symbols if name[0].isupper() and not name.startswith("mathbb")}
    if _MAPS.search(question) or _INVERSE_LETTERS.search(gold_text):
        return frozenset(symbols)
    if _OPERATORS.search(question):
        return frozenset(name for name in symbols if len(name.split("_")[0]) == 1)
    has_matrix_function = any(part.name in MATRIX_FUNCTIONS for tree in (gold, answer) for part in tree.walk())
    if (
        has_matrix_function
        or _MATRICES.search(question)
        or _INVERSE_FACTOR.search(gold_text)
        or _has_both_orders(gold, capitals)
    ):
        return frozenset(capitals | (symbols & _VECTOR_NAMES))
    return frozenset()


def _has_both_orders(tree: Formula, names: set[str]) -> bool:
    """Return True for AB - BA: a formula with the same symbols as factors in two orders."""
    orders = dict[tuple[str, ...], tuple[str, ...]]()
    for part in tree.walk():
        factors = tuple(factor.name for factor in part.operands)
        is_product = part.head == "product" and set(factors) <= names
        if is_product and orders.setdefault(tuple(sorted(factors)), factors) != factors:
            return True
    return False


def compare_ordered(gold: Formula, answer: Formula, names: frozenset[str], question: str = "") -> Comparison | None:
    """Return EQUAL if two formulas are equal while `names` do not commute; None without a product of such names."""
    is_ordered = any(_is_ordered_operation(part, names) for tree in (gold, answer) for part in tree.walk())
    if not is_ordered or "matrix" in gold.node_heads() | answer.node_heads():
        return None
    try:
        right, stated = _Expansion(names).expand(gold), _Expansion(names).expand(answer)
        if _ASKS_FOR_VOLUME.search(question):
            right, stated = (_Expansion(names).with_triple_products(words) for words in (right, stated))
    except _TooLargeError:
        return Comparison.UNKNOWN
    result = Comparison.EQUAL
    for word in {**right, **stated}:
        zero = number_formula(0)
        outcome = compare(right.get(word, zero), stated.get(word, zero))
        if outcome is Comparison.DIFFERENT:
            return outcome
        result = outcome if outcome is Comparison.UNKNOWN else result
    return result


def _is_ordered_operation(part: Formula, names: frozenset[str]) -> bool:
    """Return True if the factors of a formula's outermost operation do not commute."""
    if part.head == "cross":
        return True
    if part.head == "call" and part.name in MATRIX_FUNCTIONS:
        return True
    ordered = [operand for operand in part.operands if operand.symbols() & names]
    return (part.head == "product" and len(ordered) > 1) or (part.head == "power" and bool(ordered))


class _TooLargeError(Exception):
    """Error for a formula with too many words."""


class _Expansion:
    """Expansion of formulas into sums of words (ordered products) of `names`."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def expand(self, tree: Formula) -> _Sum:
        """Return the expansion of `tree`: word -> coefficient."""
        operands = tree.operands
        if tree.head != "cross" and not any(part.head == "cross" or part.name in self._names for part in tree.walk()):
            return {(): tree}
        match tree.head:
            case "symbol":
                return {((tree.name, 1),): number_formula(1)}
            case "sum":
                return self._add_sums([self.expand(operand) for operand in operands])
            case "negative":
                return {word: Formula("negative", (factor,)) for word, factor in self.expand(operands[0]).items()}
            case "product":
                result = self.expand(operands[0])
                for operand in operands[1:]:
                    result = self._multiply_sums(result, self.expand(operand))
                return result
            case "quotient" if (divisor := self.expand(operands[1])).keys() == {()}:
                inverse = Formula("quotient", (number_formula(1), divisor[()]))
                return self._multiply_sums(self.expand(operands[0]), {(): inverse})
            case "power":
                return self._power(tree)
            case "call" if tree.name in MATRIX_FUNCTIONS:
                return {(): self._matrix_function(tree)}
            case "cross":
                return self._cross_product(*map(self.expand, operands))
        return {((self._canonical_text(tree), 1),): number_formula(1)}

    def _add_sums(self, sums: list[_Sum]) -> _Sum:
        total = dict[Word, list[Formula]]()
        for words in sums:
            for word, factor in words.items():
                total.setdefault(word, []).append(factor)
        return {word: Formula("sum", tuple(terms)) if len(terms) > 1 else terms[0] for word, terms in total.items()}

    def _multiply_sums(self, left: _Sum, right: _Sum) -> _Sum:
        if len(left) * len(right) > _MAX_WORDS:
            raise _TooLargeError
        terms = list[_Sum]()
        for first, factor in left.items():
            for second, other in right.items():
                terms.append({_multiply_words(first, second): _multiply_scalars(factor, other)})
        return self._add_sums(terms)

    def _power(self, tree: Formula) -> _Sum:
        base, exponent = tree.operands
        value = exact_value(exponent)
        if value is None or value.denominator > 1 or abs(value) > _MAX_POWER:
            if exponent.head == "symbol" and exponent.name in ("T", "top", "t", "dagger", "H", "*"):
                return self._transposed(base, f"^{exponent.name}")
            return {((self._canonical_text(tree), 1),): number_formula(1)}
        words = self.expand(base)
        if value < 0:
            words = self._inverted(words, base)
        result: _Sum = {(): number_formula(1)}
        for _ in range(abs(int(value))):
            result = self._multiply_sums(result, words)
        return result

    def _inverted(self, words: _Sum, base: Formula) -> _Sum:
        """Return the inverse of a single product; the inverse of a sum is treated as a new name."""
        if len(words) != 1:
            return {((f"({self._canonical_text(base)})", -1),): number_formula(1)}
        ((word, factor),) = words.items()
        names = {name for name, _ in word}
        if any(name.startswith(f"{other}^") for name in names for other in names):
            # X^T X may be invertible without X, which need not be square.
            return {((f"({self._canonical_text(base)})", -1),): number_formula(1)}
        inverse = tuple((name, -exponent) for name, exponent in reversed(word))
        return {inverse: Formula("quotient", (number_formula(1), factor))}

    def _transposed(self, base: Formula, mark: str) -> _Sum:
        """Return the transpose of a sum of products: the factors change their order."""
        result = list[_Sum]()
        for word, factor in self.expand(base).items():
            names = [(name.removesuffix(mark) if name.endswith(mark) else name + mark, n) for name, n in reversed(word)]
            result.append({tuple(names): factor})
        return self._add_sums(result)

    def _cross_product(self, left: _Sum, right: _Sum) -> _Sum:
        """Return the cross product of two sums of vectors: bilinear, and its sign changes with the order."""
        if len(left) * len(right) > _MAX_WORDS:
            raise _TooLargeError
        terms = list[_Sum]()
        for first, factor in left.items():
            for second, other in right.items():
                pair = (self._vector_and_scale(first, factor), self._vector_and_scale(second, other))
                (vector, scale), (other_vector, other_scale) = pair
                if vector == other_vector:
                    continue
                product = _multiply_scalars(scale, other_scale)
                if vector > other_vector:
                    vector, other_vector, product = other_vector, vector, Formula("negative", (product,))
                terms.append({((f"[{vector} x {other_vector}]", 1),): product})
        return self._add_sums(terms)

    def _vector_and_scale(self, word: Word, factor: Formula) -> tuple[str, Formula]:
        """Return (name of a vector, its scalar factor): (a, 2) for 2a."""
        name = ".".join(f"{name}^{exponent}" for name, exponent in word)
        factors = list(factor.operands) if factor.head == "product" else [factor]
        vectors = [part for part in factors if part.symbols() or part.head == "call"]
        scalars = [part for part in factors if part not in vectors]
        scale = Formula("product", (number_formula(1), *scalars)) if scalars else number_formula(1)
        if factor.head == "negative":
            inner, inner_scale = self._vector_and_scale(word, factor.operands[0])
            return inner, Formula("negative", (inner_scale,))
        return name + "".join(sorted(map(self._canonical_text, vectors))), scale

    def with_triple_products(self, words: _Sum) -> _Sum:
        """Return `words` with a triple product as one name, whose sign changes with the order of its three vectors."""
        result = list[_Sum]()
        for word, factor in words.items():
            pair = _CROSS_PRODUCT.fullmatch(word[0][0]) if len(word) == 1 else None
            symbols = [part for part in (factor, *factor.operands) if part.head == "symbol"]
            if pair is None or len(symbols) != 1 or pair[1] == pair[2]:
                result.append({word: factor})
                continue
            names = [symbols[0].name, pair[1], pair[2]]
            scale = tuple(part for part in factor.operands if part not in symbols)
            ordered = sorted(names)
            is_odd = sum(ordered.index(a) > ordered.index(b) for i, a in enumerate(names) for b in names[i + 1 :]) % 2
            product = Formula("product", (number_formula(-1 if is_odd else 1), *scale))
            result.append({((f"[{' '.join(ordered)}]", 1),): product})
        return self._add_sums(result)

    def _matrix_function(self, tree: Formula) -> Formula:
        """Return a determinant or trace as a number: det(AB) is det A det B, and tr(AB) is tr(BA)."""
        words = self.expand(tree.operands[0])
        if len(words) != 1 or exact_value(next(iter(words.values()))) != 1:
            return Formula("symbol", name=f"{tree.name} {sorted(map(repr, words.items()))}")
        (word,) = words
        if tree.name == "tr":
            return Formula(
                "symbol", name=f"tr {min(word[i:] + word[:i] for i in range(len(word)))}" if word else "tr 1"
            )
        factors = [number_formula(1)]
        for name, exponent in word:
            factors.append(Formula("power", (Formula("symbol", name=f"det {name}"), number_formula(exponent))))
        return Formula("product", tuple(factors))

    def _canonical_text(self, tree: Formula) -> str:
        """Return a text that is the same for trees that differ in the order of terms and commuting factors alone."""
        operands = [self._canonical_text(operand) for operand in tree.operands]
        ordered = [operand for operand in tree.operands if operand.symbols() & self._names]
        if tree.head == "sum" or (tree.head == "product" and len(ordered) < 2):
            operands.sort()
        own = tree.name or (str(tree.value) if tree.head == "number" else "")
        return f"{tree.head}:{own}({','.join(operands)})" if operands or tree.head != "symbol" else tree.name


def _multiply_words(left: Word, right: Word) -> Word:
    """Return the product of two words, with neighbouring powers of one name as one power."""
    word = list(left)
    for name, exponent in right:
        if word and word[-1][0] == name:
            total = word.pop()[1] + exponent
            word += [(name, total)] if total else []
        else:
            word.append((name, exponent))
    if len(word) > _MAX_FACTORS:
        raise _TooLargeError
    return tuple(word)


def _multiply_scalars(left: Formula, right: Formula) -> Formula:
    one = number_formula(1)
    if left == one or right == one:
        return right if left == one else left
    return Formula("product", (left, right))
