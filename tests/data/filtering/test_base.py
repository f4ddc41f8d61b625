"""Opt-outs and length."""

import pytest

from openafm.core.config import ConfigError, dump, from_dict, to_dict
from openafm.data.filtering import FilterConfig, LanguageConfig, OptOutConfig
from openafm.data.filtering.base import LengthConfig, by_language, count_characters
from openafm.data.web.documents import Dropped, WebDocument


def _document(text: str, **values: str) -> WebDocument:
    return WebDocument(id="1", url="https://example.org/a", text=text, **values)


def test_opt_out_of_training_drops_with_its_reason() -> None:
    found = OptOutConfig().build().apply(_document("Text.", opt_out="meta robots: noai"))
    assert found == Dropped(reason="training_opt_out", detail="meta robots: noai", url="https://example.org/a")
    kept = _document("Text.")
    assert OptOutConfig().build().apply(kept) is kept


@pytest.mark.parametrize(
    ("language", "letters", "reason"),
    [("de", 200, ""), ("de", 199, "too_short"), ("zh-Hant", 60, ""), ("zh-Hant", 59, "too_short"), ("de", 1001, "too_long")],
)
def test_length_counts_letters_with_a_limit_by_language(language: str, letters: int, reason: str) -> None:
    chain = LengthConfig(max_letters=1000).build()
    found = chain.apply(_document("字" * letters + " -- " * 500, language=language))
    assert (found.reason if isinstance(found, Dropped) else "") == reason


def test_language_tags_fall_back_to_their_prefix() -> None:
    assert by_language({"zh": 1, "zh-Hant": 2}, "zh-Hans", 3) == 1
    assert by_language({"zh": 1, "zh-Hant": 2}, "zh-Hant", 3) == 2
    assert by_language({"zh": 1}, "de", 3) == 3


def test_configs_survive_json() -> None:
    for config in (OptOutConfig(), LengthConfig(), LanguageConfig()):
        assert from_dict(FilterConfig, {"type": type(config).__name__, **to_dict(config)}) == config
        assert dump(config)


def test_length_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_letters"):
        LengthConfig(min_letters=50, max_letters=10)


@pytest.mark.parametrize("text", ["", "a1 b-c_Ⅷ\n", "東京 2026年、はい。", "".join(map(chr, range(0x2000, 0x2400))) + "abc"])
def test_characters_of_a_kind_are_counted(text: str) -> None:
    for is_counted in (str.isalnum, str.isalpha):
        assert count_characters(text, is_counted) == sum(map(is_counted, text))
