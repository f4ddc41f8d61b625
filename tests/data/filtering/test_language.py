"""Language identification on generated texts of all languages."""

import random

import pytest

from openafm.data.filtering.language import CONFIDENCE_KEY, LANGUAGES, LanguageConfig, chinese_script, locale_of, sample_of
from openafm.data.sites.texts import SentenceWriter
from openafm.data.synthetic.languages import LANGUAGES as CORPUS_LANGUAGES
from openafm.data.web.documents import Dropped, WebDocument

_RUSSIAN = "Это обычный русский текст о погоде и о жизни в большом городе. Сегодня весь день идёт дождь."
_GALICIAN = "Este é un texto escrito en galego sobre a vida na vila, o mar e as festas que se celebran no verán."


def _document(text: str) -> WebDocument:
    return WebDocument(id="1", url="https://example.org/", text=text)


def _text(language: str, seed: int, num_paragraphs: int) -> str:
    rng, writer = random.Random(seed), SentenceWriter(language)
    topic = writer.topics[seed % len(writer.topics)]
    return "\n\n".join(writer.paragraph(rng, topic, 3) for _ in range(num_paragraphs))


def test_the_languages_are_those_of_the_corpus() -> None:
    assert LANGUAGES == CORPUS_LANGUAGES


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_languages_are_identified(language: str) -> None:
    chain = LanguageConfig().build()
    for seed in range(6):
        found = chain.apply(_document(_text(language, seed, 1 + seed)))
        assert isinstance(found, WebDocument)
        assert found.language == language
        assert float(found.metadata[CONFIDENCE_KEY]) > 0.5


def test_other_languages_are_dropped() -> None:
    found = LanguageConfig().build().apply(_document(_RUSSIAN))
    assert isinstance(found, Dropped)
    assert found.reason == "other_language"
    assert found.detail.startswith("ru")
    english = "This is a plain English text about the weather and the life in a large town."
    assert isinstance(LanguageConfig(languages=("de", "fr")).build().apply(_document(english)), Dropped)


def test_the_share_of_other_languages_that_drops_is_configured() -> None:
    strict, lenient = LanguageConfig(max_other=0.3).build(), LanguageConfig(max_other=1.0, min_confidence=0.0).build()
    assert isinstance(strict.apply(_document(_GALICIAN)), Dropped)
    kept = lenient.apply(_document(_GALICIAN))
    assert isinstance(kept, WebDocument)
    assert kept.language in ("pt", "es")


@pytest.mark.parametrize("text", ["", "12345 --- 999", "https://example.org/a/b", "```\nfor x in y: pass\n```"])
def test_text_without_prose_has_no_language(text: str) -> None:
    found = LanguageConfig().build().apply(_document(text))
    assert isinstance(found, Dropped)
    assert found.reason == "unknown_language"


def test_chinese_scripts() -> None:
    assert chinese_script("这个国家的历史和语言") == "zh-Hans"
    assert chinese_script("這個國家的歷史和語言") == "zh-Hant"


def test_samples_of_long_texts_are_short_and_come_from_all_parts() -> None:
    text = "".join(f"{letter * 5} " * 2000 for letter in "abcd")
    sample = sample_of(text, 400)
    assert 300 <= len(sample) <= 400 + 3
    assert len(sample_of("字" * 5000, 400).encode()) <= 400 + 3
    assert all(letter in sample for letter in "abcd")


def test_samples_have_no_code_and_links() -> None:
    assert sample_of("# Title\n\nSee [here](https://example.org/x) `code` and\n\n```\nx = 1\n```\n- end", 400) == (
        "Title See here and end"
    )


@pytest.mark.parametrize(("declared", "locale"), [("en-GB", "en-GB"), ("de-AT", "en"), ("en", "en"), ("", "en")])
def test_the_region_that_a_page_declares_is_kept(declared: str, locale: str) -> None:
    text = "This is a plain English text about the weather and the life in a large town."
    found = LanguageConfig().build().apply(WebDocument(id="1", url="https://example.org/", text=text, language=declared))
    assert isinstance(found, WebDocument)
    assert found.language == "en"
    assert locale_of(found) == locale
