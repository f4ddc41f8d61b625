"""Tools of a phone: settings that depend on each other, alarms, apps and networks."""

from __future__ import annotations

import json
from typing import Any

from openafm.annotation.environments.world import ToolError, World


def get_setting(world: World, name: str) -> str:
    """Return the value of a setting.

    Args:
        name: name of the setting, as in wifi
    """
    return str(_setting(world, name)["value"])


def list_settings(world: World) -> dict[str, str]:
    """Return all settings with their values."""
    return {row["id"]: row["value"] for row in world.rows("SELECT id, value FROM settings ORDER BY id")}


def set_setting(world: World, name: str, value: str) -> dict[str, str]:
    """Change a setting.

    Args:
        name: name of the setting, as in wifi
        value: on or off for a switch, 0 to 100 for a percentage, or one of the choices
    """
    found = _setting(world, name)
    if found["kind"] == "switch" and value not in ("on", "off"):
        raise ToolError(f"{name} is on or off, not {value}")
    if found["kind"] == "percent" and not (value.isdigit() and int(value) <= 100):
        raise ToolError(f"{name} is a whole number from 0 to 100, not {value}")
    if found["kind"] == "choice" and value not in json.loads(found["choices"]):
        raise ToolError(f"{name} is one of {found['choices']}, not {value}")
    if name in ("wifi", "bluetooth") and value == "on" and _setting(world, "airplane_mode")["value"] == "on":
        raise ToolError(f"{name} can not be turned on in airplane mode; turn airplane_mode off first")
    if name == "brightness" and int(value) > 50 and _setting(world, "low_power")["value"] == "on":
        raise ToolError("brightness is at most 50 while low_power is on; turn low_power off first")
    world.run("UPDATE settings SET value = ? WHERE id = ?", value, name)
    if (name, value) == ("airplane_mode", "on"):
        world.run("UPDATE settings SET value = 'off' WHERE id IN ('wifi', 'bluetooth')")
    if (name, value) in (("airplane_mode", "on"), ("wifi", "off")):
        world.run("UPDATE networks SET is_connected = 0")
    return {name: value}


def list_alarms(world: World) -> list[dict[str, Any]]:
    """Return the alarms."""
    return world.rows("SELECT * FROM alarms ORDER BY time")


def create_alarm(world: World, time: str, label: str = "Alarm", repeats: str = "never") -> dict[str, Any]:
    """Create an alarm.

    Args:
        time: the time, as in 07:30
        label: what the alarm is for
        repeats: never, daily, weekdays or weekends
    """
    if repeats not in ("never", "daily", "weekdays", "weekends"):
        raise ToolError(f"an alarm repeats never, daily, weekdays or weekends, not {repeats}")
    alarm = world.new_id("alarms", "A-")
    world.run("INSERT INTO alarms VALUES (?, ?, ?, ?, 1)", alarm, _time(time), label, repeats)
    return {"alarm": alarm, "time": time, "repeats": repeats}


def set_alarm(world: World, alarm: str, is_on: bool, time: str | None = None) -> dict[str, Any]:
    """Turn an alarm on or off, and change its time.

    Args:
        alarm: number of the alarm, as in A-1
        is_on: true to turn it on
        time: the new time, as in 07:30
    """
    found = world.row("SELECT * FROM alarms WHERE id = ?", alarm)
    if found is None:
        raise ToolError(f"there is no alarm {alarm}")
    world.run("UPDATE alarms SET is_on = ?, time = ? WHERE id = ?", int(is_on), _time(time or found["time"]), alarm)
    return {"alarm": alarm, "is_on": is_on, "time": time or found["time"]}


def delete_alarm(world: World, alarm: str) -> str:
    """Delete an alarm.

    Args:
        alarm: number of the alarm, as in A-1
    """
    if not world.run("DELETE FROM alarms WHERE id = ?", alarm):
        raise ToolError(f"there is no alarm {alarm}")
    return "deleted"


def list_apps(world: World) -> list[dict[str, Any]]:
    """Return the installed apps, largest first."""
    return world.rows("SELECT id, name, notifications, storage_mb FROM apps ORDER BY storage_mb DESC")


def set_notifications(world: World, app: str, is_on: bool) -> dict[str, Any]:
    """Turn the notifications of an app on or off.

    Args:
        app: name of the app in small letters, as in mail
        is_on: true to turn them on
    """
    if not world.run("UPDATE apps SET notifications = ? WHERE id = ?", int(is_on), app):
        raise ToolError(f"there is no app {app}")
    return {"app": app, "notifications": is_on}


def list_networks(world: World) -> list[dict[str, Any]]:
    """Return the Wi-Fi networks in range, strongest first."""
    return world.rows("SELECT id, name, signal, is_known, is_connected FROM networks ORDER BY signal DESC")


def join_network(world: World, network: str, password: str | None = None) -> dict[str, Any]:
    """Connect to a Wi-Fi network.

    Args:
        network: number of the network, as in N-1
        password: the password of a network that is not known
    """
    if _setting(world, "wifi")["value"] != "on":
        raise ToolError("wifi is off; turn it on first")
    found = world.row("SELECT name, is_known FROM networks WHERE id = ?", network)
    if found is None:
        raise ToolError(f"there is no network {network}")
    if not found["is_known"] and not password:
        raise ToolError(f"the network {found['name']} needs a password")
    world.run("UPDATE networks SET is_connected = (id = ?)", network)
    world.run("UPDATE networks SET is_known = 1 WHERE id = ?", network)
    return {"connected": found["name"]}


def _setting(world: World, name: str) -> dict[str, Any]:
    found = world.row("SELECT * FROM settings WHERE id = ?", name)
    if found is None:
        names = ", ".join(row["id"] for row in world.rows("SELECT id FROM settings ORDER BY id"))
        raise ToolError(f"there is no setting {name}; the settings are {names}")
    return found


def _time(text: str) -> str:
    hours, _, minutes = text.partition(":")
    if not (len(text) == 5 and hours.isdigit() and minutes.isdigit() and int(hours) < 24 and int(minutes) < 60):
        raise ToolError(f"a time is written as in 07:30, not {text}")
    return text
