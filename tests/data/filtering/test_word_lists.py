"""Word lists by locale: seeds, files that add and remove terms, and limits that spare a quoted word."""

from pathlib import Path

import pytest

from openafm.core.config import ConfigError
from openafm.data.filtering.language import LANGUAGES
from openafm.data.filtering.word_lists import WordListConfig, _read_seeds
from openafm.data.web.documents import Dropped, WebDocument


def _document(text: str, language: str) -> WebDocument:
    return WebDocument(id="1", url="https://example.org/", text=text, language=language)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("category", ["adult", "toxicity"])
def test_seeds_of_all_languages_drop(language: str, category: str) -> None:
    terms = [term.removesuffix("*") for term in _read_seeds()[category][language]]
    assert len(terms) >= 5
    found = WordListConfig().build().apply(_document(", ".join(terms), language))
    assert isinstance(found, Dropped)
    assert found.reason == category


def test_one_quoted_word_is_kept_and_counted() -> None:
    text = "The minister called the plan bullshit. " + "The debate about the new road goes on for a third day. " * 30
    kept = WordListConfig().build().apply(_document(text, "en"))
    assert isinstance(kept, WebDocument)
    assert kept.metadata == {"toxicity.hits": "1"}


def test_terms_are_whole_words_of_the_language() -> None:
    chain = WordListConfig(min_distinct=1).build()
    assert isinstance(chain.apply(_document("Scunthorpe and Essexxx", "en")), WebDocument)
    assert isinstance(chain.apply(_document("merda", "de")), WebDocument)  # Italian, not German
    assert isinstance(chain.apply(_document("merda", "it")), Dropped)
    assert isinstance(chain.apply(_document("merda", "it-CH")), Dropped)


def test_files_add_and_remove_terms_by_locale(tmp_path: Path) -> None:
    file = tmp_path / "lists.toml"
    file.write_text('[toxicity]\nen-GB = ["wanker*"]\n[toxicity.remove]\nen = ["bullshit"]\n[spam]\nen = ["casino"]\n')
    chain = WordListConfig(files=(str(file),), categories=("toxicity", "spam"), min_distinct=1).build()
    reasons = {}
    for language, text in [("en-GB", "wankers"), ("en", "wankers"), ("en", "bullshit"), ("en-GB", "casino")]:
        found = chain.apply(_document(text, language))
        reasons[language, text] = found.reason if isinstance(found, Dropped) else ""
    assert reasons == {
        ("en-GB", "wankers"): "toxicity",
        ("en", "wankers"): "",
        ("en", "bullshit"): "",
        ("en-GB", "casino"): "word_list",
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[adult", "not TOML"),
        ("adult = 3", "table of locales"),
        ('[adult]\nen = "porn"', "list of terms"),
        (None, "cannot read"),
    ],
)
def test_bad_files_are_config_errors(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "lists.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        WordListConfig(files=(str(file),)).build()


def test_an_unknown_category_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"no list of the category gore; the lists have: adult, toxicity"):
        WordListConfig(categories=("gore",)).build()
