"""Evaluation sets: questions of the chosen kinds about stored images, a card, and a run that continues."""

from __future__ import annotations

import json

import pytest

from openafm.core.errors import UsageError
from openafm.core.executors import LocalConfig
from openafm.data.drawing.evaluation import EVALUATION_SETS, write_evaluation_set
from openafm.data.images.shards import open_image_corpus

here = LocalConfig(num_workers=1)


def write(name, folder):
    return write_evaluation_set(name, folder, count=2, languages=("en", "de"), seed=1, executor=here)


def test_sets_hold_questions_images_and_a_card(tmp_path):
    manifest = write("hallucination", tmp_path)
    assert manifest.num_documents == 4
    assert manifest.num_held_out == 4
    rows = [json.loads(line) for line in (tmp_path / "questions.jsonl").read_text().splitlines()]
    assert {row["kind"] for row in rows} <= {"absent", "spatial.area", "flyer.date"}
    assert "absent" in {row["kind"] for row in rows}
    corpus = open_image_corpus(tmp_path / "images")
    assert all(corpus.image(digest).data for row in rows for digest in row["images"])
    assert len({row["id"] for row in rows}) == len(rows)
    card = (tmp_path / "card.md").read_text()
    assert "| en |" in card
    assert "refuses" in card
    before = (tmp_path / "questions.jsonl").read_bytes()
    write("hallucination", tmp_path)
    assert (tmp_path / "questions.jsonl").read_bytes() == before


def test_lines_have_their_transcription(tmp_path):
    write("reading", tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "questions.jsonl").read_text().splitlines()]
    corpus = open_image_corpus(tmp_path / "images")
    truths = {document.digests: document.transcription for document in corpus.documents()}
    assert {document.kind for document in corpus.documents()} == {"line", "sign"}
    assert all(truths[tuple(row["images"])] == row["answer"] for row in rows)


def test_unknown_sets_are_refused(tmp_path):
    with pytest.raises(UsageError, match="known: flyers"):
        write("cats", tmp_path)
    assert {"flyers", "charts", "reading", "spatial", "hallucination"} == set(EVALUATION_SETS)
