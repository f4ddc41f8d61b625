"""What a tool of a project may use: its database, its clock and its random numbers.

A tool is a public function in a project's `tools.py`. A parameter `world`, if it is the first one, receives a `World`; the
other parameters are the arguments that the model writes:

    def cancel_booking(world: World, booking: str) -> dict[str, Any]:
        \"\"\"Cancel a booking.

        Args:
            booking: the number of the booking, as in B-1042
        \"\"\"
        if not world.run("UPDATE bookings SET status = 'cancelled' WHERE id = ?", booking):
            raise ToolError(f"there is no booking {booking}")
        return {"booking": booking, "status": "cancelled"}
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from openafm.core.errors import OpenAFMError


class ToolError(OpenAFMError):
    """A tool refuses a call; the model reads the message."""


@dataclass(frozen=True)
class World:
    """Hold the state of one tool call. Equal trajectories get equal times and random numbers.

    Attributes:
        db: the project's database. A call that fails changes nothing.
        now: the time of the call.
        random: random numbers of the call.
    """

    db: sqlite3.Connection
    now: datetime
    random: random.Random

    def rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """Return the rows of a query as dictionaries."""
        cursor = self.db.execute(sql, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def row(self, sql: str, *values: Any) -> dict[str, Any] | None:
        """Return the first row of a query; None without any."""
        return next(iter(self.rows(sql, *values)), None)

    def run(self, sql: str, *values: Any) -> int:
        """Execute a statement and return the number of changed rows."""
        return self.db.execute(sql, values).rowcount

    def new_id(self, table: str, prefix: str) -> str:
        """Return an identifier that `table` does not have yet: the prefix and the next number."""
        ids = [row["id"] for row in self.rows(f'SELECT id FROM "{table}"')]
        numbers = [int(text[len(prefix) :]) for text in ids if text.startswith(prefix) and text[len(prefix) :].isdigit()]
        return f"{prefix}{max(numbers, default=1000) + 1}"
