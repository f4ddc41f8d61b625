"""Captions in levels: asked, checked, fused with coordinates, cached, resumed, recorded."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from image_samples import BOXES, HEIGHT, WIDTH, color_at, corpus_of, image_of, interleaved_of, pair_of

from openafm.core.config import ConfigError, override
from openafm.core.errors import OpenAFMError, UsageError
from openafm.data.captions import cache as cache_module
from openafm.data.captions.cache import HangingCaptionerError
from openafm.data.captions.captioner import EndlessAnswerError, FunctionCaptioner, ImageRequest, RefusedAnswerError
from openafm.data.captions.captioning import caption_corpus, caption_counts
from openafm.data.captions.config import LEVELS, CaptionConfig
from openafm.data.captions.grounder import LabelGrounderConfig, Phrase, grounded_text
from openafm.data.captions.regions import CaptionedRegion, Detector, DetectorConfig, spatial_facts
from openafm.data.images.documents import Box, ImageDocument, Region, StoredImage
from openafm.data.images.grounding import box_text, boxes_of, without_boxes
from openafm.data.images.shards import ImageCorpus, open_image_corpus

BY_NAME = {level.name: level for level in LEVELS}
SHORT = CaptionConfig(levels=(BY_NAME["short"],))
PARAGRAPH = (
    "Two rectangles lie on a plain white background. One of them is in the upper left corner of the image, and the other one"
    " is near the lower right corner, a little larger than the first."
)


class Scripted:
    """A captioner that sees the colors at the centers of the boxes, and counts its requests."""

    model, sampling = "scripted-1", "greedy"

    def __init__(self, **answers: str) -> None:
        self.answers, self.requests = answers, list[ImageRequest]()
        self._lock = threading.Lock()

    def __call__(self, request: ImageRequest, /) -> str:
        with self._lock:
            self.requests.append(request)
        if "one object" in request.prompt:
            return self.answers.get("region", f"a plain {color_at(request.image, 15, 15)} rectangle.")
        if "These objects" in request.prompt:
            boxes = re.findall(r"^\d+\. (.*?) (\[[\d,]+\]) ", request.prompt, re.MULTILINE)
            fused = "On a plain white background without any other things, " + " beside ".join(map(" ".join, boxes))
            return self.answers.get("grounded", fused + ", all clearly visible.")
        if "key words" in request.prompt:
            return self.answers.get("keywords", "Rectangles, white background, shapes, Shapes")
        if "paragraph" in request.prompt:
            return self.answers.get("paragraph", PARAGRAPH)
        return self.answers.get("short", f"A {color_at(request.image, 20, 20)} rectangle on white.")


def samples(tmp_path: Path) -> ImageCorpus:
    return corpus_of(tmp_path / "pairs", [pair_of("red", "blue", alt="Flags"), pair_of("green", "red")], [pair_of("blue")])


def content(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name[0].isdigit() or path.name == "manifest.json"
    }


def documents(folder: Path) -> list[ImageDocument]:
    return list(open_image_corpus(folder).documents())


def test_every_level_is_asked_checked_and_recorded(tmp_path: Path) -> None:
    captioner = Scripted()
    caption_corpus(samples(tmp_path), tmp_path / "out", captioner, CaptionConfig())
    first, second, third = documents(tmp_path / "out")
    assert first.captions["alt"] == "Flags"
    assert first.captions["keywords"] == "Rectangles, white background, shapes"
    assert first.captions["short"] == "A red rectangle on white."
    assert third.captions["short"] == "A blue rectangle on white."
    assert second.captions["paragraph"] == PARAGRAPH
    assert first.metadata["caption.model"] == "scripted-1"
    assert first.metadata["caption.sampling"] == "greedy"
    assert {key for key in first.metadata if key.startswith("caption.prompt")} == {f"caption.prompt.{it}" for it in BY_NAME}
    manifest = open_image_corpus(tmp_path / "out", verify=True).manifest
    assert [level["prompt"] for level in manifest.config["captions"]["levels"]] == [level.prompt for level in LEVELS]
    assert caption_counts(open_image_corpus(tmp_path / "out")).captions == dict.fromkeys(sorted(BY_NAME), 3)
    assert {request.max_tokens for request in captioner.requests} == {96, 400, 600, 64}


def test_regions_are_captioned_alone_and_fused_with_their_places(tmp_path: Path) -> None:
    captioner = Scripted()
    caption_corpus(samples(tmp_path), tmp_path / "out", captioner, CaptionConfig(levels=(BY_NAME["grounded"],)))
    first = documents(tmp_path / "out")[0]
    regions = [region for region in first.regions if region.kind == "caption"]
    assert [(region.label, region.box) for region in regions] == [
        ("a plain red rectangle", BOXES[0]),
        ("a plain blue rectangle", BOXES[1]),
    ]
    found = [box for _, box in boxes_of(first.captions["grounded"], WIDTH, HEIGHT)]
    assert [box_text(box, WIDTH, HEIGHT) for box in found] == [box_text(box, WIDTH, HEIGHT) for box in BOXES]
    prompt = next(request.prompt for request in captioner.requests if "These objects" in request.prompt)
    assert f"1. a plain red rectangle {box_text(BOXES[0], WIDTH, HEIGHT)} (top left; 11% of the image; left of 2)" in prompt
    assert "2. a plain blue rectangle" in prompt
    assert "right of 1)" in prompt
    crops = [request for request in captioner.requests if "one object" in request.prompt]
    assert all(len(request.image) < len(image_of("red", "blue").data) for request in crops)


@pytest.mark.parametrize(
    ("level", "answer", "reason"),
    [
        ("short", "", "empty"),
        ("short", " ... \n", "empty"),
        ("short", "I'm sorry, but I can't help with that.", "refused"),
        ("short", BY_NAME["short"].prompt.replace("{language}", "English"), "echo"),
        ("short", "\N{REPLACEMENT CHARACTER} a rectangle of some kind", "garbled"),
        ("short", "rectangle <|im_end|> on a white page", "garbled"),
        ("short", "x" * 90, "garbled"),
        ("short", "#### !!! ??? ((( a ))) ;;; --- ###", "garbled"),
        ("short", "a red square " * 12, "repetitive"),
        ("short", "Red rectangle", "too_short"),
        ("short", " ".join(f"word{n}" for n in range(80)), "too_long"),
        ("keywords", "red, red, Red, RED, blue, red", "repetitive"),
        ("keywords", "There is a red rectangle near the corner of the page", "format"),
        ("keywords", "rectangle", "too_short"),
        ("keywords", ", ".join(f"w{n}" for n in range(40)), "too_long"),
        ("grounded", PARAGRAPH, "coordinates"),
        ("grounded", PARAGRAPH + " A square [1,2,3,4] is there.", "coordinates"),
        ("grounded", PARAGRAPH + " A square [50,100,333,500] and one [50,100 is there.", "coordinates"),
        ("region", "", "no_regions"),
    ],
)
def test_unusable_answers_are_dropped_with_a_reason(level: str, answer: str, reason: str, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "pairs", [pair_of("red", "blue")])
    wanted = "grounded" if level == "region" else level
    config = CaptionConfig(levels=(BY_NAME[wanted],))
    caption_corpus(corpus, tmp_path / "out", Scripted(**{level: answer}), config)
    out = open_image_corpus(tmp_path / "out")
    assert out.manifest.dropped == {reason: 1}
    (drop,) = out.dropped(0)
    assert drop.detail.startswith(f"{wanted}: {reason}")
    assert drop.url.startswith("https://example.org/")


def test_one_failed_level_keeps_the_others(tmp_path: Path) -> None:
    levels = (BY_NAME["keywords"], BY_NAME["short"], BY_NAME["grounded"])
    captioner = Scripted(keywords="", region="")
    caption_corpus(samples(tmp_path), tmp_path / "out", captioner, CaptionConfig(levels=levels))
    first = documents(tmp_path / "out")[0]
    assert set(first.captions) == {"alt", "short"}
    assert first.metadata["caption.dropped.keywords"] == "empty"
    counts = caption_counts(open_image_corpus(tmp_path / "out"))
    assert counts.dropped == {"grounded.no_regions": 3, "keywords.empty": 3, "region.empty": 5}
    assert (counts.captions, counts.documents_dropped) == ({"short": 3}, {})


@pytest.mark.parametrize(
    "text", ['"A red rectangle on white."', "Caption: A red rectangle on white.", "```\nA red rectangle on white.\n```"]
)
def test_wrappers_of_answers_are_removed(text: str, tmp_path: Path) -> None:
    caption_corpus(samples(tmp_path), tmp_path / "out", Scripted(short=text), SHORT)
    assert documents(tmp_path / "out")[0].captions["short"] == "A red rectangle on white."


def test_texts_without_spaces_are_counted_by_characters(tmp_path: Path) -> None:
    caption_corpus(samples(tmp_path), tmp_path / "a", Scripted(short="白い背景に赤い四角形が一つあります。"), SHORT)
    assert documents(tmp_path / "a")[0].captions["short"].startswith("白い")
    caption_corpus(samples(tmp_path / "2"), tmp_path / "b", Scripted(short="赤い四角" * 10), SHORT)
    assert open_image_corpus(tmp_path / "b").manifest.dropped == {"repetitive": 3}


@dataclass(frozen=True, kw_only=True)
class LowerRightConfig(DetectorConfig):
    """Finds the box in the lower right, and regions that are not usable."""

    def build(self) -> Detector:
        return LowerRight()


class LowerRight(Detector):
    def regions(self, document: ImageDocument, image: StoredImage) -> Sequence[Region]:
        boxes = [(60, 40, 500, 500), (-9, -9, 0, 5), (5, 5, 6, 6), (30, 30, 20, 20)]
        return [Region(label="thing", box=box) for box in boxes]


def test_a_detector_of_the_user_finds_the_regions(tmp_path: Path) -> None:
    grounded = CaptionConfig(levels=(BY_NAME["grounded"],))
    config = override(grounded, {"regions.detector": '{"type": "LowerRightConfig"}'})
    corpus = corpus_of(tmp_path / "in", [pair_of("red", "blue")])
    caption_corpus(corpus, tmp_path / "out", Scripted(region="a blue block on white"), config)
    (document,) = documents(tmp_path / "out")
    assert [(each.label, each.box) for each in document.regions if each.kind == "caption"] == [
        ("a blue block on white", (60, 40, WIDTH, HEIGHT))
    ]
    assert "a blue block on white [500,500,1000,1000]" in document.captions["grounded"]
    assert (
        open_image_corpus(tmp_path / "out").manifest.config["captions"]["regions"]["detector"]["type"] == "LowerRightConfig"
    )


def test_a_grounder_appends_boxes_to_the_paragraph(tmp_path: Path) -> None:
    levels = (BY_NAME["paragraph"], BY_NAME["grounded"])
    config = CaptionConfig(levels=levels, grounder=LabelGrounderConfig())
    paragraph = PARAGRAPH + " They are a Red rectangle and a blue rectangle; the red rectangle is smaller."
    captioner = Scripted(paragraph=paragraph)
    caption_corpus(corpus_of(tmp_path / "in", [pair_of("red", "blue"), pair_of()]), tmp_path / "out", captioner, config)
    first, second = documents(tmp_path / "out")
    red, blue = (box_text(box, WIDTH, HEIGHT) for box in BOXES)
    assert first.captions["grounded"] == (
        PARAGRAPH + f" They are a Red rectangle {red} and a blue rectangle {blue}; the red rectangle is smaller."
    )
    assert without_boxes(first.captions["grounded"]) == first.captions["paragraph"]
    assert first.metadata["caption.grounder"] == "LabelGrounderConfig"
    assert second.metadata["caption.dropped.grounded"] == "no_regions"
    assert len(captioner.requests) == 2


def test_phrases_that_cannot_be_placed_are_left_out() -> None:
    image = image_of("red")
    places = [(0, 3, BOXES[0]), (2, 6, BOXES[1]), (4, 7, (-9, -9, 500, 500)), (8, 99, BOXES[0]), (8, 9, (5, 5, 5, 9))]
    phrases = [Phrase(start=start, stop=stop, box=box) for start, stop, box in places]
    assert (
        grounded_text("one two three", phrases, image)
        == f"one {box_text(BOXES[0], WIDTH, HEIGHT)} two [0,0,1000,1000] three"
    )


@pytest.mark.parametrize(
    ("box", "other", "relation"),
    [
        ((0, 0, 10, 10), (50, 0, 60, 10), "left of 2"),
        ((50, 0, 60, 10), (0, 5, 10, 10), "right of 2"),
        ((0, 0, 10, 10), (0, 50, 10, 60), "above 2"),
        ((0, 50, 10, 60), (5, 0, 10, 10), "below 2"),
        ((10, 10, 20, 20), (0, 0, 40, 40), "inside 2"),
        ((0, 0, 40, 40), (10, 10, 20, 20), "around 2"),
        ((0, 0, 20, 20), (10, 0, 30, 20), "overlapping 2"),
    ],
)
def test_spatial_relations(box: Box, other: Box, relation: str) -> None:
    first, second = CaptionedRegion(box=box, caption="a"), CaptionedRegion(box=other, caption="b")
    assert spatial_facts([first, second], 100, 100)[0].endswith(f"; {relation})")


def test_existing_levels_are_kept_unless_replaced(tmp_path: Path) -> None:
    corpus = samples(tmp_path)
    caption_corpus(corpus, tmp_path / "one", Scripted(), SHORT)
    other = Scripted(short="Something else is visible here.")
    caption_corpus(open_image_corpus(tmp_path / "one"), tmp_path / "two", other, SHORT)
    assert other.requests == []
    assert documents(tmp_path / "two") == documents(tmp_path / "one")
    drawn = replace(pair_of("red")[0], captions={"short": "A drawn caption."}), [image_of("red")]
    caption_corpus(corpus_of(tmp_path / "drawn", [drawn]), tmp_path / "four", other, SHORT)
    counts = caption_counts(open_image_corpus(tmp_path / "four"))
    assert (counts.kept, counts.captions) == ({"short": 1}, {})
    replacing = CaptionConfig(levels=SHORT.levels, replaces=True)
    caption_corpus(open_image_corpus(tmp_path / "one"), tmp_path / "three", other, replacing)
    assert {document.captions["short"] for document in documents(tmp_path / "three")} == {"Something else is visible here."}
    both = CaptionConfig(levels=(*SHORT.levels, BY_NAME["grounded"]), replaces=True)
    caption_corpus(open_image_corpus(tmp_path / "three"), tmp_path / "five", Scripted(), both)
    caption_corpus(open_image_corpus(tmp_path / "five"), tmp_path / "six", Scripted(short=""), both)
    first = documents(tmp_path / "six")[0]
    assert sorted(first.captions) == ["alt", "grounded"]
    assert [region.kind for region in first.regions] == ["object", "object", "caption", "caption"]


def test_captions_are_asked_for_in_the_language_of_the_document(tmp_path: Path) -> None:
    tags = {"red": "zh-Hans", "blue": "ja", "green": "xx", "yellow": ""}
    items = [(replace(document, language=tags[color]), images) for color in tags for document, images in [pair_of(color)]]
    captioner = Scripted()
    config = CaptionConfig(levels=SHORT.levels, language="document")
    caption_corpus(corpus_of(tmp_path / "in", items), tmp_path / "out", captioner, config)
    asked = [re.findall(r", in (.*?)\. Name", request.prompt)[0] for request in captioner.requests]
    assert asked == ["Chinese (Simplified)", "Japanese", "English", "English"]


def test_each_image_of_a_document_is_captioned_and_opted_out_documents_are_dropped(tmp_path: Path) -> None:
    page = interleaved_of(pair_of("red"), pair_of("blue"))
    corpus = corpus_of(tmp_path / "in", [page, pair_of("green", opt_out="noimageai"), pair_of("yellow")])
    captioner = Scripted()
    config = CaptionConfig(levels=(BY_NAME["short"], BY_NAME["grounded"]))
    caption_corpus(corpus, tmp_path / "out", captioner, config)
    out = open_image_corpus(tmp_path / "out")
    assert out.manifest.dropped == {"opt_out": 1}
    interleaved, pair = out.documents()
    assert interleaved.parts == page[0].parts
    found = [(each.label, each.kind, each.image) for each in interleaved.regions]
    red, blue = interleaved.digests
    assert found == [
        ("A red rectangle on white.", "caption.short", red),
        ("A blue rectangle on white.", "caption.short", blue),
    ]
    assert pair.captions["short"] == "A yellow rectangle on white."
    assert caption_counts(out).captions == {"grounded": 1, "short": 3}
    again = Scripted(short="Another sentence.")
    caption_corpus(out, tmp_path / "again", again, SHORT)
    assert not again.requests


def test_a_caption_that_fails_leaves_the_others_of_its_document(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "in", [interleaved_of(pair_of("red"), pair_of("blue"))])
    captioner = Scripted(short="")
    config = CaptionConfig(levels=(BY_NAME["keywords"], BY_NAME["short"]))
    caption_corpus(corpus, tmp_path / "out", captioner, config)
    (document,) = documents(tmp_path / "out")
    assert [each.kind for each in document.regions] == ["caption.keywords"] * 2
    assert document.metadata["caption.dropped.short"] == "empty,empty"
    assert caption_counts(open_image_corpus(tmp_path / "out")).dropped == {"short.empty": 2}


def test_bytes_do_not_depend_on_threads(tmp_path: Path) -> None:
    corpus = samples(tmp_path)
    for threads in (1, 4):
        caption_corpus(corpus, tmp_path / f"out{threads}", Scripted(), CaptionConfig(), num_threads=threads)
    assert content(tmp_path / "out1") == content(tmp_path / "out4")


def test_a_stopped_run_continues_without_asking_again(tmp_path: Path) -> None:
    corpus = samples(tmp_path)
    caption_corpus(corpus, tmp_path / "whole", Scripted(), SHORT)

    class Stopping(Scripted):
        def __call__(self, request: ImageRequest, /) -> str:
            if len(self.requests) == 1:
                raise OpenAFMError("the endpoint is gone")
            return super().__call__(request)

    stopped = Stopping()
    with pytest.raises(OpenAFMError, match="the endpoint is gone"):
        caption_corpus(corpus, tmp_path / "out", stopped, SHORT)
    assert not (tmp_path / "out" / "manifest.json").exists()
    again = Scripted()
    caption_corpus(corpus, tmp_path / "out", again, SHORT)
    assert len(stopped.requests) + len(again.requests) == 3
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    third = Scripted()
    caption_corpus(corpus, tmp_path / "out", third, SHORT)
    assert third.requests == []


KILLED = """
import sys, time
from pathlib import Path
from openafm.data.captions.captioner import FunctionCaptioner
from openafm.data.captions.captioning import caption_corpus
from openafm.data.captions.config import LEVELS, CaptionConfig
from openafm.data.images.shards import open_image_corpus

def answer(request):
    print("asked", flush=True)
    time.sleep(0.02)
    return "A thing on a white page."

config = CaptionConfig(levels=tuple(level for level in LEVELS if level.name == "short"))
captioner = FunctionCaptioner(model="m", function=answer)
caption_corpus(open_image_corpus(Path(sys.argv[1])), Path(sys.argv[2]), captioner, config)
"""


def test_a_killed_run_continues_with_equal_bytes(tmp_path: Path) -> None:
    shards = [[pair_of("red", background=200 + shard + 9 * row) for row in range(3)] for shard in range(4)]
    corpus = corpus_of(tmp_path / "in", *shards)
    asked: list[ImageRequest] = []

    def answer(request: ImageRequest) -> str:
        asked.append(request)
        return "A thing on a white page."

    captioner = FunctionCaptioner(model="m", function=answer)
    caption_corpus(corpus, tmp_path / "whole", captioner, SHORT)
    assert len(asked) == 12
    command = [sys.executable, "-c", KILLED, str(tmp_path / "in"), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(5):
            assert process.stdout.readline() == b"asked\n"
        process.send_signal(signal.SIGKILL)
    asked.clear()
    caption_corpus(corpus, tmp_path / "out", captioner, SHORT)
    assert 7 <= len(asked) <= 9  # the answers of the killed process are stored, except the last one or two
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_another_model_prompt_or_sampling_is_asked_anew(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "in", [pair_of("red")])
    caption_corpus(corpus, tmp_path / "out", Scripted(), SHORT)
    other_model, other_sampling, german = Scripted(), Scripted(), Scripted()
    other_model.model, other_sampling.sampling = "scripted-2", "temperature 1"
    caption_corpus(corpus, tmp_path / "out", other_model, SHORT)
    caption_corpus(corpus, tmp_path / "out", other_sampling, SHORT)
    caption_corpus(corpus, tmp_path / "out", german, CaptionConfig(levels=SHORT.levels, language="German"))
    assert [len(each.requests) for each in (other_model, other_sampling, german)] == [1, 1, 1]
    assert "in German" in german.requests[0].prompt


def test_endless_and_refused_answers_are_counted_and_stored(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "in", [pair_of("red"), pair_of("blue")])
    asked = []

    def answer(request: ImageRequest) -> str:
        asked.append(request)
        if color_at(request.image, 20, 20) == "red":
            raise EndlessAnswerError("the token limit was reached", "and then and then and")
        raise RefusedAnswerError("the guardrail blocked the response")

    captioner = FunctionCaptioner(model="m", function=answer)
    for _ in range(2):
        caption_corpus(corpus, tmp_path / "out", captioner, SHORT)
        assert open_image_corpus(tmp_path / "out").manifest.dropped == {"endless": 1, "refused": 1}
        (tmp_path / "out" / "00000.json").unlink()  # the shard is computed again, from stored answers
    assert len(asked) == 2


def test_a_captioner_that_never_returns_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_GRACE_S", 0.05)
    monkeypatch.setattr(cache_module, "MAX_LATE", 2)
    release = threading.Event()
    hanging = FunctionCaptioner(model="m", function=lambda request: str(release.wait(30)))
    config = CaptionConfig(levels=SHORT.levels, seconds=0.05)
    one = corpus_of(tmp_path / "in", [pair_of("red")])
    started = time.monotonic()
    caption_corpus(one, tmp_path / "out", hanging, config)
    assert open_image_corpus(tmp_path / "out").manifest.dropped == {"endless": 1}
    with pytest.raises(HangingCaptionerError, match=r"no answer within 0\.05 s to 2 requests in a row"):
        caption_corpus(samples(tmp_path), tmp_path / "more", hanging, config)
    assert time.monotonic() - started < 10
    release.set()


def test_bad_configs_and_folders_are_refused(tmp_path: Path) -> None:
    corpus = samples(tmp_path)
    with pytest.raises(UsageError, match="choose another output folder"):
        caption_corpus(corpus, tmp_path / "pairs", Scripted(), SHORT)
    assert open_image_corpus(tmp_path / "pairs", verify=True).manifest == corpus.manifest
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("x")
    with pytest.raises(OpenAFMError, match="openafm did not write"):
        caption_corpus(corpus, tmp_path / "foreign", Scripted(), SHORT)
    with pytest.raises(ConfigError, match="at least one level"):
        CaptionConfig(levels=())
    with pytest.raises(TypeError, match="a captioner returns text"):
        caption_corpus(corpus, tmp_path / "typed", FunctionCaptioner(model="m", function=lambda request: 3), SHORT)  # type: ignore[arg-type, return-value]
    assert json.loads((tmp_path / "pairs" / "manifest.json").read_text())["config"] == {"made": "by a test"}
