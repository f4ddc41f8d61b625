"""Images in prompts: every kind of source, EXIF, limits, damaged files."""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openafm as fm
from openafm.bundle import shipped_bundle
from openafm.framework.transcripts import images
from openafm.framework.transcripts.images import MAX_SIDE, Image

PIL_Image = pytest.importorskip("PIL.Image")

RED, BLUE = (250, 10, 10), (10, 10, 250)


def flag(width: int = 40, height: int = 20) -> Any:
    """Return an image that is red on the left and blue on the right."""
    image = PIL_Image.new("RGB", (width, height), BLUE)
    image.paste(RED, (0, 0, width // 2, height))
    return image


def encoded(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decoded(data: bytes) -> Any:
    return PIL_Image.open(io.BytesIO(data))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_plain_files_are_sent_byte_for_byte(kind: str, tmp_path: Path) -> None:
    data = encoded(flag(), kind)
    path = tmp_path / "flag"
    path.write_bytes(data)
    url = f"data:image/{kind.lower()};base64,{base64.b64encode(data).decode()}"
    assert [Image(source).read() for source in (path, str(path), data, url)] == [data] * 4


def test_pillow_images_and_arrays_keep_their_pixels() -> None:
    for mode in ("RGB", "L", "RGBA"):
        image = flag().convert(mode)
        for source in (image, np.asarray(image)):
            read = decoded(Image(source).read())
            assert read.mode == mode
            assert (np.asarray(read) == np.asarray(image)).all()


def test_an_array_is_copied() -> None:
    pixels = np.zeros((2, 2, 3), np.uint8)
    image = Image(pixels)
    pixels[:] = 255
    assert np.asarray(decoded(image.read())).max() == 0


def test_exif_orientation_is_applied_and_the_place_of_a_photo_is_removed() -> None:
    exif = PIL_Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees clockwise
    exif.get_ifd(0x8825)[2] = (48.0, 51.0, 24.0)  # GPS latitude
    data = encoded(flag(), "JPEG", exif=exif, quality=95)
    read = decoded(Image(data).read())
    assert (read.format, read.size) == ("JPEG", (20, 40))
    assert np.abs(np.asarray(read)[2, 10].astype(int) - RED).max() < 30  # the left of the file is the top of the scene
    assert not read.getexif()
    assert b"Exif" not in Image(data).read()
    turned = decoded(Image(decoded(data)).read())
    assert (turned.format, turned.size) == ("PNG", (20, 40))


def test_other_formats_modes_and_animations_become_plain_png_or_jpeg() -> None:
    sixteen = PIL_Image.fromarray(np.full((4, 4), 40_000, np.uint16))
    frames = [PIL_Image.new("RGB", (4, 4), color) for color in (RED, BLUE)]
    animation = encoded(frames[0], "PNG", save_all=True, append_images=frames[1:])
    cases = [
        (encoded(flag(), "BMP"), "PNG", "RGB"),
        (encoded(flag().convert("CMYK"), "JPEG"), "JPEG", "RGB"),
        (encoded(sixteen), "PNG", "L"),
        (animation, "PNG", "RGB"),
    ]
    for data, kind, mode in cases:
        read = decoded(Image(data).read())
        assert (read.format, read.mode, getattr(read, "n_frames", 1)) == (kind, mode, 1)
    assert np.asarray(decoded(Image(encoded(sixteen)).read())).max() == 40_000 // 256
    assert decoded(Image(animation).read()).getpixel((0, 0)) == RED


def test_large_images_are_reduced_with_their_proportions() -> None:
    read = decoded(Image(PIL_Image.new("RGB", (2 * MAX_SIDE, 100))).read())
    assert read.size == (MAX_SIDE, 50)


def test_limits_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(flag())
    monkeypatch.setattr(images, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(fm.ImagePromptError, match="has 40 x 20 pixels, more than 100"):
        Image(data).read()
    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", 10)
    with pytest.raises(fm.ImagePromptError, match="has more than 10 bytes"):
        Image(data).read()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"pixels",
        b"%PDF-1.7",
        b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        encoded(flag(200, 200), "JPEG")[:-200],
        encoded(flag(200, 200))[:-60],
        b"\x89PNG\r\n\x1a\n" + b"\0" * 40,
    ],
)
def test_damaged_and_foreign_bytes_are_typed_errors(data: bytes) -> None:
    with pytest.raises(fm.ImagePromptError, match=r"cut short|cannot be decoded|not in a format|is empty"):
        Image(data).read()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("https://example.org/a.png", "not fetched from the web"),
        ("none.png", "does not exist"),
        ("data:text/html;base64,AAAA", "must begin with data:image"),
        ("data:image/png;base64,@@@", "base64 of a data URL is damaged"),
        (np.zeros((4, 4, 3)), "got float64"),
        (np.zeros((4, 4, 2), np.uint8), r"of shape \[4, 4, 2\]"),
        (np.zeros((0, 4, 3), np.uint8), r"of shape \[0, 4, 3\]"),
        (12, "got int"),
        (None, "got NoneType"),
    ],
)
def test_other_sources_are_refused_immediately(source: Any, message: str) -> None:
    with pytest.raises(fm.ImagePromptError, match=message):
        Image(source)


@pytest.fixture
def text_model(tmp_path: Path) -> fm.SystemLanguageModel:
    """The shipped model without its reader of pages."""
    shipped = shipped_bundle()
    assert shipped is not None
    return fm.SystemLanguageModel(
        bundle=shutil.copytree(shipped, tmp_path / "text", ignore=shutil.ignore_patterns("reader"))
    )


def test_a_prompt_counts_the_tokens_of_its_images(text_model: fm.SystemLanguageModel) -> None:
    model = fm.OpenAICompatibleModel("http://127.0.0.1:1/v1", "x", capabilities=list(fm.Capability))
    data = encoded(flag())
    assert model.token_count_blocking(fm.Prompt("four", fm.Image(data))) == model.token_count_blocking("four") + 256
    with pytest.raises(fm.UnsupportedAttachmentError, match="does not support images"):
        text_model.token_count_blocking(fm.Image(data))


def test_a_text_only_model_has_no_vision(text_model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(model=text_model)
    with pytest.raises(fm.UnsupportedAttachmentError, match="needs vision"):
        session.respond_blocking(fm.Prompt("What does the sign say?", fm.Image(encoded(flag()))))
    assert len(session.transcript) == 0


def test_a_tool_output_with_an_image_needs_a_model_with_vision(text_model: fm.SystemLanguageModel) -> None:
    @fm.tool
    def photo() -> Any:
        """Take a photo."""
        return fm.Image(encoded(flag()))

    session = fm.LanguageModelSession(model=text_model, tools=[photo])
    options = fm.GenerationOptions(tool_calling_mode="required", maximum_response_tokens=64)
    with pytest.raises(fm.ToolCallError, match="does not support images; return text"):
        session.respond_blocking("Take a photo", options=options)


def test_a_transcript_keeps_images_by_digest() -> None:
    data = encoded(flag())
    digest = hashlib.sha256(data).hexdigest()
    turn = fm.UserTurn(content=[fm.TextPart(text="What?"), fm.ImagePart(digest=digest, num_tokens=9)])
    output = fm.ToolTurn(name="photo", content=turn.content)
    for entry in (
        fm.PromptEntry(turn=turn, options=fm.GenerationOptions(), images={digest: data}),
        fm.ToolOutputEntry(turn=output, call_id="1", images={digest: data}),
    ):
        check_images(fm.Transcript([entry]), digest, data)


def check_images(transcript: fm.Transcript, digest: str, data: bytes) -> None:
    assert transcript.images == {digest: data}
    assert transcript.image_digests == (digest,)
    assert data not in str(transcript.as_dict()).encode()
    bare = fm.Transcript.parse(transcript.as_dict())
    assert (bare.images, bare.image_digests) == ({}, (digest,))
    full = fm.Transcript.parse(transcript.as_dict(), images={digest: data, "other": b""})
    assert full.images == {digest: data}
    assert fm.Transcript(full[:1]).images == {digest: data}
    assert full.as_dict() == transcript.as_dict()


def test_formats_that_start_programs_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = pytest.importorskip("PIL.EpsImagePlugin")
    monkeypatch.setattr(plugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript is started"))
    with pytest.raises(fm.ImagePromptError, match="not in a format"):
        Image(encoded(flag(), "EPS")).read()


def test_any_error_of_a_decoder_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: Any, **__: Any) -> None:
        raise RuntimeError("Failed to decode image: Not implemented")  # of Pillow for a damaged AVIF file

    data = encoded(flag(), "BMP")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", damaged)
    with pytest.raises(fm.ImagePromptError, match="damaged"):
        Image(data).read()
