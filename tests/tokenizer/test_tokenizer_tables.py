"""Tables of large tokenizers: the same tokens as the whole tokenizer, found without reading it."""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openafm.tokenizer import tables
from openafm.tokenizer.bpe import NUM_SPECIAL_TOKENS, Tokenizer
from openafm.tokenizer.errors import EncodingError
from openafm.tokenizer.files import read_tokenizer
from openafm.tokenizer.tables import TableTokenizer, with_tables

ADDED = ("<|im_start|>", "<|im_end|>", "<think>")
KINDS = ("ours", "imported", "words_first")


def tokenizer_file(tokenizer: Tokenizer, kind: str) -> str:
    """The `tokenizer.json` of openafm, or with the same merges that of an open-weight model."""
    if kind == "ours":
        return tokenizer.to_json()
    form = json.loads(tokenizer.to_json())
    tokens = list(form["model"]["vocab"])[NUM_SPECIAL_TOKENS:]
    if kind == "words_first":  # tokens without a merge, as in Llama 3; whole words are looked up
        form["model"] |= {"ignore_merges": True, "merges": [f"{left} {right}" for left, right in form["model"]["merges"]]}
        tokens.append("Oslo")
    else:
        form["normalizer"] = {"type": "NFC"}
    form["model"]["vocab"] = {token: id for id, token in enumerate(tokens)}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    form["added_tokens"] = [{"id": len(tokens) + id, "content": name, **special} for id, name in enumerate(ADDED)]
    return json.dumps(form, ensure_ascii=False)


@pytest.fixture(scope="module")
def pair(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Tokenizer, Tokenizer]]:
    """Return the whole tokenizer of a kind, and one with tables that cannot read the whole one."""

    def make(kind: str) -> tuple[Tokenizer, Tokenizer]:
        text = tokenizer_file(tokenizer, kind)
        whole = read_tokenizer(text)
        made = tables._tables("source", whole)
        assert made is not None
        return whole, TableTokenizer(made, "source", lambda: pytest.fail("read the whole tokenizer"))

    pairs = {kind: make(kind) for kind in KINDS}
    return pairs.__getitem__


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_has_the_same_tokens(
    kind: str, pair: Callable[[str], tuple[Tokenizer, Tokenizer]], sentences: tuple[str, ...]
) -> None:
    whole, quick = pair(kind)
    draw = random.Random(0)
    letters = sorted(set("".join(sentences))) + list(" \n\t'0aeiou")

    @given(st.text(max_size=60) | st.text(letters, max_size=60))
    @example("Oslo Oslos  \r\n don't <|im_end|> <|bos|> café cafe\u0301 क़ K 👍🏽")
    @example("")
    def check(text: str) -> None:
        quick._left = tables.SHORT
        assert quick.encode(text) == whole.encode(text)
        assert quick.fewest_tokens(text) == whole.fewest_tokens(text)
        assert quick.encode_bytes(text.encode()[1:]) == whole.encode_bytes(text.encode()[1:])

    check()
    for _ in range(20):
        text = "".join(draw.choices(sentences, k=3))
        quick._left = tables.SHORT
        assert quick.encode(text) == whole.encode(text)
        assert quick.decode(quick.encode(text)) == whole.decode(whole.encode(text))


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_is_the_same(kind: str, pair: Callable[[str], tuple[Tokenizer, Tokenizer]]) -> None:
    whole, quick = pair(kind)
    assert quick.vocab_size == whole.vocab_size
    assert quick.vocabulary() == whole.vocabulary()
    assert quick.special_ids == whole.special_ids
    assert quick.is_imported == whole.is_imported == (kind != "ours")
    assert quick.prepend_scheme == whole.prepend_scheme
    for id in (-1, whole.vocab_size):
        with pytest.raises(EncodingError):
            quick.decode([id])
    with pytest.raises(EncodingError, match="surrogate"):
        quick.encode("\ud800")


@pytest.fixture
def read(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[Tokenizer, int]]:
    """Open the tokenizer as a new process does; return it and how often the file has been parsed until then."""
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tables, "SMALLEST_FILE", 0)
    text, parsed = tokenizer_file(tokenizer, "imported"), []

    def parse() -> Tokenizer:
        parsed.append(1)
        return read_tokenizer(text)

    return lambda: (with_tables(text.encode(), "digest", parse), len(parsed))


def file() -> Path:
    (found,) = (Path(os.environ["OPENAFM_CACHE"]) / "tokenizers").iterdir()
    return found


def test_the_file_is_parsed_once(read: Callable[[], tuple[Tokenizer, int]]) -> None:
    whole, count = read()
    quick, count_again = read()
    assert (count, count_again) == (1, 1)
    assert isinstance(quick, TableTokenizer)
    assert quick.encode("Dinner with Ada") == whole.encode("Dinner with Ada")
    assert file().stat().st_mode & 0o777 == 0o600
    assert file().parent.stat().st_mode & 0o777 == 0o700


def test_work_on_long_texts_reads_the_whole_tokenizer(read: Callable[[], tuple[Tokenizer, int]]) -> None:
    whole, _ = read()
    for text in ("word " * 5000, "a" * 1000):
        quick, _ = read()
        assert quick.encode(text) == whole.encode(text)
        assert isinstance(quick, TableTokenizer)
        assert "whole" in vars(quick)
    quick, _ = read()
    assert quick.encode_batch(["a b", "c"]) == whole.encode_batch(["a b", "c"])
    assert (quick.to_json(), quick.digest) == (whole.to_json(), whole.digest)
    assert pickle.loads(pickle.dumps(quick)).to_json() == whole.to_json()
    assert read()[1] == 4


def test_a_process_encodes_only_its_first_texts_with_tables(read: Callable[[], tuple[Tokenizer, int]]) -> None:
    read()
    quick, count = read()
    for _ in range(tables.SHORT // 10):
        quick.encode("ten letter")
    assert read()[1] == count == 1
    quick.encode("one more")
    assert read()[1] == 2


def test_damaged_tables_are_written_again(read: Callable[[], tuple[Tokenizer, int]]) -> None:
    whole, count = read()
    good = file().read_bytes()
    damaged = [good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :] for at in range(0, len(good), len(good) // 40)]
    for content in (*damaged, good[: len(good) // 2], good[:3], b""):
        file().write_bytes(content)
        found, count_now = read()
        assert not isinstance(found, TableTokenizer)
        assert count_now == count + 1
        assert file().read_bytes() == good
        count = count_now
    assert read()[0].encode("Dinner") == whole.encode("Dinner")


def test_tables_that_others_may_write_are_not_used(read: Callable[[], tuple[Tokenizer, int]]) -> None:
    read()
    file().parent.chmod(0o777)
    assert read()[1] == 2


def test_without_a_usable_cache_the_file_is_parsed(
    read: Callable[[], tuple[Tokenizer, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "file"))
    assert [read()[1], read()[1]] == [1, 2]


def test_tables_of_another_file_or_signature_are_not_used(tokenizer: Tokenizer, tmp_path: Path) -> None:
    made = tables._tables("source", tokenizer)
    assert made is not None
    with pytest.raises(ValueError, match="other tables"):
        TableTokenizer(made, "another", lambda: tokenizer)
