"""Servers that adapters were pulled from: the key that each showed first, and how new its manifest was."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from openafm.adapters.delivery.errors import DeliveryError, OldManifestError
from openafm.core.config import Config, ConfigError, from_dict, to_dict
from openafm.core.files import data_home, write_json


@dataclass(frozen=True, kw_only=True)
class Publisher(Config):
    """The public key that a server is known by, and when the newest manifest seen from it was signed."""

    key: str
    published: int


def known_publisher(url: str) -> Publisher | None:
    """What is known of the server at this address; None at the first time."""
    return _read().get(url)


def remember_publisher(url: str, publisher: Publisher) -> None:
    """Trust this key of this server from now on, and no older manifest of it.

    Raises:
        OldManifestError: a newer one was seen.
    """
    known = _read()
    before = known.get(url)
    if before is not None and before.key == publisher.key and publisher.published < before.published:
        raise OldManifestError(f"{url} shows a manifest that is older than the one seen here before; it may hold back fixes")
    known[url] = publisher
    write_json(_file(), {address: to_dict(entry) for address, entry in known.items()})


def _read() -> dict[str, Publisher]:
    if not _file().is_file():
        return {}
    try:
        values = json.loads(_file().read_text(encoding="utf-8"))
        return {url: from_dict(Publisher, entry) for url, entry in values.items()}
    except (ValueError, AttributeError, ConfigError) as error:
        raise DeliveryError(f"{_file()} is not readable ({error}); remove it to trust servers anew") from error


def _file() -> Path:
    return data_home() / "adapter-publishers.json"
