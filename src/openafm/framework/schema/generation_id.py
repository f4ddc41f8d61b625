"""Identity of generated values: the same element keeps its id from one snapshot of a stream to the next."""

from __future__ import annotations

import uuid


class GenerationID:
    """A unique identity. `child` derives that of a part, always the same for the same key."""

    __slots__ = ("_id",)

    def __init__(self, value: uuid.UUID | None = None) -> None:
        self._id = value or uuid.uuid4()

    def child(self, key: str | int) -> GenerationID:
        """The identity of the property or item `key` of this value."""
        return GenerationID(uuid.uuid5(self._id, repr(key)))

    def __str__(self) -> str:
        return str(self._id)

    def __repr__(self) -> str:
        return f"GenerationID({self._id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GenerationID) and self._id == other._id

    def __hash__(self) -> int:
        return hash(self._id)
