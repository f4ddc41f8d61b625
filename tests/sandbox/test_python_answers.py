"""Tests of a model's code: values are compared outside the sandbox, so code that finds the program does not pass."""

from __future__ import annotations

import pytest

from openafm.sandbox import SandboxLimits, sandbox_reason
from openafm.sandbox.compared_outside import split
from openafm.sandbox.python_answers import passes_tests

works = pytest.mark.skipif(bool(sandbox_reason()), reason=sandbox_reason() or "works")
QUICK = SandboxLimits(wall_seconds=5, cpu_seconds=3, memory_mb=512)
_CHECK = (
    "META = {'a': 1}\ndef check(candidate):\n    assert candidate(1) == 2, 'one'\n    assert candidate(5) == 6\ncheck(f)"
)


@works
@pytest.mark.parametrize(
    "forgery",
    [
        "import sys,os; t=[c for c in sys._getframe().f_code.co_consts if isinstance(c,str) and len(c)==33][-1]",
        "import os; t=open('main.py').read().split('print(')[-1][3:35]",
    ],
)
@pytest.mark.parametrize("tests", ["assert f(1)==2", _CHECK])
def test_code_that_prints_the_end_itself_does_not_pass(forgery: str, tests: str) -> None:
    assert not passes_tests(f"{forgery}\nprint('\\n' + t.strip(), flush=True); os._exit(0)", tests, QUICK)
    assert not passes_tests("class Any:\n def __eq__(self, other): return True\ndef f(x): return Any()", tests, QUICK)


@works
def test_values_of_all_kinds_are_compared() -> None:
    code = """
from collections import Counter, namedtuple
from fractions import Fraction
def f(x): return x
"""
    tests = """
import math
assert f(Counter("aab")) == {"a": 2, "b": 1}
assert [1, (2.0, "\\ud800"), None, True] == f([1, (2, "\\ud800"), None, 1])
assert f({1, 2}) == {2, 1}
assert f(frozenset([1])) == {1}
assert f(Fraction(1, 2)) == 0.5
assert f(b"a") == b"a"
assert f(1 + 2j) == 1 + 2j
assert f(namedtuple("P", "x")(3)) == (3,)
assert f(set()) == set()
assert math.isclose(f(0.1 + 0.2), 0.3)
"""
    assert passes_tests(code, tests, QUICK)
    assert passes_tests("def f(x): return x + 1", _CHECK, QUICK)
    assert not passes_tests("def f(x): return 2", _CHECK, QUICK)
    assert not passes_tests("def f(x): return [2]", "assert f(1) == (2,)", QUICK)


def test_literals_are_not_in_the_program() -> None:
    found = split("assert f(1) == 'secret', 'secret'\nassert f(2)")
    assert found.wanted == ("secret",)
    assert "secret" not in found.statements
    assert not found.hold(b'["other"]')
    assert not found.hold(b"[" * 100_000)
    assert not found.hold(None)
    assert split("not Python (").statements == "not Python ("
