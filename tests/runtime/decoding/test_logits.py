"""Processors of logits and stop texts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openafm.runtime.decoding.logits import LogitBias, OccurrencePenalty, RepetitionPenalty, ScoreRecorder
from openafm.runtime.decoding.stop_texts import StopTexts


def test_a_bias_changes_only_its_tokens() -> None:
    logits_V = np.zeros(5, np.float32)
    LogitBias({1: 2.5, 3: -100.0}).process(logits_V, ())
    assert logits_V.tolist() == [0, 2.5, 0, -100, 0]


def test_a_penalty_counts_occurrences() -> None:
    logits_V = np.zeros(4, np.float32)
    OccurrencePenalty(frequency=0.5, presence=1.0).process(logits_V, [2, 0, 2])
    assert logits_V.tolist() == [-1.5, 0, -2.0, 0]


def test_a_repetition_penalty_equals_that_of_transformers() -> None:
    logits = pytest.importorskip("transformers.generation.logits_process")
    torch = pytest.importorskip("torch")
    logits_V = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    prompt, answer = [3, 3, 9], [5, 9, 39]
    expected = logits.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([[*prompt, *answer]]), torch.tensor(logits_V)[None])
    RepetitionPenalty(1.3, prompt).process(logits_V, answer)
    assert logits_V == pytest.approx(expected[0].numpy())


def test_scores_are_those_of_the_tokenizers_vocabulary() -> None:
    logits_V = np.array([1.0, 3.0, 2.0, 50.0], np.float32)  # the last row has no token
    recorder = ScoreRecorder(vocab_size=3)
    recorder.process(logits_V, [7, 7])
    logits_V[:] = -np.inf  # what a mask does later
    score, top = recorder.scores(2, 0, num_top=2)
    total = np.log(np.exp([1.0, 3.0, 2.0]).sum())
    assert score.log_probability == pytest.approx(1 - total)
    assert [(each.token, pytest.approx(each.log_probability)) for each in top] == [(1, 3 - total), (2, 2 - total)]


def test_a_forced_token_has_probability_one() -> None:
    recorder = ScoreRecorder(vocab_size=3)
    recorder.process(np.zeros(3, np.float32), [])
    score, top = recorder.scores(1, 2, num_top=5)
    assert (score.token, score.log_probability) == (2, 0.0)
    assert top == [score]


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_text_is_cut_before_the_first_stop_text_however_it_is_split(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    stop_texts, shown = StopTexts(stops), ""
    for piece in pieces:
        shown += stop_texts.push(piece)
        if stop_texts.found is not None:
            break
    shown += stop_texts.finish()
    ends = [place for end in range(len(text) + 1) for stop in stops if (place := text[:end].find(stop)) >= 0]
    if not ends:
        assert (shown, stop_texts.found) == (text, None)
    else:  # what was shown is never taken back, so the cut can be at any stop text that is complete with the same piece
        assert stop_texts.found in stops
        assert text.startswith(shown + stop_texts.found)
        assert not any(stop in shown for stop in stops)
