"""Checks of requests that all servers share: origin, host, characters. Each returns what is wrong, or an empty text.

The rooms raise errors of their own with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from openafm.serving.config import is_loopback


def wrong_characters(body: bytes) -> str:
    """Find half of a surrogate pair in the escapes of a JSON body, which no reply could repeat in UTF-8."""
    if b"\\ud" not in body.lower():
        return ""
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""  # the route reports it
    try:
        text.encode()
    except UnicodeEncodeError:
        return "the body has half of a surrogate pair (\\ud800 to \\udfff); send whole characters"
    return ""


def wrong_origin(headers: Mapping[bytes, str]) -> str:
    """Find a browser that sends the request from a page of another server."""
    origin = headers.get(b"origin")
    if origin is None:
        return ""
    try:
        place = urlsplit(origin).netloc
    except ValueError:
        place = ""
    is_own = place and place == headers.get(b"host")
    return "" if is_own else "pages of other origins may not use this server"


def wrong_host(headers: Mapping[bytes, str]) -> str:
    """Find a host name that is not loopback: a page could have rebound its own name to this address."""
    try:
        name = urlsplit(f"//{headers.get(b'host', '')}").hostname or ""
    except ValueError:
        name = ""
    return "" if is_loopback(name) else "the Host header is not a loopback name; use http://localhost"
