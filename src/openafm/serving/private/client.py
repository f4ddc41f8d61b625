"""The client of private nodes: verify a node, encrypt a request to it, read the answer as it is generated."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.core.config import ConfigError, from_dict, to_dict
from openafm.core.files import atomic_file, data_home, write_json
from openafm.core.libraries import needed
from openafm.serving.private.errors import (
    MessageError,
    NodeRefusedError,
    NodeUnreachableError,
    PrivateComputeError,
    PrivateSetupError,
)
from openafm.serving.private.log.checkpoints import Checkpoint, open_checkpoint
from openafm.serving.private.log.merkle import leaf_hash
from openafm.serving.private.log.notes import VerifierKey
from openafm.serving.private.log.release_log import LogProofs
from openafm.serving.private.node.statements import MAX_STATEMENT_BYTES, Statement, open_statement
from openafm.serving.private.oblivious_http.binary_http import BinaryRequest, ResponseDecoder, encode_request
from openafm.serving.private.oblivious_http.chunks import ChunkOpener
from openafm.serving.private.oblivious_http.encapsulation import CHUNKED, Exchange, seal_request
from openafm.serving.private.oblivious_http.padding import LARGEST_CHUNK, padded_length
from openafm.serving.private.verification import Trust, check_node, decode_proofs

if TYPE_CHECKING:
    import httpx2

GATEWAY_PATH, STATEMENT_PATH = "/.well-known/ohttp-gateway", "/private/statement"
_MAX_PROOFS_BYTES = 1 << 20
_MAX_ANSWER_BYTES = 64 << 20
_MAX_LINE_BYTES = 1 << 20  # of an event
_MAX_ERROR_BYTES = 64 << 10
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 300.0  # between two parts of a reply
_FETCH_SECONDS, _ANSWER_SECONDS = 60.0, 3600.0  # of the content of a whole reply


@dataclass(frozen=True, kw_only=True)
class VerifiedNode:
    """A node whose statement and release were checked."""

    url: str
    statement: Statement
    checkpoint: Checkpoint


def trust_file() -> Path:
    """Return the file of the log that this user trusts."""
    return data_home() / "private" / "trust.json"


def read_trust() -> Trust:
    """Return the log that this user trusts.

    Raises:
        PrivateSetupError: none is stored, or the file is damaged.
    """
    file = trust_file()
    try:
        return from_dict(Trust, json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise PrivateSetupError(
            "no log of releases is trusted; `openafm private trust KEY --log URL` stores one, with the key that its"
            " operator publishes"
        ) from error
    except (ValueError, ConfigError) as error:
        raise PrivateSetupError(f"{file} is damaged ({error}); run `openafm private trust` again") from error


def write_trust(trust: Trust) -> None:
    """Store the log that this user trusts."""
    write_json(trust_file(), to_dict(trust))


class PrivateClient:
    """Ask private nodes.

    Args:
        nodes: URLs of nodes or relays. One is chosen at random for each request, so that none can attract a client.
        trust: the log in which releases must be.
        accepts: assurances that are accepted although no hardware vouches for them.
        key: an API key of the node or relay, which can then link the requests of its owner.

    Raises:
        PrivateSetupError: there are no nodes, or one is not a URL.
    """

    def __init__(self, nodes: Sequence[str], trust: Trust, accepts: Collection[str] = (), key: str = "") -> None:
        if not nodes or not all(node.startswith(("http://", "https://")) for node in nodes):
            raise PrivateSetupError("pass the URL of at least one node, such as https://node.example.com")
        with needed("private compute", "httpx2 and pyhpke", "serve"):
            import httpx2  # noqa: F401
            import pyhpke  # noqa: F401
        self._nodes, self._trust, self._accepts = [node.rstrip("/") for node in nodes], trust, accepts
        self._authorization = {"authorization": f"Bearer {key}"} if key else {}

    def choose(self) -> VerifiedNode:
        """Return a node, chosen at random and verified. Only nodes that cannot be reached are passed over.

        Raises:
            NodeRefusedError: the chosen node is refused.
            NodeUnreachableError: no node, or not the log, can be reached.
        """
        left, reasons = list(self._nodes), list[str]()
        while left:
            url = left.pop(secrets.randbelow(len(left)))
            try:
                signed = fetch(url + STATEMENT_PATH, MAX_STATEMENT_BYTES, self._authorization)
            except NodeUnreachableError as error:
                reasons.append(str(error))
                continue
            return self._verified(url, signed)
        raise NodeUnreachableError("; ".join(reasons))

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        """Yield the content of the reply to a request, as it is generated.

        Raises:
            NodeRefusedError, NodeUnreachableError: as `choose`.
            PrivateComputeError: the node answers with an error, or its reply is damaged or cut.
        """
        node = self.choose()
        content = json.dumps(body).encode()
        fields = (("content-type", "application/json"),)
        request = BinaryRequest(method="POST", path=path, authority="node", fields=fields, content=content)
        message = encode_request(request, padded_length(len(encode_request(request))))
        chunks = [message[start : start + LARGEST_CHUNK] for start in range(0, len(message), LARGEST_CHUNK)]
        sealed, exchange = seal_request(node.statement.key, chunks, CHUNKED)
        decoder, failed = ResponseDecoder(), b""
        for opened in self._opened(node.url, sealed, exchange):
            piece = decoder.feed(opened)
            if decoder.status is not None and decoder.status != 200:
                failed = (failed + piece)[:_MAX_ERROR_BYTES]
            elif piece:
                yield piece
        decoder.end()
        if decoder.status != 200:
            raise PrivateComputeError(f"the node answers {decoder.status}: {_message(failed)}")

    def chat(self, messages: Sequence[dict[str, Any]], **options: Any) -> Iterator[str]:
        """Yield the text of an answer as it is generated. `options` are those of /v1/chat/completions.

        Raises:
            PrivateComputeError: as `stream`.
        """
        body = {"messages": list(messages), "stream": True, **options}
        for event in _events(self.stream("/v1/chat/completions", body)):
            if "error" in event:
                raise PrivateComputeError(f"the node answers: {_message(json.dumps(event).encode())}")
            yield from _texts(event)

    def _opened(self, url: str, sealed: bytes, exchange: Exchange) -> Iterator[bytes]:
        """Yield the decrypted parts of the reply."""
        import httpx2

        opener, size, end = ChunkOpener(exchange), 0, time.monotonic() + _ANSWER_SECONDS
        headers = {"content-type": CHUNKED.request_type, **self._authorization}
        try:
            with _http().stream("POST", url + GATEWAY_PATH, content=sealed, headers=headers) as reply:
                if reply.status_code != 200:
                    shown = _message(_read(reply, _MAX_ERROR_BYTES))
                    raise PrivateComputeError(f"{url} answers {reply.status_code}: {shown}")
                for data in reply.iter_raw():
                    _check_time(url, end)
                    size += len(data)
                    if size > _MAX_ANSWER_BYTES:
                        raise MessageError(f"the reply of {url} has more than {_MAX_ANSWER_BYTES:,} bytes")
                    yield opener.feed(data)
        except httpx2.HTTPError as error:
            raise NodeUnreachableError(f"the connection to {url} ended before the answer did: {error}") from error
        yield opener.end()

    def _verified(self, url: str, signed: bytes) -> VerifiedNode:
        former = self._former()
        leaf = leaf_hash(open_statement(signed).release.data).hex()
        since = 0 if former is None else former.size
        query = f"{self._trust.log.rstrip('/')}/proofs?leaf={leaf}&since={since}"
        proofs = decode_proofs(fetch(query, _MAX_PROOFS_BYTES))
        statement, checkpoint = check_node(signed, proofs, self._trust, former, self._accepts)
        if former is None or checkpoint.size > former.size:
            self._remember(proofs)
        return VerifiedNode(url=url, statement=statement, checkpoint=checkpoint)

    def _former(self) -> Checkpoint | None:
        """Return the checkpoint that this user saw before."""
        try:
            signed = self._checkpoint_file().read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return open_checkpoint(signed, VerifierKey.parse(self._trust.log_key))

    def _remember(self, proofs: LogProofs) -> None:
        with atomic_file(self._checkpoint_file(), "w") as file:
            file.write(proofs.checkpoint)

    def _checkpoint_file(self) -> Path:
        digest = hashlib.sha256(self._trust.log_key.encode()).hexdigest()[:32]
        return data_home() / "private" / "checkpoints" / f"{digest}.txt"


def fetch(url: str, most: int, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the reply to a GET.

    Raises:
        NodeUnreachableError: there is none, or it is an error.
        NodeRefusedError: it has more than `most` bytes.
    """
    import httpx2

    shown = url.partition("?")[0]
    try:
        with _http().stream("GET", url, headers=headers) as reply:
            data = _read(reply, most)
            if reply.status_code != 200:
                raise NodeUnreachableError(f"{shown} answers {reply.status_code}: {_message(data)}")
            return data
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise NodeUnreachableError(f"{shown} cannot be reached: {error}") from error


@functools.cache
def _http() -> httpx2.Client:
    """Return an HTTP client whose headers are the same for all users. A connection serves one request."""
    import httpx2

    timeout = httpx2.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)
    headers = {"accept-encoding": "identity", "user-agent": "openafm"}
    limits = httpx2.Limits(max_keepalive_connections=0)
    return httpx2.Client(timeout=timeout, trust_env=False, follow_redirects=False, headers=headers, limits=limits)


def _read(reply: httpx2.Response, most: int) -> bytes:
    data, end = bytearray(), time.monotonic() + _FETCH_SECONDS
    for part in reply.iter_raw():
        _check_time(reply.url.host, end)
        data += part
        if len(data) > most:
            raise NodeRefusedError("statement", f"the reply of {reply.url.host} has more than {most:,} bytes")
    return bytes(data)


def _check_time(place: str, end: float) -> None:
    """Raise `NodeUnreachableError` after the last moment of a reply."""
    if time.monotonic() > end:
        raise NodeUnreachableError(f"the reply of {place} takes too long; use another node")


def _message(data: bytes) -> str:
    """Return the message of an error body."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        value = json.loads(data)
        return str(value.get("title") or value["error"]["message"])[:500]
    return data[:200].decode("utf-8", "replace")


def _events(pieces: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON of server-sent events; comments, which are padding, are skipped."""
    for line in _lines(pieces):
        data = line.removeprefix(b"data: ")
        if data in (line, b"[DONE]"):
            continue
        try:
            event = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise MessageError("the node sent an event that is not JSON") from error
        if not isinstance(event, dict):
            raise MessageError("the node sent an event that is not a JSON object")
        yield event


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines that end with a line feed."""
    parts, size = list[bytes](), 0
    for piece in pieces:
        *ended, last = piece.split(b"\n")
        for part in ended:
            yield b"".join((*parts, part))
            parts, size = [], 0
        parts.append(last)
        size += len(last)
        if size > _MAX_LINE_BYTES:
            raise MessageError(f"the node sent a line of more than {_MAX_LINE_BYTES:,} bytes")


def _texts(event: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of a chunk of an answer."""
    try:
        texts = [choice["delta"].get("content") for choice in event.get("choices", ())]
    except (KeyError, TypeError, AttributeError) as error:
        raise MessageError("the node sent an event that is not part of an answer") from error
    for text in texts:
        if text is not None and not isinstance(text, str):
            raise MessageError("the node sent an event whose content is not text")
        if text:
            yield text
