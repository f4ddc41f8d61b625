"""Vocabulary extension: old ids are kept, old encodings follow from new ones, merges equal those of the library."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from openafm.core.errors import UsageError
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig, train_tokenizer
from openafm.tokenizer.errors import TokenizerError
from openafm.tokenizer.extension import Extension, extend_tokenizer

BYTES_ONLY = Tokenizer(merges=())


@pytest.fixture(scope="module")
def english(sentences: tuple[str, ...]) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(vocab_size=350, min_frequency=1), sentences[:1])


@pytest.fixture(scope="module")
def extension(english: Tokenizer, sentences: tuple[str, ...]) -> Extension:
    return extend_tokenizer(english, sentences, 700, min_frequency=1)


def expanded(ids: list[int], extension: Extension) -> list[int]:
    return [old for id in ids for old in extension.pieces.get(id, (id,))]


def test_the_old_vocabulary_is_a_prefix(english: Tokenizer, extension: Extension) -> None:
    new = extension.tokenizer
    assert (english.vocab_size, new.vocab_size) == (350, 700)
    assert [new.token_bytes(id) for id in range(350)] == [english.token_bytes(id) for id in range(350)]
    assert new.merges[: len(english.merges)] == english.merges
    assert new.special_names == english.special_names


@given(data=st.data())
def test_old_encodings_follow_from_new_ones(
    english: Tokenizer, extension: Extension, sentences: tuple[str, ...], data: st.DataObject
) -> None:
    known = st.sampled_from([word for sentence in sentences for word in sentence.split(" ")])
    any_text = st.text(st.characters(codec="utf-8"), max_size=20)
    text = " ".join(data.draw(st.lists(known | any_text, max_size=8)))
    old, new = english.encode(text), extension.tokenizer.encode(text)
    assert expanded(new, extension) == old
    assert len(new) <= len(old)
    if max(new, default=0) < english.vocab_size:
        assert new == old


def test_pieces_of_new_tokens_are_old_tokens(english: Tokenizer, extension: Extension) -> None:
    assert sorted(extension.pieces) == list(range(350, 700))
    for id, pieces in extension.pieces.items():
        assert len(pieces) >= 2
        assert max(pieces) < 350
        assert english.decode_bytes(pieces) == extension.tokenizer.token_bytes(id)
    every_token = [extension.tokenizer.token_bytes(id) for id in range(64, 700)]
    assert len(set(every_token)) == len(every_token)


def test_new_languages_cost_fewer_tokens(english: Tokenizer, extension: Extension, sentences: tuple[str, ...]) -> None:
    for sentence in sentences[1:]:
        assert len(extension.tokenizer.encode(sentence)) < len(english.encode(sentence))


def pseudo_words(seed: int, num_words: int) -> str:
    """Words over few letters: many pairs of equal count, many repeated letters."""
    rng = random.Random(seed)
    return " ".join("".join(rng.choices("aabcé漢", k=rng.randint(1, 9))) for _ in range(num_words))


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), num_words=st.integers(1, 80), base=st.integers(320, 340), more=st.integers(1, 20))
def test_merges_are_those_of_the_library(seed: int, num_words: int, base: int, more: int) -> None:
    texts = [pseudo_words(seed, num_words)]
    try:
        start = train_tokenizer(TokenizerConfig(vocab_size=base), texts)
        whole = train_tokenizer(TokenizerConfig(vocab_size=base + more), texts)
    except TokenizerError:
        assume(False)
    assert extend_tokenizer(BYTES_ONLY, texts, base + more).tokenizer.to_json() == whole.to_json()
    assert extend_tokenizer(start, texts, base + more).tokenizer.to_json() == whole.to_json()


def test_a_token_that_exists_is_not_learned_again() -> None:
    unreachable = Tokenizer(merges=[("b", "c"), ("a", "b"), ("ab", "c")])  # b and c merge first, so nothing becomes "abc"
    extension = extend_tokenizer(unreachable, ["abcabc,abcx,abcx"], unreachable.vocab_size + 2)
    assert [extension.tokenizer.token_bytes(id) for id in extension.pieces] == [b"bcx", b"abcx"]
    assert expanded(extension.tokenizer.encode("abcabcx"), extension) == unreachable.encode("abcabcx")


EXTEND_AND_PRINT = """
import sys
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.extension import extend_tokenizer
sys.stdout.reconfigure(encoding="utf-8")
texts = sys.stdin.buffer.read().decode().split(chr(0))
sys.stdout.write(extend_tokenizer(Tokenizer(merges=()), texts, 700, min_frequency=1).tokenizer.to_json())
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_extension_gives_the_same_bytes_in_another_process(sentences: tuple[str, ...], seed: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", EXTEND_AND_PRINT],
        input="\0".join(reversed(sentences)).encode(),
        env={"PYTHONHASHSEED": seed},
        capture_output=True,
        check=True,
    )
    assert run.stdout.decode() == extend_tokenizer(BYTES_ONLY, sentences, 700, min_frequency=1).tokenizer.to_json()


def test_tokens_stay_short(english: Tokenizer, sentences: tuple[str, ...]) -> None:
    extended = extend_tokenizer(english, sentences, 500, min_frequency=1, max_token_bytes=4).tokenizer
    assert max(len(extended.token_bytes(id)) for id in range(350, 500)) == 4


def test_impossible_sizes_are_refused(english: Tokenizer, sentences: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="vocab_size 350 does not exceed the current 350"):
        extend_tokenizer(english, sentences, 350)
    with pytest.raises(TokenizerError, match=r"extend 350 tokens to \d+, vocab_size is 90000"):
        extend_tokenizer(english, sentences, 90_000)
