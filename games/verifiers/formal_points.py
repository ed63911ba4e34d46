"""Proofs that formulas with logarithms, exponentials and the like are equal, by the laws of these functions.

Nobody knows how close two different values of such functions can be, so that digits prove no equality. Here every
independent value (ln 2, e^x, the point (cos x, sin x), pi) becomes a random rational number that obeys the laws of its
function: e^(2x) is the square of e^x, and ln 6 is ln 2 + ln 3. What remains are algebraic numbers, for which equality
is decided (`zero_bounds`). Formulas that agree there follow from each other by the laws (Schwartz 1980, Zippel 1979).
Laws that hold on one branch alone are used freely: `symbolic` has compared the values before.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import factorial, prod
from random import Random

from flint import fmpz

from marl.games.verifiers.closed_form import exact_value, variables
from marl.games.verifiers.copied_formulas import in_canonical_order
from marl.games.verifiers.formulas import Formula, number_formula

_MAX_FACTORED_BITS, _MAX_SHIFT, _MAX_TURNS = 128, 40, 480
_PARTS_OF_ANGLE = 12
"""Denominator of the smallest part of an angle: sin x, sin(x/2), sin(x/3), sin(x/4) are values at multiples of x/12."""
_ONE, _E, _I, _PI = number_formula(1), *(Formula("symbol", name=name) for name in ("e", "i", "pi"))
_RATIOS = {"tan": ("sin", "cos"), "cot": ("cos", "sin"), "sec": ("", "cos"), "csc": ("", "sin")}
_HYPERBOLIC = ("sinh", "cosh", "tanh")
_Terms = dict[object, tuple[Fraction, Formula]]
"""Linear combination of formulas: key of a formula -> (rational factor, formula)."""


class NoAlgebraicLawError(ArithmeticError):
    """Error for a formula to which no law applies at this point."""


def _sum(*terms: Formula) -> Formula:
    return Formula("sum", terms) if len(terms) != 1 else terms[0]


def _product(*factors: Formula) -> Formula:
    return Formula("product", factors) if len(factors) != 1 else factors[0]


def _quotient(over: Formula, under: Formula) -> Formula:
    return Formula("quotient", (over, under))


def _power(base: Formula, exponent: Fraction) -> Formula:
    return base if exponent == 1 else Formula("power", (base, number_formula(exponent)))


class FormalPoint:
    """Random values of variables and transcendental numbers. A number (pi, ln 2) has one value at all points."""

    def __init__(self, index: int, seed: str) -> None:
        self._index, self._seed = index, seed

    def evaluate(self, tree: Formula) -> Formula:
        """Return `tree` with rational numbers for all of its variables and transcendental values.

        Raises:
            NoAlgebraicLawError: the formula has a part that no law covers, or that is too large.
        """
        operands = tree.operands
        match tree.head:
            case "number":
                return tree
            case "symbol":
                return tree if tree.name == "i" else self._random_value(tree, "symbol", tree.name)
            case "measured" if tree.name == "°":
                return _quotient(
                    _product(self.evaluate(operands[0]), self._random_value(_PI, "symbol", "pi")), number_formula(180)
                )
            case "power" if exact_value(operands[1]) is None:
                return self._exponential(*operands)
            case "call":
                return self._call(tree)
        return Formula(tree.head, tuple(map(self.evaluate, operands)), tree.name, tree.value)

    def _random_value(self, tree: Formula, kind: str, key: object) -> Formula:
        """Return a random positive number for `tree`, a value without laws: one number for each `kind` and `key`."""
        index = self._index if variables(tree) else 0
        random = Random(f"{self._seed} {index} {kind} {key}")
        return number_formula(Fraction(random.randint(2**10, 2**16), 2**10))

    def _value_key(self, tree: Formula) -> object:
        """Return a key of `tree` (its value at this point if rational): formulas with equal values get equal keys."""
        value = self.evaluate(tree)
        exact = exact_value(value)
        return repr(in_canonical_order(value)) if exact is None else exact

    def _call(self, tree: Formula) -> Formula:
        name, argument = tree.name, tree.operands[0]
        if name in ("ln", "log"):
            base = tree.operands[1] if len(tree.operands) > 1 else _E
            if name == "log" and base is _E:
                return _quotient(self._logarithm(argument), self._random_value(_E, "base of log", ""))
            return self._logarithm(argument) if base == _E else _quotient(*map(self._logarithm, (argument, base)))
        if name in ("sin", "cos"):
            return self._cos_sin(argument)[name == "sin"]
        if name in _RATIOS:
            cosine, sine = self._cos_sin(argument)
            parts = {"sin": sine, "cos": cosine, "": _ONE}
            return _quotient(*(parts[part] for part in _RATIOS[name]))
        if name in _HYPERBOLIC:
            growth = self._exponential(_E, argument)
            decay = Formula("negative", (_quotient(_ONE, growth),))
            sinh, cosh = _sum(growth, decay), _sum(growth, _quotient(_ONE, growth))
            if name == "tanh":
                return _quotient(sinh, cosh)
            return _quotient(sinh if name == "sinh" else cosh, number_formula(2))
        if name == "factorial":
            return self._factorial(argument)
        if name == "binom":
            return self._binomial(*tree.operands)
        if name == "abs":
            return Formula("call", (self.evaluate(argument),), "abs")
        return self._random_value(tree, name, tuple(map(self._value_key, tree.operands)))

    def _logarithm(self, tree: Formula) -> Formula:
        """Return the natural logarithm of `tree`, as a sum of logarithms of its factors."""
        exact = exact_value(tree)
        if exact is not None and exact > 0:
            terms = [number_formula(0)]
            for prime, exponent in _prime_factors(exact):
                terms.append(_product(number_formula(exponent), self._random_value(_ONE, "ln", Fraction(prime))))
            return _sum(*terms)
        operands = tree.operands
        match tree.head:
            case "symbol" if tree.name == "e":
                return _ONE
            case "product":
                return _sum(*map(self._logarithm, operands))
            case "quotient":
                return _sum(self._logarithm(operands[0]), Formula("negative", (self._logarithm(operands[1]),)))
            case "root":
                return _quotient(self._logarithm(operands[0]), self.evaluate(operands[1]))
            case "power":
                return _product(self.evaluate(operands[1]), self._logarithm(operands[0]))
            case "call" if tree.name == "abs":
                return self._logarithm(operands[0])
            case "call" if tree.name in _RATIOS:
                over, under = (Formula("call", operands, part) if part else _ONE for part in _RATIOS[tree.name])
                return self._logarithm(_quotient(over, under))
        return self._random_value(tree, "ln", self._value_key(tree))

    def _exponential(self, base: Formula, exponent: Formula) -> Formula:
        """Return a power whose exponent is no rational number, as a product of powers of independent values."""
        exact = exact_value(base)
        if exact is not None and exact > 0:
            primes = [(number_formula(prime), Fraction(count)) for prime, count in _prime_factors(exact)]
        elif base.head == "root" and (index := exact_value(base.operands[1])):
            return self._exponential(base.operands[0], _quotient(exponent, number_formula(index)))
        else:
            primes = [(base, Fraction(1))]
        factors = [_ONE]
        for factor, formula in self._linear_terms(exponent).values():
            for prime, count in primes:
                factors.append(self._single_power(prime, factor * count, formula))
        return _product(*factors)

    def _single_power(self, base: Formula, factor: Fraction, formula: Formula) -> Formula:
        """Return `base` ** (`factor` * `formula`)."""
        if formula == _ONE:
            return _power(self.evaluate(base), factor)
        parts = list(formula.operands) if formula.head == "product" else [formula]
        if base == _E and _I in parts:
            parts.remove(_I)
            cosine, sine = self._cos_sin(_product(number_formula(factor), *parts) if parts else number_formula(factor))
            return _sum(cosine, _product(_I, sine))
        for part in parts if base == _E else ():
            if part.head == "call" and part.name == "ln" and exact_value(part.operands[0]) is not None:
                parts.remove(part)
                return self._exponential(part.operands[0], _product(number_formula(factor), *parts))
            if part.head == "call" and part.name == "ln" and len(parts) == 1:
                return _power(self.evaluate(part.operands[0]), factor)
        return _power(
            self._random_value(_product(base, formula), "exp", (self._value_key(base), self._value_key(formula))),
            factor,
        )

    # --- angles

    def _cos_sin(self, angle: Formula) -> tuple[Formula, Formula]:
        """Return cosine and sine of `angle`, by the angle sum identities."""
        cosine, sine = _ONE, number_formula(0)
        for factor, formula in self._linear_terms(angle).values():
            turn = self._cos_sin_of_multiple(factor, formula)
            cosine, sine = (
                _sum(_product(cosine, turn[0]), Formula("negative", (_product(sine, turn[1]),))),
                _sum(_product(cosine, turn[1]), _product(sine, turn[0])),
            )
        return cosine, sine

    def _cos_sin_of_multiple(self, factor: Fraction, formula: Formula) -> tuple[Formula, Formula]:
        """Return cosine and sine of `factor` times `formula`: a point of the unit circle with rational coordinates."""
        if formula == _PI:
            angle = _product(number_formula(factor), _PI)
            return Formula("call", (angle,), "cos"), Formula("call", (angle,), "sin")
        turns = factor * _PARTS_OF_ANGLE
        if turns.denominator > 1 or abs(turns) > _MAX_TURNS:
            raise NoAlgebraicLawError(f"an angle of {factor}")
        tangent = self._random_value(formula, "half tangent", self._value_key(formula)).value
        cosine, sine = (1 - tangent**2) / (1 + tangent**2), 2 * tangent / (1 + tangent**2)
        x, y = Fraction(1), Fraction(0)
        for _ in range(abs(int(turns))):
            x, y = x * cosine - y * sine, x * sine + y * cosine
        return number_formula(x), number_formula(y if turns > 0 else -y)

    def _factorial(self, argument: Formula) -> Formula:
        """Return (m + c)!, for an integer c, as m! times c factors."""
        terms = self._linear_terms(argument)
        shift, _ = terms.pop(Fraction(1), (Fraction(0), _ONE))
        if shift.denominator > 1 or abs(shift) > _MAX_SHIFT or not terms:
            return self._random_value(argument, "factorial", self._value_key(argument))
        rest = _sum(*(_product(number_formula(factor), formula) for factor, formula in terms.values()))
        value = self.evaluate(rest)
        factors = [_sum(value, number_formula(k)) for k in range(min(0, int(shift)) + 1, max(0, int(shift)) + 1)]
        start = self._random_value(rest, "factorial", self._value_key(rest))
        return _product(start, *factors) if shift >= 0 else _quotient(start, _product(*factors))

    def _binomial(self, upper: Formula, lower: Formula) -> Formula:
        count = exact_value(lower)
        if count is not None and count.denominator == 1 and 0 <= count <= _MAX_SHIFT:
            value = self.evaluate(upper)
            factors = [_sum(value, number_formula(-k)) for k in range(int(count))]
            return _quotient(_product(_ONE, *factors), number_formula(factorial(int(count))))
        difference = _sum(upper, Formula("negative", (lower,)))
        return _quotient(self._factorial(upper), _product(self._factorial(lower), self._factorial(difference)))

    # --- sums

    def _linear_terms(self, tree: Formula) -> _Terms:
        """Return `tree` as a linear combination of formulas with rational factors; key 1 holds the constant term."""
        terms = _Terms()
        for factor, formula in self._iter_linear_terms(tree):
            key = Fraction(1) if formula == _ONE else "pi" if formula == _PI else self._value_key(formula)
            key = (key, "") if isinstance(key, Fraction) and formula != _ONE else key
            total = terms.get(key, (Fraction(0), formula))[0] + factor
            terms[key] = total, formula
        return {key: term for key, term in terms.items() if term[0]}

    def _iter_linear_terms(self, tree: Formula) -> Iterable[tuple[Fraction, Formula]]:
        operands = tree.operands
        if (exact := exact_value(tree)) is not None:
            yield exact, _ONE
        elif tree.head == "sum":
            for operand in operands:
                yield from self._iter_linear_terms(operand)
        elif tree.head == "negative":
            yield from _scaled_terms(self._iter_linear_terms(operands[0]), Fraction(-1))
        elif tree.head == "measured" and tree.name == "°":
            yield from _scaled_terms(self._iter_linear_terms(_product(operands[0], _PI)), Fraction(1, 180))
        elif tree.head == "product":
            values = [exact_value(operand) for operand in operands]
            others = [operand for operand, value in zip(operands, values, strict=True) if value is None]
            factor = prod((value for value in values if value is not None), start=Fraction(1))
            if len(others) == 1:
                yield from _scaled_terms(self._iter_linear_terms(others[0]), factor)
            else:
                yield factor, _product(*others)
        elif tree.head == "quotient" and (divisor := exact_value(operands[1])):
            yield from _scaled_terms(self._iter_linear_terms(operands[0]), 1 / divisor)
        elif tree.head == "quotient":
            for factor, formula in self._iter_linear_terms(operands[0]):
                yield factor, _quotient(formula, operands[1])
        else:
            yield Fraction(1), tree


def _scaled_terms(terms: Iterable[tuple[Fraction, Formula]], factor: Fraction) -> Iterable[tuple[Fraction, Formula]]:
    for own, formula in terms:
        yield own * factor, formula


def _prime_factors(number: Fraction) -> list[tuple[int, int]]:
    """Return the prime factors of a positive number with their exponents, negative for its denominator."""
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > _MAX_FACTORED_BITS:
        raise NoAlgebraicLawError("a number too large to factor")
    primes = [(int(prime), int(count)) for prime, count in fmpz(number.numerator).factor()]
    return primes + [(int(prime), -int(count)) for prime, count in fmpz(number.denominator).factor()]
