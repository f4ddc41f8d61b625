"""Identities of generated values: an element keeps its id across the snapshots of a stream."""

from __future__ import annotations

import uuid


class GenerationID:
    """Hold a unique identity. `child` derives the identity of a part deterministically."""

    __slots__ = ("_id",)

    def __init__(self, value: uuid.UUID | None = None) -> None:
        self._id = value or uuid.uuid4()

    def child(self, key: str | int) -> GenerationID:
        """Return the identity of the property or item `key`."""
        return GenerationID(uuid.uuid5(self._id, repr(key)))

    def __str__(self) -> str:
        return str(self._id)

    def __repr__(self) -> str:
        return f"GenerationID({self._id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GenerationID) and self._id == other._id

    def __hash__(self) -> int:
        return hash(self._id)
