"""Handles: what stands for an object on the other side of a C interface, counted as there, but never a leak or a crash.

A handle is a number, and it keeps its object alive while it exists; the table itself does not. So an object goes when it was
released as often as it was retained, and also when nobody can name it any more: objects that refer to each other through
handles are seen by Python's garbage collector. Numbers are never used again, so a stale one is told from a new one.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from dataclasses import dataclass
from typing import TypeAlias, TypeVar
from weakref import WeakValueDictionary

from openafm.core.errors import OpenAFMError

T = TypeVar("T")


class FreedHandleError(OpenAFMError):
    """A handle that names nothing: null, released, or of another kind than the call takes."""


@dataclass(eq=False)
class _Entry:
    object: object
    claims: int = 1
    has_handle: bool = True  # one of the claims is a `Handle`, which keeps the entry alive


class Handle(int):
    """The number of an object."""

    _entry: _Entry


Pointer: TypeAlias = int | ctypes.c_void_p | None


class HandleTable:
    """The objects that were handed out."""

    def __init__(self) -> None:
        self._entries: WeakValueDictionary[int, _Entry] = WeakValueDictionary()
        self._held: dict[int, _Entry] = {}  # those with claims that no `Handle` stands for
        self._numbers = itertools.count(0x1000, 0x10)
        self._lock = threading.RLock()  # a finalizer may release while another call is inside

    def __len__(self) -> int:
        """The objects alive."""
        return len(self._entries)

    def new(self, obj: object) -> Handle:
        """A handle with one claim on `obj`, given up by `release` or by forgetting the handle."""
        entry = _Entry(obj)
        handle = Handle(next(self._numbers))
        handle._entry = entry
        with self._lock:
            self._entries[int(handle)] = entry
        return handle

    def hand_over(self, obj: object) -> int:
        """A number with one claim on `obj` that only `release` gives up: for what crosses a C callback."""
        entry = _Entry(obj, has_handle=False)
        number = next(self._numbers)
        with self._lock:
            self._entries[number] = self._held[number] = entry
        return number

    def get(self, pointer: Pointer, kind: type[T]) -> T:
        """The object of a handle.

        Raises:
            FreedHandleError: there is none of this kind.
        """
        number = _number(pointer)
        entry = self._entries.get(number)
        obj = None if entry is None else entry.object
        if not isinstance(obj, kind):
            found = "names nothing: it is null or was released" if obj is None else f"is a {type(obj).__name__}"
            raise FreedHandleError(f"expected the handle of a {kind.__name__}, but {number:#x} {found}")
        return obj

    def retain(self, pointer: Pointer) -> None:
        """Add a claim. Does nothing for a handle that names nothing."""
        with self._lock:
            if (entry := self._entries.get(_number(pointer))) is not None and entry.claims:
                entry.claims += 1
                self._held[_number(pointer)] = entry

    def release(self, pointer: Pointer) -> None:
        """Give up a claim; the last one frees the object. Does nothing for a handle that names nothing."""
        number = _number(pointer)
        freed = None  # dropped outside of the lock: whatever its end runs may take its time
        with self._lock:
            if (entry := self._entries.get(number)) is None or not entry.claims:
                return
            entry.claims -= 1
            if entry.claims <= entry.has_handle:
                self._held.pop(number, None)
            if not entry.claims:
                freed, entry.object = entry.object, None
                del self._entries[number]
        del freed


def _number(pointer: Pointer) -> int:
    value = pointer.value if isinstance(pointer, ctypes.c_void_p) else pointer
    return int(value or 0)


HANDLES = HandleTable()
