"""The AST checks of BFCL (Berkeley Function Calling Leaderboard): whether tool calls equal one of the accepted ones.

An accepted call lists the accepted values of each argument; "" among them marks an argument that may be left out. Published
behavior that is kept: strings are compared without case, spaces and , . / - _ * ^; an integer is a float, a float is never
an integer; types inside nested lists and objects are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Call = tuple[str, Mapping[str, Any]]
Accepted = Mapping[str, Mapping[str, Sequence[Any]]]

_TYPES: Mapping[str, type] = {
    "string": str, "integer": int, "float": float, "boolean": bool, "array": list, "tuple": list, "dict": dict, "any": str,
}  # fmt: skip
_IGNORED = re.compile(r"[ ,./\-_*^]")


def wrong_calls(functions: Sequence[Mapping[str, Any]], calls: Sequence[Call], accepted: Sequence[Accepted]) -> str:
    """Return why the calls are wrong, in any order; empty if each equals a different accepted call."""
    if len(calls) != len(accepted):
        return f"expected {len(accepted)} calls, got {len(calls)}"
    left = list(calls)
    for one in accepted:
        name = next(iter(one))
        function = next((each for each in functions if each["name"] == name), None)
        if function is None:
            return f"the data have no function '{name}'"
        reasons = [wrong_call(function, call, one[name]) for call in left]
        if "" not in reasons:
            return f"no call equals {name}: {'; '.join(reasons)}"
        del left[reasons.index("")]
    return ""


def wrong_call(function: Mapping[str, Any], call: Call, accepted: Mapping[str, Sequence[Any]]) -> str:
    """Return why a call is wrong; empty if it is one of the accepted ones."""
    name, arguments = call
    if name != function["name"]:
        return f"called {name}"
    properties = function["parameters"]["properties"]
    for argument in function["parameters"].get("required", ()):
        if argument not in arguments:
            return f"no argument '{argument}'"
    for argument, value in arguments.items():
        if argument not in properties or argument not in accepted:
            return f"unexpected argument '{argument}'"
        if not _is_accepted(value, properties[argument], accepted[argument]):
            return f"'{argument}' is {value!r}, expected one of {list(accepted[argument])!r}"
    for argument, values in accepted.items():
        if argument not in arguments and "" not in values:
            return f"no argument '{argument}'"
    return ""


def _is_accepted(value: Any, schema: Mapping[str, Any], accepted: Sequence[Any]) -> bool:
    kind = schema["type"]
    expected: Any = _TYPES.get(kind, str)
    inner = _TYPES.get(schema["items"]["type"], str) if kind in ("array", "tuple") else None
    if kind == "float" and type(value) is int:
        value = float(value)
    given = next((type(each) for each in accepted if each != ""), None)
    if type(value) is expected:
        if inner is not None and not any(_has_type(value, each, inner) for each in accepted):
            return False
        is_variable = given not in (None, expected)
    elif type(value) is given:
        is_variable = True  # the name of a variable where the function wants another type
    else:
        return False
    if not is_variable:
        if expected is dict:
            return any(_is_object(value, each) for each in accepted if each != "")
        if expected is list and inner is dict:
            return any(len(value) == len(each) and all(map(_is_object, value, each)) for each in accepted)
        if expected is str:
            return _plain(value) in [_plain(each) for each in accepted if isinstance(each, str)]
        if expected is list:
            return list(map(_plain, value)) in [list(map(_plain, each)) for each in accepted]
    return value in accepted


def _has_type(value: Sequence[Any], accepted: Any, inner: type) -> bool:
    """Return whether each item has the type of the function's description, or that of the accepted list's first item."""
    if not isinstance(accepted, list):
        return True
    given = next((type(each) for each in accepted if each != ""), None)
    return all(type(item) in (inner, given) for item in value)


def _is_object(value: Mapping[str, Any], accepted: Any) -> bool:
    if not isinstance(accepted, Mapping):
        return False
    for key, each in value.items():
        if key not in accepted or _plain(each) not in [_plain(one) for one in accepted[key]]:
            return False
    return all(key in value or "" in values for key, values in accepted.items())


def _plain(value: Any) -> Any:
    """Return a string without case and punctuation; other values unchanged."""
    return _IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value
