"""Heuristics: each adds a soft penalty; only the sum, or one that the config allows to, drops a document."""

import random
import re
from dataclasses import dataclass
from typing import ClassVar

import pytest

from openafm.core.config import ConfigError, from_dict, to_dict
from openafm.data.filtering.heuristics import (
    PENALTY_KEY,
    BoilerplateConfig,
    FunctionWordsConfig,
    HeuristicConfig,
    HeuristicsConfig,
    LettersConfig,
    RepeatedLinesConfig,
    RepetitionConfig,
    SentencesConfig,
    TextFeatures,
)
from openafm.data.filtering.language import LANGUAGES
from openafm.data.sites.texts import SentenceWriter
from openafm.data.web.documents import Dropped, WebDocument

_PROSE = "The town has a small museum, and it is open on most days of the week. There are boats in the harbor.\n"
_MENU = "Home\nProducts\nShop\nHelp\nLogin\nMen\nWomen\nKids\nSale\nBags\nShoes\n"
_NUMBERS = "12 | 34 | 56 | 78 | +++ | 90 | 11 | 22 |\n" * 3


def _document(text: str, language: str = "en") -> WebDocument:
    return WebDocument(id="1", url="https://example.org/", text=text, language=language)


@pytest.mark.parametrize(
    ("heuristic", "text", "is_penalized"),
    [
        (RepetitionConfig(), "buy cheap shoes now " * 100, True),
        (RepetitionConfig(), "buy cheap shoes now " * 10, False),  # too short to measure
        (RepeatedLinesConfig(), "one line here\n" * 10, True),
        (RepeatedLinesConfig(), _MENU, False),
        (LettersConfig(), _NUMBERS, True),
        (LettersConfig(), _PROSE, False),
        (SentencesConfig(), _MENU, True),
        (SentencesConfig(), _PROSE, False),
        (FunctionWordsConfig(), "shoes bags hats scarves gloves boots sandals socks belts ties", True),
        (FunctionWordsConfig(), _PROSE, False),
        (BoilerplateConfig(), "Sign in\nWe use cookies to improve your experience.\n", True),
        (BoilerplateConfig(), _PROSE, False),
    ],
)
def test_each_heuristic_penalizes_its_kind_of_text(heuristic: HeuristicConfig, text: str, is_penalized: bool) -> None:
    assert (heuristic.penalty(TextFeatures(text, "en")) > 0) == is_penalized


def test_penalties_are_linear_between_good_and_bad() -> None:
    heuristic = RepeatedLinesConfig(good=0.0, bad=1.0, weight=0.5)
    assert heuristic.penalty(TextFeatures("aaaa\nbbbb\naaaa\naaaa", "en")) == pytest.approx(0.25)
    assert heuristic.penalty(TextFeatures("aaaa", "en")) == 0.0


def test_bounds_depend_on_the_language() -> None:
    heuristic = LettersConfig(good=0.5, bad=0.1, bounds_by_language={"tr": (0.99, 0.9)})
    features = TextFeatures("abcdefgh 12", "tr")
    assert heuristic.penalty(features) == heuristic.weight
    assert heuristic.penalty(TextFeatures("abcdefgh 12", "sv")) == 0.0


def test_no_heuristic_drops_alone_and_two_do() -> None:
    chain = HeuristicsConfig().build()
    keywords = "Shoes bags hats scarves gloves boots sandals socks belts ties."
    kept = chain.apply(_document(keywords))
    assert isinstance(kept, WebDocument)
    assert float(kept.metadata[PENALTY_KEY]) == 0.5
    found = chain.apply(_document(keywords + "\n" + _MENU * 3))
    assert isinstance(found, Dropped)
    assert found.reason == "heuristics"
    assert "sentences" in found.detail
    assert "function_words" in found.detail


def test_a_heuristic_drops_alone_if_the_config_says_so() -> None:
    chain = HeuristicsConfig(heuristics=(RepeatedLinesConfig(drops=True),)).build()
    found = chain.apply(_document("one line here\n" * 10))
    assert isinstance(found, Dropped)
    assert found.reason == "heuristic_alone"
    with pytest.raises(ConfigError, match="repeated_lines"):
        HeuristicsConfig(heuristics=(RepeatedLinesConfig(weight=2.0),))


@pytest.mark.parametrize("language", LANGUAGES)
def test_generated_texts_of_all_languages_are_kept(language: str) -> None:
    chain = HeuristicsConfig().build()
    for seed in range(4):
        rng, writer = random.Random(seed), SentenceWriter(language)
        text = "\n\n".join(writer.paragraph(rng, writer.topics[seed], 3) for _ in range(6))
        assert isinstance(chain.apply(_document(text, language)), WebDocument)


def test_code_is_not_measured() -> None:
    text = _PROSE + "```\n" + "x = 1 + 2\n" * 50 + "```\n"
    assert TextFeatures(text, "en").text.strip() == _PROSE.strip()


def test_a_kind_of_another_package_works() -> None:
    @dataclass(frozen=True, kw_only=True)
    class ShoutingConfig(HeuristicConfig):
        NAME: ClassVar[str] = "shouting"
        good: float = 0.2
        bad: float = 0.6

        def measure(self, features: TextFeatures) -> float | None:
            return sum(map(str.isupper, features.text)) / max(1, features.num_visible)

    config = HeuristicsConfig(heuristics=(ShoutingConfig(drops=True),))
    assert from_dict(HeuristicsConfig, to_dict(config)) == config
    assert isinstance(config.build().apply(_document("BUY NOW")), Dropped)


@pytest.mark.parametrize(
    "text", ["Don't stop: snake_case, 3.14!", "İSTANBUL ve Iğdır", "ⒶⒷ ok ＡＢ", "東京へ行く。\u3000はい"]
)
def test_words_are_runs_of_word_characters(text: str) -> None:
    features = TextFeatures(text, "en")
    assert features.words == re.findall(r"\w+", text.lower())
    assert features.num_visible == sum(not character.isspace() for character in features.text)
