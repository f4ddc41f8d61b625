"""Prompts: text, attachments and values, alone or in lists."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

import openafm as fm
from openafm.framework.transcripts.images import ImageAttachment
from openafm.framework.transcripts.prompt import (
    Attachment,
    ImagePromptError,
    PromptError,
    UnsupportedAttachmentError,
    prompt_attachments,
    prompt_text,
)


@fm.generable
class Spot:
    town: str
    days: int


PIXEL = base64.b64decode(  # a PNG of one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)


@pytest.fixture
def image(tmp_path: Path) -> ImageAttachment:
    path = tmp_path / "photo.png"
    path.write_bytes(PIXEL)
    return ImageAttachment(path, label="photo")


def test_text_is_unchanged() -> None:
    assert prompt_text(" two\nlines ") == " two\nlines "
    assert prompt_attachments("text") == ()


def test_components_are_lines_and_values_are_compact_json(image: ImageAttachment) -> None:
    spot = Spot(town="Ås", days=2)
    prompt = ["Plan this:", image, spot, fm.GeneratedContent({"a": [1]}), "Thanks"]  # type: ignore[list-item]
    assert prompt_text(prompt) == 'Plan this:\n{"town":"Ås","days":2}\n{"a":[1]}\nThanks'  # type: ignore[arg-type]
    assert prompt_attachments(prompt) == (image,)  # type: ignore[arg-type]
    assert prompt_text(spot) == '{"town":"Ås","days":2}'  # type: ignore[arg-type]


def test_an_attachment_alone(image: ImageAttachment) -> None:
    assert prompt_text(image) == ""
    assert prompt_attachments(image) == (image,)
    assert isinstance(image, Attachment)
    assert (image.label, image.read()) == ("photo", PIXEL)


def test_a_prompt_object_holds_its_components_in_order(image: ImageAttachment) -> None:
    prompt = fm.Prompt("What is", "this?", image)
    assert prompt_text(prompt) == "What is\nthis?"
    assert prompt_attachments(prompt) == (image,)
    assert prompt_text(fm.Prompt()) == ""


@pytest.mark.parametrize("prompt", [fm.Prompt(fm.Prompt("nested")), 3, [3], [["nested"]], None, Spot, {"a": 1}])
def test_anything_else_is_refused(prompt: object) -> None:
    with pytest.raises(PromptError, match="a prompt consists of"):
        prompt_text(prompt)  # type: ignore[arg-type]


def test_bytes_are_refused_with_the_way_to_decode_them() -> None:
    with pytest.raises(PromptError, match=r"got bytes; decode them, such as with prompt\.decode\('utf-8'\)"):
        prompt_text(b"caf\xe9")  # type: ignore[arg-type]


def test_a_missing_image_is_refused_immediately(tmp_path: Path) -> None:
    for path in (tmp_path / "none.png", tmp_path):
        with pytest.raises(ImagePromptError, match=r"does not exist|is a folder"):
            ImageAttachment(path)


def test_a_deleted_image_is_a_typed_error(image: ImageAttachment) -> None:
    image.path.unlink()
    with pytest.raises(ImagePromptError, match="cannot be read"):
        image.read()


def test_unsupported_attachments_are_caught_under_either_name() -> None:
    assert issubclass(UnsupportedAttachmentError, ImagePromptError)
    assert issubclass(UnsupportedAttachmentError, fm.GenerationError)
