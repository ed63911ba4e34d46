"""Program inside the sandbox that calls a model's functions and prints their results, one JSON line per call.

The program uses the standard library alone. Expected results stay outside, so that code in control of the process can
forge a result, but cannot copy the right one.
"""

import json
import os
import sys
import types
from contextlib import suppress

ANSWER, CALLS = "answer.py", "calls.json"
RAISED = "raised"
"""Single item of the list printed for a call that raised an exception."""


def to_tagged_json(value):
    """Return `value` as JSON in which different values differ: collections begin with the name of their type.

    Other objects become the name of their type, so that an object with a forged `__eq__` equals no expected result.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple):
        return [kind.__name__, *map(to_tagged_json, value)]
    if kind in (set, frozenset):
        return ["set", *sorted(map(to_tagged_json, value), key=json.dumps)]
    if kind is dict:
        items = [[to_tagged_json(key), to_tagged_json(item)] for key, item in value.items()]
        return ["dict", *sorted(items, key=json.dumps)]
    return [kind.__name__, repr(value)] if kind in (bytes, complex) else ["object", kind.__name__]


def main():
    """Run the answer, evaluate every call in its namespace, and print one line of JSON for each."""
    # Results go to a copy of standard output; the answer's own output is discarded.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with open(ANSWER, encoding="utf-8") as source, open(CALLS, encoding="utf-8") as call_list:
        code, calls = source.read(), json.load(call_list)
    answer = sys.modules["answer"] = types.ModuleType("answer")
    exec(compile(code, ANSWER, "exec", dont_inherit=True), answer.__dict__)
    for call in calls:
        line = f'["{RAISED}"]'
        # An exception is a result too.
        with suppress(Exception):
            line = json.dumps(to_tagged_json(eval(call, answer.__dict__)))
        channel.write(line + "\n")
        channel.flush()


if __name__ == "__main__":
    main()
