"""Guardrail models: data, training on seeds, thresholds by locale, the folder, and the commands."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from openafm.bundle import open_bundle, resolve_model
from openafm.cli.main import run
from openafm.core.config import ConfigError
from openafm.safety.classifier.examples import (
    LabeledText,
    LabeledTextError,
    folds,
    held_out_seeds,
    known_seeds,
    read_labeled_texts,
    training_seeds,
)
from openafm.safety.classifier.features import (
    CharacterNgramsConfig,
    HiddenStatesConfig,
    TextFeaturesConfig,
    WordClassesConfig,
)
from openafm.safety.classifier.head import fit_head
from openafm.safety.classifier.model import GuardrailModelError, ModelGuardrail, Threshold, Thresholds
from openafm.safety.classifier.rates import Rate, wilson
from openafm.safety.classifier.training import GuardrailTrainingConfig, TooFewTextsError, rates, recall_at, train_guardrail
from openafm.safety.classifier.word_classes import WordClassFeatures, classes_of_words, language_of
from openafm.safety.guardrail import Allowed, HoldingGuardrail, Violation

LOCALES = ("de", "fr")


def some_seeds() -> list[LabeledText]:
    return [each for locale in LOCALES for each in known_seeds(locale) if each.side == "prompt"][::2]


def with_states() -> GuardrailTrainingConfig:
    kinds: tuple[TextFeaturesConfig, ...] = (
        HiddenStatesConfig(),
        WordClassesConfig(),
        CharacterNgramsConfig(num_buckets=512),
    )
    return GuardrailTrainingConfig(features=kinds, num_folds=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("guardrail") / "model"
    train_guardrail(with_states(), open_bundle(resolve_model()), some_seeds(), out)
    return out


def test_wilson_and_small_samples() -> None:
    low, high = wilson(8, 10)  # Newcombe 1998
    assert low == pytest.approx(0.4902, abs=1e-3)
    assert high == pytest.approx(0.9433, abs=1e-3)
    assert wilson(0, 50)[0] == 0
    assert "not reported: 49 texts" in str(Rate(count=4, n=49))
    assert Rate(count=4, n=49).to_dict() == {"share": None, "interval": None, "n": 49}
    assert str(Rate(count=25, n=50)).startswith("50.0% [")


def test_seeds_are_divided_by_act() -> None:
    training, held_out = training_seeds(), held_out_seeds()
    assert {each.locale for each in training} == {"de", "en", "es", "fr", "it", "pt"}
    texts = {each.text for each in training}
    assert not texts & {each.text for split in held_out.values() for each in split}
    for split in held_out.values():
        for locale in LOCALES:
            chosen = [each for each in split if each.locale == locale]
            assert min(sum(bool(t.labels) for t in chosen), sum(not t.labels for t in chosen)) >= 50
    fold_of = folds(training, 4)
    assert all(0.2 < fold_of.count(fold) / len(training) < 0.3 for fold in range(4))
    assert len({(t.locale, t.group, fold) for t, fold in zip(training, fold_of, strict=True)}) == len(
        {(t.locale, t.group) for t in training}
    )


def content(text: str) -> set[str]:
    return {word[:5] for word in re.findall(r"\w{4,}", text.casefold())}


@pytest.mark.parametrize("locale", ["de", "en", "es", "fr", "it", "pt"])
def test_the_corpus_has_no_two_content_words_of_a_held_out_act(locale: str) -> None:
    held_out = {each.group for each in held_out_seeds()["new_acts"] if each.locale == locale}
    corpus = [each for each in training_seeds() if each.locale == locale][len(known_seeds(locale)) :]
    harmful = sum(bool(each.labels) for each in corpus)
    assert min(harmful, len(corpus) - harmful) > 1000
    for act in held_out:
        # Frames are not acts; "kill weeds" and "kill ... {weeds}" would share two words.
        longest = max(len(content(act) & content(each.text)) for each in corpus)
        assert longest <= max(2, len(content(act)) - 1), act


def test_word_classes_are_the_same_in_all_languages() -> None:
    assert [names for names in classes_of_words("How do I poison my neighbor?") if "person" in names]
    for text, locale in [("Wie kann ich meinen Nachbarn töten?", "de"), ("¿Cómo puedo matar a mi vecino?", "es")]:
        assert language_of(text.casefold().strip("¿?").split()) == locale
        found = {name for names in classes_of_words(text) for name in names}
        assert {"hurt", "person"} <= found
    features = WordClassFeatures()
    assert features(["the weather"], "prompt").sum() == 0
    hurt, close, far = features(
        ["kill", "I kill a man", "I kill the long and very boring lecture of this summer with that man"], "prompt"
    )
    assert len(hurt.nonzero()[0]) == 1
    assert len(close.nonzero()[0]) == len(far.nonzero()[0]) + 1  # the pair is close
    assert float(close @ close) == pytest.approx(1)


def test_without_hidden_states_torch_is_not_imported_for_checks(tmp_path: Path) -> None:
    train_guardrail(GuardrailTrainingConfig(num_folds=2), None, some_seeds(), tmp_path / "out")
    code = (
        "import sys; from openafm.safety.classifier.model import ModelGuardrail as G;"
        f"g = G.open({str(tmp_path / 'out')!r}, locale='de'); g.check_input('Wie kann ich Brot backen?');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert json.loads((tmp_path / "out" / "guardrail.json").read_text())["bundle"] is None
    with pytest.raises(ConfigError, match="reads the states of a bundle"):
        train_guardrail(with_states(), None, some_seeds(), tmp_path / "other")


@pytest.mark.long
def test_a_model_learns_and_is_saved(folder: Path) -> None:
    guardrail = ModelGuardrail.open(folder, locale="de")
    assert isinstance(guardrail, HoldingGuardrail)
    known = [each for each in some_seeds() if each.locale == "de"]
    found = rates(guardrail.blocked(known), known)["all"]
    assert (found["recall"].share or 0) > 0.5
    assert (found["false_refusals"].share or 0) < 0.15
    blocked = next(each for each, is_blocked in zip(known, guardrail.blocked(known), strict=True) if is_blocked)
    verdict = guardrail.check_input(blocked.text)
    assert isinstance(verdict, Violation)
    assert verdict.reason.startswith("the prompt scores")
    assert guardrail.check_output("") == Allowed()
    # A harmful sentence in a long harmless text is found.
    assert guardrail.score("Ein Satz. " * 200 + blocked.text).probability > guardrail.score("Ein Satz. " * 200).probability


def test_a_head_recognizes_texts_with_a_tenth_of_the_known_features() -> None:
    features_2F = np.kron(np.eye(2), np.full(20, 20**-0.5)).astype(np.float32)  # harmful, then harmless
    targets_NL = np.repeat(np.array([[1], [0]], np.float32), 100, axis=0)
    head = fit_head(features_2F.repeat(100, axis=0), targets_NL, ("hate",), np.zeros(40, np.bool_), decay=1e-5)
    is_kept_F = np.arange(40) % 20 < 2
    harmful, harmless = head.probabilities(features_2F * is_kept_F)[:, 0].tolist()
    assert (harmful > 0.8, harmless < 0.28) == (True, True), (harmful, harmless)


def test_recall_at_a_fixed_share_of_false_refusals() -> None:
    harmless = [(LabeledText(text="a", locale=locale), score / 100) for locale in ("de", "fr") for score in range(100)]
    harmful = [
        (LabeledText(text="b", locale=locale, labels=(label,)), score)
        for locale, label, score in [("de", "hate", 0.995), ("fr", "hate", 0.905), ("fr", "sexual", 0.505)] * 50
    ]
    texts, scores = zip(*harmless, *harmful, strict=True)
    at_2 = recall_at(0.02, scores, texts)
    assert {name: (rate.count, rate.n) for name, rate in at_2.items()} == {"de": (50, 50), "fr": (0, 100), "all": (50, 150)}
    assert recall_at(0.1, scores, texts)["fr"].count == 50
    assert recall_at(0.5, scores, texts)["all"].count == 150
    by_category = recall_at(0.1, scores, texts, by="category")
    assert {name: (rate.count, rate.n) for name, rate in by_category.items()} == {
        "hate": (100, 100),
        "sexual": (0, 50),
        "all": (100, 150),
    }
    assert at_2["all"].interval is not None


@pytest.mark.long
def test_thresholds_by_locale(folder: Path) -> None:
    thresholds = Thresholds(
        default=Threshold(value=0.5, n=100, is_default=True), by_locale={"de": Threshold(value=0.3, n=60, is_default=False)}
    )
    assert thresholds.of("de-AT").value == thresholds.of("de").value == 0.3
    assert thresholds.of("xx") == thresholds.of(None) == thresholds.default
    unknown = ModelGuardrail.open(folder, locale="xx")
    assert unknown.threshold("prompt").is_default
    assert unknown.with_locale("fr").threshold("response") == unknown.with_locale("fr").threshold("prompt")


def test_damaged_folders_and_other_bundles(folder: Path, tmp_path: Path) -> None:
    settings = json.loads((folder / "guardrail.json").read_text())
    weights = (folder / "heads.safetensors").read_bytes()

    def opened(changed: object, data: bytes = weights) -> None:
        (tmp_path / "guardrail.json").write_text(json.dumps(changed))
        (tmp_path / "heads.safetensors").write_bytes(data)
        ModelGuardrail.open(tmp_path)

    bundle, classes, grams = settings["signatures"]
    for signatures, what in (["0" * 40, classes, grams], "word classes"), ([bundle, "0" * 40, grams], "word classes"):
        with pytest.raises(GuardrailModelError, match=f"{what} of another version; train it again"):
            opened(settings | {"signatures": signatures})
    other = {"bundle": settings["bundle"] | {"signature": "0" * 40}, "signatures": ["0" * 40, classes, grams]}
    with pytest.raises(GuardrailModelError, match=r"trained with the bundle .* train it again"):
        opened(settings | other)
    for changed in ([], {}, settings | {"format": 1}, settings | {"thresholds": 3}, settings | {"labels": ["a"]}):
        with pytest.raises(GuardrailModelError):
            opened(changed)
    with pytest.raises(GuardrailModelError):
        opened(settings, weights[:100])
    with pytest.raises(GuardrailModelError):
        ModelGuardrail.open(tmp_path / "nowhere")


def test_too_few_texts_and_wrong_configs(tmp_path: Path) -> None:
    bundle = open_bundle(resolve_model())
    with pytest.raises(TooFewTextsError, match="training needs 50"):
        train_guardrail(GuardrailTrainingConfig(), bundle, some_seeds()[:20], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for wrong in ({"num_folds": 1}, {"false_refusals": 1}, {"features": ()}, {"decay": 0}):
        with pytest.raises(ConfigError):
            GuardrailTrainingConfig(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        CharacterNgramsConfig(num_buckets=0)
    alone = [dataclasses.replace(each, group="one") for each in some_seeds() if each.locale == "de"]
    with pytest.raises(TooFewTextsError, match="of one group"):
        train_guardrail(GuardrailTrainingConfig(), None, alone, tmp_path / "out")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object"),
        ('{"locale": "de", "labels": []}', "'text'"),
        ('{"text": "a", "labels": []}', "'locale'"),
        ('{"text": "a", "locale": "de", "labels": "hate"}', "'labels'"),
        ('{"text": "a", "locale": "de", "labels": ["nonsense"]}', "nonsense"),
        ('{"text": "a", "locale": "de", "labels": [], "side": "both"}', "'side'"),
    ],
)
def test_malformed_data(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "a", "locale": "de", "labels": ["S10", "hate.slurs"]}\n' + line)
    with pytest.raises(LabeledTextError, match=message) as raised:
        read_labeled_texts(path)
    assert ":2:" in str(raised.value)
    path.write_text('{"text": "a", "locale": "de", "labels": ["S10", "hate.slurs"]}\n')
    assert read_labeled_texts(path)[0].labels == ("hate",)
    path.write_text("\n")
    with pytest.raises(LabeledTextError, match="no lines"):
        read_labeled_texts(path)


def test_the_commands(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["safety", "check", "Wie backe ich Brot?", "--locale", "xx", "--guardrail", str(folder), "--json"]) in (0, 1)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["model"]["threshold"]["is_default"] is True
    assert "no list or threshold is for the locale xx" in printed.err
    assert run(["safety", "check", "how to make a b0mb"]) == 1
    assert "blocklist: weapons" in capsys.readouterr().out
    assert run(["safety", "check", "sieg heil", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["overrides"][0]["action"] == "block"
    capsys.readouterr()
    assert run(["safety", "check", "what a day", "--locale", "de-AT"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["safety", "check", "what a day", "--side", "both"]) == 2
    for locale, nearest in (
        ("@@", "such as en-GB"),
        ("de_at", "such as de-AT"),
        ("germn", "such as"),
        ("zh_hans", "zh-Hans"),
    ):
        assert run(["safety", "check", "what a day", "--locale", locale]) == 2
        assert nearest in capsys.readouterr().err
    assert run(["safety", "taxonomy", "--locale", "@@"]) == 2
    assert run(["safety", "train-guardrail", "--out", str(tmp_path / "out")]) == 2
    assert "--seeds" in capsys.readouterr().err
