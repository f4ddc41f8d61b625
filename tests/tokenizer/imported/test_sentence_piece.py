"""SentencePiece tokenizers: the tokens of `tokenizers` and of `sentencepiece`, lossless, also in streams and grammars."""

from __future__ import annotations

import json
import pickle
import re
from typing import Any

import numpy as np
import pytest
import sentence_pieces
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from openafm.runtime.decoding.grammar import GrammarCompiler
from openafm.tokenizer.detokenizer import Detokenizer
from openafm.tokenizer.errors import TokenizerError
from openafm.tokenizer.files import read_imported_tokenizer, read_tokenizer
from openafm.tokenizer.imported.sentence_piece import SentencePieceTokenizer, byte_piece
from openafm.tokenizer.imported.sentence_piece_form import NORMAL, Piece, sentence_piece_form
from openafm.tokenizer.template import encode_parts

STYLES: tuple[sentence_pieces.Style, ...] = ("llama", "metaspace", "gemma", "unigram")
TOKENIZERS = {style: SentencePieceTokenizer(sentence_pieces.text(style)) for style in STYLES}
TEXT = st.characters(codec="utf-8")
TEXTS = sentence_pieces.texts(5000)
NAMES = re.compile(r"</?s>|<unk>|<0x..>")


@pytest.mark.parametrize("style", STYLES)
def test_tokens_equal_those_of_the_tokenizers_library(style: Any) -> None:
    theirs = tokenizers.Tokenizer.from_str(sentence_pieces.text(style))
    theirs.encode_special_tokens = True
    scheme = TOKENIZERS[style].prepend_scheme
    is_spaced = {"always": lambda text: True, "first": lambda text: text[0] != " ", "never": lambda text: False}[scheme]
    texts = [text for text in TEXTS if style != "unigram" or not NAMES.search(text)]  # a Unigram model reads names of tokens
    ours = TOKENIZERS[style].encode_batch([f" {text}" if is_spaced(text) else text for text in texts])
    expected = [encoding.ids for encoding in theirs.encode_batch_fast(texts, add_special_tokens=False)]
    assert [text for text, one, other in zip(texts, ours, expected, strict=True) if one != other] == []


def test_tokens_equal_those_of_sentencepiece() -> None:
    texts = [*TEXTS, *("a" * count for count in range(1, 40))]  # merges overlap
    ours = TOKENIZERS["llama"].encode_batch([f" {text}" for text in texts])
    assert ours == sentence_pieces.processor("bpe").encode(texts)


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=40)
@given(
    text=st.text(TEXT),
    names=st.lists(st.sampled_from([*sentence_pieces.NAMES, "<s>", "</s>", "<unk>", "<0x41>", "▁", "<0x"])),
)
def test_any_text_is_lossless_and_has_no_special_token(style: str, text: str, names: list[str]) -> None:
    tokenizer = TOKENIZERS[style]
    text = text[: len(text) // 2] + "".join(names) + text[len(text) // 2 :] + "".join(names)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert set(ids).isdisjoint(tokenizer.special_ids.values())
    assert tokenizer.encode_batch([text, "a"]) == [ids, tokenizer.encode("a")]
    assert tokenizer.fewest_tokens(text) <= len(ids)
    detokenizer = Detokenizer(tokenizer)
    assert "".join(map(detokenizer.push, ids)) + detokenizer.finish() == text


@pytest.mark.parametrize("style", STYLES)
def test_streams_hold_back_bytes_until_a_character_is_whole(style: str) -> None:
    tokenizer, detokenizer = TOKENIZERS[style], Detokenizer(TOKENIZERS[style])
    assert [detokenizer.push(id) for id in tokenizer.encode_bytes("é🦙".encode()[:-1])][-3:] == ["", "", ""]
    assert detokenizer.finish() == "\ufffd"
    bytes_alone = [tokenizer.encode_bytes(bytes([byte])) for byte in range(128, 256)]
    assert [tokenizer.decode_bytes(ids)[0] for ids in bytes_alone] == list(range(128, 256))


@pytest.mark.parametrize("style", STYLES)
def test_tokenizers_are_restored_from_their_file(style: str) -> None:
    tokenizer = TOKENIZERS[style]
    for again in (read_tokenizer(tokenizer.to_json()), pickle.loads(pickle.dumps(tokenizer))):
        assert again.digest == tokenizer.digest
        assert again.prepend_scheme == tokenizer.prepend_scheme
        assert again.encode("Middag med Ada\n\n<s>") == tokenizer.encode("Middag med Ada\n\n<s>")


def test_white_space_among_the_added_tokens_is_text() -> None:
    tokenizer = TOKENIZERS["unigram"]
    (id,) = tokenizer.encode("\n\n")
    assert tokenizer.token_bytes(id) == b"\n\n"
    assert "\n\n" not in tokenizer.special_ids


@pytest.mark.parametrize("style", STYLES)
def test_a_conversation_is_spelled_without_the_inserted_spaces(style: Any) -> None:
    tokenizer, theirs = TOKENIZERS[style], tokenizers.Tokenizer.from_str(sentence_pieces.text(style))
    text = "<s><|im_start|>user\nCena con Ada<|im_end|>\n<|im_start|>a"
    ids = theirs.encode(text, add_special_tokens=False).ids
    assert tokenizer.spell(ids) == text
    space = " " if style == "llama" else ""
    start, end = (tokenizer.special_ids[name] for name in sentence_pieces.NAMES[:2])
    parts = [tokenizer.special_ids["<s>"], start, f"{space}user\nCena con Ada", end, f"{space}\n", start, f"{space}a"]
    assert encode_parts(tokenizer, parts) == ids


SCHEMA = {"type": "object", "properties": {"e": {"enum": ["é🦙", "an"]}}, "required": ["e"], "additionalProperties": False}


@pytest.mark.parametrize("style", STYLES)
def test_masks_allow_exactly_the_tokens_that_begin_an_answer_byte_tokens_included(style: str) -> None:
    from openafm.tokenizer.chat_template import ChatTemplate

    class Template(ChatTemplate):
        def stop_token(self, tokenizer: Any) -> int:
            return int(tokenizer.special_ids["<|im_end|>"])

    tokenizer = TOKENIZERS[style]
    answers = ['{"e":"é🦙"}'.encode(), b'{"e":"an"}']
    rng, seen_bytes, grammar = np.random.default_rng(0), 0, GrammarCompiler(tokenizer, Template()).json_schema(SCHEMA)
    for _ in range(10):
        matcher = grammar.matcher()
        written = b""
        while not matcher.must_stop:
            allowed = np.flatnonzero(matcher.mask()).tolist()
            if not matcher.forced():
                expected = [
                    id
                    for id in range(tokenizer.vocab_size)
                    if (more := tokenizer.token_bytes(id)) and any(answer.startswith(written + more) for answer in answers)
                ]
                assert allowed == expected
            token = int(rng.choice(allowed))
            matcher.accept([token])
            written += tokenizer.token_bytes(token)
            seen_bytes += len(tokenizer.token_bytes(token)) == 1 and tokenizer.token_bytes(token)[0] > 127
        assert written in answers
    assert seen_bytes


def edited(**changes: Any) -> str:
    form = sentence_pieces.form("llama")
    return json.dumps(form | changes)


def edited_model(**changes: Any) -> str:
    return edited(model=sentence_pieces.form("llama")["model"] | changes)


VOCAB = sentence_pieces.form("llama")["model"]["vocab"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (edited(normalizer={"type": "Precompiled", "precompiled_charsmap": ""}), "changes texts .Precompiled"),
        (edited(normalizer={"type": "Lowercase"}), "changes texts .Lowercase"),
        (edited(normalizer={"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}), "changes texts .Replace"),
        (edited(pre_tokenizer={"type": "WhitespaceSplit"}), "changes texts .WhitespaceSplit"),
        (edited_model(vocab={k: v for k, v in VOCAB.items() if k != byte_piece(7)}), "lacks 1 of the 256 bytes"),
        (edited_model(type="WordPiece"), "WordPiece without byte fallback"),
        (edited_model(dropout=0.1), "dropout"),
        (edited_model(merges=[["a"]]), "not a tokenizer.json|are invalid"),
        (edited(added_tokens=[]), "."),
        ('{"added_tokens": [], "byte_fallback": true}', "not a tokenizer.json"),
    ],
)
def test_other_tokenizers_are_refused(text: str, message: str) -> None:
    if message == ".":
        assert read_imported_tokenizer(text).special_ids == {}
        return
    with pytest.raises(TokenizerError, match=message):
        read_imported_tokenizer(text)


def test_white_space_tokens_with_inserted_spaces_are_refused() -> None:
    form = sentence_pieces.form("llama")
    newline = {"id": 8, "content": "\n", "special": False, "single_word": False, "lstrip": False, "rstrip": False}
    with pytest.raises(TokenizerError, match="inserts spaces between tokens of white space"):
        SentencePieceTokenizer(json.dumps(form | {"added_tokens": [*form["added_tokens"], newline | {"normalized": False}]}))


def test_pieces_without_unknown_or_too_long_are_refused() -> None:
    with pytest.raises(TokenizerError, match="no piece for unknown"):
        sentence_piece_form([Piece("a", 0.0, NORMAL)], prepend_scheme="always")
    with pytest.raises(TokenizerError, match="a piece has 600 characters"):
        sentence_piece_form([Piece("a" * 600, 0.0, NORMAL)], prepend_scheme="always")
