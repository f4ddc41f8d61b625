"""Sentences, names and words of navigation for generated pages, in sixteen languages."""

from __future__ import annotations

import functools
import importlib.resources
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.languages import Split
from openafm.data.synthetic.rendering import render, text_of
from openafm.data.synthetic.tasks.messages import Distractors
from openafm.data.synthetic.text_files.catalogs import TOPICS, catalog_of
from openafm.data.synthetic.text_files.frames import LanguageFrames, frames_of
from openafm.data.synthetic.text_files.source_text import Frame

_ENDS = (".", "!", "?", "…", "。", "！", "？", "~", ")", "）", "」")
_TOPIC_SHARE = 0.3
_WITHOUT_SPACES = ("zh-Hans", "zh-Hant", "ja")


@functools.cache
def chrome_words(language: str) -> Mapping[str, str]:
    """Return the words of navigation, banners and footers of a language, by key."""
    text = importlib.resources.files("openafm.data.sites").joinpath("chrome.toml").read_text("utf-8")
    return dict(tomllib.loads(text)[language])


@dataclass(frozen=True)
class _Source:
    """The frames of one language: those of each topic, and all others."""

    frames: LanguageFrames
    by_topic: Mapping[str, Sequence[Frame]]
    general: Sequence[Frame]


@functools.cache
def _source_of(language: str, split: Split) -> _Source:
    frames, catalog = frames_of(language, split), catalog_of(language, split)
    by_topic: dict[str, Sequence[Frame]] = {}
    general: list[Frame] = list(frames.others)
    for labels in catalog.label_sets:
        for label in labels.labels:
            if labels.name == TOPICS:
                by_topic[label.name] = label.texts
            else:
                general += label.texts
    return _Source(frames, by_topic, general)


class SentenceWriter:
    """Draw sentences of one page in one language from the frames of the synthetic corpus; few of them repeat."""

    def __init__(self, language: str, split: Split = "train") -> None:
        self.language = language
        self._source = _source_of(language, split)
        self._used: set[str] = set()
        self.topics = tuple(self._source.by_topic)

    @property
    def space(self) -> str:
        """The separator of sentences: empty in Chinese and Japanese."""
        return "" if self.language in _WITHOUT_SPACES else " "

    def sentence(self, rng: random.Random, topic: str) -> str:
        """Return a sentence with its final punctuation, in most cases one that this page lacks."""
        text = ""
        for _ in range(4):
            frame = rng.choice(self._source.by_topic[topic] if rng.random() < _TOPIC_SHARE else self._source.general)
            values = Distractors(rng, self._source.frames, draw_reference_day(rng))
            text = " ".join(text_of(render(frame, rng, values, language=self.language)).split())
            if text not in self._used:
                break
        self._used.add(text)
        return text if text.endswith(_ENDS) else text + ("。" if not self.space else ".")

    def paragraph(self, rng: random.Random, topic: str, num_sentences: int) -> str:
        """Return different sentences, joined."""
        sentences = [self.sentence(rng, topic) for _ in range(num_sentences)]
        return self.space.join(dict.fromkeys(sentences))

    def heading(self, rng: random.Random, topic: str) -> str:
        """Return a sentence without its final punctuation."""
        return self.sentence(rng, topic).rstrip("".join(_ENDS)).strip() or topic

    def person(self, rng: random.Random) -> str:
        """Return a person's name."""
        return self._source.frames.draw_word(rng, "person")

    def word(self, rng: random.Random, kind: str) -> str:
        """Return a word of a kind such as `city`, `food` or `company`."""
        return self._source.frames.draw_word(rng, kind)
