"""Likelihoods against a plain computation with the decoder, windows, and raw continuations."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
import torch

from openafm.bundle import open_bundle
from openafm.runtime.decoding import likelihood
from openafm.runtime.decoding.likelihood import Scorer
from openafm.runtime.engines.base import ContextWindowError
from openafm.runtime.engines.selection import open_engine
from openafm.runtime.engines.torch_engine import TorchEngine


@cache
def scorer() -> Scorer:
    bundle = open_bundle("nano")
    return Scorer(engine=open_engine(bundle), tokenizer=bundle.tokenizer)


def plain(tokens: list[int]) -> np.ndarray:
    """Return the log probability of each token but the first, by torch in the numerics of the bundle."""
    bundle = open_bundle("nano")
    engine = TorchEngine.open(bundle)
    (logits,) = engine.step([(engine.new_sequence(), tokens)], "all")
    log_p = torch.from_numpy(logits[:-1, : bundle.tokenizer.vocab_size]).log_softmax(-1)
    return log_p.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].numpy()


def test_scores_equal_the_plain_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = (
        "Dinner with Maria on Friday at 7 pm at Luigi's, don't be late!",
        "The meeting was moved to Tuesday at three in room B12.",
        "I was charged twice for my order, please help me with a refund today.",
        "Wir treffen uns am Donnerstag um halb acht vor dem Kino, bring bitte die Karten mit.",
    )
    largest = []
    for text in texts:
        tokens = [1, *scorer().tokenizer.encode(text)]
        log_p_N, is_greedy_N = scorer().token_scores(tokens)
        largest.append(np.abs(log_p_N - plain(tokens)).max())
    # An int8 key or value that lies between two numbers may be rounded up by one engine and down by the other.
    assert sorted(largest)[-2] < 1e-3
    assert max(largest) < 0.3
    monkeypatch.setattr(likelihood, "CHUNK_TOKENS", 5)
    np.testing.assert_allclose(scorer().token_scores(tokens)[0], log_p_N, atol=1e-4)
    assert 0 < is_greedy_N.mean() < 1


def test_a_continuation_is_scored_after_its_context() -> None:
    context, continuation = "Dinner with Maria", " on Friday"
    found = scorer().loglikelihood(context, continuation)
    whole = [1, *scorer().tokenizer.encode(context + continuation)]
    assert found.num_tokens == len(whole) - len([1, *scorer().tokenizer.encode(context)])
    log_p_N, _ = scorer().token_scores(whole)
    assert found.log_probability == pytest.approx(log_p_N[-found.num_tokens :].sum())
    assert scorer().loglikelihood(context + " ", continuation[1:]) == found
    greedy = scorer().generate_until(context, max_tokens=4)
    assert scorer().loglikelihood(context, greedy).is_greedy
    assert not scorer().loglikelihood(context, "\n\nzq").is_greedy


def test_long_texts_are_scored_in_windows_and_each_token_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer().engine, "context_length", 64)
    text = "the quick brown fox " * 20
    tokens = [1, *scorer().tokenizer.encode(text)]
    found = scorer().loglikelihood_rolling(text)
    assert found.num_tokens == len(tokens) - 1 > 64
    windows = [tokens[start : start + 64] for start in range(0, len(tokens) - 1, 63)]
    assert [token for window in windows for token in window[1:]] == tokens[1:]
    assert found.log_probability == pytest.approx(sum(scorer().token_scores(window)[0].sum() for window in windows))
    with pytest.raises(ContextWindowError):
        scorer().token_scores(tokens[:66])
    assert len(scorer().token_scores(tokens[:65])[0]) == 64
    tail = scorer().loglikelihood(text, " jumps")
    assert tail.num_tokens >= 1
    assert scorer().loglikelihood_rolling("").num_tokens == 0


def test_generation_stops_before_the_first_stop_text() -> None:
    whole = scorer().generate_until("Dinner with Maria", max_tokens=24)
    assert len(whole) > 6
    stop = whole[4:6]
    cut = scorer().generate_until("Dinner with Maria", [stop, whole[5:]], max_tokens=24)
    assert cut == whole[: whole.index(stop)]
    parts = list(scorer().continuations("Dinner with Maria", max_tokens=24))
    assert all(after.startswith(before) for before, after in itertools.pairwise(parts))
    assert parts[-1] == whole
