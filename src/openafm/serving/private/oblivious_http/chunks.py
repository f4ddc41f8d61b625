"""Responses encrypted in chunks (draft-ietf-ohai-chunked-ohttp-08), so that a client reads a stream as it arrives."""

from __future__ import annotations

import secrets

from openafm.serving.private.errors import MessageError
from openafm.serving.private.oblivious_http.encapsulation import FINAL, Exchange, ResponseCipher
from openafm.serving.private.oblivious_http.padding import LARGEST_CHUNK
from openafm.serving.private.oblivious_http.varints import IncompleteError, Reader, encode_varint

_TAG_BYTES = 16


class ChunkSealer:
    """Encrypt a response chunk by chunk. The message is `nonce`, the sealed chunks and the sealed last chunk."""

    def __init__(self, exchange: Exchange, nonce: bytes | None = None) -> None:
        self.nonce = nonce or secrets.token_bytes(exchange.nonce_bytes)
        self._cipher = exchange.cipher(self.nonce)

    def seal(self, chunk: bytes) -> bytes:
        sealed = self._cipher.seal(chunk)
        return encode_varint(len(sealed)) + sealed

    def seal_last(self, chunk: bytes) -> bytes:
        return encode_varint(0) + self._cipher.seal(chunk, FINAL)


class ChunkOpener:
    """Decrypt a response as its bytes arrive."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._cipher: ResponseCipher | None = None
        self._buffer, self._is_last = b"", False

    def feed(self, data: bytes) -> bytes:
        """Return the content of the chunks that are complete with these bytes.

        Raises:
            MessageError: a chunk was changed or is too large.
        """
        self._buffer += data
        if self._cipher is None:
            if len(self._buffer) < self._exchange.nonce_bytes:
                return b""
            self._cipher = self._exchange.cipher(self._buffer[: self._exchange.nonce_bytes])
            self._buffer = self._buffer[self._exchange.nonce_bytes :]
        opened = b""
        while not self._is_last and (chunk := self._next_chunk()) is not None:
            opened += self._cipher.open(chunk)
        if self._is_last and len(self._buffer) > LARGEST_CHUNK + _TAG_BYTES:
            raise MessageError(f"the last chunk of the response has more than {LARGEST_CHUNK} bytes")
        return opened

    def end(self) -> bytes:
        """Return the content of the last chunk, after all bytes have arrived.

        Raises:
            MessageError: the response was cut, or the last chunk was changed.
        """
        if self._cipher is None or not self._is_last:
            raise MessageError("the response was cut: its last chunk did not arrive")
        return self._cipher.open(self._buffer, FINAL)

    def _next_chunk(self) -> bytes | None:
        reader = Reader(self._buffer)
        try:
            size = reader.varint()
            if size > LARGEST_CHUNK + _TAG_BYTES:
                raise MessageError(f"a chunk of the response has {size:,} bytes; at most {LARGEST_CHUNK:,} are allowed")
            chunk = reader.take(size)
        except IncompleteError:
            return None
        self._buffer, self._is_last = reader.rest(), size == 0
        return None if self._is_last else chunk
