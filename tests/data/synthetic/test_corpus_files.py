"""The hand-written files of every language: valid, and the values of dates and times equal an independent computation's."""

from __future__ import annotations

import datetime
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openafm.data.synthetic import LANGUAGES
from openafm.data.synthetic.rendering import Piece, render, text_of
from openafm.data.synthetic.text_files.catalogs import catalog_of, catalogs
from openafm.data.synthetic.text_files.frames import frames_of
from openafm.data.synthetic.text_files.posters import poster_texts
from openafm.data.synthetic.text_files.source_text import Line, SourceTextError, parse_frame
from openafm.data.synthetic.validate import near_duplicates, problems, shortfalls

pytestmark = pytest.mark.xdist_group("languages")  # one worker reads the files of all languages


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_files_of_a_language_have_no_mistakes(language: str) -> None:
    assert list(problems(language)) == []


def test_texts_that_are_missing_are_counted() -> None:
    assert list(shortfalls("en")) == list(shortfalls("de")) == []
    assert all(found.startswith(f"{language}/") for language in LANGUAGES for found in shortfalls(language))


@pytest.mark.long
def test_every_language_has_texts() -> None:
    for language in LANGUAGES:
        frames = frames_of(language, "train")
        assert frames.language == language
        assert len(frames.events) > 15
        assert list(frames.calendar.ambiguities()) == []


def test_near_duplicates_are_found() -> None:
    texts = ["See you {when} for {title}!", "Where is my parcel?", "See you {when} for {title:the}.", "Where is she?"]
    assert list(near_duplicates(texts)) == [(0, 2)]


DAYS = st.dates(datetime.date(2018, 1, 1), datetime.date(2039, 12, 31))
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@settings(max_examples=300, deadline=None)
@given(today=DAYS, seed=st.integers(0, 10**6))
def test_the_dates_of_english_by_another_computation(today: datetime.date, seed: int) -> None:
    phrase = frames_of("en", "train").calendar.draw_date(random.Random(seed), today)
    day = datetime.date.fromisoformat(phrase.value)
    assert phrase.bare in phrase.text
    named = [name for name in WEEKDAYS if name in phrase.bare]
    assert named in ([], [WEEKDAYS[day.weekday()]])
    days_ahead = (day - today).days
    match phrase.section:
        case "today":
            assert days_ahead == 0
        case "tomorrow":
            assert days_ahead == 1
        case "day_after_tomorrow":
            assert days_ahead == 2
        case "weekday":
            assert 1 <= days_ahead <= 7
        case "next_week":
            assert day.isocalendar()[:2] == (today + datetime.timedelta(7)).isocalendar()[:2]
        case "in_weeks":
            assert days_ahead > 0
            assert days_ahead % 7 == 0
        case "day_only":
            assert 1 <= days_ahead <= 27
            assert str(day.day) in phrase.bare or "th" in phrase.bare or "st" in phrase.bare or "nd" in phrase.bare
        case "day_month" | "numeric":
            assert 0 <= days_ahead < 365
        case "day_month_year" | "numeric_year":
            assert f"{day.year % 100:02}" in phrase.bare
        case "iso":
            assert phrase.bare == phrase.value


@pytest.mark.parametrize(
    ("text", "hour", "minute"),
    [
        ("half past {hour}", 19, 30),
        ("quarter to {next_hour}", 8, 45),
        ("{to_minute} to {next_hour}", 17, 40),
        ("{h12}:{mm} {period}", 0, 5),
        ("{hh}:{mm}", 7, 0),
        ("{h12} {period}", 12, 0),
    ],
)
def test_times_of_english(text: str, hour: int, minute: int) -> None:
    calendar = frames_of("en", "train").calendar
    written = {
        "half past {hour}": "half past seven",
        "quarter to {next_hour}": "quarter to nine",
        "{to_minute} to {next_hour}": "twenty to six",
        "{h12}:{mm} {period}": "12:05 am",
        "{hh}:{mm}": "07:00",
        "{h12} {period}": "12 pm",
    }
    frame = parse_frame(Line(text=text, number=1, file="x"))
    assert text_of(render(frame, random.Random(0), calendar.time_resolver(hour, minute))) == written[text]


@pytest.mark.parametrize("language", LANGUAGES)
def test_splits_share_no_frame_word_domain_tool_or_text(language: str) -> None:
    train, held_out = frames_of(language, "train"), frames_of(language, "held_out")
    for of_split in (lambda frames: frames.events, lambda frames: frames.others, lambda frames: frames.places):
        lines = [{frame.line.text for frame in of_split(frames)} for frames in (train, held_out)]
        assert min(map(len, lines)) > 1  # a language has about 80 places, of which few are held out
        assert not lines[0] & lines[1]
    for kind in ("person", "surname", "name", "city", "food"):
        assert not set(train.words.list_of(kind)) & set(held_out.words.list_of(kind))
    catalogs_of_splits = catalog_of(language, "train"), catalog_of(language, "held_out")
    for of_split in (lambda catalog: catalog.tools, lambda catalog: catalog.forms):
        names = [{item.name for item in of_split(catalog)} for catalog in catalogs_of_splits]
        assert min(map(len, names)) > 2
        assert not names[0] & names[1]
    texts = [
        {text.line.text for labels in catalog.label_sets for label in labels.labels for text in label.texts}
        for catalog in catalogs_of_splits
    ]
    assert not texts[0] & texts[1]
    splits = ("train", "held_out")
    titles = [{frame.line.text for frame in poster_texts(language, split).section("title")} for split in splits]
    assert min(map(len, titles)) > 0
    assert not titles[0] & titles[1]


def test_english_has_what_other_languages_build_on() -> None:
    english = catalogs("en")
    assert len(english.tools) > 90
    assert len(english.forms) > 40
    assert sum(len(labels.labels) for labels in english.label_sets) > 100


def test_continuations_add_names_and_texts() -> None:
    sentiment = next(labels for labels in catalogs("en").label_sets if labels.name == "sentiment")
    positive = sentiment.labels[0]
    assert {text.line.file for text in positive.texts} == {"en/labels.txt", "en/labels_feelings.txt"}
    assert positive.aliases[:3] == ("good", "happy", "pleased")
    assert len(set(positive.aliases)) == len(positive.aliases) > 3
    assert positive.description == "The writer is pleased"
    assert sentiment.weight == pytest.approx(sum(len(label.texts) for label in sentiment.labels) ** 0.5)
    frames = frames_of("en", "train")
    assert {frame.line.file for frame in frames.events} == {"en/events.txt", "en/events_more.txt"}
    assert {frame.line.file for frame in frames.plain_events} == {"en/events.txt"}
    assert {frame.line.file for frame in frames.others} == {"en/other.txt", "en/other_more.txt"}


def test_the_validator_names_a_language_without_texts() -> None:
    from openafm.data.synthetic.validate import main, problems

    assert len(list(problems("xx"))) == 1
    assert "xx: no such folder" in next(problems("xx"))
    assert main(["xx"]) == 1


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("events.txt", "== a\nSee you {when}\n", "has no title"),
        ("events.txt", "== a\n{title} and {title}\n", "appears 2 times"),
        ("events.txt", "== a\n{title} {whem}\n", "unknown slot '{whem}'"),
        ("events.txt", "== a\n{title:der}\n", "no title has the form 'der'"),
        ("places.txt", "== place\nat the library\n", "one <...>"),
        ("times.txt", "== time\nat <{h12}>\n== other\n{hh}\n", "'1' means 13:00|means"),
        ("times.txt", "== time\nat <{hh}> ; hour 8-99\n== other\n{hh}\n", "outside"),
        ("tools.txt", "== set_timer\nset a timer\n", "required field 'minutes'"),
        ("tools.txt", "== fly | Flies.\n: to: planet\nfly to {to}\n", "unknown kind 'planet'"),
        ("forms.txt", "== a | A form\n: x: enum(b, c)\n{x=d}\n", "'d' is not a value of x"),
        ("labels.txt", "== a | Which\n: b | |\nonly one\n", "two or more labels"),
        ("labels.txt", "== a | Which\n: b\none\n: c\ntwo\n: b\nthree\n", "a second label 'b'"),
        ("labels_more.txt", "== sentiment\n: positive\nGreat\n: happy\nWonderful\n", "no label 'happy'; known: positive,"),
        (
            "labels_more.txt",
            "== sentiment\n: negative\nThe coffee was cold and so was the waiter.\n"
            ": neutral\nThe coffee was cold, and so was the waiter\n",
            "nearly the same as line 3",
        ),
        (
            "labels_more.txt",
            "== sentiment\n: positive\nI absolutely love my new {product}!\n",
            r"nearly the same as line \d+ of en/labels.txt",
        ),
        ("labels_more.txt", "== sentiment\nGreat\n", "text before the first label"),
        ("labels_more.txt", "== sentiment\n: positive\nGreat\n: positive\nGood\n", "a second label 'positive'"),
        (
            "labels_more.txt",
            "== sentiment | Mood\n: positive\nGreat\n",
            "write what follows '== sentiment' in en/labels.txt",
        ),
        ("forms_more.txt", "== contact\n: name: person\n{name}\n", "a second field 'name'"),
        ("label_more.txt", "== sentiment\n", "is not read; continuations begin with"),
    ],
)
def test_the_validator_finds(file: str, text: str, message: str, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    import re
    import shutil

    from openafm.data.synthetic import languages, validate

    copied = tmp_path / "text"
    without_more = shutil.ignore_patterns("*_*.txt")
    shutil.copytree(languages.text_folder() / "en", copied / "en", ignore=without_more)
    if file == "tools.txt":  # as another language than English, whose definitions it takes
        shutil.copytree(languages.text_folder() / "en", copied / "de", ignore=without_more)
    language = "de" if file == "tools.txt" else "en"
    (copied / language / file).write_text(text, encoding="utf-8")
    for module in (languages, validate):
        monkeypatch.setattr(module, "text_folder", lambda: copied)
    found = "\n".join(validate.problems(language))
    assert re.search(message, found), found


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from openafm.core.libraries import MissingLibraryError
    from openafm.data.synthetic.languages import locale_of

    monkeypatch.setitem(sys.modules, "babel", None)
    locale_of.cache_clear()
    with pytest.raises(MissingLibraryError, match="openafm\\[corpus\\]"):
        locale_of("en")


def test_a_file_that_is_missing_is_named(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from openafm.data.synthetic import languages, words

    monkeypatch.setattr(languages, "text_folder", lambda: tmp_path)
    with pytest.raises(SourceTextError, match=r"en/words\.txt"):
        words.LanguageWords("en", "train")


def test_digits_of_two_slots_do_not_join() -> None:
    values = {"date": "6/25", "time": "19:00", "hh": "19", "mm": "30"}

    def rendered(text: str) -> str:
        return text_of(
            render(
                parse_frame(Line(text=text, number=1, file="x")), random.Random(0), lambda slot: [Piece(values[slot.name])]
            )
        )

    assert rendered("{date}{time}") == "6/25 19:00"
    assert rendered("{hh}{mm}") == "1930"


@pytest.mark.parametrize(
    ("word", "written"), [("서울", "서울로"), ("부산", "부산으로"), ("제주", "제주로"), ("8", "8로"), ("3", "3으로")]
)
def test_korean_particles_follow_the_last_sound(word: str, written: str) -> None:
    frame = parse_frame(Line(text="{city}(으로/로)", number=1, file="x"))
    assert text_of(render(frame, random.Random(0), lambda _: [Piece(word)], language="ko")) == written
