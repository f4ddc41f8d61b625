"""Handles: integers that reference objects across the C interface, with reference counts.

A `Handle` keeps its object alive; the table holds weak references. An object is freed after its last release, or when no
handle of it exists any more, so Python's garbage collector also frees cycles of objects and handles. Numbers are never
reused, so a stale handle is detected.
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
    """A handle is null, released, or of another type than the call expects."""


@dataclass(eq=False)
class _CountedObject:
    object: object
    num_references: int = 1
    has_handle: bool = True  # one of the references is a `Handle`, which keeps this entry alive


class Handle(int):
    """The handle of an object."""

    _entry: _CountedObject


Pointer: TypeAlias = int | ctypes.c_void_p | None


class HandleTable:
    """Map handles to objects."""

    def __init__(self) -> None:
        self._entries: WeakValueDictionary[int, _CountedObject] = WeakValueDictionary()
        self._held: dict[int, _CountedObject] = {}  # strong references for counts that no `Handle` holds
        self._numbers = itertools.count(0x1000, 0x10)
        self._lock = threading.RLock()  # reentrant: a finalizer may release during another call

    def __len__(self) -> int:
        """Return the number of live objects."""
        return len(self._entries)

    def new(self, obj: object) -> Handle:
        """Return a handle with one reference to `obj`, dropped by `release` or with the handle."""
        entry = _CountedObject(obj)
        handle = Handle(next(self._numbers))
        handle._entry = entry
        with self._lock:
            self._entries[int(handle)] = entry
        return handle

    def hand_over(self, obj: object) -> int:
        """Return a number with one reference to `obj` that only `release` drops. For arguments of C callbacks."""
        entry = _CountedObject(obj, has_handle=False)
        number = next(self._numbers)
        with self._lock:
            self._entries[number] = self._held[number] = entry
        return number

    def get(self, pointer: Pointer, kind: type[T]) -> T:
        """Return the object of a handle.

        Raises:
            FreedHandleError: the handle is invalid, or its object is not a `kind`.
        """
        number = _number(pointer)
        entry = self._entries.get(number)
        obj = None if entry is None else entry.object
        if not isinstance(obj, kind):
            found = "is null or was released" if obj is None else f"is a {type(obj).__name__}"
            raise FreedHandleError(f"expected the handle of a {kind.__name__}; {number:#x} {found}")
        return obj

    def retain(self, pointer: Pointer) -> None:
        """Add a reference. Does nothing for an invalid handle."""
        with self._lock:
            if (entry := self._entries.get(_number(pointer))) is not None and entry.num_references:
                entry.num_references += 1
                self._held[_number(pointer)] = entry

    def release(self, pointer: Pointer) -> None:
        """Drop a reference; the last one frees the object. Does nothing for an invalid handle."""
        number = _number(pointer)
        freed = None  # dropped outside the lock: its finalizer may be slow
        with self._lock:
            if (entry := self._entries.get(number)) is None or not entry.num_references:
                return
            entry.num_references -= 1
            if entry.num_references <= entry.has_handle:
                self._held.pop(number, None)
            if not entry.num_references:
                freed, entry.object = entry.object, None
                del self._entries[number]
        del freed


def _number(pointer: Pointer) -> int:
    value = pointer.value if isinstance(pointer, ctypes.c_void_p) else pointer
    return int(value or 0)


HANDLES = HandleTable()
