"""Tokens per character by language, from folders of texts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.errors import TokenizerError
from openafm.tokenizer.report import Corpus, find_corpora, language_costs

BYTES_ONLY = Tokenizer(merges=())


def test_costs_by_language(tokenizer: Tokenizer, sentences: tuple[str, ...]) -> None:
    english, chinese = language_costs(BYTES_ONLY, tokenizer, {"en": sentences[:1], "zh": sentences[11:13]})
    assert (english.language, chinese.language) == ("en", "zh")
    assert english.num_characters == len(sentences[0])
    assert english.tokens_per_character_before == 1
    assert chinese.num_tokens_before == sum(len(text.encode()) for text in sentences[11:13])
    assert chinese.num_tokens_after == sum(len(tokenizer.encode(text)) for text in sentences[11:13])
    assert chinese.tokens_per_character_after == chinese.num_tokens_after / sum(map(len, sentences[11:13]))


def test_batches_of_texts_are_summed(tokenizer: Tokenizer) -> None:
    (row,) = language_costs(tokenizer, tokenizer, {"en": (str(number) for number in range(1000))})
    assert row.num_tokens_before == row.num_tokens_after == row.num_characters == 2890


def test_folders_have_one_file_per_language(tmp_path: Path) -> None:
    (tmp_path / "en.txt").write_text("Hello\nworld", encoding="utf-8")
    (tmp_path / "sv.jsonl").write_text('{"text":"Hej"}\n\n{"text":"världen"}\n', encoding="utf-8")
    with gzip.open(tmp_path / "ja.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps({"path": "x", "text": "世界"}))
    (tmp_path / "README.md").write_text("not a corpus")
    (tmp_path / ".da.txt").write_text("hidden")
    texts = {language: list(corpus) for language, corpus in find_corpora(tmp_path).items()}
    assert texts == {"en": ["Hello\nworld"], "ja": ["世界"], "sv": ["Hej", "världen"]}
    corpus = Corpus(language="sv", path=tmp_path / "sv.jsonl")
    assert list(corpus) == list(corpus) == ["Hej", "världen"]
    (tmp_path / "en.jsonl").write_text("")
    with pytest.raises(TokenizerError, match="both for 'en'"):
        find_corpora(tmp_path)


def test_missing_texts_are_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(TokenizerError, match="it needs one file per language"):
            find_corpora(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [("en.jsonl", b"{"), ("en.jsonl", b'{"content":"x"}'), ("en.jsonl", b"[]"), ("en.txt", b"\xff"), ("en.txt.gz", b"x")],
)
def test_broken_texts_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=name):
        list(find_corpora(tmp_path)["en"])


def test_empty_texts_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="'en' are empty"):
        language_costs(tokenizer, tokenizer, {"en": [""]})
