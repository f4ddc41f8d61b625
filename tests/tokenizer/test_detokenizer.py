"""Streaming text: whole characters that concatenate to the decoded text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.detokenizer import Detokenizer
from openafm.tokenizer.errors import EncodingError

BYTES_ONLY = Tokenizer(merges=())
any_text = st.text(st.characters(codec="utf-8"))


@given(ids=st.lists(st.integers(0, 599), max_size=40))
def test_pieces_concatenate_to_the_decoded_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(id) for id in ids]
    assert "".join(pieces) + detokenizer.finish() == tokenizer.decode(ids)
    assert detokenizer.finish() == ""


@given(text=any_text)
def test_pieces_are_whole_characters_as_early_as_possible(text: str) -> None:
    detokenizer = Detokenizer(BYTES_ONLY)
    so_far, num_bytes = "", 0
    for id in BYTES_ONLY.encode(text):
        piece, num_bytes = detokenizer.push(id), num_bytes + 1
        assert len(piece) <= 1
        so_far += piece
        assert so_far == text.encode()[:num_bytes].decode(errors="ignore")
    assert detokenizer.finish() == ""


def test_an_incomplete_character_becomes_a_replacement_and_resets() -> None:
    detokenizer = Detokenizer(BYTES_ONLY)
    first, *_ = BYTES_ONLY.encode("漢")
    assert (detokenizer.push(first), detokenizer.finish()) == ("", "\ufffd")
    assert (detokenizer.push(BYTES_ONLY.encode("a")[0]), detokenizer.finish()) == ("a", "")


def test_special_tokens_have_no_text_and_unknown_ids_are_refused(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(tokenizer.special.turn_end) == ""
    with pytest.raises(EncodingError):
        detokenizer.push(tokenizer.vocab_size)
