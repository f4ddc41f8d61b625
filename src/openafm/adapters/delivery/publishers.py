"""Servers that adapters were pulled from: the key that each showed first, and how new its manifest was.

$OPENAFM_HOME/adapter-publishers/DIGEST.json, one for each address: pulls at the same time lose nothing of each other.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from openafm.adapters.delivery.errors import DeliveryError, OldManifestError
from openafm.core.config import Config, ConfigError, from_dict, to_dict
from openafm.core.files import data_home, write_json


@dataclass(frozen=True, kw_only=True)
class Publisher(Config):
    """The public key that the server at `url` is known by, and when the newest manifest seen from it was signed."""

    url: str
    key: str
    published: int


def known_publisher(url: str) -> Publisher | None:
    """What is known of the server at this address; None at the first time.

    Raises:
        DeliveryError: the record of it cannot be read.
    """
    file = _file(url)
    try:
        return from_dict(Publisher, json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, ConfigError) as error:
        raise DeliveryError(f"{file} is not readable ({error}); remove it to trust {url} anew") from error


def remember_publisher(publisher: Publisher) -> None:
    """Trust this key of this server from now on, and no older manifest of it.

    Raises:
        OldManifestError: a newer one was seen.
        DeliveryError: the record of it cannot be read.
    """
    before = known_publisher(publisher.url)
    if before is not None and before.key == publisher.key and publisher.published < before.published:
        raise OldManifestError(
            f"{publisher.url} shows a manifest that is older than the one seen here before; it may hold back fixes. "
            f"If its author says that it is right, remove {_file(publisher.url)}"
        )
    write_json(_file(publisher.url), to_dict(publisher))


def _file(url: str) -> Path:
    return data_home() / "adapter-publishers" / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"
