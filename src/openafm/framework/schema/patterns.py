"""Regular expressions of guides, rewritten to a dialect that all engines interpret identically.

Python, ECMA-262 (JSON Schema) and the grammar engine differ in `\\d`, `\\w`, `\\s`, set operators in classes, `{,3}`,
`^` and `$`. A guide's pattern is parsed with Python's parser under `re.ASCII` and must match the whole string. It is
rewritten with explicit character classes and one pair of anchors.
"""

from __future__ import annotations

from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from openafm.framework.errors import UnsupportedGuideError
from openafm.framework.schema.linear_regex import (
    COMPLEMENTS,
    class_ranges,
    linear_regex,
    parse_regex,
    unsupported_regex,
)

_SPECIAL = r"\^$.|?*+()[]{}"
_SPECIAL_IN_CLASS = r"\^[]-&~"  # the last three are set operators in some engines when doubled


def common_pattern(regex: str) -> str:
    """Return the anchored JSON Schema pattern of a Python regular expression that must match the whole string.

    Raises:
        UnsupportedGuideError: the regular expression is invalid or too large, or uses look-around, back-references, word
            boundaries, inline flags or inner anchors, which cannot be enforced while decoding.
    """
    linear_regex(regex)  # refuses what `matches` cannot check
    tree = parse_regex(regex)
    return f"^{_PatternWriter(regex).sequence(tree, first=True, last=True)}$"


def matches(regex: str, text: str) -> bool:
    """Check whether the whole of `text` matches, in the dialect of `common_pattern`. Takes bounded time.

    Raises:
        DecodingFailureError: the check exceeds its budget of steps.
    """
    return linear_regex(regex).fullmatch(text)


class _PatternWriter:
    """Write a parsed pattern. `first` and `last` are true for nodes at the ends of the string."""

    def __init__(self, regex: str) -> None:
        self._regex = regex

    def sequence(self, nodes: Any, first: bool, last: bool) -> str:
        end = len(nodes) - 1
        return "".join(self._node(code, value, first and i == 0, last and i == end) for i, (code, value) in enumerate(nodes))

    def _node(self, code: Any, value: Any, first: bool, last: bool) -> str:
        match code:
            case op.LITERAL:
                return self._character(value, special=_SPECIAL)
            case op.NOT_LITERAL:
                return f"[^{self._range(value, value)}]"
            case op.ANY:
                return "."
            case op.IN:
                return self._set(value)
            case op.BRANCH:
                return f"(?:{'|'.join(self.sequence(branch, first, last) for branch in value[1])})"
            case op.SUBPATTERN if not value[1] and not value[2]:
                return self._group(value[3], first, last)
            case op.MAX_REPEAT | op.MIN_REPEAT:  # greediness does not affect whole-string matches
                least, most, body = value
                return self._group(body, False, False) + _count(least, most)
            case op.AT if first and value in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
                return ""
            case op.AT if last and value in (op.AT_END, op.AT_END_STRING):
                return ""
        raise self._unsupported(str(code).lower())

    def _group(self, nodes: Any, first: bool, last: bool) -> str:
        text = self.sequence(nodes, first, last)
        is_one_unit = len(nodes) == 1 and nodes[0][0] not in (op.MAX_REPEAT, op.MIN_REPEAT, op.AT)
        return text if is_one_unit else f"(?:{text})"

    def _set(self, items: Any) -> str:
        negated = items[0][0] is op.NEGATE
        items = items[negated:]
        if len(items) == 1 and items[0][1] in COMPLEMENTS:
            negated, items = not negated, [(op.CATEGORY, COMPLEMENTS[items[0][1]])]
        ranges = [bounds for code, value in items for bounds in class_ranges(code, value)]
        return f"[{'^' if negated else ''}{''.join(self._range(low, high) for low, high in ranges)}]"

    def _range(self, low: int, high: int) -> str:
        ends = [low] if low == high else [low, high]
        return "-".join(self._character(end, special=_SPECIAL_IN_CLASS) for end in ends)

    def _character(self, code_point: int, special: str) -> str:
        character = chr(code_point)
        if 0xD800 <= code_point <= 0xDFFF:
            raise self._unsupported("an unpaired surrogate")
        if character in special:
            return f"\\{character}"
        return f"\\x{code_point:02x}" if code_point < 0x20 or code_point == 0x7F else character

    def _unsupported(self, feature: str) -> UnsupportedGuideError:
        return unsupported_regex(self._regex, feature)


def _count(least: int, most: int) -> str:
    unbounded = most == _parser.MAXREPEAT
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, None if unbounded else most))
    if short:
        return short
    return f"{{{least}}}" if least == most else f"{{{least},{'' if unbounded else most}}}"
