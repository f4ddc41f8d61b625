"""Transports to MCP servers with limits on what a server may send. Needs the package `mcp`; imported on first use.

`mcp` limits the events of a stream to 1 MiB. It reads lines of a process and JSON replies of any size into memory.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp import StdioServerParameters
from mcp.client import Transport
from mcp.client._transport import TransportStreams
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

MAX_BYTES = 4 * 2**20
CONNECT_S, READ_S = 30.0, 300.0  # as in mcp: a server may hold a stream open
_ENCODING = "openafm_limited_utf_8"
_TOO_LONG = f"a line of more than {MAX_BYTES:,} characters"  # not JSON: mcp reports it and continues


def limited_process(parameters: StdioServerParameters) -> Transport:
    """Return a transport to a server process that drops lines of more than `MAX_BYTES` characters."""
    return stdio_client(parameters.model_copy(update={"encoding": _ENCODING, "encoding_error_handler": "replace"}))


@asynccontextmanager
async def limited_http(url: str) -> AsyncIterator[TransportStreams]:
    """Connect to a server over HTTP. Compressed replies, and JSON replies of more than `MAX_BYTES`, are errors."""
    client = httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity"},  # a small compressed reply can expand to gigabytes
        timeout=httpx2.Timeout(CONNECT_S, read=READ_S),
        event_hooks={"response": [_limit]},
    )
    async with client, streamable_http_client(url, http_client=client) as streams:
        yield streams


async def _limit(response: httpx2.Response) -> None:
    response.stream = _LimitedBody(response)


class _LimitedBody(httpx2.AsyncByteStream):
    def __init__(self, response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._stream = response.stream
        self._is_compressed = response.headers.get("Content-Encoding", "identity") != "identity"
        self._is_event_stream = response.headers.get("Content-Type", "").startswith("text/event-stream")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_compressed:
            raise httpx2.StreamError("the server sent a compressed reply, although none was requested")
        num_bytes = 0
        async for chunk in self._stream:
            num_bytes += len(chunk)
            if num_bytes > MAX_BYTES and not self._is_event_stream:
                raise httpx2.StreamError(f"the server sent a reply of more than {MAX_BYTES:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _LimitedDecoder(codecs.getincrementaldecoder("utf-8")):  # type: ignore[misc]
    """Decode UTF-8. The text of a line beyond `MAX_BYTES` characters is replaced by `_TOO_LONG` as a line of its own.

    `mcp` takes the encoding of a server's output, but no limit, and keeps an unfinished line in memory.
    """

    _length = 0  # of the unfinished line

    def decode(self, data: bytes, final: bool = False) -> str:
        head, *rest = super().decode(data, final).split("\n")
        was_long = self._length > MAX_BYTES
        self._length += len(head)
        if was_long:
            head = ""
        elif self._length > MAX_BYTES:
            head = f"\n{_TOO_LONG}"
        if rest:
            self._length = len(rest[-1])
        return "\n".join([head, *rest])


def _find(name: str) -> codecs.CodecInfo | None:
    if name != _ENCODING:
        return None
    utf_8 = codecs.lookup("utf-8")
    return codecs.CodecInfo(
        encode=utf_8.encode,
        decode=utf_8.decode,
        name=_ENCODING,
        incrementalencoder=utf_8.incrementalencoder,
        incrementaldecoder=_LimitedDecoder,
    )


codecs.register(_find)
