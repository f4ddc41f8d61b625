"""Scores of event extraction: the grading, the baselines, a real model."""

from __future__ import annotations

from pathlib import Path

import pytest

from openafm.data.synthetic import EVENT_SCHEMA
from openafm.evaluation.events import (
    EventExample,
    constant_extractor,
    held_out_events,
    model_extractor,
    regex_extractor,
    score,
)

EXAMPLES = held_out_events(120)


def test_held_out_examples_are_complete_and_multilingual() -> None:
    assert all(example.gold["title"] in example.message for example in EXAMPLES)
    assert all(example.schema == EVENT_SCHEMA for example in EXAMPLES)
    assert all(str(example.reference_day) in example.instructions for example in EXAMPLES)
    assert len({example.language for example in EXAMPLES}) > 12


def test_the_reference_scores_one_and_an_empty_answer_the_absent_fields() -> None:
    gold = score(lambda example: example.gold, EXAMPLES)
    assert gold.exact_match == gold.whole_event == 1
    assert set(gold.fields.values()) == {1.0}
    nothing = score(lambda _: {}, EXAMPLES)
    assert nothing.whole_event == 0
    assert nothing.fields["title"] == 0
    absent = sum("location" not in example.gold for example in EXAMPLES) / len(EXAMPLES)
    assert nothing.fields["location"] == pytest.approx(absent)


def test_one_wrong_field_fails_the_event_only() -> None:
    def almost(example: EventExample) -> dict[str, str]:
        return example.gold | {"time": "00:01"}

    scores = score(almost, EXAMPLES)
    assert (scores.whole_event, scores.exact_match) == (0, 0.75)
    assert (scores.fields["title"], scores.fields["time"]) == (1, 0)


def test_baselines_are_ordered() -> None:
    regex, constant = score(regex_extractor, EXAMPLES), score(constant_extractor, EXAMPLES)
    assert regex.fields["date"] > constant.fields["date"]
    assert regex.fields["time"] > constant.fields["time"]


def test_an_untrained_model_answers_under_the_schema(tmp_path: Path) -> None:
    from openafm import SystemLanguageModel
    from openafm.bundle import write_bundle
    from openafm.models.sizes import shared_kv_decoder
    from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
    from openafm.tokenizer.chat_template import ChatTemplate

    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=600), [example.message for example in EXAMPLES])
    config = shared_kv_decoder(
        vocab_size=600,
        dim=16,
        num_own_layers=2,
        num_shared_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        hidden_dim=24,
        context_length=1024,
    )
    weights = {name: tensor.numpy() for name, tensor in config.build().state_dict().items()}
    write_bundle(tmp_path / "b", config=config, tokenizer=tokenizer, template=ChatTemplate(), tensors=weights)
    scores = score(model_extractor(SystemLanguageModel(bundle=tmp_path / "b")), EXAMPLES[:4])
    assert scores.whole_event == 0
