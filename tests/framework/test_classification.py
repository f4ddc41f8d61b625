"""Labels by scores: against the likelihoods of whole conversations, the prior, orders, guardrails, and wrong input."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import shutil
from pathlib import Path

import pytest
from scripted_models import ScriptedModel
from tiny_bundles import write_native_bundle, write_tiny_bundle

import openafm as fm
from openafm.bundle import shipped_bundle
from openafm.framework.classification import CONTENT_FREE, Classifier
from openafm.tokenizer.conversation import AssistantTurn, Conversation, Instructions, UserTurn
from openafm.tokenizer.schema_text import compact_json

LABELS = ("set alarm", "play music", "weather")
REQUESTS = {"wake me up at six": "set alarm", "put on some jazz": "play music", "will it rain tomorrow": "weather"}


@pytest.mark.parametrize("write", [write_tiny_bundle, write_native_bundle])
def test_scores_are_likelihoods_of_the_answers(write: object, tmp_path: Path) -> None:
    """Against all tokens of the conversation fed at once, with the labels in both orders."""
    assert callable(write)
    bundle = write(tmp_path / "tiny")
    classifier = Classifier(LABELS, "What?", model=fm.SystemLanguageModel(bundle=bundle.path), prior_weight=1.0)
    loaded = fm.SystemLanguageModel(bundle=bundle.path).load()
    scores = {text: [_likelihood(loaded, text, label) for label in LABELS] for text in ("the cat sat", *CONTENT_FREE)}
    priors = [sum(each) / 2 for each in zip(*(scores[text] for text in CONTENT_FREE), strict=True)]
    expected = [score - prior for score, prior in zip(scores["the cat sat"], priors, strict=True)]
    total = sum(math.exp(score) for score in expected)
    found = classifier.classify_blocking("the cat sat")
    assert list(found.probabilities) == list(LABELS)
    assert list(found.probabilities.values()) == pytest.approx([math.exp(score) / total for score in expected], rel=2e-2)
    assert found.label == max(found.probabilities, key=lambda label: found.probabilities[label])
    assert classifier.classify_blocking("the cat sat").probabilities == pytest.approx(found.probabilities, rel=2e-2)
    other = Classifier(LABELS[::-1], "What?", model=fm.SystemLanguageModel(bundle=bundle.path), prior_weight=1.0)
    assert other.classify_blocking("the cat sat").probabilities == pytest.approx(found.probabilities, rel=2e-2)


def _likelihood(loaded: object, text: str, label: str) -> float:
    return sum(_likelihood_in(loaded, text, label, order) for order in (LABELS, LABELS[::-1])) / 2


def _likelihood_in(loaded: object, text: str, label: str, order: tuple[str, ...]) -> float:
    from openafm.framework.backends.loaded_model import LoadedModel

    assert isinstance(loaded, LoadedModel)
    schema = {
        "title": "Label",
        "type": "object",
        "properties": {"label": {"type": "string", "enum": list(order)}},
        "required": ["label"],
        "additionalProperties": False,
        "x-order": ["label"],
    }
    turns = (Instructions(text="What?"), UserTurn(text=text, response_format=schema))
    answered = Conversation(turns=(*turns, AssistantTurn(text=compact_json({"label": label}))))
    encoded = loaded.template.encode_conversation(loaded.tokenizer, answered)
    log_p_N, _ = loaded.scorer.token_scores(encoded.tokens)
    return float(sum(log_p for log_p, is_generated in zip(log_p_N, encoded.loss_mask[1:], strict=True) if is_generated))


def test_the_shipped_model_labels_requests_in_any_order() -> None:
    for labels in itertools.permutations(LABELS):
        classifier = Classifier(labels)
        assert {text: classifier.classify_blocking(text).label for text in REQUESTS} == REQUESTS
    assert asyncio.run(Classifier(LABELS).classify("put on some jazz")).label == "play music"


def test_the_prior_is_subtracted_from_the_scores(tmp_path: Path) -> None:
    """A text without content has no label: with the whole prior, its labels are about equally probable for the decoder."""
    shipped = shipped_bundle()
    assert shipped is not None
    decoder = shutil.copytree(shipped, tmp_path / "decoder", ignore=shutil.ignore_patterns("ranker", "spans"))
    model = fm.SystemLanguageModel(bundle=decoder)
    plain, corrected = (
        Classifier(LABELS, model=model, prior_weight=weight).classify_blocking("N/A").probabilities for weight in (0.0, 1.0)
    )
    assert max(corrected.values()) < max(plain.values())
    assert max(corrected.values()) < 0.6


def test_descriptions_are_read_by_the_model() -> None:
    classifier = Classifier({"a": "music is wanted", "b": ""}, "Sort.")
    assert classifier.instructions == "Sort.\na: music is wanted"
    assert classifier.labels == ("a", "b")


def test_a_guardrail_sees_the_text() -> None:
    class Blocks:
        def check_input(self, text: str) -> fm.Allowed | fm.Violation | fm.Refused:
            if "refuse" in text:
                return fm.Refused(reason="no")
            return fm.Violation(category="spam", reason="bad word") if "bad" in text else fm.Allowed()

        def check_output(self, window: str) -> fm.Allowed:
            return fm.Allowed()

    classifier = Classifier(LABELS, model=fm.SystemLanguageModel(guardrails=Blocks()))
    with pytest.raises(fm.GuardrailViolationError, match=r"blocked the prompt \(spam\): bad word"):
        classifier.classify_blocking("a bad text")
    with pytest.raises(fm.RefusalError, match="declined to classify"):
        classifier.classify_blocking("refuse this")
    assert classifier.classify_blocking("put on some jazz").label == "play music"


@pytest.mark.parametrize(
    ("labels", "message"),
    [("ab", "two or more"), (("one",), "two or more"), (("a", "a"), "twice"), (("a", " "), "not empty")],
)
def test_wrong_labels_are_named(labels: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Classifier(labels)


def test_a_part_outside_0_to_1_is_refused() -> None:
    for weight in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="from 0 to 1"):
            Classifier(LABELS, prior_weight=weight)


def test_the_prior_follows_the_weights(tmp_path: Path) -> None:
    """As in reinforcement learning, where an engine gets new weights."""
    model = fm.SystemLanguageModel(bundle=write_tiny_bundle(tmp_path / "tiny").path)
    classifier, engine = Classifier(LABELS, model=model), model.load().engine
    before = classifier.classify_blocking("the cat sat").probabilities
    tensors = {name: tensor * 1.5 for name, tensor in model.described().tensors().items()}
    engine.update_weights(tensors, version=1)
    after = classifier.classify_blocking("the cat sat").probabilities
    assert after != pytest.approx(before, rel=1e-3)
    assert after == pytest.approx(Classifier(LABELS, model=model).classify_blocking("the cat sat").probabilities, rel=2e-2)


@pytest.mark.parametrize("prior_weight", [0.0, 0.75])
def test_a_classifier_keeps_its_model_loaded(prior_weight: float, tmp_path: Path) -> None:
    model = fm.SystemLanguageModel(bundle=write_tiny_bundle(tmp_path / "tiny").path)
    first, second = Classifier(LABELS, model=model, prior_weight=prior_weight), Classifier(LABELS)
    first.classify_blocking("the cat sat")
    loaded = id(model.load())
    second.classify_blocking("the cat sat")
    gc.collect()
    assert id(model.load()) == loaded


def test_choices_of_one_token_and_of_several_are_scored_together() -> None:
    loaded = fm.SystemLanguageModel().load()
    prompt, choices = loaded.tokenizer.encode("Dinner with Maria"), [[5], [5, 6, 7], [9], [8, 9]]
    found_C = loaded.scorer.choice_scores(loaded.engine.new_sequence(), prompt, choices * 9)
    expected = [loaded.scorer.token_scores([*prompt, *choice])[0][-len(choice) :].sum() for choice in choices]
    assert found_C.tolist() == pytest.approx(expected * 9, rel=2e-2)


def test_empty_and_long_texts_and_models_without_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="no text"):
        Classifier(LABELS).classify_blocking("  ")
    with pytest.raises(fm.ExceededContextWindowSizeError, match="shorten the text, or pass fewer labels"):
        Classifier(LABELS).classify_blocking("rain " * 5000)
    with pytest.raises(fm.UnsupportedCapabilityError, match="scores of labels"):
        Classifier(LABELS, model=ScriptedModel())
