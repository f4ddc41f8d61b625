"""Drawn corpora: equal bytes for any number of workers, resumed after a kill, every drawing kept or dropped."""

from __future__ import annotations

import json
import random

import pytest

from openafm.cli.main import run
from openafm.core.config import ConfigError
from openafm.core.executors import LocalConfig, RayConfig
from openafm.data.drawing import corpus, generators
from openafm.data.drawing.base import SPLITS
from openafm.data.drawing.corpus import DrawingConfig, draw_corpus, draw_document, image_document
from openafm.data.drawing.fonts import FontMissingError
from openafm.data.drawing.generators import UnknownGeneratorError, generator_config, generator_names
from openafm.data.drawing.phrases import _read, question, slots_of
from openafm.data.drawing.scenes.texts import scene_texts
from openafm.data.drawing.tables import TablesConfig
from openafm.data.images.shards import open_image_corpus
from openafm.data.synthetic.languages import LANGUAGES
from openafm.data.synthetic.text_files.posters import poster_texts

TABLES = DrawingConfig(generators=(TablesConfig(),), languages=("en", "de"), count=4, shard_size=2)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn") / "corpus"
    return folder, draw_corpus(TABLES, folder, LocalConfig(num_workers=1))


def test_documents_hold_the_truth_of_the_drawings(drawn):
    folder, manifest = drawn
    assert (manifest.num_documents, manifest.kinds, manifest.languages) == (4, {"table": 4}, {"en": 2, "de": 2})
    found = open_image_corpus(folder, verify=True)
    documents = list(found.documents("train"))
    generator = TABLES.generators[0].build()
    expected = image_document(draw_document(generator, "tables", "de", "train", 0, 1), "tables", "train")
    assert documents[1] == expected[0]
    assert found.image(documents[1].digests[0]).data == expected[1][0].data
    assert documents[1].questions
    assert documents[1].source == "openafm:tables"


@pytest.mark.slow
def test_any_number_of_workers_and_a_resumed_run_give_equal_bytes(drawn, tmp_path):
    _, manifest = drawn
    assert draw_corpus(TABLES, tmp_path / "two", LocalConfig(num_workers=2)).digest == manifest.digest
    (tmp_path / "two" / "00001.json").unlink()
    (tmp_path / "two" / "manifest.json").unlink()  # as after kill -9
    before = (tmp_path / "two" / "00000.tar").stat().st_mtime_ns
    assert draw_corpus(TABLES, tmp_path / "two", LocalConfig(num_workers=1)).digest == manifest.digest
    assert (tmp_path / "two" / "00000.tar").stat().st_mtime_ns == before


@pytest.mark.slow
def test_ray_draws_equal_bytes(drawn, tmp_path):
    pytest.importorskip("ray")
    assert draw_corpus(TABLES, tmp_path / "ray", RayConfig(num_workers=2)).digest == drawn[1].digest


@pytest.mark.parametrize("language", LANGUAGES)
def test_held_out_questions_have_other_words(language):
    assert set(_read("held_out_questions.toml")) == set(_read("questions.toml")) - {"absent"}
    for key in _read("held_out_questions.toml"):
        slots = {name: f"<{name}>" for name in ("row", "other", "column", "number", "label")}
        asked = [question(language, split, key, **slots) for split in SPLITS]
        assert asked[0] != asked[1]
        found = [slots_of(language, key, text) for text in asked]
        assert found[0] == found[1] == {name: value for name, value in slots.items() if value in asked[0]}
    of_flyers = [
        {poster_texts(language, split).draw(random.Random(seed), "ask.title") for seed in range(20)} for split in SPLITS
    ]
    assert not of_flyers[0] & of_flyers[1]
    train, held_out = (scene_texts(language, split) for split in SPLITS)
    for section in (
        "count",
        "area",
        "relation",
        "box",
        "in_box",
        "marked",
        "mark_of",
        "color",
        "absent",
        "more",
        "describe",
    ):
        values = {"a": "A", "b": "B", "n": "7", "box": "[1,2,3,4]"}
        first, second = (
            {texts.draw(random.Random(seed), f"ask.{section}", **values) for seed in range(20)}
            for texts in (train, held_out)
        )
        assert first
        assert second
        assert not first & second


def test_what_is_not_drawn_is_dropped_with_a_reason(monkeypatch):
    class Failing:
        def draw(self, rng, language, split):
            if language == "ja":
                raise FontMissingError("no font of 'ja'")
            return generator.draw(rng, language, split)

        def check(self, drawn):
            return ["a box is wrong"]

    config = DrawingConfig(generators=TABLES.generators, languages=("ja", "en"), check=True)
    generator = TABLES.generators[0].build()
    monkeypatch.setattr(corpus, "_built", lambda config: Failing())
    (missing,), (wrong,) = (corpus._draw(config, TABLES.generators[0], number) for number in range(2))
    assert (missing.reason, missing.detail) == ("font_missing", "tables 0 in ja: no font of 'ja'")
    assert (wrong.reason, wrong.detail) == ("wrong_truth", "tables 1 in en: a box is wrong")


def test_generators_are_found_by_name():
    assert {generator_config(name).name for name in generator_names()} == set(generator_names())
    with pytest.raises(UnknownGeneratorError, match="unknown kind 'chart'; did you mean 'charts'"):
        generator_config("chart")


def test_a_generator_of_a_plugin_is_found(monkeypatch):
    class Mine(TablesConfig):
        @property
        def name(self):
            return "mine"

    monkeypatch.setattr(generators, "_of_plugins", lambda: {"mine": Mine()})
    assert generator_config("mine").name == "mine"
    assert generator_names()[-1] == "mine"


def test_the_command(tmp_path, capsys):
    out = tmp_path / "drawn"
    assert (
        run(["data", "draw", "tables", "--languages", "en", "--count", "1", "-o", str(out), "--workers", "1", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["documents"], found["kinds"], found["dropped"]) == (1, {"table": 1}, {})
    assert run(["data", "draw", "tables", "--languages", "xx", "-o", str(out)]) == 2
    assert "got ['xx']" in capsys.readouterr().err
    assert run(["data", "draw", "tables", "--split", "test", "-o", str(out)]) == 2


@pytest.mark.parametrize("values", [{"count": 0}, {"languages": ("tlh",)}, {"generators": ()}, {"shard_size": 0}])
def test_wrong_values_are_errors(values):
    with pytest.raises(ConfigError):
        DrawingConfig(**{"generators": TABLES.generators} | values)


def test_a_drawing_depends_on_its_number_alone():
    generator = TABLES.generators[0].build()
    state = random.getstate()
    first = draw_document(generator, "tables", "en", "train", 0, 2)
    assert random.getstate() == state
    assert first == draw_document(generator, "tables", "en", "train", 0, 2)
    assert first.images != draw_document(generator, "tables", "en", "train", 1, 2).images
