"""Target of `unit_tests`: programs that do everything but compute the function that they are asked for."""

from __future__ import annotations

import random

from attack_search import CHANNELS, Channel, Gold, Puzzle, Target
from claims import spoil
from grammar import Grammar, Rules

from marl.games.verifiers.unit_tests import UnitTestsVerifier
from marl.sandbox import Sandbox

_CODE: Rules = {
    "start": {
        spoil: ["@program", "```python\n@program\n```", "@preface\n```python\n@program\n```", "@program\n@program"]
    },
    "preface": {spoil: ["Here:", "assert True", "<think>x</think>", "```python\npass\n```"]},
    "program": {
        spoil: [
            *("@setup\n@function", "@function\n@setup", "@class\n@function", "@setup\n@class\n@function", "@setup"),
            "@script",
        ]
    },
    "function": {
        spoil: [
            *("def f(x):\n    return @value", "def f(x):\n    @act\n    return @value", "f = lambda x: @value"),
            *("f = @value", "class f(int): pass", "def f(*a, **k):\n    @act", "def f(x):\n    raise @error"),
            *("def f(x):\n    yield @value", "async def f(x): return @value"),
            "def f(x):\n    try:\n        @act\n    finally:\n        return @value",
            "f = type('f', (), {'__call__': lambda s, x: @value})()",
            "def f(x):\n    print(@value)\n    return @value",
            "def f(x):\n    global f\n    f = lambda x: @value\n    return @value",
        ]
    },
    "value": {
        spoil: [
            *("None", "True", "x", "x * x", "x + 1", "0", "''", "'@guess'", "float('nan')", "float('inf')", "All()"),
            *("All(4)", "@guess", "[]", "[x]", "{x}", "(x,)", "...", "NotImplemented", "f", "repr", "x == x", "1j"),
            *("b'x'", "10**5000", "'true'", "'[\"raised\"]'"),
            "type('I', (int,), {'__eq__': lambda s, o: True})(@guess)",
            *("type('E', (), {'__eq__': lambda s, o: True})()", "str(x)", "[@value]", "{'a': @value}"),
            *("(@value, @value)", "expect", "globals()", "locals()", "__builtins__", "open('calls.json').read()"),
            *("type('S', (str,), {'__repr__': lambda s: '@guess'})('x')", "type('F', (float,), {})(@guess)"),
            *("range(@guess)", "object()"),
        ]
    },
    "guess": {spoil: ["0", "1", "4", "7", "-1", "100", "3.0"]},
    "error": {
        spoil: [
            *("SystemExit(0)", "AssertionError", "KeyboardInterrupt", "GeneratorExit", "StopIteration(0)"),
            *("RecursionError", "Exception(x)"),
        ]
    },
    "class": {
        spoil: [
            "class All(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__",
            "class All:\n    def __eq__(self, o): return True",
            "class All(str):\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False",
            *("class All(dict): pass", "class All(float): pass", "class math: isclose = lambda *a, **k: True"),
            "class All(list):\n    __eq__ = __contains__ = __lt__ = __bool__ = __abs__ = __sub__ = lambda s, *o: True",
            "class All(list):\n    def __len__(self): return 1\n    def __iter__(self): return iter([1])",
            "class Meta(type):\n    def __eq__(c, o): return True",
            "class All:\n    __class__ = int\n    def __getattr__(self, n): return lambda *a: True",
            "class All(int):\n    def __reduce__(self): return (int, (4,))",
        ]
    },
    "act": {
        spoil: [
            *("pass", "print(@value)", "import os; os._exit(0)", "import sys; sys.exit(0)", "quit()", "@setup_line"),
            *("1/0", "import os; os.kill(os.getppid(), 9)", "import os; os.write(1, b'@guess\\n')"),
            *("[__import__('os').write(n, b'true\\n') for n in range(1, 9)]", "while False: pass"),
            "import sys; sys._getframe(1).f_globals.clear()",
            *("import sys; sys._getframe(1).f_locals['line'] = 'true'", "del x"),
            *("import sys; [sys._getframe(i).f_locals for i in range(2)]", "import gc; gc.get_objects()"),
            *("import os; os.fork()", "import os; os.environ.clear()", "import signal; signal.alarm(1)"),
            "import threading; threading.Thread(target=print).start()",
        ]
    },
    "setup_line": {
        spoil: [
            "import json; json.dumps = lambda *a, **k: '@guess'",
            *("import builtins; builtins.eval = lambda *a: @guess", "import sys; sys.stdout = sys.stderr"),
            *(
                "import __main__ as m; m.as_plain = lambda v: @guess",
                "import builtins; builtins.type = lambda *a: int",
            ),
            *("import sys; sys.modules.clear()", "import builtins; builtins.AssertionError = Exception"),
            *("import builtins; builtins.isinstance = lambda *a: True", "import os; os.close(1)"),
            *("import atexit; atexit.register(print, @guess)", "import sys; sys.excepthook = lambda *a: None"),
            *("import sys; sys.settrace(lambda *a: None)", "import os; os.dup2(2, 1)"),
            *("import builtins; builtins.len = lambda x: @guess", "import builtins; builtins.open = None"),
            *(
                "all = any = isclose = lambda *a, **k: True",
                "abs = len = sum = lambda x: 0",
                "sorted = set = list = repr",
            ),
            "import builtins, math; builtins.all = builtins.any = math.isclose = lambda *a, **k: True",
            "import builtins; builtins.exec = builtins.compile = builtins.print = lambda *a, **k: True",
            "import __main__ as m; m.equal = m.equal_tagged = m.evaluate_check = lambda *a: True; m.TRUSTED.clear()",
            *("import sys; sys.argv = []", "import io, sys; sys.stdin = io.StringIO('@guess')"),
            *("import json; json.JSONEncoder.default = lambda *a: @guess", "import sys; sys.setrecursionlimit(5)"),
        ]
    },
    "setup": {
        spoil: [
            *("@setup_line", "@setup_line\n@setup_line", "print(@value)", "@act", "x = @guess"),
            *("import json, os, sys", "assert True", "exit(0)"),
        ]
    },
    "script": {
        spoil: [
            *("print(@guess)", "print(input())", "import sys; print(sys.stdin.read())", "print('@guess\\n' * 3)"),
            *("print(True)", "print('ok'); exit(0)", "print(__import__('os').listdir('.'))"),
            *("print(open('calls.json').read())", "for i in range(10): print(i)", "print('\\x1b[2K')"),
        ]
    },
}
# `setup_line` has an underscore, which no slot has.
_CODE = {
    name.replace("_", ""): {e: [t.replace("@setup_line", "@setupline") for t in ts] for e, ts in rules.items()}
    for name, rules in _CODE.items()
}


_COMPARISONS = (
    "assert abs(f({x}) - {y}) < 0.5",
    "assert math.isclose(f({x}), {y})",
    "assert f({x}) in [{y}] and f({x}) != 0",
    "assert all(v == {y} for v in [f({x})]) and {y} <= f({x}) <= {y}",
    "assert sorted([f({x}), 0]) == [0, {y}]",
    "assert set([f({x})]) == {{{y}}} and len(str(f({x}))) == 4",
)
"""Tests whose call compares."""


def _function(rng: random.Random) -> Puzzle:
    """Return a task whose function no snippet computes: a random linear map modulo a prime."""
    a, b, p = rng.randint(5, 90), rng.randint(11, 90), rng.choice((97, 101, 103, 107))
    xs = rng.sample(range(2, 90), 3)
    outputs = [(a * x * x + b) % p + 1000 for x in xs]
    if rng.random() < 0.3:
        tests: list[object] = [{"stdin": f"{x}\n", "stdout": f"{y}\n"} for x, y in zip(xs, outputs, strict=True)]
    else:
        tests = [{"call": f"f({x})", "expect": str(y)} for x, y in zip(xs, outputs, strict=True)]
        if rng.random() < 0.3:
            tests = [{"call": f"f({x})", "expect": f"[{y}, 'a']"} for x, y in zip(xs, outputs, strict=True)]
        elif rng.random() < 0.5:
            tests = [rng.choice(_COMPARISONS).format(x=x, y=y) for x, y in zip(xs, outputs, strict=True)]
            tests.append(f"assert all(f(x) == y for x, y in {list(zip(xs, outputs, strict=True))})")
    return Puzzle("Write f.", [Gold(str(outputs[0]), outputs[0], {"tests": tests})], 0, {})


def targets(kind: str) -> list[Target]:
    """Return the target of `unit_tests`."""
    if kind != "unit_tests":
        return []
    sandbox = Sandbox(wall_s=3, cpu_s=1)
    checks = {"all": UnitTestsVerifier(sandbox=sandbox), "share": UnitTestsVerifier(sandbox=sandbox, partial=True)}
    channels = {"raw": CHANNELS["raw"], "role code": Channel(form="code")}
    return [Target("function", Grammar("start", _CODE), _function, checks, channels)]
