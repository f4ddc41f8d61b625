"""Progress of a project, for its admins: the same form for annotation and for grading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PersonProgress:
    """What a person has done.

    Attributes:
        done, open, flagged: items of the person.
        seconds: mean time per item; None without items.
        errors: kinds of errors that the person flagged, with counts.
        agreement: share of results that equal those of other people; None without others.
        agreement_early, agreement_late: the same for the first and the second half of the person's items.
        notes: what to look at, such as "drift".
    """

    name: str
    done: int
    open: int
    flagged: int
    seconds: float | None
    errors: Mapping[str, int]
    agreement: float | None = None
    agreement_early: float | None = None
    agreement_late: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What is done in a project.

    Attributes:
        unit: what is counted, such as "items".
        agreement: share of pairs of people with equal results; None without pairs.
        people: sorted by name.
    """

    title: str
    unit: str
    total: int
    done: int
    open: int
    flagged: int
    seconds: float | None
    errors: Mapping[str, int]
    agreement: float | None
    people: tuple[PersonProgress, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row for each person, for a table on a terminal."""
        return [
            (
                each.name,
                str(each.done),
                str(each.open),
                str(each.flagged),
                "" if each.seconds is None else f"{each.seconds:.0f} s",
                ", ".join(f"{name} {count}" for name, count in each.errors.items()),
                _percent(each.agreement),
                ", ".join(each.notes),
            )
            for each in self.people
        ]


COLUMNS = ("person", "done", "open", "flagged", "time", "errors", "agreement", "check")
"""The titles of `Progress.rows`."""


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
