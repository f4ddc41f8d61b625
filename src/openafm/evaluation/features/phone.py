"""A small phone as a stateful environment for tool use: contacts, messages, reminders and settings with dependencies.

The state is one JSON value, so that calls can be replayed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

_TEXT, _FLAG = {"type": "string"}, {"type": "boolean"}
_SWITCHES = ("cellular", "wifi")


class Phone:
    """Hold the state of a phone and run its tools. A tool that cannot work returns an error text and changes nothing."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.state: dict[str, Any] = copy.deepcopy(dict(state))

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run a tool and return its output as JSON."""
        tool = getattr(self, f"_{name}", None) if name in TOOL_NAMES else None
        if tool is None:
            return json.dumps({"error": f"no tool '{name}'"})
        try:
            return json.dumps(tool(**arguments), ensure_ascii=False)
        except (TypeError, ValueError, KeyError) as error:
            return json.dumps({"error": f"wrong arguments: {error}"}, ensure_ascii=False)

    def _find_contact(self, name: str) -> Any:
        found = [each for each in self.state["contacts"] if name.casefold() in each["name"].casefold()]
        return found or {"error": f"no contact '{name}'"}

    def _send_message(self, phone: str, text: str) -> Any:
        if not self.state["settings"]["cellular"]:
            return {"error": "cellular is off"}
        if phone not in [each["phone"] for each in self.state["contacts"]]:
            return {"error": f"'{phone}' is not the number of a contact"}
        self.state["messages"].append({"phone": phone, "text": text})
        return {"sent": True}

    def _get_settings(self) -> Any:
        return self.state["settings"]

    def _set_switch(self, switch: str, on: bool) -> Any:
        if switch not in _SWITCHES or not isinstance(on, bool):
            return {"error": f"switches are {', '.join(_SWITCHES)}; on is true or false"}
        self.state["settings"][switch] = on
        return self.state["settings"]

    def _list_reminders(self) -> Any:
        return self.state["reminders"]

    def _add_reminder(self, title: str, time: str) -> Any:
        number = 1 + max((each["id"] for each in self.state["reminders"]), default=0)
        self.state["reminders"].append({"id": number, "title": title, "time": time})
        return {"id": number}

    def _delete_reminder(self, id: int) -> Any:
        left = [each for each in self.state["reminders"] if each["id"] != id]
        if len(left) == len(self.state["reminders"]):
            return {"error": f"no reminder {id}"}
        self.state["reminders"] = left
        return {"deleted": id}


def _tool(name: str, description: str, /, **properties: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"name": name, "description": description, "parameters": schema}


TOOLS = (
    _tool("find_contact", "Find contacts by name.", name=_TEXT),
    _tool("send_message", "Send a message to a contact's number. Cellular must be on.", phone=_TEXT, text=_TEXT),
    _tool("get_settings", "Return the switches of the phone."),
    _tool("set_switch", "Turn a switch on or off.", switch={"type": "string", "enum": list(_SWITCHES)}, on=_FLAG),
    _tool("list_reminders", "Return all reminders."),
    _tool("add_reminder", "Add a reminder at a time such as 2025-03-04T18:00.", title=_TEXT, time=_TEXT),
    _tool("delete_reminder", "Delete a reminder.", id={"type": "integer"}),
)
TOOL_NAMES = frozenset(tool["name"] for tool in TOOLS)
