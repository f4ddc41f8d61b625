"""Servers that adapters were pulled from: the key of the first pull, and the time of the newest manifest.

$OPENAFM_HOME/adapter-publishers/DIGEST.json, one file per canonical URL, so that concurrent pulls do not lose records.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import socket
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from openafm.adapters.delivery.errors import DeliveryError, UnreachableError, UntrustedDeliveryError
from openafm.core.config import Config, ConfigError, from_dict, to_dict
from openafm.core.files import data_home, write_json

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Publisher(Config):
    """The trusted public key of the server at the canonical `url`, and the signing time of its newest manifest."""

    url: str
    key: str
    published: int


def canonical_url(url: str) -> str:
    """Return one spelling for all spellings of a server's URL, so that its record is found whatever the user typed.

    Raises:
        UnreachableError: it is not an HTTP URL, or has a user name, a query or a fragment.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # an invalid port, or one bracket of an IPv6 address
        host, port, parts = "", None, urllib.parse.urlsplit("")
    extra = parts.username or parts.password or parts.query or parts.fragment
    if not url.isascii() or any(char <= " " for char in url) or parts.scheme not in _DEFAULT_PORTS or not host or extra:
        raise UnreachableError(f"{url!r:.200} is not the URL of a server; expected http://HOST:PORT or https://HOST")
    address = _canonical_host(host)
    if port is not None and port != _DEFAULT_PORTS[parts.scheme]:
        address += f":{port}"
    segments: list[str] = []
    for segment in urllib.parse.unquote(parts.path, errors="surrogateescape").split("/"):
        if segment == "..":
            segments[-1:] = []
        elif segment not in ("", "."):
            segments.append(urllib.parse.quote(segment, errors="surrogateescape"))
    return "/".join([f"{parts.scheme}://{address}", *segments])


def known_publisher(url: str) -> Publisher | None:
    """Return the record of the server at this canonical URL; None before the first pull.

    Raises:
        DeliveryError: the record cannot be read.
    """
    file = _file(url)
    try:
        return from_dict(Publisher, json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, ConfigError) as error:
        raise DeliveryError(f"{file} is not readable ({error}); remove it to trust {url} again") from error


def remember_publisher(publisher: Publisher) -> None:
    """Trust this key of this server from now on, and no older manifest.

    Raises:
        UntrustedDeliveryError: a newer manifest was seen before.
        DeliveryError: the record cannot be read.
    """
    before = known_publisher(publisher.url)
    if before is not None and before.key == publisher.key and publisher.published < before.published:
        raise UntrustedDeliveryError(
            f"the manifest of {publisher.url} is older than the one seen before and may lack fixes. "
            f"If its author confirms it, remove {_file(publisher.url)}"
        )
    write_json(_file(publisher.url), to_dict(publisher))


def _canonical_host(host: str) -> str:
    host = host.rstrip(".")
    try:
        address = ipaddress.ip_address(host)
        return f"[{address}]" if address.version == 6 else str(address)
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))  # 127.1, 0x7f000001 and 2130706433 are 127.0.0.1
    except OSError:
        return host


def _file(url: str) -> Path:
    return data_home() / "adapter-publishers" / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"
