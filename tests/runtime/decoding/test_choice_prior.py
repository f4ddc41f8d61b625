"""Priors of choices: against the product of both distributions over whole values, whatever their tokens."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openafm.runtime.decoding.choice_prior import CallPrior, ChoicePrior, PriorChoice, TokensByByte


class Letters:
    """A tokenizer of a few texts."""

    def __init__(self, texts: list[bytes]) -> None:
        self._texts = texts

    def vocabulary(self) -> list[bytes]:
        return self._texts


TEXTS = [b"", b'{"label":"', b"a", b"b", b"ab", b"c", b'"', b'"}', b'c"}', b"x", b"\xe6", b"\xb0"]
tokens = TokensByByte(Letters(TEXTS))
VALUES = {b'a"': -1.0, b'ab"': -2.0, b'abc"': -0.5, b'b"': -3.0, "æ\xb0".encode("latin-1") + b'"': -4.0}


def ways(rest: bytes) -> list[tuple[int, ...]]:
    """Every way to write a text with tokens, the last of which may go on."""
    if not rest:
        return [()]
    found = []
    for token, text in enumerate(TEXTS):
        if text and rest.startswith(text):
            found += [(token, *further) for further in ways(rest[len(text) :])]
        elif text and text.startswith(rest):
            found.append((token,))
    return found


@given(st.fixed_dictionaries({value: st.floats(-20, 0) for value in VALUES}))
def test_the_shares_of_all_tokens_are_the_prior(weights):
    choice = PriorChoice(opening=b'{"label":"', values=weights)
    total = math.log(sum(math.exp(weight) for weight in weights.values()))
    for value, weight in weights.items():
        for way in ways(value):
            prior, answer, added = ChoicePrior([choice], tokens), [1], 0.0
            for token in way:
                logits = np.zeros(len(TEXTS), np.float32)
                prior.process(logits, answer)
                added += float(logits[token])
                answer.append(token)
            assert added == pytest.approx(weight - total, abs=1e-4)


def test_nothing_changes_elsewhere():
    prior = ChoicePrior([PriorChoice(opening=b'{"label":"', values=VALUES)], tokens)
    for answer in ([], [9], [9, 6], [1, 3, 6], [1, 3, 7]):
        logits = np.zeros(len(TEXTS), np.float32)
        prior.process(logits, answer)
        assert (logits == 0).all(), answer


def test_a_choice_at_the_start_is_made_once():
    choice = PriorChoice(opening=b'"', values={b'a"': 0.0, b'b"': -5.0}, is_next=True)
    logits = np.zeros(len(TEXTS), np.float32)
    ChoicePrior([choice], tokens).process(logits, [6])
    assert logits[2] > logits[3] + 4.9
    for answer in ([9, 6], [2], [6, 2, 6]):
        logits = np.zeros(len(TEXTS), np.float32)
        ChoicePrior([choice], tokens).process(logits, answer)
        assert (logits == 0).all(), answer


def test_an_answer_that_was_rolled_back_is_read_again():
    prior = ChoicePrior([PriorChoice(opening=b'{"label":"', values=VALUES)], tokens)
    first, again = np.zeros(len(TEXTS), np.float32), np.zeros(len(TEXTS), np.float32)
    prior.process(first, [1])
    prior.process(np.zeros(len(TEXTS), np.float32), [1, 2, 3])
    prior.process(again, [1])
    assert (first == again).all()
    assert first.any()


def test_calls_have_their_odds_at_the_start_alone():
    prior = CallPrior(5, 2.5)
    for answer in ([], [1], [5]):
        logits = np.zeros(8, np.float32)
        prior.process(logits, answer)
        assert logits[5] == (0.0 if answer else 2.5)
        assert not np.delete(logits, 5).any()


def test_longer_values_are_told_from_their_beginnings():
    """After "ab", the quote ends one value and "c" begins the other."""
    prior = ChoicePrior([PriorChoice(opening=b'"', values={b'ab"': -1.0, b'abc"': -2.0}, is_next=True)], tokens)
    logits = np.zeros(len(TEXTS), np.float32)
    prior.process(logits, [6, 4])
    assert logits[6] == pytest.approx(logits[7]) == pytest.approx(math.log(1 / (1 + math.exp(-1))), abs=1e-5)
    assert logits[5] == pytest.approx(logits[8]) == pytest.approx(math.log(1 / (1 + math.exp(1))), abs=1e-5)
    assert not any(logits[token] for token in itertools.chain(range(5), (9, 10, 11)))


def test_other_values_have_their_own_weight():
    """The prior is a mixture: spans with their weights, and all other texts as the model has them."""
    choice = PriorChoice(
        prefix=b"{", opening=b'"label":"', values={b'ab"': math.log(0.6), b'b"': math.log(0.3)}, others=math.log(0.1)
    )
    prior, added = ChoicePrior([choice], tokens), {}
    for way in ((2, 3, 6), (4, 6), (2, 5), (3, 6), (9,)):
        answer, total = [1], 0.0
        for token in way:
            logits = np.zeros(len(TEXTS), np.float32)
            prior.process(logits, answer)
            total += float(logits[token])
            answer.append(token)
        added[way] = total
    assert added[2, 3, 6] == pytest.approx(math.log(0.7), abs=1e-5)  # the value, or another text that is the same
    assert added[4, 6] == pytest.approx(math.log(0.7), abs=1e-5)
    assert added[3, 6] == pytest.approx(math.log(0.4), abs=1e-5)
    assert added[9,] == added[2, 5] == pytest.approx(math.log(0.1), abs=1e-5)


def test_the_answer_begins_with_the_prefix():
    choice = PriorChoice(prefix=b'{"label":"', opening=b"a", values={b'b"': 0.0, b'c"': 0.0})
    assert choice.begun(b'{"label":"a') == b""
    assert choice.begun(b'{"label":"xa') == b""
    assert choice.begun(b'{"other":"a') is None
    assert choice.begun(b"a") is None
    assert PriorChoice(prefix=b"{", opening=b"a", values={b'b"': 0.0, b'c"': 0.0}, is_next=True).begun(b"{xa") is None
