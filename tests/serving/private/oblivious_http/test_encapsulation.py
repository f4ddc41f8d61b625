"""Encrypted and binary messages: vectors of the RFCs, round trips, padding, and damaged messages."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openafm.serving.private.errors import MessageError
from openafm.serving.private.oblivious_http.binary_http import (
    CONTENT_END,
    BinaryRequest,
    BinaryResponse,
    ResponseDecoder,
    decode_request,
    decode_response,
    encode_content,
    encode_head,
    encode_request,
    encode_response,
)
from openafm.serving.private.oblivious_http.chunks import ChunkOpener, ChunkSealer
from openafm.serving.private.oblivious_http.encapsulation import (
    CHUNKED,
    WHOLE,
    UnknownKeyError,
    open_request,
    open_response,
    seal_request,
    seal_response,
)
from openafm.serving.private.oblivious_http.key_configs import Algorithms, KeyConfig, NodeKey, decode_key_config
from openafm.serving.private.oblivious_http.padding import CHUNK_CLASSES, event_pieces, padded_length
from openafm.serving.private.oblivious_http.varints import Reader, encode_varint

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("ohttp_vectors.json").read_text())
HTTP = {name: bytes.fromhex(text) for name, text in VECTORS["binary_http"].items()}


def parts_of(data: bytes, sizes: list[int]) -> list[bytes]:
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]


@pytest.mark.parametrize(("name", "framing"), [("whole", WHOLE), ("chunked", CHUNKED)])
def test_vectors_of_the_rfc_and_of_the_chunked_draft(name: str, framing: Any) -> None:
    vector = VECTORS[name]
    values = {key: bytes.fromhex(text) for key, text in vector.items() if isinstance(text, str)}
    node = NodeKey(1, values["private_key"])
    config = decode_key_config(values["key_config"])
    assert config == node.config
    assert config.encode() == values["key_config"]
    chunks = parts_of(values["request"], vector.get("request_chunks", [len(values["request"])]))
    sealed, client = seal_request(config, chunks, framing, values["ephemeral_key"])
    assert sealed == values["sealed_request"]
    opened, exchange = open_request([node], sealed, framing)
    assert opened == values["request"]
    cipher = exchange.cipher(values["response_nonce"])
    assert (cipher.key, cipher.nonce) == (values["key"], values["nonce"])
    if framing is WHOLE:
        assert seal_response(exchange, values["response"], values["response_nonce"]) == values["sealed_response"]
        assert open_response(client, values["sealed_response"]) == values["response"]
        return
    sealer = ChunkSealer(exchange, values["response_nonce"])
    first, second, last = parts_of(values["response"], vector["response_chunks"])
    response = sealer.nonce + sealer.seal(first) + sealer.seal(second) + sealer.seal_last(last)
    assert response == values["sealed_response"]
    for step in (1, 7, 1000):
        opener = ChunkOpener(client)
        content = b"".join(opener.feed(response[start : start + step]) for start in range(0, len(response), step))
        assert content + opener.end() == values["response"]


def test_vectors_of_variable_length_integers() -> None:
    for value, text in VECTORS["varints"].items():
        assert encode_varint(int(value)).hex() == text
        assert Reader(bytes.fromhex(text)).varint() == int(value)
    assert Reader(bytes.fromhex("4025")).varint() == 37


def test_vectors_of_binary_http() -> None:
    request = decode_request(HTTP["request"])
    assert (request.method, request.path, request.fields[1]) == ("GET", "/hello.txt", ("host", "www.example.com"))
    assert encode_request(request) == HTTP["request"]
    for cut in (0, 1, 2):
        assert decode_request(HTTP["request"][: len(HTTP["request"]) - cut]) == request
    for cut in (0, 1, 10, 12):
        assert decode_request(HTTP["streamed_request"][: len(HTTP["streamed_request"]) - cut]) == request
    response = decode_response(HTTP["streamed_response"])
    assert (response.status, response.fields[-1]) == (200, ("content-type", "text/plain"))
    assert response.content == b"Hello World! My content includes a trailing CRLF.\r\n"
    decoder = ResponseDecoder()
    content = b"".join(decoder.feed(bytes((byte,))) for byte in HTTP["streamed_response"])
    decoder.end()
    assert (content, decoder.status, decoder.fields) == (response.content, 200, response.fields)
    assert decode_response(HTTP["response_with_trailer"]).content == b"This content contains CRLF.\r\n"
    assert decode_response(bytes.fromhex("0140c8")) == BinaryResponse(status=200)


NAMES = st.text("abcxyz-", min_size=1, max_size=10).map(lambda text: f"a{text}")
VALUES = st.text([chr(code) for code in range(0x20, 0x7F)], max_size=10).map(str.strip)


@settings(max_examples=50, deadline=None)
@given(fields=st.lists(st.tuples(NAMES, VALUES), max_size=5), content=st.binary(max_size=300), padding=st.integers(0, 3))
def test_binary_messages_round_trip(fields: list[tuple[str, str]], content: bytes, padding: int) -> None:
    request = BinaryRequest(method="POST", path="/v1/x?y=1", authority="node", fields=tuple(fields), content=content)
    assert decode_request(encode_request(request, 200 * padding)) == request
    response = BinaryResponse(status=404, fields=tuple(fields), content=content)
    assert decode_response(encode_response(response, 200 * padding)) == response
    streamed = encode_head(404, tuple(fields)) + encode_content(content) + encode_content(b"") + CONTENT_END
    assert decode_response(streamed + bytes(padding)) == response


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\1" + HTTP["request"][1:],
        b"\5" + HTTP["request"][1:],
        HTTP["request"][:40],
        HTTP["request"] + b"\0\1",
        HTTP["request"].replace(b"host", b"Host"),
        HTTP["request"].replace(b"GET", b"G T"),
        HTTP["request"].replace(b"/hello", b"\nhello"),
        HTTP["request"].replace(b"en, mi", b"en\r\nmi"),
        encode_request(BinaryRequest(method="GET", path="/", fields=(("a", "b"),) * 101)),
        bytes.fromhex("000347455405687474707300012f3fffffff"),
    ],
)
def test_damaged_requests_are_refused(damage: bytes) -> None:
    with pytest.raises(MessageError):
        decode_request(damage)


def test_mutated_messages_are_read_or_refused() -> None:
    draw = random.Random(3)
    for index in range(1500):
        data = bytearray(list(HTTP.values())[index % 4])
        for _ in range(1 + index % 4):
            data[draw.randrange(len(data))] = draw.randrange(256)
        for decode in (decode_request, decode_response):
            try:
                decode(bytes(data[: draw.randrange(len(data) + 1)]))
            except MessageError:
                continue


@pytest.mark.parametrize("framing", [WHOLE, CHUNKED])
@pytest.mark.parametrize("aead", [1, 2, 3])
def test_round_trips_with_every_cipher(framing: Any, aead: int) -> None:
    node = NodeKey(7)
    node.config = KeyConfig(key_id=7, public_key=node.config.public_key, algorithms=(Algorithms(aead=aead),))
    sealed, client = seal_request(node.config, [b"question"], framing)
    opened, exchange = open_request([NodeKey(6), node], sealed, framing)
    assert opened == b"question"
    assert open_response(client, seal_response(exchange, b"answer")) == b"answer"


def test_every_changed_byte_of_a_request_and_a_response_is_refused() -> None:
    node = NodeKey(1)
    sealed, client = seal_request(node.config, [b"first", b"last"], CHUNKED)
    for position in range(len(sealed)):
        changed = sealed[:position] + bytes((sealed[position] ^ 1,)) + sealed[position + 1 :]
        with pytest.raises(MessageError):
            open_request([node], changed, CHUNKED)
    _, exchange = open_request([node], sealed, CHUNKED)
    sealer = ChunkSealer(exchange)
    chunks = [sealer.nonce, sealer.seal(b"one"), sealer.seal(b"two"), sealer.seal_last(b"end")]
    response = b"".join(chunks)
    swapped = b"".join((chunks[0], chunks[2], chunks[1], chunks[3]))
    cut = [response[:length] for length in range(len(response))]
    flipped = [response[:at] + bytes((response[at] ^ 1,)) + response[at + 1 :] for at in range(len(response))]
    for damaged in (swapped, b"".join(chunks[:3]) + chunks[1], *cut, *flipped):
        opener = ChunkOpener(client)
        with pytest.raises(MessageError):
            opener.feed(damaged)
            opener.end()


def test_wrong_keys_algorithms_and_framings_are_refused() -> None:
    node, other = NodeKey(1), NodeKey(1)
    sealed, _ = seal_request(node.config, [b"question"], WHOLE)
    with pytest.raises(MessageError, match="another key"):
        open_request([other], sealed, WHOLE)
    with pytest.raises(MessageError):
        open_request([node], sealed, CHUNKED)
    with pytest.raises(UnknownKeyError, match="key id 1"):
        open_request([NodeKey(2)], sealed, WHOLE)
    with pytest.raises(UnknownKeyError, match="algorithms"):
        open_request([node], sealed[:6] + b"\2" + sealed[7:], WHOLE)
    with pytest.raises(MessageError, match="X25519"):
        decode_key_config(b"\1\0\x10" + bytes(60))
    with pytest.raises(MessageError, match="public key"):  # a point of small order
        seal_request(KeyConfig(key_id=1, public_key=bytes(32)), [b""], WHOLE)
    with pytest.raises(MessageError, match="algorithms"):
        KeyConfig(key_id=1, public_key=bytes(32), algorithms=(Algorithms(aead=9),)).chosen()


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 20_000, 5_000_000])
def test_messages_are_padded_to_their_class(size: int) -> None:
    length = padded_length(size)
    assert size <= length
    assert length in [4096 * 4**power for power in range(7)]
    assert length == 4096 or length // 4 < size


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=40_000))
def test_chunks_of_events_have_padded_lengths(events: bytes) -> None:
    pieces = event_pieces(events)
    assert all(len(encode_content(piece)) in CHUNK_CLASSES for piece in pieces)
    content = b"".join(pieces)
    assert content.startswith(events)
    assert content[len(events) :].strip(b" \n") in (b"", b":")
