"""Binary HTTP messages (RFC 9292): requests and responses as bytes, with padding; responses also as a stream."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from openafm.serving.private.errors import MessageError
from openafm.serving.private.oblivious_http.varints import IncompleteError, Reader, encode_varint

Fields: TypeAlias = tuple[tuple[str, str], ...]

CONTENT_END = b"\0\0"
"""End of a streamed response: the end of the content, and no trailers."""

_KNOWN_REQUEST, _KNOWN_RESPONSE, _STREAMED_REQUEST, _STREAMED_RESPONSE = range(4)
_MAX_FIELDS = 100
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(rb"([!-~\x80-\xff]([\t -~\x80-\xff]*[!-~\x80-\xff])?)?")
_PATH = re.compile(rb"/[!-~]*")


@dataclass(frozen=True, kw_only=True)
class BinaryRequest:
    """A request. Names of fields are in lower case."""

    method: str
    path: str
    scheme: str = "https"
    authority: str = ""
    fields: Fields = ()
    content: bytes = b""


@dataclass(frozen=True, kw_only=True)
class BinaryResponse:
    """A final response. Trailers and informational responses are read and dropped."""

    status: int
    fields: Fields = ()
    content: bytes = b""


def encode_request(request: BinaryRequest, length: int = 0) -> bytes:
    """Return a request of known length, padded with zeros to `length` bytes."""
    control = (request.method, request.scheme, request.authority, request.path)
    head = b"".join(_prefixed(part.encode("latin-1")) for part in control)
    return _known(_KNOWN_REQUEST, head, request.fields, request.content).ljust(length, b"\0")


def encode_response(response: BinaryResponse, length: int = 0) -> bytes:
    """Return a response of known length, padded with zeros to `length` bytes."""
    head = encode_varint(response.status)
    return _known(_KNOWN_RESPONSE, head, response.fields, response.content).ljust(length, b"\0")


def encode_head(status: int, fields: Fields) -> bytes:
    """Return the start of a streamed response; `encode_content` and `CONTENT_END` follow."""
    return encode_varint(_STREAMED_RESPONSE) + encode_varint(status) + _lines(fields) + b"\0"


def encode_content(piece: bytes) -> bytes:
    """Return a piece of the content of a streamed response; nothing for an empty one, which would end it."""
    return _prefixed(piece) if piece else b""


def decode_request(data: bytes) -> BinaryRequest:
    """Return a request of either form.

    Raises:
        MessageError: the bytes are not a valid request.
    """
    reader = Reader(data)
    form = reader.varint()
    if form not in (_KNOWN_REQUEST, _STREAMED_REQUEST):
        raise MessageError(f"the message has the framing {form}, which is not that of a binary HTTP request")
    method, scheme, authority, path = (reader.prefixed() for _ in range(4))
    if not (_TOKEN.fullmatch(method) and _PATH.fullmatch(path) and all(0x20 < byte < 0x7F for byte in scheme + authority)):
        raise MessageError("the method, scheme, authority or path of the request is not valid")
    fields, content = _fields(reader, form), _content(reader, form)
    _end(reader, form)
    return BinaryRequest(
        method=method.decode(),
        scheme=scheme.decode(),
        authority=authority.decode(),
        path=path.decode(),
        fields=fields,
        content=content,
    )


def decode_response(data: bytes) -> BinaryResponse:
    """Return a response of either form.

    Raises:
        MessageError: the bytes are not a valid response.
    """
    reader = Reader(data)
    form, status, fields = _response_head(reader)
    content = _content(reader, form)
    _end(reader, form)
    return BinaryResponse(status=status, fields=fields, content=content)


class ResponseDecoder:
    """Decode a response as its bytes arrive. `status` and `fields` are set once the head has arrived."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.fields: Fields = ()
        self._form, self._buffer, self._is_complete = 0, b"", False

    def feed(self, data: bytes) -> bytes:
        """Return the content that is complete with these bytes.

        Raises:
            MessageError: the bytes are not a valid response.
        """
        self._buffer += data
        if self.status is None:
            reader = Reader(self._buffer)
            try:
                self._form, self.status, self.fields = _response_head(reader)
            except IncompleteError:
                return b""
            self._buffer = reader.rest()
        pieces = []
        while not self._is_complete and (piece := self._piece()) is not None:
            pieces.append(piece)
        return b"".join(pieces)

    def end(self) -> None:
        """Check that the message is complete.

        Raises:
            MessageError: it is not, or other bytes than padding follow.
        """
        if not self._is_complete:
            raise MessageError("the response ends before its content does")
        _end(Reader(self._buffer), self._form)

    def _piece(self) -> bytes | None:
        """Return the next piece of content; None if it has not arrived yet. The empty piece is the last one."""
        reader = Reader(self._buffer)
        try:
            piece = reader.prefixed()
        except IncompleteError:
            return None
        self._buffer = reader.rest()
        self._is_complete = self._form == _KNOWN_RESPONSE or not piece
        return piece


def _known(form: int, head: bytes, fields: Fields, content: bytes) -> bytes:
    return encode_varint(form) + head + _prefixed(_lines(fields)) + _prefixed(content) + b"\0"


def _prefixed(data: bytes) -> bytes:
    return encode_varint(len(data)) + data


def _lines(fields: Sequence[tuple[str, str]]) -> bytes:
    return b"".join(_prefixed(name.encode("latin-1")) + _prefixed(value.encode("latin-1")) for name, value in fields)


def _response_head(reader: Reader) -> tuple[int, int, Fields]:
    form = reader.varint()
    if form not in (_KNOWN_RESPONSE, _STREAMED_RESPONSE):
        raise MessageError(f"the message has the framing {form}, which is not that of a binary HTTP response")
    while True:
        status = reader.varint()
        if not 100 <= status <= 599:
            raise MessageError(f"the status of the response is {status}; expected 100 to 599")
        fields = _fields(reader, form)
        if status >= 200:
            return form, status, fields


def _fields(reader: Reader, form: int) -> Fields:
    if form in (_STREAMED_REQUEST, _STREAMED_RESPONSE):
        return _checked_fields(reader, is_streamed=True)
    return () if reader.is_at_end else _checked_fields(Reader(reader.prefixed()), is_streamed=False)


def _checked_fields(reader: Reader, *, is_streamed: bool) -> Fields:
    """Return the fields up to the end of the section: an empty name in a stream, else the end of the bytes."""
    fields: list[tuple[str, str]] = []
    while (is_streamed and (name := reader.prefixed())) or (not is_streamed and not reader.is_at_end):
        name = name if is_streamed else reader.prefixed()
        value = reader.prefixed()
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or len(fields) == _MAX_FIELDS:
            raise MessageError(
                f"field {len(fields)} of the message is not valid; names are in lower case, {_MAX_FIELDS} at most"
            )
        fields.append((name.decode("latin-1"), value.decode("latin-1")))
    return tuple(fields)


def _content(reader: Reader, form: int) -> bytes:
    """Return the content. A message may be cut where only empty parts follow."""
    if reader.is_at_end:
        return b""
    if form in (_KNOWN_REQUEST, _KNOWN_RESPONSE):
        return reader.prefixed()
    pieces = []
    while piece := reader.prefixed():
        pieces.append(piece)
    return b"".join(pieces)


def _end(reader: Reader, form: int) -> None:
    """Read trailers and padding."""
    if not reader.is_at_end:
        _fields(reader, form)
    if any(reader.rest()):
        raise MessageError("the padding of the message is not zero")
