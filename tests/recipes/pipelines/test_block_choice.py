"""Extraction by a session over block numbers, with a scripted model."""

from __future__ import annotations

from scripted_models import ScriptedModel

from openafm.data.extraction import ExtractionConfig
from openafm.data.web.documents import Page, WebDocument
from openafm.recipes.pipelines.block_choice import block_chooser

TEXTS = ["Home", "The text of the page.", "Copyright", "More of the text."]


def test_groups_of_blocks_are_asked_in_turn() -> None:
    model = ScriptedModel('{"blocks": [1]}', '{"blocks": [3]}')
    assert block_chooser(model, blocks_per_request=2)(TEXTS) == [1, 3]
    prompts = [str(request.turns) for request in model.requests]
    assert "[1] The text of the page." in prompts[0]
    assert "[3] More of the text." in prompts[1]


def test_no_answer_keeps_the_choice_of_the_extractor() -> None:
    assert block_chooser(ScriptedModel("no JSON"))(TEXTS) is None


def test_an_extractor_uses_the_numbers() -> None:
    html = "<body><p>First text that is long enough to be kept.</p><p>Second text that is long enough to be kept.</p></body>"
    page = Page(url="https://example.org/", body=html.encode())
    extractor = ExtractionConfig(model_below=1.0, fallback_below=0.0).build(block_chooser(ScriptedModel('{"blocks": [1]}')))
    document = extractor.extract(page)
    assert isinstance(document, WebDocument)
    assert document.text == "Second text that is long enough to be kept."
    assert document.extractor == "model"
