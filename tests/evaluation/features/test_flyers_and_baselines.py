"""Events from drawn flyers, and the baselines of features."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from test_feature_tasks import Scripted
from tiny_bundles import write_multimodal_bundle

import openafm as fm
from openafm.core.errors import UsageError
from openafm.evaluation.features.base import BASELINES, baseline_answerer
from openafm.evaluation.features.flyers import FlyersEventConfig
from openafm.evaluation.harness.answerer import ModelAnswerer
from openafm.evaluation.harness.task import Item, Output
from openafm.evaluation.tasks.catalog import FEATURES, NEEDS_VISION
from openafm.framework.transcripts.prompt import UnsupportedAttachmentError
from openafm.tokenizer.conversation import AssistantTurn, UserTurn

HERE = Path()
TASK = FlyersEventConfig(count=1)


@pytest.fixture(scope="module")
def flyer() -> Item:
    return next(iter(TASK.items(HERE)))


def test_fields_of_a_flyer_are_scored(flyer: Item) -> None:
    truth = flyer.reference["event"]
    assert TASK.judge(flyer, Output(text=json.dumps(truth))).scores["whole"] == 1.0
    spaced = {**truth, "title": truth["title"].upper().replace(" ", ""), "date": "1999-01-01"}
    scores = TASK.judge(flyer, Output(text=json.dumps(spaced))).scores
    assert (scores["score"], scores["date"], scores["whole"], scores["valid"]) == (0.75, 0.0, 0.0, 1.0)
    for text in ("", "[1]", "null", "{"):
        assert TASK.judge(flyer, Output(text=text)).scores["score"] == 0.0
    assert TASK.judge(flyer, TASK.constant(flyer)).scores["score"] <= 0.25


def test_an_image_is_in_the_digest_and_reaches_the_model(flyer: Item) -> None:
    (image,) = flyer.prompt.images
    digest = hashlib.sha256(image).hexdigest()
    assert flyer.prompt.to_dict()["images"] == (digest,)
    model = Scripted(lambda turns: AssistantTurn(text=json.dumps(flyer.reference["event"])), can_see=True)
    output = ModelAnswerer(model).answer(flyer.prompt, lambda: False)
    assert TASK.judge(flyer, output).scores["whole"] == 1.0
    assert model.images == {digest: image}


def test_a_bundle_that_sees_reads_a_flyer(flyer: Item, tmp_path: Path) -> None:
    model = fm.SystemLanguageModel(bundle=write_multimodal_bundle(tmp_path / "sees").path)
    output = ModelAnswerer(model).answer(flyer.prompt, lambda: False)
    assert output.prompt_tokens > 100
    assert TASK.judge(flyer, output).scores["valid"] == float(output.finish == "stop")


def test_a_model_without_vision_is_refused(flyer: Item) -> None:
    blind = Scripted(lambda turns: AssistantTurn(text="{}"))
    with pytest.raises(UnsupportedAttachmentError, match="choose a bundle with a vision encoder"):
        ModelAnswerer(blind).answer(flyer.prompt, lambda: False)


@pytest.mark.parametrize("baseline", BASELINES)
def test_baselines_answer_every_item(baseline: str) -> None:
    tasks = {name: make() for name, make in FEATURES.items() if name not in NEEDS_VISION}
    answerer = baseline_answerer(baseline, tasks, HERE)
    scores = {}
    for name, task in tasks.items():
        values = [
            task.judge(item, answerer.answer(item.prompt, lambda: False)).scores[task.METRIC] for item in task.items(HERE)
        ]
        scores[name] = sum(values) / len(values)  # type: ignore[arg-type]
    assert scores["needles"] == (1.0 if baseline == "pattern" else 0.0)
    assert (scores["event"] > 0.1) == (baseline == "pattern")
    assert scores["tagging"] == 0.5  # the right label is first in half of the items


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(UsageError, match="known: constant, pattern"):
        baseline_answerer("oracle", {}, HERE)


def test_messages_of_a_conversation_are_sent_one_after_the_other() -> None:
    from openafm.evaluation.harness.task import Prompt

    model = Scripted(lambda turns: AssistantTurn(text=str(sum(isinstance(turn, UserTurn) for turn in turns))))
    output = ModelAnswerer(model).answer(Prompt(text="a", turns=("b", "c")), lambda: False)
    assert (output.text, output.generated_tokens) == ("3", 3)
