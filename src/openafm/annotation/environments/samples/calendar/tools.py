"""Tools of a personal calendar: events, contacts, invitations and reminders."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from openafm.annotation.environments.world import ToolError, World


def find_events(world: World, text: str = "", first_day: str = "", last_day: str = "") -> list[dict[str, Any]]:
    """Find events by a part of their title and by their days.

    Args:
        text: a part of the title; empty for all
        first_day: the first day, as in 2025-09-15; empty for no limit
        last_day: the last day; empty for no limit
    """
    return world.rows(
        "SELECT * FROM events WHERE title LIKE ? AND begins >= ? AND begins < ? ORDER BY begins",
        f"%{text}%",
        first_day,
        f"{last_day}T99" if last_day else "9",
    )


def create_event(world: World, title: str, begins: str, minutes: int = 60, place: str = "") -> dict[str, Any]:
    """Create an event. Events that overlap are refused.

    Args:
        title: what the event is
        begins: day and time, as in 2025-09-15T14:00
        minutes: duration in minutes
        place: where it is
    """
    start, end = _interval(begins, minutes)
    _check_free(world, start, end)
    event = world.new_id("events", "E-")
    world.run("INSERT INTO events VALUES (?, ?, ?, ?, ?)", event, title, start, end, place)
    return {"event": event, "begins": start, "ends": end}


def move_event(world: World, event: str, begins: str) -> dict[str, Any]:
    """Move an event to another time; its duration stays.

    Args:
        event: identifier of the event, as in E-101
        begins: the new day and time, as in 2025-09-15T14:00
    """
    found = _event(world, event)
    duration = datetime.fromisoformat(found["ends"]) - datetime.fromisoformat(found["begins"])
    start, end = _interval(begins, int(duration.total_seconds()) // 60)
    _check_free(world, start, end, event)
    world.run("UPDATE events SET begins = ?, ends = ? WHERE id = ?", start, end, event)
    world.run("UPDATE invitations SET status = 'pending' WHERE event = ?", event)
    return {"event": event, "begins": start, "ends": end}


def delete_event(world: World, event: str) -> str:
    """Delete an event and its invitations.

    Args:
        event: identifier of the event, as in E-101
    """
    _event(world, event)
    world.run("DELETE FROM invitations WHERE event = ?", event)
    world.run("DELETE FROM events WHERE id = ?", event)
    return "deleted"


def free_time(world: World, day: str, minutes: int = 60) -> list[str]:
    """Return the beginnings of free slots of a day, between 8:00 and 20:00.

    Args:
        day: the day, as in 2025-09-15
        minutes: duration in minutes
    """
    slots = []
    moment = datetime.fromisoformat(f"{day}T08:00")
    while moment + timedelta(minutes=minutes) <= datetime.fromisoformat(f"{day}T20:00"):
        start, end = _interval(moment.isoformat(timespec="minutes"), minutes)
        if _conflict(world, start, end) is None:
            slots.append(start)
        moment += timedelta(minutes=30)
    return slots


def find_contacts(world: World, name: str) -> list[dict[str, Any]]:
    """Find contacts by a part of their name.

    Args:
        name: a part of the name
    """
    return world.rows("SELECT * FROM contacts WHERE name LIKE ? ORDER BY id", f"%{name}%")


def add_contact(world: World, name: str, email: str, phone: str = "") -> dict[str, str]:
    """Add a contact.

    Args:
        name: the full name
        email: the address
        phone: the number
    """
    if "@" not in email:
        raise ToolError(f"{email} is not an email address")
    contact = world.new_id("contacts", "C-")
    world.run("INSERT INTO contacts VALUES (?, ?, ?, ?)", contact, name, email, phone)
    return {"contact": contact}


def invite(world: World, event: str, contact: str) -> dict[str, str]:
    """Invite a contact to an event.

    Args:
        event: identifier of the event, as in E-101
        contact: identifier of the contact, as in C-1
    """
    _event(world, event)
    if world.row("SELECT 1 FROM contacts WHERE id = ?", contact) is None:
        raise ToolError(f"there is no contact {contact}")
    if world.row("SELECT 1 FROM invitations WHERE event = ? AND contact = ?", event, contact):
        raise ToolError(f"{contact} is already invited to {event}")
    world.run("INSERT INTO invitations VALUES (?, ?, 'pending')", event, contact)
    return {"event": event, "contact": contact, "status": "pending"}


def list_invitations(world: World, event: str) -> list[dict[str, Any]]:
    """Return who is invited to an event.

    Args:
        event: identifier of the event, as in E-101
    """
    return world.rows(
        "SELECT c.id, c.name, i.status FROM invitations i JOIN contacts c ON c.id = i.contact WHERE i.event = ?", event
    )


def list_reminders(world: World) -> list[dict[str, Any]]:
    """Return the reminders that are not done."""
    return world.rows("SELECT id, text, due FROM reminders WHERE is_done = 0 ORDER BY due")


def add_reminder(world: World, text: str, due: str) -> dict[str, str]:
    """Add a reminder.

    Args:
        text: what to remember
        due: day and time, as in 2025-09-15T14:00
    """
    start, _ = _interval(due, 1)
    if datetime.fromisoformat(start) < world.now:
        raise ToolError(f"{due} is in the past")
    reminder = world.new_id("reminders", "R-")
    world.run("INSERT INTO reminders (id, text, due) VALUES (?, ?, ?)", reminder, text, start)
    return {"reminder": reminder, "due": start}


def complete_reminder(world: World, reminder: str) -> str:
    """Mark a reminder as done.

    Args:
        reminder: identifier of the reminder, as in R-1
    """
    if not world.run("UPDATE reminders SET is_done = 1 WHERE id = ? AND is_done = 0", reminder):
        raise ToolError(f"there is no open reminder {reminder}")
    return "done"


def _event(world: World, event: str) -> dict[str, Any]:
    found = world.row("SELECT * FROM events WHERE id = ?", event)
    if found is None:
        raise ToolError(f"there is no event {event}")
    return found


def _interval(begins: str, minutes: int) -> tuple[str, str]:
    try:
        start = datetime.fromisoformat(begins)
    except ValueError:
        raise ToolError(f"a time is written as in 2025-09-15T14:00, not {begins}") from None
    if minutes < 1:
        raise ToolError("an event lasts at least one minute")
    end = start + timedelta(minutes=minutes)
    return start.isoformat(timespec="minutes"), end.isoformat(timespec="minutes")


def _conflict(world: World, start: str, end: str, ignored: str = "") -> dict[str, Any] | None:
    return world.row("SELECT * FROM events WHERE begins < ? AND ends > ? AND id != ?", end, start, ignored)


def _check_free(world: World, start: str, end: str, ignored: str = "") -> None:
    found = _conflict(world, start, end, ignored)
    if found is not None:
        raise ToolError(f"the time overlaps '{found['title']}' ({found['id']}, {found['begins']} to {found['ends']})")
