"""Features of texts: words, n-grams of scripts with and without spaces, and limits."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from openafm.ranking.features import MOST_WORDS, words_of

BUCKETS = 1 << 12


def bucket(part: str) -> int:
    return zlib.crc32(part.encode()) % BUCKETS


def test_a_word_is_itself_and_its_grams():
    assert words_of("Cats!", BUCKETS) == [
        tuple(map(bucket, ("wcats", "g<ca", "gcat", "gats", "gts>", "g<cat", "gcats", "gats>", "g<cats", "gcats>"))),
        (bucket("w!"),),
    ]


def test_scripts_without_spaces_have_short_grams():
    assert words_of("天気", BUCKETS) == [tuple(map(bucket, ("c天", "c気", "c天気")))]
    assert words_of("예약", BUCKETS) == [tuple(map(bucket, ("c예", "c약", "c예약")))]
    assert len(words_of("iPhoneを買う", BUCKETS)) == 2


def test_case_and_punctuation_do_not_matter():
    assert words_of("Play  SOME jazz.", BUCKETS) == words_of("play some_jazz", BUCKETS)
    assert words_of("... -- ,", BUCKETS) == []


@given(st.text(max_size=200))
def test_features_are_buckets(text):
    assert all(word and all(0 <= feature < BUCKETS for feature in word) for word in words_of(text, BUCKETS))


def test_long_texts_are_cut():
    assert len(words_of("word " * 10_000, BUCKETS)) == MOST_WORDS
    (word,) = words_of("x" * 100_000, BUCKETS)
    assert len(word) < 200
