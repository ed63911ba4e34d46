"""Program inside the sandbox: calls a model's functions, or checks expressions about the recorded results.

The two tasks run in two processes. The process that runs the model's code returns results as plain data and holds no
expected result: code in control of that process can forge a result, but cannot copy the right one. Comparisons, `all`,
`len` and other functions of a test run in a process that never loads the model's code. The standard library suffices.
"""

import builtins
import cmath
import collections
import decimal
import fractions
import functools
import itertools
import json
import math
import operator
import os
import re
import statistics
import string
import sys
import types
from contextlib import suppress

ANSWER, CALLS, CHECKS = "answer.py", "calls.json", "checks.json"
RAISED = "raised"
"""Single item of the list printed for a call that raised an exception."""
ROW, PLAIN, RESULT, EQUAL = "__row__", "__plain__", "__result__", "__equal__"
"""Names under which expressions of `unit_test_expressions` call functions of this file."""
ITERATOR_LIMIT = 8_000
"""Number of characters of JSON after which the recording of an iterator stops, since an iterator may be endless."""
END = "end"
"""Name of the item that ends the recording of an iterator which has further items."""
_MODULES = (cmath, collections, decimal, fractions, functools, itertools, math, operator, re, statistics, string)
_CLASSES = (
    *(collections.Counter, collections.OrderedDict, collections.defaultdict, collections.deque),
    *(decimal.Decimal, fractions.Fraction),
)
TRUSTED = {
    **{name: value for name, value in vars(builtins).items() if not name.startswith("_")},
    **{module.__name__: module for module in _MODULES},
    **{kind.__name__: kind for kind in _CLASSES},
    "isclose": math.isclose,
}
"""Name in a test -> its value, for names that a test uses without defining them."""
_BUILTINS = dict(vars(builtins))
"""Copy of the built-in functions, made before the model's code can replace any of them."""
_UNRECORDED = object()
"""Item that replaces all items of an iterator past the limit."""
_NUMBERS = (int, float)
_COPIES = {
    bool: bool,  # Python allows no subclasses of bool, so its values are plain already
    int: int.__pos__,
    float: float.__pos__,
    complex: complex.__pos__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda value: bytes(bytearray.__getitem__(value, slice(None))),
    list: lambda value: [*list.__iter__(value)],
    tuple: lambda value: (*tuple.__iter__(value),),
    set: lambda value: {*set.__iter__(value)},
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
}
"""Base type -> function that copies a value of a subclass to the base type, without calling the subclass."""
_KEYS, _ITEMS = type({}.keys()), type({}.items())


def as_plain(value):
    """Return `value` as its base type: a `Counter` as a dict, a named tuple as a tuple. Other objects stay as is."""
    for base in type.__dict__["__mro__"].__get__(type(value)):
        if base in _COPIES:
            return value if base is type(value) else _COPIES[base](value)
    return value


def to_tagged_json(value, detailed=False):
    """Return `value` as JSON in which different values differ: collections begin with the name of their base type.

    Other objects become the name of their type, so that an object with a forged `__eq__` equals no expected result.
    `detailed` keeps the order of dicts, and the items of iterables, for `from_tagged_json`.
    """
    value = as_plain(value)
    kind, tagged = type(value), functools.partial(to_tagged_json, detailed=detailed)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple):
        return [kind.__name__, *map(tagged, value)]
    if kind in (set, frozenset) or (kind in (_KEYS, _ITEMS) and not detailed):
        name = kind.__name__ if detailed else "set"
        return [name, *sorted(map(tagged, value), key=_sorting_key)]
    if kind is dict:
        items = [[tagged(key), tagged(item)] for key, item in value.items()]
        return ["dict", *(items if detailed else sorted(items, key=_sorting_key))]
    if kind in (bytes, complex):
        return [kind.__name__, value.hex()] if kind is bytes else ["complex", value.real + 0, value.imag + 0]
    if isinstance(value, (decimal.Decimal, fractions.Fraction)):
        return [kind.__name__, str(value)] if detailed else _tagged_rational(value)
    return _tagged_object(value) if detailed else ["object", kind.__name__]


def _sorting_key(tagged):
    """Return a key that sorts tagged JSON, the same for an integer and for an equal float."""
    integral = type(tagged) is float and tagged.is_integer()
    return json.dumps(int(tagged) if integral else tagged)


def _tagged_rational(value):
    """Return a fraction or a decimal number as an int or float if one is equal, or tagged otherwise."""
    numerator, denominator = value.as_integer_ratio()
    if denominator == 1:
        return numerator
    with suppress(OverflowError):
        if numerator / denominator == value:
            return numerator / denominator
    return ["number", str(numerator), str(denominator)]


def _class_attribute(kind: type, name: str) -> object:
    """Return the attribute `name` of the class `kind` or of its nearest base that has it, or None."""
    for base in type.mro(kind):
        if name in vars(base):
            return vars(base)[name]
    return None


def _tagged_object(value):
    """Return the items and the text of an object that is no plain data, in tagged JSON."""
    kind = type(value)
    if kind is range:
        return ["range", value.start, value.stop, value.step]
    if kind in (_KEYS, _ITEMS):
        return ["keys" if kind is _KEYS else "items", *[to_tagged_json(item, detailed=True) for item in value]]
    items = None
    if callable(_class_attribute(kind, "__iter__")) and kind is not type:
        items = [*_tagged_items(value)]
    is_iterator = items is not None and callable(_class_attribute(kind, "__next__"))
    return ["iterator", *items] if is_iterator else ["object", kind.__name__, items, str(value)]


def _tagged_items(iterable):
    """Yield the items of `iterable` in tagged JSON, and the item `[END]` instead of those past the limit."""
    size = 0
    for item in iterable:
        if size > ITERATOR_LIMIT:
            yield [END]
            return
        tagged = to_tagged_json(item, detailed=True)
        size += len(json.dumps(tagged)) + 2
        yield tagged


class StandIn:
    """Replacement of an object that is no plain data: it equals nothing but itself, and is neither true nor false."""

    def __init__(self, items, text):
        self._items, self._text = items, text

    def __iter__(self):
        if self._items is None:
            raise TypeError("the object has no items")
        return recorded_items(self._items)

    def __len__(self):
        return len([*self])

    def __bool__(self):
        raise TypeError("the object is no plain data")

    def __str__(self):
        return self._text


def recorded_items(items):
    """Yield recorded items. Raise OverflowError instead of an item that was not recorded."""
    for item in items:
        if item is _UNRECORDED:
            raise OverflowError("the iterator has more items than were recorded")
        yield item


def from_tagged_json(tagged):
    """Return the value that `to_tagged_json(..., detailed=True)` encoded. Raise an exception for any other JSON."""
    if not isinstance(tagged, list):
        return tagged
    name, *rest = tagged
    if name == END:
        return _UNRECORDED
    if name == "object":
        _, items, text = rest
        return StandIn(None if items is None else [*map(from_tagged_json, items)], text)
    if name == "dict":
        return {from_tagged_json(key): from_tagged_json(item) for key, item in rest}
    if name in ("range", "complex"):
        return {"range": range, "complex": complex}[name](*rest)
    if name in ("bytes", "Decimal", "Fraction"):
        return {"bytes": bytes.fromhex, "Decimal": decimal.Decimal, "Fraction": fractions.Fraction}[name](*rest)
    values = [*map(from_tagged_json, rest)]
    if name in ("keys", "items"):
        return dict.fromkeys(values).keys() if name == "keys" else dict(values).items()
    return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "iterator": recorded_items}[name](values)


def equal_tagged(value, expected):
    """Return True if two results in tagged JSON are equal in Python, except that True is not 1."""
    if isinstance(value, list) and isinstance(expected, list):
        if value[:1] == ["object"]:
            return False
        return len(value) == len(expected) and all(map(equal_tagged, value, expected))
    return value == expected and (
        type(value) is type(expected) or (type(value) in _NUMBERS and type(expected) in _NUMBERS)
    )


def equal(value, expected):
    """Return True if two values are equal as plain data; objects such as types are equal only if they are the same."""
    pair = to_tagged_json(value), to_tagged_json(expected)
    if value is expected and pair[0] == ["object", type(value).__name__]:
        return True
    return equal_tagged(*pair)


# --- functions of the process that runs the model's code --------------------------------------------------------------


def record_results(call, answer):
    """Return the line of JSON with the results of one recorded call; `answer` is the module of the model's code."""
    detailed = call["detailed"]

    def row(variables, evaluate):
        # Variables are recorded first, because the call may change them.
        key, result = to_tagged_json(variables, detailed=True), [RAISED]
        with suppress(Exception):
            result = to_tagged_json(evaluate(), detailed)
        return [key, result]

    defined = {name: value for name, value in vars(answer).items() if name not in TRUSTED or name in call["own"]}
    scope = {**TRUSTED, **defined, "__builtins__": _BUILTINS, ROW: row, PLAIN: as_plain}
    # A call that raises has a result, too: the word "raised".
    with suppress(Exception):
        return json.dumps(eval(call["source"], scope))
    return f'["{RAISED}"]'


def run_calls(channel):
    """Run the answer, evaluate every call in its namespace, and write one line of JSON for each call."""
    with open(ANSWER, encoding="utf-8") as source, open(CALLS, encoding="utf-8") as call_list:
        code, calls = source.read(), json.load(call_list)
    answer = sys.modules["answer"] = types.ModuleType("answer")
    exec(compile(code, ANSWER, "exec", dont_inherit=True), answer.__dict__)
    for call in calls:
        channel.write(record_results(call, answer) + "\n")
        channel.flush()


# --- functions of the process that evaluates the tests on recorded results -------------------------------------------


class RaisedError(Exception):
    """A call of the model's code raised an exception."""


def evaluate_check(source, lines):
    """Return true, false or "raised" for a test; `lines` are the recorded results of its calls."""
    tables = []
    for line in lines:
        tables.append({json.dumps(key): result for key, result in json.loads(line)})

    def result(index, *variables):
        recorded = tables[index][json.dumps(to_tagged_json(variables, detailed=True))]
        if recorded == [RAISED]:
            raise RaisedError
        return from_tagged_json(recorded)

    try:
        return bool(eval(source, {**TRUSTED, RESULT: result, EQUAL: equal}))
    except RaisedError:
        return RAISED


def run_checks(channel):
    """Write one line of JSON for each check."""
    with open(CHECKS, encoding="utf-8") as checks:
        for item in json.load(checks):
            verdict = False
            # A test that raises on the recorded results counts as failed.
            with suppress(Exception):
                verdict = evaluate_check(item["source"], item["lines"])
            channel.write(json.dumps(verdict) + "\n")
            channel.flush()


def main():
    # Results go to a copy of standard output; the answer's own output is discarded.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    run = run_checks if os.path.exists(CHECKS) else run_calls
    run(channel)


if __name__ == "__main__":
    main()
