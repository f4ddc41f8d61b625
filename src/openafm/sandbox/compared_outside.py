"""Comparisons of tests that are made outside the sandbox: what a call should return never enters it.

`assert CALL == LITERAL` becomes a statement that records the value of the call. The code can write any values, but it has to
know the literals to pass.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

VALUES_FILE = "values.json"
_MAX_BYTES = 1 << 18
_RECORD = "_record_value"
_BEFORE = f"""
import json as _json
_values = []
def {_RECORD}(value):
    _values.append(_plain(value))
def _plain(value):
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    for kind in (list, tuple):
        if isinstance(value, kind):
            return [kind.__name__, [_plain(item) for item in value]]
    if isinstance(value, (set, frozenset)):
        return ["set", [_plain(item) for item in value]]
    if isinstance(value, dict):
        return ["dict", [["tuple", [_plain(key), _plain(item)]] for key, item in value.items()]]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", list(value)]
    if isinstance(value, complex):
        return ["complex", [value.real, value.imag]]
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return _plain(value.item())
    if type(value).__module__ in ("decimal", "fractions", "_decimal"):
        return float(value)
    return ["other", []]
"""
_AFTER = f"""
with open({VALUES_FILE!r}, "w") as _file:
    _json.dump(_values, _file)
"""
_KINDS: Mapping[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "dict": dict,
    "bytes": bytes,
    "complex": lambda parts: complex(*parts),
}


@dataclass(frozen=True, kw_only=True)
class Comparisons:
    """Tests without their literals, and the literals in the order in which their values are recorded."""

    statements: str
    wanted: tuple[Any, ...]

    def hold(self, data: bytes | None) -> bool:
        """Return whether the recorded values, written by the sandbox, are the wanted ones."""
        if not self.wanted:
            return True
        if data is None or len(data) > _MAX_BYTES:
            return False
        try:
            return bool([_decoded(value) for value in json.loads(data)] == list(self.wanted))
        except (ValueError, TypeError, KeyError, RecursionError):
            return False


def split(tests: str) -> Comparisons:
    """Return the tests with comparisons to literals taken out.

    Comparisons are found at the top level and in a function that the tests call once, as `check(candidate)` of HumanEval.
    Tests that are not Python, and all other statements, stay as they are.
    """
    try:
        tree = ast.parse(tests)
        wanted = tuple(_taken_out(tree))
        statements = ast.unparse(ast.fix_missing_locations(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Comparisons(statements=tests, wanted=())
    if not wanted:
        return Comparisons(statements=tests, wanted=())
    return Comparisons(statements=f"{_BEFORE}\n{statements}\n{_AFTER}", wanted=wanted)


def _taken_out(tree: ast.Module) -> Iterator[Any]:
    """Replace comparisons in a program and yield their literals, in the order in which they run."""
    functions = {statement.name: statement for statement in tree.body if isinstance(statement, ast.FunctionDef)}
    uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    for place, statement in enumerate(tree.body):
        called = _called(statement)
        if called in functions and uses[called] == 1:
            body, places = functions[called].body, range(len(functions[called].body))
        else:
            body, places = tree.body, range(place, place + 1)
        for each in places:
            if (found := _comparison(body[each])) is not None:
                value, literal = found
                record = ast.Call(func=ast.Name(id=_RECORD, ctx=ast.Load()), args=[value], keywords=[])
                body[each] = ast.Expr(value=record)
                yield literal


def _called(statement: ast.stmt) -> str:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name
    return ""


def _comparison(statement: ast.stmt) -> tuple[ast.expr, Any] | None:
    """Return the expression and the literal of `assert EXPRESSION == LITERAL`, in either order."""
    match statement:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            for value, literal in ((left, right), (right, left)):
                with contextlib.suppress(ValueError, TypeError):
                    return value, ast.literal_eval(literal)
    return None


def _decoded(tree: Any) -> Any:
    if isinstance(tree, list):
        kind, items = tree
        return _KINDS[kind]([_decoded(item) for item in items])
    if isinstance(tree, dict):
        raise ValueError("objects are not values")
    return tree
