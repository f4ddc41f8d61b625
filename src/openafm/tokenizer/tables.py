"""Large byte-level BPE tokenizers as tables in the cache folder, which are ready in milliseconds.

Parsing a `tokenizer.json` of 150,000 tokens takes half a second, and most of it is needed for long texts only. The tables
have the bytes of every token and the product of every merge; short texts are encoded with them. The first call that needs
more reads `tokenizer.json`. Tables are written from the whole tokenizer, and name the SHA-256 of the file that it was read
from. Missing and damaged ones are written again; without a usable cache the file is read at every start.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sys
import unicodedata
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

from openafm.core.files import atomic_file
from openafm.core.native_build import cache_home, check_private, private_folder
from openafm.tokenizer.backend import make_backend, translated
from openafm.tokenizer.bpe import SpecialTokens, Tokenizer, check_encodable
from openafm.tokenizer.byte_alphabet import bytes_of, characters
from openafm.tokenizer.errors import EncodingError

FORMAT = f"openafm.tokenizer_tables 1 {sys.byteorder}"
SMALLEST_FILE = 1 << 20  # smaller ones are parsed in less time than a person notices
MOST_FILES = 16  # the oldest are deleted
SHORT = 20_000
"""Characters that a process encodes with tables; for more, the library is faster although it starts slowly."""
_LONGEST_WORD = 200  # characters: the time of a word grows with the square
_NO_MERGE = (1 << 64) - 1
_PRODUCT = (1 << 32) - 1
_LENGTHS = 4  # bytes of the header's length and of the checksum


def with_tables(data: bytes, signed: str, read: Callable[[], Tokenizer]) -> Tokenizer:
    """Return the tokenizer that `read` returns, from its tables if there are any.

    Args:
        data: the content of the `tokenizer.json` that `read` reads.
        signed: the digest of that JSON document, which `read` verifies.
    """
    if len(data) < SMALLEST_FILE:
        return read()
    source = f"{hashlib.sha256(data).hexdigest()} {signed}"
    path = cache_home() / "tokenizers" / f"{hashlib.sha256(source.encode()).hexdigest()}.bin"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        check_private(path.parent)
        return TableTokenizer(path.read_bytes(), source, read)
    whole = read()
    with contextlib.suppress(OSError):
        _write(path, source, whole)
    return whole


class TableTokenizer(Tokenizer):
    """A tokenizer that encodes short texts with tables and reads the whole tokenizer for all other work.

    Raises:
        ValueError: the tables are damaged, or of another source or version.
    """

    def __init__(self, tables: bytes, source: str, read: Callable[[], Tokenizer]) -> None:
        body = memoryview(tables)[_LENGTHS:]
        if len(tables) < 2 * _LENGTHS or zlib.crc32(body).to_bytes(_LENGTHS, "little") != tables[:_LENGTHS]:
            raise ValueError("damaged")
        start = _LENGTHS + int.from_bytes(body[:_LENGTHS], "little")
        about = json.loads(bytes(body[_LENGTHS:start]))
        if (about["format"], about["source"]) != (FORMAT, source):
            raise ValueError("other tables")
        parts = []
        codes: tuple[Literal["Q", "I", "B"], ...] = ("Q", "Q", "I", "I", "B")
        for code, num_bytes in zip(codes, about["sizes"], strict=True):
            parts.append(body[start : start + num_bytes].cast(code))
            start += num_bytes
        self._pairs, self._merged, self._ends, self._sorted, text = parts
        self._text, self._read = bytes(text), read
        self.is_imported = about["is_imported"]
        self._special_ids: dict[str, int] = about["special_ids"]
        self._byte_ids = about["byte_ids"]
        self._id_of_character = dict(zip(characters(), self._byte_ids, strict=True))
        self._longest: int = about["longest"]
        shell = make_backend(json.dumps(about["shell"]))
        self._normalizer, self._splitter = shell.normalizer, shell.pre_tokenizer
        self._words: dict[str, list[int]] = {}
        self._left = SHORT

    @functools.cached_property
    def whole(self) -> Tokenizer:
        """The tokenizer of the file, which encodes any text quickly."""
        return self._read()

    def encode(self, text: str) -> list[int]:
        self._left -= len(text)
        if self._left < 0:
            return self.whole.encode(text)
        check_encodable(text)
        try:
            normal = text if self._normalizer is None else self._normalizer.normalize_str(text)
            words = [word for word, _ in self._splitter.pre_tokenize_str(normal)]
        except BaseException as error:
            raise translated(error, text) from None
        if max(map(len, words), default=0) > _LONGEST_WORD:
            return self.whole.encode(text)
        ids: list[int] = []
        for word in words:
            found = self._words.get(word)
            if found is None:
                found = self._words[word] = self._encoded(word)
            ids += found
        return ids

    def _encoded(self, word: str) -> list[int]:
        """Return the tokens of a word: again and again the leftmost of the earliest merges."""
        if self._sorted:  # words that are tokens need no merges
            spelled = bytes_of(word)
            at = bisect_left(self._sorted, spelled, key=self.token_bytes)
            if at < len(self._sorted) and self.token_bytes(self._sorted[at]) == spelled:
                return [self._sorted[at]]
        ids = [self._id_of_character[character] for character in word]
        merges = [self._merge(*pair) for pair in pairwise(ids)]
        while merges and (first := min(merges)) != _NO_MERGE:
            at = merges.index(first)
            ids[at : at + 2] = [first & _PRODUCT]
            del merges[at]
            if at > 0:
                merges[at - 1] = self._merge(ids[at - 1], ids[at])
            if at < len(merges):
                merges[at] = self._merge(ids[at], ids[at + 1])
        return ids

    def _merge(self, left: int, right: int) -> int:
        """Return the rank of a merge in the upper half and its token in the lower."""
        pair = left << 32 | right
        at = bisect_left(self._pairs, pair)
        return self._merged[at] if at < len(self._pairs) and self._pairs[at] == pair else _NO_MERGE

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self.whole.encode_batch(texts)

    def split(self, text: str) -> list[str]:
        return self.whole.split(text)

    def encode_word(self, word: str) -> list[int]:
        return self.whole.encode_word(word)

    def fewest_tokens(self, text: str) -> int:
        normal = text if self._normalizer is None else unicodedata.normalize("NFC", text)
        return -(-len(normal.encode(errors="replace")) // self._longest)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        text, ends, parts = self._text, self._ends, []
        for id in ids:
            if not 0 <= id < self.vocab_size:
                raise EncodingError(f"token {id} is outside the vocabulary, 0 to {self.vocab_size - 1}")
            parts.append(text[ends[id] : ends[id + 1]])
        return b"".join(parts)

    def vocabulary(self) -> list[bytes]:
        return [self._text[start:end] for start, end in pairwise(self._ends)]

    @property
    def vocab_size(self) -> int:
        return len(self._ends) - 1

    @functools.cached_property
    def special_ids(self) -> dict[str, int]:
        return self._special_ids

    @property
    def special(self) -> SpecialTokens:
        return self.whole.special if self.is_imported else super().special

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that only the whole tokenizer has: it sets them when it is made, these tables do not."""
        if name in ("merges", "special_names", "pattern"):
            return getattr(self.whole, name)
        raise AttributeError(f"a tokenizer has no attribute {name!r}")

    def _file_form(self) -> dict[str, Any]:
        return self.whole._file_form()

    def __reduce__(self) -> tuple[Any, ...]:
        return self.whole.__reduce__()


def _write(path: Path, source: str, whole: Tokenizer) -> None:
    """Write the tables of a tokenizer that has merges of bytes; those of another kind have none.

    Raises:
        OSError: the folder cannot be written.
    """
    tables = _tables(source, whole)
    if tables is None:
        return
    private_folder(path.parent)
    with atomic_file(path, permissions=0o600) as file:
        file.write(tables)
    files = sorted(path.parent.glob("*.bin"), key=lambda each: each.stat().st_mtime, reverse=True)
    for old in files[MOST_FILES:]:
        old.unlink(missing_ok=True)


def _tables(source: str, whole: Tokenizer) -> bytes | None:
    form = whole._file_form()
    model, vocab = form["model"], form["model"]["vocab"]
    if model.get("type", "BPE") != "BPE" or model.get("byte_fallback") or model.get("end_of_word_suffix"):
        return None
    merged: dict[int, int] = {}
    for rank, pair in enumerate(model["merges"]):
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        merged[vocab[left] << 32 | vocab[right]] = rank << 32 | vocab[left + right]
    texts = whole.vocabulary()
    words = [id for id, text in enumerate(texts) if text] if model.get("ignore_merges") else []
    pairs = sorted(merged)
    arrays = (
        array("Q", pairs),
        array("Q", map(merged.__getitem__, pairs)),
        array("I", [0, *accumulate(map(len, texts))]),
        array("I", sorted(words, key=texts.__getitem__)),
        array("B", b"".join(texts)),
    )
    about = {
        "format": FORMAT,
        "source": source,
        "sizes": [len(each) * each.itemsize for each in arrays],
        "is_imported": whole.is_imported,
        "special_ids": whole.special_ids,
        "byte_ids": [vocab[character] for character in characters()],
        "longest": max(map(len, texts)),
        "shell": form | {"added_tokens": [], "post_processor": None, "model": {"type": "BPE", "vocab": {}, "merges": []}},
    }
    header = json.dumps(about).encode()
    body = len(header).to_bytes(_LENGTHS, "little") + header + b"".join(each.tobytes() for each in arrays)
    return zlib.crc32(body).to_bytes(_LENGTHS, "little") + body
