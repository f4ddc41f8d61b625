"""Items, locales and project folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grading_projects import item, project_of

from openafm.annotation.errors import AnnotationError
from openafm.annotation.grading.items import CATEGORIES, read_items, write_items
from openafm.annotation.grading.locales import GROUPS, built_in_guidelines, check_locale, guidelines_of, locale_group
from openafm.annotation.grading.project import ITEMS, SETTINGS, open_project
from openafm.annotation.grading.sample import create_sample

GOOD = {"id": "i", "prompt": "P", "answers": {"a": "A", "b": "B"}, "category": "Chat", "locale": "en-US"}


def test_items_survive_a_round_trip(tmp_path: Path) -> None:
    (tmp_path / "menu.png").touch()
    turns = [{"role": "system", "content": "Brief."}, {"role": "user", "content": "Hi\u2028there"}]
    items = [item("one", gold="a"), item("two", prompt=turns, images=["menu.png"], answers={"a": "1", "b": "2", "c": "3"})]
    write_items(tmp_path / ITEMS, items)
    assert read_items(tmp_path / ITEMS) == items
    assert items[1].pairs == (("a", "b"), ("a", "c"), ("b", "c"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"category": "Open Q"}, "did you mean 'Open QA'"),
        ({"locale": "english"}, "not a locale"),
        ({"answers": {"a": "A"}}, "two or more systems"),
        ({"answers": {"a": "A", "tie": "B"}}, "cannot name a system"),
        ({"answers": {"a": "A", "b": "  "}}, "answers.b"),
        ({"answers": {"a": "A", "b": "\ud800"}}, "surrogate"),
        ({"gold": "c"}, "'gold'"),
        ({"prompt": []}, "'prompt'"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, "ends with a message of the user"),
        ({"prompt": [{"role": "human", "content": "x"}]}, "'role'"),
        ({"images": ["../x.png"]}, "below the project"),
        ({"images": ["missing.png"]}, "missing.png is not in"),
        ({"id": ""}, "'id'"),
        ({"grade": 1}, "unknown key 'grade'"),
    ],
)
def test_wrong_items_name_the_line(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    lines = [json.dumps(GOOD), "", json.dumps(GOOD | {"id": "j"} | change)]
    (tmp_path / ITEMS).write_text("\n".join(lines))
    with pytest.raises(AnnotationError, match=rf"items.jsonl:3: .*{reason}"):
        read_items(tmp_path / ITEMS)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / ITEMS
    for content, reason in ((b"\xff", "not UTF-8"), (b"{", "not JSON"), (b"[]", "an object"), (b"[" * 100_000, "not JSON")):
        path.write_bytes(content)
        with pytest.raises(AnnotationError, match=reason):
            read_items(path)
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD))
    with pytest.raises(AnnotationError, match="occurs twice"):
        read_items(path)
    with pytest.raises(AnnotationError, match="cannot be read"):
        read_items(tmp_path / "missing.jsonl")


@pytest.mark.parametrize(
    ("locale", "group"),
    [
        ("en-US", "en-US"),
        ("en-GB", "English outside US"),
        ("en-CA", "English outside US"),
        ("pt-BR", "PFIGSCJK"),
        ("de-DE", "PFIGSCJK"),
        ("zh-Hans-CN", "PFIGSCJK"),
        ("zh-CN", "PFIGSCJK"),
        ("zh-Hant-TW", "Other"),
        ("zh-TW", "Other"),
        ("sv-SE", "Other"),
    ],
)
def test_locales_have_the_groups_of_the_report(locale: str, group: str) -> None:
    check_locale(locale)
    assert locale_group(locale) == group
    assert group in GROUPS


def test_guidelines_cover_the_sixteen_languages() -> None:
    guidelines = built_in_guidelines()
    languages = {locale.rpartition("-")[0] for locale in guidelines}
    scripts = {"zh-Hans", "zh-Hant"}
    assert languages == scripts | {"da", "de", "en", "es", "fr", "it", "ja", "ko", "nb", "nl", "pt", "sv", "tr", "vi"}
    for locale, each in guidelines.items():
        check_locale(locale)
        assert each["name"]
        assert len(each["checks"]) >= 3
        assert all(set(term) == {"instead_of", "use"} for term in each["terms"])
    assert {"instead_of": "soccer", "use": "football"} in guidelines["en-GB"]["terms"]
    assert guidelines_of("de-AT", guidelines) == guidelines["de-DE"]
    assert guidelines_of("zh-Hant-HK", guidelines) == guidelines["zh-Hant-TW"]
    assert guidelines_of("fi-FI", guidelines) is None


def test_projects_are_created_once_and_read_again(tmp_path: Path) -> None:
    project = project_of(tmp_path, title='A "wave"', overlap=2)
    assert open_project(tmp_path).config == project.config
    assert open_project(tmp_path).tasks == project.tasks
    with pytest.raises(AnnotationError, match="has a project"):
        project_of(tmp_path)
    with pytest.raises(AnnotationError, match="grade init"):
        open_project(tmp_path / "missing")
    for text, reason in (
        ("id = ", "cannot be used"),
        ('id = "x"\noverlp = 2', "overlap"),
        ('id = "x"\noverlap = 0', "positive"),
    ):
        (tmp_path / SETTINGS).write_text(text)
        with pytest.raises(AnnotationError, match=reason):
            open_project(tmp_path)


def test_sides_are_shuffled_by_the_seed(tmp_path: Path) -> None:
    project = project_of(tmp_path / "one", [item(f"i{n}") for n in range(100)], id="same")
    sides = [project.left(task, "ana") for task in project.tasks.values()]
    assert sides == [project.left(task, "ana") for task in project.tasks.values()]
    assert 30 < sides.count("a") < 70
    other = project_of(tmp_path / "two", project.items, id="same", seed=2)
    assert sides != [other.left(task, "ana") for task in other.tasks.values()]


def test_the_sample_has_locales_of_three_groups(tmp_path: Path) -> None:
    project = create_sample(tmp_path)
    assert {locale_group(each.locale) for each in project.items} == set(GROUPS[:3])
    assert {each.category for each in project.items} <= set(CATEGORIES)
    assert sum(task.is_gold for task in project.tasks.values()) == 2
