"""Signed notes and cosignatures of transparency logs (c2sp.org/signed-note, c2sp.org/tlog-cosignature).

A note is text, an empty line, and lines `— NAME BASE64(key id, signature)`. A log signs the text; a witness signs the text
and the time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

from openafm.adapters.delivery.errors import UntrustedDeliveryError
from openafm.adapters.delivery.keys import check_signature, public_key, sign
from openafm.serving.private.errors import PrivateSetupError

LOG_KEY, WITNESS_KEY = 1, 4
"""Kinds of keys: Ed25519 signatures of the text, and of the text with a time."""

_ID_BYTES, _TIME_BYTES, _KEY_BYTES, _SIGNATURE_BYTES = 4, 8, 32, 64
_NAME = re.compile(r"[^\s+]{1,200}")
_MAX_BYTES = 64 << 10


class NoteError(ValueError):
    """A note is damaged, or its signature is wrong."""


@dataclass(frozen=True)
class VerifierKey:
    """The public key of a log or a witness, as NAME+ID+KEY."""

    name: str
    kind: int
    key: str

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """Return the key in a text.

        Raises:
            PrivateSetupError: the text is not a key of a log or a witness.
        """
        name, _, rest = text.strip().partition("+")
        id, _, encoded = rest.partition("+")
        try:
            data = base64.b64decode(encoded, validate=True)
            found = cls(name, data[0] if data else 0, data[1:].hex())
            is_valid = len(data) == 1 + _KEY_BYTES and found.kind in (LOG_KEY, WITNESS_KEY) and found.id.hex() == id
        except (binascii.Error, ValueError):
            is_valid = False
        if not is_valid or not _NAME.fullmatch(name):
            raise PrivateSetupError(
                f"'{text[:100]}' is not a verifier key; expected NAME+ID+KEY, as `private log show` prints"
            )
        return found

    @classmethod
    def of(cls, name: str, kind: int, private_key: str) -> VerifierKey:
        """Return the public key of a private key.

        Raises:
            PrivateSetupError: the name has white space or a plus sign.
        """
        if not _NAME.fullmatch(name):
            raise PrivateSetupError(f"'{name[:100]}' is not a name of a key; use a name without white space and plus signs")
        return cls(name, kind, public_key(private_key))

    @property
    def of_times(self) -> VerifierKey:
        """The same key for signatures with a time, which a log makes of its own checkpoints."""
        return VerifierKey(self.name, WITNESS_KEY, self.key)

    @property
    def id(self) -> bytes:
        data = self.name.encode() + b"\n" + bytes((self.kind,)) + bytes.fromhex(self.key)
        return hashlib.sha256(data).digest()[:_ID_BYTES]

    def __str__(self) -> str:
        encoded = base64.b64encode(bytes((self.kind,)) + bytes.fromhex(self.key)).decode()
        return f"{self.name}+{self.id.hex()}+{encoded}"


@dataclass(frozen=True)
class Note:
    """A text and its signature lines, which are not checked yet: the name and the decoded bytes of each."""

    text: str
    signatures: tuple[tuple[str, bytes], ...]

    @classmethod
    def parse(cls, text: str) -> Note:
        """Return a note.

        Raises:
            NoteError: it is not a note.
        """
        body, separator, lines = text.rpartition("\n\n")
        if not separator or not lines.endswith("\n") or len(text) > _MAX_BYTES:
            raise NoteError("not a signed note: it has no text, no signatures, or is too long")
        return cls(body + "\n", tuple(_signature(line) for line in lines[:-1].split("\n")))

    def is_signed_by(self, key: VerifierKey) -> bool:
        """Return True if the key signed the text; a wrong signature of the key is an error.

        Raises:
            NoteError: a signature of this key is wrong.
        """
        found = [data for name, data in self.signatures if name == key.name and data[:_ID_BYTES] == key.id]
        for data in found:
            _check(self.text, data[_ID_BYTES:], key)
        return bool(found)

    def signed_at(self, witness: VerifierKey) -> int | None:
        """Return the latest time, in seconds since 1970, at which a witness signed; None: it did not sign.

        Raises:
            NoteError: a signature of this witness is wrong.
        """
        if not self.is_signed_by(witness):
            return None
        found = [data for name, data in self.signatures if name == witness.name and data[:_ID_BYTES] == witness.id]
        return max(int.from_bytes(data[_ID_BYTES : _ID_BYTES + _TIME_BYTES], "big") for data in found)

    def with_line(self, line: str) -> Note:
        """Return the note with another signature line.

        Raises:
            NoteError: it is not a signature line.
        """
        added = _signature(line.strip("\n"))
        kept = tuple(each for each in self.signatures if (each[0], each[1][:_ID_BYTES]) != (added[0], added[1][:_ID_BYTES]))
        return Note(self.text, (*kept, added))

    def __str__(self) -> str:
        lines = (f"\u2014 {name} {base64.b64encode(data).decode()}\n" for name, data in self.signatures)
        return f"{self.text}\n{''.join(lines)}"


def signature_line(text: str, key: VerifierKey, private_key: str, time: int = 0) -> str:
    """Return the signature line of a key for a text that ends with a line feed. `time` is the time of a witness."""
    data = time.to_bytes(_TIME_BYTES, "big") if key.kind == WITNESS_KEY else b""
    signed = key.id + data + bytes.fromhex(sign(_signed_text(text, data), private_key))
    return f"\u2014 {key.name} {base64.b64encode(signed).decode()}\n"


def _signature(line: str) -> tuple[str, bytes]:
    parts = line.split(" ")
    try:
        if len(parts) != 3 or parts[0] != "\u2014" or not _NAME.fullmatch(parts[1]):
            raise ValueError
        data = base64.b64decode(parts[2], validate=True)
    except ValueError as error:
        raise NoteError(f"'{line[:80]}' is not a signature line of a note") from error
    if len(data) <= _ID_BYTES or base64.b64encode(data).decode() != parts[2]:
        raise NoteError(f"'{line[:80]}' is not a signature line of a note")
    return parts[1], data


def _check(text: str, data: bytes, key: VerifierKey) -> None:
    time = data[:_TIME_BYTES] if key.kind == WITNESS_KEY else b""
    signature = data[len(time) :]
    try:
        if len(signature) != _SIGNATURE_BYTES:
            raise UntrustedDeliveryError("the signature has another length")
        check_signature(_signed_text(text, time), signature.hex(), key.key)
    except UntrustedDeliveryError as error:
        raise NoteError(f"the signature of {key.name} is wrong; the note was changed, or another key signed it") from error


def _signed_text(text: str, time: bytes) -> bytes:
    if not time:
        return text.encode()
    return f"cosignature/v1\ntime {int.from_bytes(time, 'big')}\n{text}".encode()
