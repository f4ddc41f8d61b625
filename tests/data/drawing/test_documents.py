"""Documents: every type is drawn with correct truth, and the check finds wrong sums, boxes, bars and orders of words."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from openafm.core.config import ConfigError
from openafm.data.drawing.documents import DocumentsConfig
from openafm.data.drawing.documents.check import words_of_markdown
from openafm.data.drawing.documents.config import DOCUMENTS
from openafm.data.drawing.documents.sheet import HELD_OUT_THEMES


def draw(document, seed=0, language="en", split="train"):
    generator = DocumentsConfig(documents=(document,)).build()
    return generator, generator.draw(random.Random(seed), language, split)


def check(document, seed, language):
    generator, drawn = draw(document, seed, language, ("train", "held_out")[seed % 2])
    assert list(generator.check(drawn)) == []
    assert drawn.metadata["document"] == document
    assert (drawn.metadata["design"] in HELD_OUT_THEMES) == bool(seed % 2)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_document_is_drawn_with_correct_truth(document):
    check(document, DOCUMENTS.index(document), "en")


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_in_other_languages(document):
    for seed, language in enumerate(("de", "fr", "sv", "tr", "pt", "it")):
        check(document, seed, language)


def test_wrong_sums_are_found():
    generator, drawn = draw("receipt", 1)
    amounts = [line for line in drawn.transcription.splitlines() if line.startswith("| ")][3]
    broken = drawn.transcription.replace(amounts, amounts.replace(amounts[-3], str((int(amounts[-3]) + 1) % 10)))
    errors = generator.check(replace(drawn, transcription=broken))
    assert any("add up" in error for error in errors)
    assert any("words on the image" in error for error in errors)


def test_wrong_check_boxes_and_answers_are_found():
    generator, drawn = draw("form", 2)
    flipped = drawn.transcription.replace("- [x]", "- [?]").replace("- [ ]", "- [x]").replace("- [?]", "- [ ]")
    errors = generator.check(replace(drawn, transcription=flipped))
    assert any("check box" in error for error in errors)
    wrong = tuple(replace(question, answer="nothing") for question in drawn.questions)
    assert len(generator.check(replace(drawn, questions=wrong))) == len(wrong)


def test_a_wrong_bar_is_found():
    generator, drawn = draw("infographic", 3)
    image = drawn.images[0]
    bars = [region for region in image.regions if region.kind == "bar"]
    swapped = {bars[0].label: bars[1].label, bars[1].label: bars[0].label}
    regions = tuple(
        replace(region, label=swapped.get(region.label, region.label)) if region.kind == "bar" else region
        for region in image.regions
    )
    assert any("bar" in error for error in generator.check(replace(drawn, images=(replace(image, regions=regions),))))


def test_a_wrong_order_of_columns_is_found():
    for seed in range(20):
        generator, drawn = draw("letter", seed)
        if not any(question.kind == "document.paragraphs" for question in drawn.questions):
            break
    paragraphs = drawn.transcription.split("\n\n")
    mixed = "\n\n".join([*paragraphs[:2], *reversed(paragraphs[2:])])
    assert any("in this order" in error for error in generator.check(replace(drawn, transcription=mixed)))


def test_words_of_markdown():
    assert words_of_markdown("# A b\n\n| c \\| d | e |\n| --- | --- |\n- [x] f\nTotal: 1") == "Abc|defTotal:1"


def test_unknown_documents_are_errors():
    with pytest.raises(ConfigError, match="unknown documents scroll; known: receipt"):
        DocumentsConfig(documents=("scroll",))
