"""Rule that makes functions with right and wrong results, which unit tests judge in the sandbox."""

from __future__ import annotations

import random

from neighbourhoods import Neighbourhood

from marl.games.verifiers.unit_tests import UnitTestsVerifier

_FORGED = """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __len__(self): return 2
    def __iter__(self): return iter(())
    def __repr__(self): return {text!r}
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __lt__
"""


def _program(result: str, before: str = "") -> str:
    return f"```python\n{before}\ndef f(n):\n    return {result}\n```"


def programs(rng: random.Random) -> Neighbourhood:
    """Results of code: other base types, forged objects and replaced built-in functions are wrong."""
    a, b = rng.sample(range(2, 90), 2)
    expected, right, wrong = rng.choice(
        (
            (f"[{a}, {b}]", (f"list(({a}, {b}))", f"[{a}.0, {b}]"), (f"({a}, {b})", f"[{b}, {a}]", f"{{{a}, {b}}}")),
            (f"({a}, {b})", (f"tuple([{a}, {b}])", f"P({a}, {b})"), (f"[{a}, {b}]", f"({b}, {a})", f"({a},)")),
            (
                f"{{{a}: 1, {b}: 1}}",
                (f"Counter([{b}, {a}])", f"{{{b}: 1, {a}: 1}}"),
                (f"[{a}, {b}]", f"{{{a}: 1}}", "{}"),
            ),
            (f"'{a}'", (f"str({a})", f"S('{a}')"), (f"{a}", f"' {a}'", f"'{a}\\n'")),
        )
    )
    types = "from collections import Counter, namedtuple\nP = namedtuple('P', 'x y')\nclass S(str): pass"
    forged = _FORGED.format(text=expected)
    programs = [_program(result, types) for result in (*wrong, "None", "True", "n", "f", "type", "iter(())")]
    programs += [_program("Equal()", forged), _program("[Equal(), Equal()]", forged)]
    programs.append(_program("n", "all = any = isclose = len = lambda *a: True"))
    test = rng.choice((f"assert f(0) == {expected}", f"assert all(f(i) == {expected} for i in range(2))"))
    facts = {"tests": [test]}
    answers = tuple(_program(result, types) for result in (expected, *right))
    return Neighbourhood("Write f.", "", answers, tuple(programs), UnitTestsVerifier(), facts)
