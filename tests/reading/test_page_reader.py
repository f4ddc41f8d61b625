"""A reader of pages: its function, its files, and what it reads with the weights that ship."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from safetensors.numpy import load, save

from openafm.bundle import open_bundle, shipped_bundle, write_bundle
from openafm.core.config import ConfigError
from openafm.data.drawing.canvas import Canvas
from openafm.data.drawing.fonts import fonts_for
from openafm.models.vision.config import ConvolutionConfig
from openafm.models.vision.letters import NUM_CLASSES
from openafm.models.vision.multimodal_config import LettersModelConfig
from openafm.models.vision.sizes import encoder_of
from openafm.reading.lines import TextLine
from openafm.reading.page import (
    FILES,
    SIDES,
    Page,
    PageReader,
    PageReaderConfig,
    PageReaderError,
    open_reader,
    reader_of,
    write_reader,
)
from openafm.reading.spelling import Spelling
from openafm.runtime.engines.image_cache import UnreadableImageError
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

SHIPPED = shipped_bundle()
needs_reader = pytest.mark.skipif(SHIPPED is None or open_bundle(SHIPPED).reader is None, reason="no reader ships")


@pytest.fixture(scope="module")
def model() -> torch.nn.ModuleDict:
    """An encoder with a layer of letters, with random weights."""
    generator = torch.Generator().manual_seed(3)
    letters = torch.nn.Linear(encoder_of("reader.micro").dim, 2 * NUM_CLASSES)
    with torch.no_grad():
        for weight in letters.parameters():
            weight.normal_(generator=generator)
    return torch.nn.ModuleDict({"vision": encoder_of("reader.micro").build(0), "letters": letters})


def reader_with(model: torch.nn.ModuleDict) -> PageReader:
    weights = {name: weight.detach().numpy() for name, weight in model.state_dict().items()}
    return PageReader(PageReaderConfig(vision=encoder_of("reader.micro")), weights)


def picture(width: int, height: int, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    out = io.BytesIO()
    PIL.Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("size", [(96, 64), (64, 160)])
def test_probabilities_are_those_of_the_torch_modules(model, size):
    view_YXC = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    found_RCK = reader_with(model).probabilities(view_YXC)
    with torch.no_grad():
        patches_YXD = model["vision"](torch.tensor(view_YXC)[None]).patches_BYXD[0]
        logits_YXNK = model["letters"](patches_YXD).unflatten(-1, (2, NUM_CLASSES))
    assert found_RCK.shape == (size[0] // 8, size[1] // 4, NUM_CLASSES)
    for row, column in ((0, 0), (3, 5), (size[0] // 8 - 1, size[1] // 4 - 1)):
        expected_K = logits_YXNK[row, column // 2, column % 2].softmax(-1).numpy()
        np.testing.assert_allclose(found_RCK[row, column], expected_K, atol=1e-5)


@pytest.mark.parametrize("detail", ["high", "balanced", "rapid"])
def test_views_keep_the_shape_of_the_image(model, monkeypatch, detail):
    seen = []
    reader = reader_with(model)
    monkeypatch.setattr(reader, "probabilities", lambda view: seen.append(view.shape[:2]) or np.eye(NUM_CLASSES)[[[0]]])
    reader.read(picture(600, 800), detail)
    side, views_of_half = SIDES[detail]
    assert len(seen) == 3 * views_of_half + 1
    for number, (height, width) in enumerate(seen):
        assert width * height == pytest.approx((side * 2 ** (-number / views_of_half)) ** 2, rel=0.15)
        assert height / width == pytest.approx(4 / 3, rel=0.15)
        assert height % 8 == width % 8 == 0


def test_small_images_are_not_enlarged_without_limit(model, monkeypatch):
    seen = []
    reader = reader_with(model)
    monkeypatch.setattr(reader, "probabilities", lambda view: seen.append(view.shape[:2]) or np.eye(NUM_CLASSES)[[[0]]])
    reader.read(picture(40, 40))
    assert seen[0] == (120, 120)


def test_an_image_is_read_once(model, monkeypatch):
    reader, count = reader_with(model), []
    original = reader.probabilities
    monkeypatch.setattr(reader, "probabilities", lambda view: count.append(1) or original(view))
    first = reader.read(picture(64, 64), "rapid")
    assert reader.read(picture(64, 64), "rapid") is first
    assert len(count) == 4
    reader.read(picture(64, 64, seed=1), "rapid")
    assert len(count) == 8


@pytest.mark.parametrize(
    ("data", "problem"), [(b"no image", "not an image"), (picture(1, 1), "small"), (picture(20, 4000), "aspect")]
)
def test_images_that_cannot_be_read(model, data, problem):
    with pytest.raises(UnreadableImageError, match=problem):
        reader_with(model).read(data, "rapid")


def test_weights_that_do_not_fit(model):
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    config = PageReaderConfig(vision=encoder_of("reader.micro"))
    for name in weights:
        with pytest.raises(PageReaderError, match="do not fit"):
            PageReader(config, weights | {name: weights[name][..., :-1]})
        with pytest.raises(PageReaderError, match="do not fit"):
            PageReader(config, weights | {name: weights[name].astype(np.int8)})
        with pytest.raises(PageReaderError, match="do not fit"):
            PageReader(config, {key: each for key, each in weights.items() if key != name})


def test_a_folder_without_a_reader(tmp_path):
    with pytest.raises(PageReaderError, match=r"reader\.json"):
        open_reader(tmp_path)


def test_a_written_reader_has_the_weights_and_n_grams(tmp_path):
    config = LettersModelConfig(vocab_size=320, vision=encoder_of("reader.micro"))
    bundle = write_bundle(
        tmp_path / "letters",
        config=config,
        tokenizer=train_tokenizer(TokenizerConfig(vocab_size=320), []),
        template=ChatTemplate(),
        tensors={name: weight.numpy() for name, weight in config.build(0).state_dict().items()},
    )
    spelling = Spelling.of(["the old mill", "the other mill"] * 4)
    write_reader(bundle, tmp_path / "reader", spelling)
    written = open_reader(tmp_path / "reader")
    view_YXC = np.random.default_rng(1).integers(0, 256, (64, 96, 3), np.uint8)
    np.testing.assert_allclose(written.probabilities(view_YXC), reader_of(bundle).probabilities(view_YXC), atol=2e-3)
    assert written.spelling.grams_N.tolist() == spelling.grams_N.tolist()
    assert written.spelling.counts_N.tolist() == spelling.counts_N.tolist()


def with_n_grams(folder: Path, n_grams: dict[str, np.ndarray]) -> Path:
    """Return a reader with other n-grams and a digest that fits."""
    tensors = load((folder / FILES[1]).read_bytes())
    data = save({name: each for name, each in tensors.items() if "spelling" not in name} | n_grams)
    (folder / FILES[1]).write_bytes(data)
    about = json.loads((folder / FILES[0]).read_text())
    (folder / FILES[0]).write_text(json.dumps(about | {"digest": hashlib.sha256(data).hexdigest()}))
    return folder


@needs_reader
def test_n_grams_are_checked_and_may_be_absent(tmp_path):
    folder = shutil.copytree(open_bundle(SHIPPED).reader, tmp_path / "reader")
    with_n_grams(folder, {})
    assert open_reader(folder).read(typed_page([("Night Market", 40)])).text == "Night Market"
    with_n_grams(folder, {"spelling.grams": np.zeros(3, np.float32), "spelling.counts": np.zeros(3, np.uint16)})
    with pytest.raises(PageReaderError, match="uint32 and uint16"):
        open_reader(folder)
    with_n_grams(folder, {"spelling.grams": np.zeros(3, np.uint32)})
    with pytest.raises(PageReaderError, match=r"spelling\.counts"):
        open_reader(folder)


@needs_reader
def test_a_damaged_reader(tmp_path):
    folder = shutil.copytree(open_bundle(SHIPPED).reader, tmp_path / "reader")
    data = bytearray((folder / FILES[1]).read_bytes())
    data[-1] ^= 1
    (folder / FILES[1]).write_bytes(data)
    with pytest.raises(PageReaderError, match="damaged"):
        open_reader(folder)
    (folder / FILES[0]).write_text(json.dumps({"vision": 3}))
    with pytest.raises(PageReaderError, match="damaged"):
        open_reader(folder)


def typed_page(lines: list[tuple[str, int]], width: int = 700, height: int = 500, ink=(20, 20, 40)) -> bytes:
    """Return a page with lines of text in a usual font, each in its size."""
    font = next(font for font in fonts_for("en") if font.family == "DejaVu Sans")
    canvas, y = Canvas(width, height, (250, 250, 245)), 40.0
    for text, size in lines:
        canvas.text(60, y, text, font, size, ink)
        y += 1.8 * size
    return canvas.png()


@needs_reader
@pytest.mark.parametrize("detail", ["high", "balanced", "rapid"])
def test_the_shipped_reader_reads_a_clean_page(detail):
    lines = [("Harbor Night Market", 54), ("Saturday, June 14, 2031", 26), ("Doors open at 19:45", 22)]
    page = open_reader(open_bundle(SHIPPED).reader).read(typed_page(lines), detail)
    assert page.text.splitlines() == [text for text, _ in lines]
    assert page.lines[0].font_size > 1.5 * page.lines[1].font_size


def test_the_largest_lines_are_headings():
    def page(*lines):
        found = [TextLine(text=text, left=0, right=9, y=0, font_size=size, probability=1) for text, size in lines]
        return Page(width=9, height=9, lines=tuple(found))

    found = page(("Presented by", 16), ("FAMILY", 58), ("FUN DAY", 60), ("June 6th, 2036", 30), ("Room 59, first floor", 16))
    assert found.markdown.splitlines() == ["Presented by", "# FAMILY", "# FUN DAY", "June 6th, 2036", "Room 59, first floor"]
    assert page(("one", 20), ("two", 22)).markdown == "one\ntwo"
    assert page().markdown == ""


@needs_reader
def test_an_empty_page_has_no_text():
    page = open_reader(open_bundle(SHIPPED).reader).read(typed_page([]))
    assert page.text == ""


def test_config_refuses_other_encoders():
    with pytest.raises(ConfigError, match="convolutions alone"):
        PageReaderConfig(vision=encoder_of("rw_vitdet.micro"))
    coarse = (ConvolutionConfig(channels=8, stride=4), ConvolutionConfig(channels=8, stride=4))
    with pytest.raises(ConfigError, match="patches must be 8"):
        PageReaderConfig(vision=replace(encoder_of("reader.micro"), image_side=160, patch_side=16, dim=8, stem=coarse))


def test_reader_files_are_known_to_bundles():
    from openafm.bundle.store import FILE_PATTERNS

    assert {str(Path("reader") / name) for name in FILES} <= set(FILE_PATTERNS)
