"""Target of `countdown_expression`, with a reader of its own as the judge."""
# ruff: noqa: RUF001 (signs that look like others are what is tried)

from __future__ import annotations

import random
import re
from collections import Counter
from fractions import Fraction

from attack_search import CHANNELS, Gold, Puzzle, Target
from claims import Judgement, mention, same
from grammar import Grammar, Rules

from marl.games.verifiers.countdown import CountdownVerifier

_EXPRESSION: Rules = {
    "start": {
        same: [
            *("@sum", "@sum", "@sum = @T", "@hostile", "@sum @hostile", "<think>@sum</think> @sum", " @sum "),
            "@sum == @T",
        ]
    },
    "sum": {
        same: ["@N", "@N", "@sum @operator @sum", "@sum@operator@sum", "(@sum @operator @sum)", "(@sum)", "@T", "@atom"]
    },
    "operator": {
        same: [*"+-*/" * 6, "×", "·", "÷", "−", "**", "//", "%", "^", "@", "|", "&", "<<", ">>", "+-", "--", " "]
    },
    "atom": {
        same: [
            *("-@N", "+@N", "~@N", "@N.0", "@Ne0", "0x@N", "@N_0", "0@N", "True", "٥", "⁵", "５", "@Nj", "'@T'"),
            *("[@T]", "(@T,)", "@T if 1 else 0", "@N or @T", "@N and @T", "not @N", "@N < @N", "lambda: @T", "x"),
            *("int('@T')", "len('aaaa')", "(x:=@T)", "@N@N", "@N if @N else @N", "{@T}", "f'{@T}'"),
            *("__import__('os')", "abs(@T)", "1", "0", "*[@T]", "@N**0", "@N^0", "...", "sum([@N, @N])", "@N*9**9**9"),
            *("@T;@T", "@T\n", "@N # @T", "@N,@T", "await @T", "yield @T", "@T!", "${@T}"),
        ]
    },
    "hostile": {
        mention: [
            *("=", "= @T", "== @T", "# = @T", "=@T=@T", "= @T = @T", "= @N", "; @T", "\n@T", "\x00", "= ", "!= @T"),
            *("=\u00a0@T", "=+@T", "= @T.0", "= 0@T"),
        ],
        same: [
            "(" * 90 + "@N",
            "-" * 150 + "@N",
            "@N" + "+@N" * 60,
            *("@N ** @N ** @N ** @N", "@sum = @sum", "@N/0"),
            "9" * 199,
        ],
    },
}
_TOKEN = re.compile(r"\s*(?:(\d+)|(.))", re.ASCII | re.S)


def judge_expression(text: str, numbers: list[int], target: int) -> Judgement:
    """Return the judgement of an expression, optionally followed by `= target`."""
    text = re.sub(r"<think>.*?</think>", " ", text, flags=re.S)
    text = text.translate(str.maketrans("×·÷−", "**/-")).strip(" \n'")
    # A sign before the whole answer is no part of it: "= 12" is read as 12, by every verifier.
    text = re.sub(r"^=\s+(?=[^=\s])", "", text)
    expression, equals, stated = text.partition("=")
    if equals and not (stated.strip().isascii() and stated.strip().isdigit() and int(stated) == target):
        return "wrong"
    tokens = [number or sign for number, sign in _TOKEN.findall(expression.strip())]
    reader = _Reader(tokens)
    try:
        value = reader.sum()
    except (ValueError, ZeroDivisionError, RecursionError):
        return "wrong"
    surplus = Counter(reader.used) - Counter(numbers)
    return "right" if value == target and not surplus and reader.place == len(tokens) else "wrong"


class _Reader:
    """Recursive descent over + - * / and brackets, in fractions."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.place = tokens, 0
        self.used: list[int] = []

    def sum(self) -> Fraction:
        value = self._product()
        while self._next() in ("+", "-"):
            sign = self._take()
            value += self._product() if sign == "+" else -self._product()
        return value

    def _product(self) -> Fraction:
        value = self._factor()
        while self._next() in ("*", "/"):
            value = value * self._factor() if self._take() == "*" else value / self._factor()
        return value

    def _factor(self) -> Fraction:
        token = self._take()
        if token == "(":
            value = self.sum()
            if self._take() != ")":
                raise ValueError("no closing bracket")
            return value
        if not (token.isascii() and token.isdigit()) or (token.startswith("0") and token.strip("0")):
            raise ValueError(f"{token!r} is no number")
        self.used.append(int(token))
        return Fraction(int(token))

    def _next(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def _take(self) -> str:
        self.place += 1
        return self.tokens[self.place - 1] if self.place <= len(self.tokens) else ""


def _countdown(rng: random.Random) -> Puzzle:
    numbers = [rng.randint(1, 12) for _ in range(rng.randint(3, 4))]
    one, two, three = rng.sample(numbers, 3)
    target = rng.choice((one + two, one * two, one * two + three, one + two * three, one + two + three, 97))
    question = (
        f"Make {target} from the numbers {' '.join(map(str, numbers))} with + - * / and brackets, each at most once."
    )
    texts = {"N": [(str(n), []) for n in numbers], "T": [(str(target), [])]}
    facts = {"numbers": numbers, "target": target}
    right = lambda text, _: judge_expression(text, numbers, target)  # noqa: E731
    return Puzzle(question, [Gold("", target)], 0, texts, facts, right)


def targets(kind: str) -> list[Target]:
    """Return the target of `countdown_expression`."""
    if kind != "countdown_expression":
        return []
    grammar, check = Grammar("start", _EXPRESSION), {"countdown": CountdownVerifier(timeout_s=5)}
    return [Target("countdown", grammar, _countdown, check, {"raw": CHANNELS["raw"]})]
