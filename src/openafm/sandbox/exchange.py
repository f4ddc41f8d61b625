"""Calls between two processes: tests call functions of an answer that runs in another sandbox. Standard library only.

Values cross as JSON: plain data by value, everything else as a reference that only its owner can use. So the answer cannot
return an object that claims to be equal to what a test expects. Both sandboxes get this file; `tests_side` and `answer_side`
are their programs.

The answer may call functions that tests pass to it, and read and set public attributes of instances of the tests' classes.
"""

from __future__ import annotations

import base64
import builtins
import datetime
import decimal
import fractions
import importlib
import json
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

VERDICT = "verdict"
_MOST_CHARACTERS = 1 << 25  # of one message
_MOST_ITEMS = 100_000  # of a generator, which crosses as its items
_SAFE_MODULES = (
    "_bisect", "_collections", "_functools", "_heapq", "_operator", "bisect", "builtins", "collections", "datetime",
    "decimal", "fractions", "functools", "heapq", "itertools", "math", "operator", "re", "statistics", "string", "typing",
)  # fmt: skip
"""Modules whose functions an answer may return or define for tests."""
_LIBRARIES = {"np": "numpy", "pd": "pandas"}
# A foreign object must not answer for a string or a number: `assert f(x).startswith("a")`.
_PREDICATES = frozenset(
    name for kind in (str, bytes, float, set) for name in dir(kind) if name.startswith(("is", "startswith", "endswith"))
)
_Pairs = Mapping[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]]
_DATA: _Pairs = {
    "bytearray": (bytearray, lambda value: base64.b64encode(value).decode(), lambda text: bytearray(base64.b64decode(text))),
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    "complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    "Decimal": (decimal.Decimal, str, decimal.Decimal),
    "Fraction": (fractions.Fraction, str, fractions.Fraction),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "timedelta": (
        datetime.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
}
_COLLECTIONS: Mapping[str, type] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
_CHANGEABLE = (list, dict, set, bytearray)


class Foreign:
    """An object of the other process. It is equal to nothing; its items and public attributes are read from its owner."""

    def __init__(self, peer: Peer, number: int) -> None:
        self.__dict__.update(_peer=peer, _number=number)

    def __call__(self, *places: Any, **names: Any) -> Any:
        return self._peer.call(self._number, places, names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in _PREDICATES:
            raise AttributeError(f"an object of the other process has no attribute {name!r} that can be read")
        return self._peer.ask({"do": "get", "on": self._number, "name": name})

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask({"do": "set", "on": self._number, "name": name, "value": self._peer.encoded(value)})

    def __iter__(self) -> Iterator[Any]:
        return iter(self._peer.ask({"do": "items", "on": self._number}))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, key: Any) -> Any:
        return self._peer.ask({"do": "item", "on": self._number, "key": self._peer.encoded(key)})

    def __instancecheck__(self, instance: Any) -> bool:
        asked = {"do": "instance", "on": self._number, "value": self._peer.encoded(instance)}
        return isinstance(instance, Foreign) and bool(self._peer.ask(asked))

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class Peer:
    """One end of the connection.

    Args:
        is_answer: True on the side of the answer, which hides nothing from the tests.
    """

    def __init__(self, reader: IO[str], writer: IO[str], *, is_answer: bool) -> None:
        self._reader, self._writer, self._is_answer = reader, writer, is_answer
        self._objects: list[Any] = []

    def call(self, number: int, places: tuple[Any, ...], names: Mapping[str, Any]) -> Any:
        """Call a function of the other side. Lists, dicts and sets among the arguments are changed as it changes them."""
        sent = [self.encoded(each) for each in places]
        named = {name: self.encoded(value) for name, value in names.items()}
        reply = self._reply({"do": "call", "on": number, "places": sent, "names": named})
        for value, before, after in zip(places, sent, reply.get("places", sent), strict=True):
            if before != after and isinstance(value, _CHANGEABLE):
                _change(value, self.decoded(after))
        return self.decoded(reply["value"])

    def ask(self, message: Mapping[str, Any]) -> Any:
        """Send a request and return the value of its reply."""
        return self.decoded(self._reply(message)["value"])

    def serve(self) -> None:
        """Answer requests until the other side closes the connection."""
        while (message := self._read()) is not None:
            self._handle(message)

    def _reply(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        self._write(message)
        while (received := self._read()) is not None:
            if "do" in received:
                self._handle(received)
            elif "error" in received:
                raise _error(*received["error"])
            else:
                return received
        raise ConnectionError("the other process has ended")

    def _handle(self, message: Mapping[str, Any]) -> None:
        try:
            reply = self._done(message)
        except Exception as error:  # it crosses to the other side
            names = [kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind]
            reply = {"error": [names, str(error)[:1000]]}
        self._write(reply)

    def _done(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if message["do"] == "names" and self._is_answer:
            return {"value": self.encoded(self._objects[0]())}
        found = self._objects[message["on"]]
        if message["do"] == "call":
            places = [self.decoded(each) for each in message["places"]]
            value = found(*places, **{name: self.decoded(each) for name, each in message["names"].items()})
            return {"value": self.encoded(value), "places": [self.encoded(each) for each in places]}
        if not self._is_answer and (type(found).__module__ != "__main__" or isinstance(found, type)):
            raise AttributeError("tests pass only functions and instances of their own classes")
        match message["do"]:
            case "get" if not message["name"].startswith("_"):
                return {"value": self.encoded(getattr(found, message["name"]))}
            case "set" if not message["name"].startswith("_"):
                setattr(found, message["name"], self.decoded(message["value"]))
                return {"value": None}
            case "items":
                return {"value": self.encoded([item for item, _ in zip(found, range(_MOST_ITEMS), strict=False)])}
            case "item":
                return {"value": self.encoded(found[self.decoded(message["key"])])}
            case "instance":
                return {"value": isinstance(self.decoded(message["value"]), found)}
        raise AttributeError("unknown request")

    def encoded(self, value: Any) -> Any:
        """Return the JSON form of a value."""
        if value is None or isinstance(value, bool):
            return value
        for plain in (int, float, str):
            if isinstance(value, plain):
                return plain(value)
        if isinstance(value, Foreign):
            return ["own", value._number]
        if isinstance(value, dict):
            return ["dict", [[self.encoded(key), self.encoded(item)] for key, item in value.items()]]
        for name, kind in _COLLECTIONS.items():
            if isinstance(value, kind):
                return [name, [self.encoded(item) for item in value]]  # type: ignore[attr-defined]
        for name, (data, write, _) in _DATA.items():
            if isinstance(value, data):
                return [name, write(value)]
        if isinstance(value, (types.GeneratorType, map, filter, zip, enumerate)):
            return ["iterator", [self.encoded(item) for item, _ in zip(value, range(_MOST_ITEMS), strict=False)]]
        if type(value).__module__ == "numpy":
            is_scalar = getattr(value, "ndim", 0) == 0
            return self.encoded(value.item()) if is_scalar else ["ndarray", [value.dtype.str, value.tolist()]]
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
        if (
            module in sys.stdlib_module_names
            and module != "__main__"
            and getattr(sys.modules.get(module), name, None) is value
        ):
            return ["global", [module, name]]
        self._objects.append(value)
        return ["object", len(self._objects) - 1]

    def decoded(self, value: Any) -> Any:
        """Return the value of a JSON form."""
        if not isinstance(value, list):
            if isinstance(value, dict):
                raise ValueError("an object of JSON is not a value")
            return value
        kind, content = value
        if kind == "dict":
            return {self.decoded(key): self.decoded(item) for key, item in content}
        if kind in _COLLECTIONS:
            return _COLLECTIONS[kind](self.decoded(item) for item in content)
        if kind in _DATA:
            return _DATA[kind][2](content)
        match kind:
            case "object":
                return Foreign(self, int(content))
            case "own":
                return self._objects[content]
            case "iterator":
                return iter([self.decoded(item) for item in content])
            case "ndarray" if content[0][1:2] in "?bBiufcU":
                import numpy as np

                return np.array(content[1], dtype=content[0])
            case "global" if self._is_answer or content[0] in _SAFE_MODULES:
                return getattr(importlib.import_module(content[0]), content[1])
        raise ValueError(f"unknown kind of value {kind!r:.40}")

    def _read(self) -> dict[str, Any] | None:
        line = self._reader.readline(_MOST_CHARACTERS)
        if not line.endswith("\n"):
            return None
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("a message must be an object")
        return message

    def _write(self, message: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(message) + "\n")
        self._writer.flush()


def tests_side(tests: str) -> None:
    """Run tests with the names of the answer, and write the verdict if they run to their end.

    Names of built-ins are never the answer's. Modules and their functions are imported here, under their own names.
    """
    peer = _connected(is_answer=False)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for name, value in peer._reply({"do": "names"})["value"][1]:
        if name not in vars(builtins) and not name.startswith("__"):
            taken, is_taken = _taken(peer, name, value)
            if is_taken:
                namespace[name] = taken
    exec(compile(tests, "tests", "exec"), namespace)
    with open(VERDICT, "w") as file:  # noqa: PTH123
        file.write("passed")


def answer_side(code: str) -> None:
    """Run an answer and serve calls of its functions."""
    peer = _connected(is_answer=True)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    state: list[BaseException] = []

    def names() -> dict[str, Any]:
        if state:
            raise state[0]
        return {name: value for name, value in namespace.items() if not name.startswith("__")}

    peer._objects.append(names)
    try:
        exec(compile(code, "answer", "exec"), namespace)
    except Exception as error:  # the tests report it
        state.append(error)
    peer.serve()


def _taken(peer: Peer, name: str, value: Any) -> tuple[Any, bool]:
    """Return what a name of the answer means for tests, and whether it means something."""
    if isinstance(value, list) and value[0] == "module":
        module = _LIBRARIES.get(name, name)
        known = module.partition(".")[0] in (*sys.stdlib_module_names, *_LIBRARIES.values())
        return (importlib.import_module(module), True) if known and value[1] == module else (None, False)
    if isinstance(value, list) and value[0] == "global" and (value[1][0] not in _SAFE_MODULES or value[1][1] != name):
        return None, False  # `from builtins import max as isclose`
    return peer.decoded(value), True


def _connected(*, is_answer: bool) -> Peer:
    """Return the connection on standard input and output, which are closed for the code that runs next."""
    sys.set_int_max_str_digits(0)
    reader, writer = os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    return Peer(reader, writer, is_answer=is_answer)


def _change(value: Any, new: Any) -> None:
    if isinstance(value, list | bytearray):
        value[:] = new
    else:
        value.clear()
        value.update(new)


def _error(names: list[str], text: str) -> Exception:
    for name in names:
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(str(text))
            except TypeError:  # UnicodeDecodeError and others have their own arguments
                continue
    return RuntimeError(str(text))
