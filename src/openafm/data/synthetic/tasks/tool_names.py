"""Other names of a tool: with a synonym of its verb, with the noun first, or the noun alone.

A model that has seen one name a tool learns the name, not what the tool does.
"""

from __future__ import annotations

import random
from collections.abc import Collection

_SYNONYMS = {
    "add": ("append", "put", "insert"),
    "book": ("reserve",),
    "call": ("phone", "ring", "dial"),
    "cancel": ("call_off",),
    "check": ("get",),
    "close": ("shut",),
    "complete": ("finish", "check_off"),
    "convert": ("change",),
    "create": ("add", "new", "make"),
    "delete": ("remove", "erase"),
    "find": ("search", "locate", "look_up"),
    "get": ("show", "fetch", "check", "read"),
    "identify": ("recognize", "name"),
    "list": ("show", "get", "all"),
    "log": ("record", "track", "enter"),
    "move": ("shift", "reschedule"),
    "order": ("buy",),
    "play": ("start",),
    "remove": ("delete", "take_off"),
    "request": ("ask_for",),
    "save": ("store", "keep"),
    "search": ("find", "look_up", "query"),
    "set": ("adjust",),
    "share": ("pass_on", "send"),
    "show": ("display", "view", "get"),
    "start": ("begin", "run", "launch"),
    "stop": ("end", "halt", "finish"),
    "track": ("follow", "locate"),
    "update": ("edit",),
}
_PARTICLES = ("in", "to", "from", "up", "off", "down", "out", "on")
_FIXED = {"order_status", "convert_timezone", "update_app", "turn_off_tv", "set_timer", "set_alarm", "sleep_timer"}
"""Names whose first word is no verb, or whose verb has another meaning than elsewhere."""
_ASKING = ("get", "check", "find", "show", "list", "identify")
_KEPT_SHARE, _SYNONYM_SHARE, _NOUN_SHARE = 0.45, 0.5, 0.5


def draw_name(rng: random.Random, name: str, others: Collection[str]) -> str:
    """Return `name` or another name for its tool, in words with underscores. `others` are the names of the whole set."""
    verb, *rest = name.split("_")
    if not rest or name in _FIXED or (rest[0] in _PARTICLES and verb != "turn") or rng.random() < _KEPT_SHARE:
        return name
    if verb == "turn":  # turn_on_light
        particle, *noun = rest
        found = rng.choice(("switch_{0}_{1}", "{1}_{0}", "{1}s_{0}")).format(particle, "_".join(noun))
    elif verb in _SYNONYMS and rng.random() < _SYNONYM_SHARE:
        found = "_".join((rng.choice(_SYNONYMS[verb]), *rest))
    elif verb in _ASKING and rng.random() < _NOUN_SHARE:
        found = "_".join(rest)
    elif verb in _SYNONYMS and len(rest) == 1:
        found = f"{rest[0]}_{verb}"
    else:
        return name
    others = [other for other in others if other != name]
    is_clear = found not in others and ("_" in found or not any(found in other.split("_") for other in others))
    return found if is_clear else name
