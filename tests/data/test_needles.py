"""Needle documents: their length, the positions of needles, the loss mask."""

from __future__ import annotations

from pathlib import Path

import pytest

from openafm.core.config import ConfigError
from openafm.data.needles import NeedlesConfig, needles, pack_needles
from openafm.data.shards.token_shards import open_shards
from openafm.tokenizer.bpe import Tokenizer

TOKENIZER = Tokenizer(merges=())
CONFIG = NeedlesConfig(lengths=(120, 700), num_needles=3, needle_tokens=4)


def answers(tokens: list[int]) -> list[list[int]]:
    special = TOKENIZER.special
    starts = [at for at, token in enumerate(tokens) if token == special.assistant]
    return [tokens[start + 1 : tokens.index(special.turn_end, start)] for start in starts]


def test_documents_have_the_lengths_asked_for() -> None:
    assert {len(document.tokens) for document in needles(CONFIG, 20, TOKENIZER)} == {120, 700}


def test_every_needle_is_asked_once_and_stands_in_the_text_once() -> None:
    orders = []
    for document in needles(CONFIG, 20, TOKENIZER):
        asked = answers(document.tokens)
        text = document.tokens[: document.tokens.index(TOKENIZER.special.assistant)]
        assert len(asked) == 3
        assert all(len(needle) == 4 for needle in asked)
        assert all(text.count(token) == 1 for needle in asked for token in needle)
        places = [text.index(needle[0]) for needle in asked]
        assert [text[place : place + 4] for place in places] == asked
        orders.append(sorted(places) == places)
    assert True in orders
    assert False in orders


def test_needles_hide_anywhere() -> None:
    documents = list(needles(NeedlesConfig(lengths=(400,), num_needles=1), 200, TOKENIZER))
    places = [document.tokens.index(answers(document.tokens)[0][0]) / 400 for document in documents]
    assert min(places) < 0.05
    assert max(places) > 0.9
    assert 0.4 < sum(places) / len(places) < 0.6


def test_only_answers_are_learned_from_their_second_token_on() -> None:
    for document in needles(CONFIG, 10, TOKENIZER):
        learned = [token for token, learn in zip(document.tokens, document.loss_mask, strict=True) if learn]
        assert learned == [token for needle in answers(document.tokens) for token in needle[1:]]


def test_the_text_goes_on_from_document_to_document() -> None:
    first, second = (document.tokens[:60] for document in needles(CONFIG, 2, TOKENIZER))
    assert first != second


def test_packing_is_deterministic_and_follows_the_seed(tmp_path: Path) -> None:
    first = pack_needles(CONFIG, 5, tmp_path / "a", TOKENIZER)
    second = pack_needles(CONFIG, 5, tmp_path / "b", TOKENIZER)
    other = pack_needles(NeedlesConfig(lengths=(120, 700), num_needles=3, seed=1), 5, tmp_path / "c", TOKENIZER)
    assert first.digest == second.digest != other.digest
    assert open_shards(tmp_path / "a").document(0, 0).source == "needles"


def test_lengths_that_leave_no_room_for_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="above 41"):
        NeedlesConfig(lengths=(41,))
    with pytest.raises(ConfigError, match="needle_tokens"):
        NeedlesConfig(lengths=(100,), needle_tokens=1)
