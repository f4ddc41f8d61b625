"""The lexicon files: complete, well-formed, and without overlap between the splits."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Iterator
from typing import Any

import pytest

from openafm.core.config import ConfigError, UnknownKeyError, from_dict, to_dict
from openafm.data.synthetic.lexicons import LANGUAGES, EventWords, Lexicon, Section, Topic, lexicon, part, whole_lexicon
from openafm.data.synthetic.moments import date_slots, time_texts
from openafm.data.synthetic.slots import bare, pieces, slots_of, with_particles

COMMON = {"person", "other", "n", "proper", "place"}
DATE = {"d", "dd", "m", "mm", "yyyy", "iso", "day", "month", "weekday"}
WHEN = {"date", "date_bare", "time", "time_bare"}
TITLES = {"title", "the_title", "acc_title"}
STORY = {"hero", "friend", "object", "skill"}
# Slots of fields that have other ones than the common: by section and field, or for a whole section.
SLOTS: dict[str, set[str]] = {
    "Time": {"h", "hh", "h12", "mm", "period"},
    "Calendar": DATE,
    **{f"Calendar.{name}": WHEN for name in ("when_both", "when_date", "when_time", "bare_both", "bare_date", "bare_time")},
    "EventWords": {"person", "other"},
    "EventWords.with_person": {"activity", "person", "other"},
    "EventWords.with_topic": {"activity", "topic"},
    "EventWords.families": TITLES | WHEN | {"when", "when_bare", "place", "place_bare", "person"},
    "EventWords.openers": {"person", "n"},
    "EventWords.closers": {"person", "n"},
    "Topic": {"thing", "person"},
    "Report": {"person", "other", "n"},
    "Wording": {"person", "document"},
    "RewriteWords": {"person", "other", "items"},
    "Problem": {"person", "other", "a", "b", "r", "thing"},
    "TwoProblems": {"person", "other", "a", "b", "c", "d", "r", "s", "thing"},
    "StoryWords": STORY,
}


def texts(section: Section) -> Iterator[tuple[str, str]]:
    """Every text of a lexicon with the class and field that it stands in."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Section):
                yield from texts(item)
            elif isinstance(item, str):
                yield f"{type(section).__name__}.{field.name}", item


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_uses_only_slots_that_exist_there(language: str) -> None:
    for place, text in texts(whole_lexicon(language)):
        allowed = SLOTS.get(place, SLOTS.get(place.split(".")[0], COMMON))
        assert slots_of(text) <= allowed, f"{language} {place}: {text!r}"
        assert not re.search(r"[\0\1]", text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_there_is_enough_of_everything(language: str) -> None:
    words = whole_lexicon(language)
    assert words.language == language
    assert min(len(words.people), len(words.places), len(titles(words.event))) >= 24
    assert len(lexicon(language, "train").event.families) >= 8
    assert len(lexicon(language, "held_out").event.families) >= 3
    for name, texts_of in lists(words):
        assert len(set(texts_of)) == len(texts_of) or "calendar" in name or "with_" in name, (
            f"{language}: repeated in {name}"
        )


@pytest.mark.parametrize("language", LANGUAGES)
def test_families_hold_their_title_once_and_always(language: str) -> None:
    for family in whole_lexicon(language).event.families:
        assert sum(bool(piece.slots & TITLES) for piece in pieces(family) if not piece.optional) == 1, family
        assert not any(piece.slots & TITLES for piece in pieces(family) if piece.optional), family
        assert len(re.findall(r"\{\w*title\}", family, re.IGNORECASE)) == 1, family
        assert len(re.findall(r"\{place", family, re.IGNORECASE)) <= 1, family
        assert family.count("[") == family.count("]")


@pytest.mark.parametrize("language", LANGUAGES)
def test_names_of_places_dates_and_times_are_marked(language: str) -> None:
    words = whole_lexicon(language)
    calendar = words.calendar
    assert (len(calendar.months), len(calendar.weekdays)) == (12, 7)
    assert len(calendar.days) in (0, 31)
    assert all(re.fullmatch(r"[^<>]*<[^<>]+>[^<>]*", place) for place in words.places)
    for offset in range(0, 366, 3):
        day = datetime.date(2028, 1, 1) + datetime.timedelta(days=offset)
        for kind in ("today", "weekday", "day_month", "day_month_year", "numeric", "numeric_year", "iso"):
            for text in getattr(calendar, kind):
                filled = text.format_map(date_slots(calendar, day))
                assert re.fullmatch(r"[^<>]*<[^<>]+>[^<>]*", filled), filled
                assert bare(filled).strip() == bare(filled)
    for hour in range(6, 24):
        for minute in range(0, 60, 5):
            written = time_texts(language, hour, minute)
            assert written
            assert all(re.fullmatch(r"[^<>]*<[^<>]+>[^<>]*", text) for text in written)


def test_splits_share_no_frame_name_place_or_title_in_any_two_languages() -> None:
    train, held_out = ([lexicon(language, split) for language in LANGUAGES] for split in ("train", "held_out"))
    for open_lists in (
        lambda words: words.people,
        lambda words: words.propers,
        lambda words: words.places,
        lambda words: titles(words.event),
        lambda words: words.event.topics,
        lambda words: words.event.families,
        lambda words: words.event.openers + words.event.closers,
        lambda words: tuple(report.text for report in words.summary.reports),
        lambda words: tuple(wording.casual for wording in words.rewrite.wordings),
        lambda words: words.rewrite.enumerations,
        lambda words: words.story.openings + words.story.lost_prompts,
        lambda words: tuple(sentence for topic in words.tagging.topics for sentence in topic.sentences),
    ):
        seen = {text.casefold() for words in train for text in open_lists(words)}
        new = {text.casefold() for words in held_out for text in open_lists(words)}
        assert new
        assert not seen & new


def test_splits_divide_lists_and_share_closed_ones() -> None:
    assert part(tuple(range(8)), "train") == (0, 1, 2, 3, 4, 5)
    assert part(tuple(range(9)), "held_out") == (6, 7, 8)
    whole, train, held_out = whole_lexicon("en"), lexicon("en", "train"), lexicon("en", "held_out")
    assert train.people + held_out.people == whole.people
    assert train.calendar == held_out.calendar == whole.calendar
    assert [topic.tag for topic in train.tagging.topics] == [topic.tag for topic in held_out.tagging.topics]
    for topic, kept, left in zip(whole.tagging.topics, train.tagging.topics, held_out.tagging.topics, strict=True):
        assert isinstance(topic, Topic)
        assert kept.sentences + left.sentences == topic.sentences


def test_a_wrong_lexicon_is_refused() -> None:
    values = to_dict(whole_lexicon("en"))
    with pytest.raises(UnknownKeyError, match="did you mean 'people'"):
        from_dict(Lexicon, values | {"peoples": []})
    with pytest.raises(ConfigError, match="missing people"):
        from_dict(Lexicon, {key: value for key, value in values.items() if key != "people"})


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("민준(은/는) 수아(과/와)", "민준은 수아와"),
        ("회의\0(이/가)", "회의\0가"),
        ("시청(을/를)", "시청을"),
        ("Luna(이/가)", "Luna가"),
    ],
)
def test_korean_particles_follow_the_last_sound(written: str, read: str) -> None:
    assert with_particles(written) == read


def titles(words: EventWords) -> tuple[str, ...]:
    return tuple(text.rpartition("|")[2] for text in words.errands + words.social + words.meetings + words.named)


def lists(section: Section, path: str = "") -> Iterator[tuple[str, tuple[Any, ...]]]:
    for field in dataclasses.fields(section):
        value, name = getattr(section, field.name), f"{path}.{field.name}"
        if isinstance(value, Section):
            yield from lists(value, name)
        elif isinstance(value, tuple):
            yield name, value
            for item in value:
                if isinstance(item, Section):
                    yield from lists(item, name)
