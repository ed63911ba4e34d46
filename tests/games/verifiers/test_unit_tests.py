"""Code is judged by what it gives, not by what it says about itself."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from marl.core.types import Problem, Verdict, VerifierCase
from marl.games.verifiers.unit_tests import UnitTestsVerifier
from marl.sandbox import Sandbox, reason_sandbox_is_unusable

SANDBOX = Sandbox(wall_s=20)
SQUARES = [{"call": "f(2)", "expect": "4"}, "assert f(-3) == 9", {"call": "f(0)", "expect": "0"}]
TYPED = [{"stdin": "2 3\n", "stdout": "5\n"}, ("4 5", "9")]
RIGHT = "def f(x):\n    return x * x\n"
ADDS = "a, b = map(int, input().split())\nprint(a + b)"

pytestmark = pytest.mark.skipif(
    bool(reason_sandbox_is_unusable(SANDBOX)), reason=reason_sandbox_is_unusable(SANDBOX) or "usable"
)


def verdict(code: str | None, tests: Any, **settings: Any) -> Verdict:
    case = VerifierCase(Problem("p", "?", facts={"tests": tests}), code or "", code)
    return UnitTestsVerifier(**{"sandbox": SANDBOX, **settings})(case)


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        (RIGHT, SQUARES),
        (f"Here it is:\n```python\n{RIGHT}```\nDone.", SQUARES),
        (f"{RIGHT}print('noise')\nif __name__ == '__main__':\n    raise SystemExit", SQUARES),
        (ADDS, TYPED),
        (
            "def f(): return {'a': [1, (2.5, None)], 2: {3, 1}}",
            [{"call": "f()", "expect": "{2: {1, 3}, 'a': [1, (2.5, None)]}"}],
        ),
        (
            "def f(x): return x",
            ["assert set(f([1, 2, 2])) == set((2, 1))", "assert 4 == f(4.0)", "assert f(None) is None"],
        ),
        (
            "def f(): return 'ü\\n' * 2, b'x', 1j, 10**50",
            [{"call": "f()", "expect": f"('ü\\nü\\n', b'x', 1j, {10**50})"}],
        ),
        (
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef f(): return P(3)",
            ["assert f().x == 3"],
        ),
        ("def f(): return 7 / 3", ["import math\nassert math.isclose(f(), 7 / 3)"]),
    ],
    ids=["function", "fenced", "noisy", "program", "nested data", "assertions", "odd data", "class", "import"],
)
def test_right_code_is_accepted(code: str, tests: Any) -> None:
    assert verdict(code, tests) == Verdict(1.0)


EQUAL = "def __eq__(self, other): return True"
FORGERIES = {
    "prints the verdict": "print('1.0'); print('[4]'); print('4\\n9\\n0')",
    "leaves with success": "import sys; sys.exit(0)",
    "leaves in the middle of a call": "import os\ndef f(x): os._exit(0)",
    "raises what ends a program": "def f(x): raise SystemExit(0)",
    "equals everything": f"class All:\n    {EQUAL}\ndef f(x): return All()",
    "is a text of its own kind": "class Four(str): pass\ndef f(x): return Four(x * x)",
    "is no number": "def f(x): return float('nan')",
    "is nested deeply": "def f(x):\n    a = []\n    for _ in range(10 ** 5): a = [a]\n    return a",
    "claims to be a number": "class All:\n    __class__ = int\n    def __int__(self): return 4\ndef f(x): return All()",
    "is a list that hides": "class All(list):\n    def __len__(self): return 0\ndef f(x): return All([4])",
    "says some results and leaves": "import os\ndef f(x):\n    os.write(3, b'4\\n9\\n')\n    os._exit(0)",
    "is a number that equals everything": f"class All(int):\n    {EQUAL}\ndef f(x): return All(4)",
    "looks like the answer": "class All:\n    def __repr__(self): return '4'\ndef f(x): return All()",
    "replaces the harness's tools": (
        "import json, builtins, __main__\njson.dumps = lambda *a, **k: 'true'\n__main__.as_plain = lambda v: True\n"
        "builtins.eval = lambda *a: True\ndef f(x): return None"
    ),
    "replaces assert's exception": "import builtins\nbuiltins.AssertionError = None\ndef f(x): return 0",
    "writes to every file that is open": (
        "import os\nfor n in range(64):\n    try: os.write(n, b'true\\ntrue\\ntrue\\n')\n    except OSError: pass\n"
        "def f(x): pass"
    ),
    "guesses several times": (
        "import os\ndef f(x):\n    for guess in range(10):\n        for n in range(3, 9):\n"
        "            try: os.write(n, b'%d\\n' % guess)\n            except OSError: pass"
    ),
    "looks for what is expected": (
        "import sys, gc\ndef f(x):\n    texts = [repr(o) for o in gc.get_objects()] + [open(p).read() for p in "
        "__import__('os').listdir()]\n    return 4 if x == 2 else 9 if any('expect' in t for t in texts) else None"
    ),
    "leaves something to do at the end": "import atexit, os\natexit.register(os.write, 1, b'4\\n')\ndef f(x): pass",
    "gives a truth for a number": "def f(x): return x * x if x else False",
    "is right once": "def f(x): return 4",
    "never ends": "while True: pass",
    "closes its output": "import os\nos.closerange(0, 64)\ndef f(x): return x * x",
    "never ends in one call": "def f(x): return x * x if x else 10 ** 10 ** 10",
    "gives a list without end": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "gives a number of many digits": "def f(x): return 10 ** 5000",
    "is empty": "",
    "is no code": "The answer is 4.",
}


@pytest.mark.parametrize("code", FORGERIES.values(), ids=FORGERIES)
def test_code_is_refused_that(code: str) -> None:
    judged = verdict(code, SQUARES, sandbox=Sandbox(wall_s=3, cpu_s=1))
    assert judged.score == 0
    assert judged.why


COMPARING = {
    "evens": [
        "assert all(x % 2 == 0 for x in evens([1, 2, 3, 4]))",
        "assert len(evens([1, 3])) == 0",
        "assert len(evens(list(range(10)))) == 5",
        "assert evens([2]) != [] and 3 not in evens([3])",
        "assert sorted(evens([4, 2])) == [2, 4]",
        "assert isinstance(evens([]), list) and not evens([1])",
        "assert all(evens([n]) == [n] for n in range(10) if n % 2 == 0)",
    ],
    "root": ["assert isclose(root(2), 1.41421356, rel_tol=1e-6)", "assert abs(root(9) - 3) < 1e-9"],
    "prime": ["assert is_prime(7)", "assert not is_prime(9)", "assert all(map(is_prime, [2, 3, 5])) is True"],
}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("evens", "def evens(xs): return [x for x in xs if x % 2 == 0]"),
        ("evens", "class L(list): pass\ndef evens(xs): return L(x for x in xs if x % 2 == 0)"),
        ("root", "def root(x): return x ** 0.5"),
        ("root", "from math import *\ndef root(x): return sqrt(x)"),
    ],
)
def test_right_code_passes_tests_that_compare(name: str, code: str) -> None:
    assert verdict(code, COMPARING[name]) == Verdict(1.0)


LIAR = """
class Liar(list):
    __eq__ = __contains__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = lambda self, *other: True
    __ne__ = lambda self, other: False
    __hash__ = list.__hash__
    __sub__ = __abs__ = __mod__ = __float__ = __rsub__ = lambda self, *other: Liar()
    __class__ = list
"""
PATCHES = {
    "an object that equals everything": LIAR,
    "a class that hides a module": "class math:\n    isclose = staticmethod(lambda *a, **k: True)",
    "functions of its own": "all = any = isclose = lambda *a, **k: True\nabs = len = lambda x: 0\nsorted = list",
    "other built-in functions": (
        "import builtins, math\nbuiltins.all = builtins.any = builtins.bool = math.isclose = lambda *a, **k: True\n"
        "builtins.abs = builtins.len = lambda x: 0\nbuiltins.sorted = lambda x: [2, 4]"
    ),
    "another compiler": (
        "import builtins\nbuiltins.exec = builtins.compile = builtins.eval = builtins.print = lambda *a, **k: True"
    ),
    "a hook for exceptions": "import sys\nsys.excepthook = lambda *a: print('[true]')",
    "another harness": (
        "import __main__ as m\nm.evaluate_check = m.equal = m.equal_tagged = m.from_tagged_json = lambda *a: True\n"
        "m.TRUSTED.update(all=lambda x: True, len=lambda x: 0, abs=lambda x: 0, isclose=lambda *a, **k: True)"
    ),
}


@pytest.mark.parametrize(
    "body", ["return Liar()", "return None", "return True", "return [1]", "import sys; sys.exit(0)"]
)
@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_code_does_not_pass_tests_that_compare_by_replacing_what_compares(patch: str, body: str) -> None:
    code = f"{LIAR}\n{patch}\ndef evens(xs): {body}\nroot = is_prime = evens\n"
    for tests in COMPARING.values():
        assert verdict(code, tests).score == 0


MONEY = """
class Money:
    def __init__(self, n): self.n = n
    def __add__(self, other): return Money(self.n + other.n)
    def __neg__(self): return Money(-self.n)
    def __str__(self): return f"{self.n} coins"
"""


@pytest.mark.parametrize(
    ("code", "score"),
    [(MONEY, 1), (MONEY.replace("self.n + other.n", "self.n - other.n"), 0), (MONEY.replace("-self.n", "self.n"), 0)],
)
def test_operators_between_objects_of_own_classes_run_with_the_code(code: str, score: int) -> None:
    tests = ["assert str(Money(1) + Money(2)) == '3 coins'", "assert (-Money(2) + Money(7)).n == 5"]
    assert verdict(code, tests).score == score


def test_own_objects_that_equal_everything_pass_no_test() -> None:
    forged = "class Money(int):\n    def __add__(self, other): return self\n    " + EQUAL
    assert verdict(forged, ["assert Money(1) + Money(2) == 3"]).score == 0


def test_an_assertion_that_the_code_catches_is_no_success() -> None:
    code = "def f(x):\n    try:\n        assert x > 9\n    except AssertionError:\n        return 4"
    assert verdict(code, SQUARES).score == 0


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("from collections import Counter as f", ["assert f('aba') == {'a': 2, 'b': 1}"]),
        (
            "import collections as c\ndef f():\n    d = c.defaultdict(int)\n    d[1] += 2\n    return d",
            ["assert f() == {1: 2}"],
        ),
        (
            "from collections import namedtuple\nf = namedtuple('P', 'x y')",
            ["assert f(1, 2) == (1, 2)", "assert f(3, 4).y == 4"],
        ),
        ("class Four(int): pass\ndef f(x): return Four(x * x)", SQUARES),
        (
            "def f(xs): return dict.fromkeys(xs).keys()",
            ["assert f([1, 2, 1]) == {1, 2}", "assert list(f([2, 1])) == [2, 1]"],
        ),
        (
            "def f(n):\n    while True:\n        yield n\n        n += 1",
            ["assert list(itertools.islice(f(3), 2)) == [3, 4]", "assert next(f(5)) == 5"],
        ),
        (
            "from fractions import Fraction\ndef f(): return Fraction(1, 2)",
            ["assert f() == 0.5", "assert f() == Fraction(2, 4)"],
        ),
        ("from decimal import Decimal\ndef f(): return Decimal('0.1')", ["assert f() == Decimal('0.10')"]),
        ("def f(s): return s.upper()", ["assert f('ab').startswith('A')", "assert f('ab').lower() == 'ab'"]),
        ("def max(xs): return xs[-1]", ["assert max([3, 1]) == 1"]),
        ("def f(xs):\n    xs.sort()\n    return xs", ["assert all(f(xs) == sorted(xs) for xs in [[3, 1], [2]])"]),
        ("class P:\n    def __str__(self): return 'P'", ["assert str(P()) == 'P'", "assert P() is not None"]),
        ("def g(x): return x + 1\ndef f(x): return g(x)", ["assert f(g(1)) == 3", "assert f(1) == g(1)"]),
        ("def f(x): return x", "import math\nassert f(1) == 1, 'one'\nassert math.isclose(f(2.0), 2)"),
        ("def f(x): return x", "['assert f(1) == 1', 'assert f(2) == 2']"),
        ("```py\ndef f(x): return x\n```", ["assert f(1) == 1"]),
    ],
)
def test_results_are_compared_by_value_and_base_type(code: str, tests: Any) -> None:
    assert verdict(code, tests) == Verdict(1.0)


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def f(): return [1, 2]", ["assert f() == (1, 2)"]),
        ("def f(): return (n for n in [1, 2])", ["assert f() == [1, 2]"]),
        ("def f(): return True", ["assert f() * 1 == 2", "assert f() + 0 == 1 and f() == 1"]),
        ("class P: __eq__ = lambda s, o: True\ndef f(): return P()", ["assert f() == f()"]),
        ("class P: startswith = lambda s, o: True\ndef f(): return P()", ["assert f().startswith('a')"]),
        ("class P: __len__ = lambda s: 3\ndef f(): return P()", ["assert len(f()) == 3"]),
        ("def f(n): return 0 if n < 3 else 1 / 0", ["assert all(f(n) == 0 for n in range(5))"]),
        ("def f(n): yield from range(10 ** 9)", ["assert max(f(2)) == 1999"]),
        ("def range(n): return [0]\ndef f(x): return x", ["assert f(list(range(2))) == [0, 0]"]),
    ],
)
def test_results_of_another_value_or_base_type_are_refused(code: str, tests: Any) -> None:
    assert verdict(code, tests).score == 0


def test_no_answer_is_refused() -> None:
    assert verdict(None, SQUARES) == Verdict(0.0, "no code")


@pytest.mark.parametrize("code", ["print(5)", "print('5\\n9')", ADDS + "\nexit(1)", "print(input())", "print(sum)"])
def test_programs_that_print_something_else_are_refused(code: str) -> None:
    assert verdict(code, TYPED).score == 0


def test_one_failure_is_failure_unless_shares_are_asked_for() -> None:
    code = "def f(x):\n    if not x: raise ValueError('zero')\n    return x * x"
    assert verdict(code, SQUARES) == Verdict(0.0, "call 3: it raised an exception")
    assert verdict(code, SQUARES, partial=True).score == pytest.approx(2 / 3)
    assert verdict("print(5)", TYPED, partial=True).score == 0.5
    assert verdict(
        "import os\ndef f(x): return 4 if x == 2 else os._exit(0)", SQUARES, partial=True
    ).score == pytest.approx(1 / 3)
    assert verdict(RIGHT, SQUARES, partial=True) == Verdict(1.0)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def f(x): return x", "call 1: another result than the right one"),
        ("def f(x): raise ValueError(x)", "call 1: it raised an exception"),
        ("raise KeyError(open('calls.json').read())", "call 1: no result: it raised KeyError"),
        ("import sys; sys.exit(open('calls.json').read())", "call 1: no result: it ended with status 1"),
        ("print(input())", "input 1: another output than the right one"),
        ("raise ValueError(input())", "input 1: it raised ValueError"),
        ("import sys; sys.exit(input())", "input 1: it ended with status 1"),
    ],
)
def test_a_verdict_tells_neither_what_was_expected_nor_what_was_asked(code: str, why: str) -> None:
    tests = [("1234567", "7654321")] if "input" in code else [{"call": "f(1234567)", "expect": "7654321"}]
    assert verdict(code, tests) == Verdict(0.0, why)


def test_the_last_block_of_python_that_stands_is_the_answer() -> None:
    answer = f"```python\n{RIGHT}```\nfor example\n```json\n{{}}\n```"
    assert verdict(answer, SQUARES).score == 1
    assert verdict(f"{answer}\nWait, that is wrong.", SQUARES).score == 0
    assert verdict(f"<think>{answer}</think>```python\npass\n```", SQUARES).score == 0


def test_signs_that_are_no_text_do_not_end_the_verdict() -> None:
    assert verdict("def f(x): return '\ud800'", SQUARES).score == 0
    assert verdict(f"# \ud800\n{RIGHT}", SQUARES).score == 1


def test_only_a_line_feed_ends_a_line_of_output() -> None:
    for code, score in (
        ("print(1); print(2)", 1),
        ("print('1\\r'); print(2)", 1),
        ("print('1\\x0c2')", 0),
        ("print('1\\u20282')", 0),
    ):
        assert verdict(code, [("", "1\n2\n")]).score == score, code


@pytest.mark.parametrize(
    ("tests", "complaint"),
    [
        ([], "is no list of tests"),
        (None, "is no list of tests"),
        (["f(1) == 2"], "is no assertion"),
        (["assert [n for n in [1] if (lambda k: f(k))(n)]"], "depends on 'k', which only the test knows"),
        (["assert f(1) == 1; import os"], "is not one statement"),
        (["assert 4 == 4"], "'4 == 4' calls nothing"),
        ([{"call": "4", "expect": "4"}], "'4 == 4' calls nothing"),
        (["def"], "is not one statement"),
        ([{"call": "f(1)", "expect": "g(1)"}], "is no plain data"),
        ([{"call": "f(", "expect": "1"}], "is no Python expression"),
        ([{"call": "f(1)"}], "is no test; choices: "),
        ([3], r"facts.tests\[0\]: 3 is no test"),
    ],
)
def test_tests_that_cannot_be_judged_from_outside_are_named(tests: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        verdict(RIGHT, tests)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"sandbox\.wall_s: 20 must be less than timeout_s, which is 5"):
        UnitTestsVerifier(sandbox=SANDBOX, timeout_s=5)
    assert UnitTestsVerifier.model_validate({"kind": "unit_tests", "sandbox": "none"}).sandbox.how == "none"
    assert list(UnitTestsVerifier().unmet_requirements()) == []
