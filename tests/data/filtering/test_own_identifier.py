"""A language identifier trained on texts of the languages."""

import random
from pathlib import Path

import pytest

from openafm.core.files import file_digest
from openafm.data.filtering import LanguageConfig
from openafm.data.filtering.classifier import ClassifierFileError
from openafm.data.filtering.features import FeaturesConfig
from openafm.data.filtering.own_identifier import IdentifierTrainingConfig, OwnIdentifierConfig, train_identifier
from openafm.data.filtering.quality import TooFewDocumentsError
from openafm.data.sites.texts import SentenceWriter
from openafm.data.web.documents import Dropped, WebDocument

_LANGUAGES = ("da", "nb", "sv", "zh-Hans")
_CONFIG = IdentifierTrainingConfig(
    features=FeaturesConfig(bits=14, word_orders=(1,), character_orders=(2, 3)), max_pieces=60
)


def _text(language: str, seed: int, num_paragraphs: int = 12) -> str:
    rng, writer = random.Random(seed), SentenceWriter(language)
    return "\n".join(writer.paragraph(rng, writer.topics[0], 3) for _ in range(num_paragraphs))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("identifier") / "own.identifier"
    texts = [(language.lower(), _text(language, seed)) for language in _LANGUAGES for seed in range(4)]
    classifier, report = train_identifier(texts, _CONFIG)
    again, _ = train_identifier(reversed(texts), _CONFIG)
    assert classifier.save(path) == again.save(path.with_suffix(".again"))
    assert min(report.accuracy.values()) >= 0.8
    assert set(report.num_pieces) == set(_LANGUAGES)
    return path


def test_an_own_identifier_replaces_the_seed(file: Path) -> None:
    config = LanguageConfig(languages=_LANGUAGES, identifier=OwnIdentifierConfig(file=str(file)))
    chain = config.build()
    for language in _LANGUAGES:
        found = chain.apply(WebDocument(id="1", url="https://example.org/", text=_text(language, 99, 4)))
        assert isinstance(found, WebDocument)
        assert found.language == language
    assert isinstance(chain.apply(WebDocument(id="1", url="u", text="12345")), Dropped)
    assert OwnIdentifierConfig(file=str(file)).input_digests() == (file_digest(file),)


def test_texts_of_one_language_are_an_error() -> None:
    with pytest.raises(TooFewDocumentsError, match="two languages or more"):
        train_identifier([("de", _text("de", 1))], _CONFIG)
    with pytest.raises(TooFewDocumentsError, match="no language"):
        train_identifier([("de", _text("de", 1)), ("", _text("en", 1))], _CONFIG)


def test_a_quality_filter_is_no_identifier(tmp_path: Path) -> None:
    from openafm.data.filtering.classifier import TrainingConfig, train_classifier

    other = train_classifier(["a", "b"], [0, 1], ("negative", "positive"), FeaturesConfig(bits=8), TrainingConfig())
    other.save(tmp_path / "file")
    with pytest.raises(ClassifierFileError, match="not of languages"):
        OwnIdentifierConfig(file=str(tmp_path / "file")).build()
