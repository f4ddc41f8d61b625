"""Signed updates of override lists: a list and an Ed25519 signature of its bytes in one JSON document."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from openafm.adapters.delivery.errors import UntrustedDeliveryError
from openafm.adapters.delivery.keys import check_signature, sign
from openafm.core.files import atomic_file
from openafm.core.folder_lock import folder_lock
from openafm.safety.overrides.lists import OverrideList, OverrideListError, parse_list, read_list

_TYPE = "openafm.OverrideUpdate"


class UntrustedUpdateError(OverrideListError):
    """An update is not signed with the expected key, or is older than the installed list."""


def signed_update(document: bytes, private_key: str) -> bytes:
    """Return an update with the list in `document`.

    Raises:
        OverrideListError: `document` is not a list.
    """
    parse_list(document)
    envelope = {
        "type": _TYPE,
        "list": base64.b64encode(document).decode(),
        "signature": sign(_signed_bytes(document), private_key),
    }
    return json.dumps(envelope).encode()


def apply_update(folder: Path, update: bytes, public_key: str) -> OverrideList:
    """Install the list of an update in a folder, as NAME.json, and return it.

    Raises:
        UntrustedUpdateError: the signature is not that of the key, or the sequence number does not increase.
        OverrideListError: the update is malformed.
    """
    document = _verified(update, public_key)
    new = parse_list(document)
    path = folder / f"{new.name}.json"
    with folder_lock(folder):
        if path.exists() and (installed := read_list(path)).sequence >= new.sequence:
            raise UntrustedUpdateError(
                f"the update of {new.name} has sequence {new.sequence}, the installed list {installed.sequence}; "
                "an update must have a higher number"
            )
        with atomic_file(path) as file:
            file.write(document)
    return new


def _verified(update: bytes, public_key: str) -> bytes:
    try:
        envelope = json.loads(update)
        if not isinstance(envelope, dict) or envelope.get("type") != _TYPE:
            raise OverrideListError(f"the update is not an object of type {_TYPE}")
        document = base64.b64decode(envelope["list"], validate=True)
        signature = str(envelope["signature"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise OverrideListError(f"the update is malformed: {error!r}") from error
    try:
        check_signature(_signed_bytes(document), signature, public_key)
    except UntrustedDeliveryError as error:
        raise UntrustedUpdateError("the update is not signed with this key; ask its publisher for the key") from error
    return document


def _signed_bytes(document: bytes) -> bytes:
    # The prefix separates these signatures from those of other documents with the same key.
    return _TYPE.encode() + b"\0" + document
