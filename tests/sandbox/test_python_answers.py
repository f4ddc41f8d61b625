"""Tests of a model's code: they run in another sandbox than the answer, which passes with the right values only."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from openafm.sandbox import SandboxLimits, sandbox_reason
from openafm.sandbox.exchange import Foreign, Peer
from openafm.sandbox.python_answers import passes_tests

works = pytest.mark.skipif(bool(sandbox_reason()), reason=sandbox_reason() or "works")
LIMITS = SandboxLimits(wall_seconds=60, cpu_seconds=10, memory_mb=512)
# Tests without a literal beside the call: a tolerance, a loop, a helper, an exception, a property.
TESTS = """
import math
import random
def reference(x):
    return x * x / 3
def close(a, b):
    return math.isclose(a, b, rel_tol=1e-9)
for x in random.sample(range(1, 99), 5):
    assert close(f(x), reference(x)), x
assert abs(f(6) - 12) < 1e-9
assert sorted([f(3), f(6)]) == [f(3), f(6)]
try:
    f(None)
    raise SystemExit(1)
except TypeError:
    pass
"""
RIGHT = "def f(x): return x * x / 3"
FORGERIES = [
    "import os; os._exit(0)",
    "raise SystemExit(0)",
    "import os; open('verdict','w').write('passed'); os._exit(0)",
    # replies before any request
    'import os\nfor n in range(3, 30):\n try: os.write(n, b\'{"value": ["dict", []]}\\n\' * 50)\n except OSError: pass\n'
    "os._exit(0)",
    # objects that are equal to everything, close to everything, greater and smaller
    "class Any:\n def __eq__(s, o): return True\n def __sub__(s, o): return 0.0\n def __float__(s): return 12.0\n"
    " def __lt__(s, o): return True\n def __abs__(s): return 0.0\ndef f(x):\n if x is None: raise TypeError\n return Any()",
    # names of the tests and built-ins
    "def close(a, b): return True\ndef reference(x): return 0\ndef abs(x): return 0\ndef sorted(x): return x\n"
    "class math:\n isclose = staticmethod(lambda *a, **k: True)\ndef f(x):\n if x is None: raise TypeError\n return 12.0",
    # frames, memory and files of this machine
    "import sys, gc\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and 'reference' in o]\n"
    "def f(x):\n if x is None: raise TypeError\n return found[0]['reference'](x)",
    "import glob\ntext = ''\nfor path in glob.glob('/proc/[0-9]*/cmdline') + glob.glob('*'):\n"
    " text += open(path, errors='ignore').read()\nassert 'rel' + '_tol' in text\n" + RIGHT,
    "def f(x):\n raise AssertionError",
]


@works
@pytest.mark.parametrize("forgery", FORGERIES, ids=range(len(FORGERIES)))
def test_forgeries_do_not_pass(forgery: str) -> None:
    assert not passes_tests(forgery, TESTS, LIMITS)


@works
def test_right_answers_pass_and_wrong_ones_do_not() -> None:
    assert passes_tests(RIGHT, TESTS, LIMITS)
    assert not passes_tests("def f(x): return x * x / 3 + 1e-3", TESTS, LIMITS)
    assert not passes_tests("def g(x): return 1", TESTS, LIMITS)
    assert not passes_tests("not Python (", TESTS, LIMITS)
    assert not passes_tests(RIGHT, "not Python (", LIMITS)


@works
def test_values_of_all_kinds_cross() -> None:
    code = """
import math
from collections import Counter, namedtuple
from math import isclose
from fractions import Fraction
import numpy as np
P = namedtuple("P", "x")
LIMIT = 7
def f(x): return x
def ints():
    n = 0
    while True:
        yield n
        n += 1
def doubled(items): items[:] = [2 * item for item in items]; items.append(0)
def applied(function, value): return function(value)
def moved(point): point.x += 1; return point.x
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item); return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
"""
    tests = """
import itertools
assert [1, (2.0, "\\ud800"), None, True] == f([1, (2, "\\ud800"), None, 1])
assert f({1, 2}) == {2, 1} and f(frozenset([1])) == {1} and f(set()) == set()
assert f(Fraction(1, 2)) == 0.5 and f(b"a") == b"a" and f(1 + 2j) == 1 + 2j and f({1: "a"}) == {1: "a"}
assert type(f(True)) is bool and f((1, [2])) == (1, [2]) and f((1,)) != [1] and f(10 ** 5000) == 10 ** 5000
assert math.isclose(f(0.1 + 0.2), 0.3) and isclose(f(0.1), 0.1) and LIMIT == 7
assert Counter("aab") == {"a": 2, "b": 1}
assert list(itertools.islice(ints(), 3)) == [0, 1, 2]
assert np.allclose(f(np.array([1.0, 2.0])), [1, 2])
a = [1, 2]
doubled(a)
assert a == [2, 4, 0]
assert applied(lambda x: x + 1, 4) == 5 and applied(len, [1]) == 1
class Point:
    def __init__(self): self.x = 1
p = Point()
assert moved(p) == 2 and p.x == 2
s = Stack()
s.push(3).push(4)
assert s.pop() == 4 and len(s) == 1 and s.items == [3] and list(s) == [3] and isinstance(s, Stack)
assert not isinstance(3, Stack) and s != Stack()
"""
    assert passes_tests(code, tests, LIMITS)


def served(*requests: dict[str, Any], exported: Any) -> list[dict[str, Any]]:
    """Return the replies of the tests' side to requests of an answer that holds a reference to an object."""
    written = io.StringIO()
    peer = Peer(io.StringIO("".join(json.dumps(each) + "\n" for each in requests)), written, is_answer=False)
    peer._objects.append(exported)
    peer.serve()
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_an_answer_reaches_nothing_but_what_tests_pass() -> None:
    def function(x: int) -> int:
        return x + 1

    replies = served(
        {"do": "call", "on": 0, "places": [1], "names": {}},
        {"do": "get", "on": 0, "name": "func_globals"},
        {"do": "get", "on": 0, "name": "__globals__"},
        {"do": "names"},
        {"do": "items", "on": 0},
        {"do": "get", "on": 5, "name": "x"},
        {"do": "call", "on": 0, "places": [["global", ["os", "system"]]], "names": {}},
        exported=function,
    )
    assert replies[0]["value"] == 2
    assert all("error" in reply for reply in replies[1:])


def test_objects_of_the_other_process_are_equal_to_nothing() -> None:
    peer = Peer(io.StringIO(""), io.StringIO(), is_answer=False)
    one, other = peer.decoded(["object", 3]), peer.decoded(["object", 3])
    assert isinstance(one, Foreign)
    assert one != other
    assert one not in [12, other]
    for name in ("startswith", "isdigit", "issubset", "__class_getitem__"):
        with pytest.raises(AttributeError):
            getattr(one, name)
    for wrong in ({"a": 1}, ["module", "os"], ["global", ["openafm", "x"]], ["ndarray", ["|O", []]]):
        with pytest.raises(ValueError, match="value"):
            peer.decoded(wrong)
    with pytest.raises(ConnectionError):
        one()
