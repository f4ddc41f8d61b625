"""How far two texts are from each other."""

from __future__ import annotations


def edits(one: str, other: str) -> int:
    """Return the Levenshtein distance of two texts: characters to insert, delete or replace."""
    row = list(range(len(other) + 1))
    for number, char in enumerate(one, start=1):
        diagonal, row[0] = row[0], number
        for column, other_char in enumerate(other, start=1):
            diagonal, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, diagonal + (char != other_char))
    return row[-1]
