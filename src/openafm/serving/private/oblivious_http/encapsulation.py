"""Oblivious HTTP (RFC 9458): requests encrypted to a node's key, and responses encrypted to the request.

A request is encrypted whole (`WHOLE`), or in chunks as in draft-ietf-ohai-chunked-ohttp (`CHUNKED`; `chunks.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openafm.serving.private.errors import MessageError
from openafm.serving.private.oblivious_http.key_configs import X25519, Algorithms, KeyConfig, NodeKey
from openafm.serving.private.oblivious_http.varints import Reader, encode_varint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
    from pyhpke import ContextInterface

FINAL = b"final"
"""Additional data of the last chunk, so that a message that was cut is not accepted."""

_KEY_BYTES = 32
_NONCE_BYTES = 12


@dataclass(frozen=True)
class Framing:
    """Labels and media types of one form of messages."""

    request_label: bytes
    response_label: bytes
    request_type: str
    response_type: str


WHOLE = Framing(b"message/bhttp request", b"message/bhttp response", "message/ohttp-req", "message/ohttp-res")
CHUNKED = Framing(
    b"message/bhttp chunked request",
    b"message/bhttp chunked response",
    "message/ohttp-chunked-req",
    "message/ohttp-chunked-res",
)


class UnknownKeyError(MessageError):
    """The request is encrypted to a key that this node does not have, or no longer has."""


class Exchange:
    """The secret that a client and a node share after a request. It encrypts the response."""

    def __init__(self, context: ContextInterface, encapsulated: bytes, algorithms: Algorithms, framing: Framing) -> None:
        self.algorithms = algorithms
        self.nonce_bytes = max(algorithms.key_bytes, _NONCE_BYTES)
        self._encapsulated = encapsulated
        self._secret = context.export(framing.response_label, self.nonce_bytes)

    def cipher(self, nonce: bytes) -> ResponseCipher:
        """Return the cipher of a response whose message starts with `nonce`."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.hmac import HMAC
        from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

        extract = HMAC(self._encapsulated + nonce, hashes.SHA256())
        extract.update(self._secret)
        extracted = extract.finalize()

        def expanded(info: bytes, size: int) -> bytes:
            return HKDFExpand(hashes.SHA256(), size, info).derive(extracted)

        return ResponseCipher(self.algorithms, expanded(b"key", self.algorithms.key_bytes), expanded(b"nonce", _NONCE_BYTES))


class ResponseCipher:
    """Encrypt or decrypt the parts of a response in order; each has the nonce of its number."""

    def __init__(self, algorithms: Algorithms, key: bytes, nonce: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

        self.key, self.nonce = key, nonce
        self._cipher: AESGCM | ChaCha20Poly1305 = AESGCM(key) if algorithms.aead in (1, 2) else ChaCha20Poly1305(key)
        self._counter = 0

    def seal(self, data: bytes, associated: bytes = b"") -> bytes:
        return self._cipher.encrypt(self._next_nonce(), data, associated)

    def open(self, data: bytes, associated: bytes = b"") -> bytes:
        """Return the decrypted part.

        Raises:
            MessageError: it was changed, moved or is not of this response.
        """
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(self._next_nonce(), data, associated)
        except InvalidTag as error:
            raise MessageError(f"part {self._counter - 1} of the response was changed, cut or moved on its way") from error

    def _next_nonce(self) -> bytes:
        number = int.from_bytes(self.nonce, "big") ^ self._counter
        self._counter += 1
        return number.to_bytes(_NONCE_BYTES, "big")


def seal_request(
    config: KeyConfig, chunks: Sequence[bytes], framing: Framing, ephemeral_key: bytes | None = None
) -> tuple[bytes, Exchange]:
    """Return an encrypted request and the exchange that opens its response. `WHOLE` takes one chunk.

    `ephemeral_key` is for test vectors only.

    Raises:
        MessageError: the key or its algorithms cannot be used.
    """
    from pyhpke import KEMKeyPair, PyHPKEError
    from pyhpke.keys.x25519_key import X25519Key

    algorithms = config.chosen()
    header = _header(config.key_id, algorithms)
    pair = None
    if ephemeral_key is not None:
        public = NodeKey(0, ephemeral_key).config.public_key
        pair = KEMKeyPair(X25519Key.from_private_bytes(ephemeral_key), X25519Key.from_public_bytes(public))
    try:
        encapsulated, context = algorithms.suite().create_sender_context(
            X25519Key.from_public_bytes(config.public_key), _info(framing, header), eks=pair
        )
    except (PyHPKEError, ValueError) as error:
        raise MessageError("the public key of the node cannot be used; it is damaged") from error
    if framing is WHOLE:
        sealed = b"".join(context.seal(chunk) for chunk in chunks)
    else:
        parts = [context.seal(chunk) for chunk in chunks[:-1]]
        sealed = b"".join(encode_varint(len(part)) + part for part in parts)
        sealed += encode_varint(0) + context.seal(chunks[-1], FINAL)
    return header + encapsulated + sealed, Exchange(context, encapsulated, algorithms, framing)


def open_request(keys: Sequence[NodeKey], data: bytes, framing: Framing) -> tuple[bytes, Exchange]:
    """Return a decrypted request and the exchange that encrypts its response.

    Raises:
        UnknownKeyError: none of the keys has the id of the request.
        MessageError: the request is damaged.
    """
    from pyhpke import PyHPKEError
    from pyhpke.keys.x25519_key import X25519Key

    reader = Reader(data)
    key_id, kem = reader.integer(1), reader.integer(2)
    algorithms = Algorithms(reader.integer(2), reader.integer(2))
    key = next((key for key in keys if key.config.key_id == key_id), None)
    if key is None:
        raise UnknownKeyError(f"the request has the key id {key_id}; get the current key of the node and retry")
    if kem != X25519 or algorithms not in key.config.algorithms:
        raise UnknownKeyError("the request has algorithms that the key does not offer; use those of its configuration")
    encapsulated = reader.take(_KEY_BYTES)
    try:
        context = algorithms.suite().create_recipient_context(
            encapsulated,
            X25519Key.from_private_bytes(key.private_key),
            _info(framing, _header(key_id, algorithms)),
        )
        opened = context.open(reader.rest()) if framing is WHOLE else _opened_chunks(context, reader)
    except (PyHPKEError, ValueError) as error:
        raise MessageError("the request cannot be decrypted; it was changed, or encrypted to another key") from error
    return opened, Exchange(context, encapsulated, algorithms, framing)


def seal_response(exchange: Exchange, response: bytes, nonce: bytes | None = None) -> bytes:
    """Return a response encrypted whole. `nonce` is for test vectors only."""
    nonce = nonce or secrets.token_bytes(exchange.nonce_bytes)
    return nonce + exchange.cipher(nonce).seal(response)


def open_response(exchange: Exchange, data: bytes) -> bytes:
    """Return a decrypted response.

    Raises:
        MessageError: it is damaged.
    """
    reader = Reader(data)
    return exchange.cipher(reader.take(exchange.nonce_bytes)).open(reader.rest())


def _header(key_id: int, algorithms: Algorithms) -> bytes:
    return bytes((key_id,)) + b"".join(value.to_bytes(2, "big") for value in (X25519, algorithms.kdf, algorithms.aead))


def _info(framing: Framing, header: bytes) -> bytes:
    return framing.request_label + b"\0" + header


def _opened_chunks(context: ContextInterface, reader: Reader) -> bytes:
    opened = b""
    while size := reader.varint():
        opened += context.open(reader.take(size))
    return opened + context.open(reader.rest(), FINAL)
