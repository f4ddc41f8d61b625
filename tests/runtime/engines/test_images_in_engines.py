"""Images in engines: the model's own embeddings at their tokens, found again by digest and never mixed up."""

from __future__ import annotations

import copy
import functools
import hashlib
import io
from collections.abc import Sequence as List

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_engines import CONFIGS, assert_close

from openafm.data.images.resolution import image_views
from openafm.models.attention.spans import EmbeddingSpan, ImageKey
from openafm.models.vision.config import RegisterWindowScopeConfig, VisionConfig, VisionLayerConfig
from openafm.models.vision.image_modes import ImageModeConfig
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.sizes import adapter_for
from openafm.runtime.engines import image_cache, prefix_cache
from openafm.runtime.engines.base import InsertedEmbeddings, InsertedEmbeddingsError, Sequence
from openafm.runtime.engines.cache_limits import CacheLimitError
from openafm.runtime.engines.image_cache import ImageCache, UnreadableImageError, image_cache_bytes
from openafm.runtime.engines.prefix_cache import PrefixCache
from openafm.runtime.engines.sequence import Insertion, PromptTokens
from openafm.runtime.engines.torch_engine import TorchEngine

PLENTY = 1 << 30
BALANCED = ImageModeConfig(name="balanced", side=16, tokens=4)
HIGH = ImageModeConfig(name="high", side=16, tokens=4, grid=2)
RAPID = ImageModeConfig(name="rapid", side=8, tokens=1)
MODES = (BALANCED, HIGH, RAPID)
VISION = VisionConfig(
    image_side=16,
    patch_side=2,
    dim=16,
    window_side=4,
    layers=(
        VisionLayerConfig(num_heads=2, mlp_dim=24, scope=RegisterWindowScopeConfig()),
        VisionLayerConfig(num_heads=2, mlp_dim=24),
    ),
)


@functools.cache
def decoder(name: str) -> MultimodalDecoder:
    """Return a decoder whose image tokens differ clearly between images."""
    model = MultimodalConfig.of(CONFIGS[name], VISION, adapter_for(VISION, tokens_side=2), MODES).build(seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        model.embedding.normal_(std=0.1, generator=generator)
        model.adapter.convolution.taps.weight.normal_(generator=generator)
    return model


def engine(name: str = "shared") -> TorchEngine:
    return TorchEngine(decoder(name), signature="tiny")


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(256, size=(24, 40, 3), dtype=np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


RED, BLUE = picture(1), picture(2)
IMAGES = {digest(data): data for data in (RED, BLUE)}


def prompt(*parts: int | tuple[bytes, ImageModeConfig]) -> PromptTokens:
    """Return a prompt of runs of text tokens and images."""
    tokens: list[int] = []
    insertions = []
    for part in parts:
        if isinstance(part, int):
            tokens += [len(tokens) % 50 + 1 for _ in range(part)]
        else:
            data, mode = part
            start, stop = len(tokens), len(tokens) + mode.num_tokens
            insertions.append(Insertion(start, stop, f"{digest(data)}:{mode.num_tokens}"))
            tokens += [7] * mode.num_tokens
    return PromptTokens(tokens, tuple(insertions))


TWO = prompt(18, (RED, BALANCED), 5, (BLUE, HIGH), 3, (RED, RAPID), 4)


def expected_logits(name: str, content: PromptTokens) -> NDArray[np.float32]:
    """Return the logits of the decoder in one pass, with the embeddings that training computes."""
    model = decoder(name)
    modes = {mode.num_tokens: mode for mode in MODES}
    spans, views = [], {}
    for start, stop, name_ in content.insertions:
        image = name_.split(":")[0]
        spans.append(EmbeddingSpan(0, start, stop, image))
        pixels = np.asarray(PIL.Image.open(io.BytesIO(IMAGES[image])).convert("RGB"))
        views[ImageKey(image, stop - start)] = torch.tensor(image_views(pixels, modes[stop - start]))
    with torch.no_grad():
        logits_BNV = model(torch.tensor([list(content.tokens)]), inserted=model.embed_images(spans, views))
    logits_NV: NDArray[np.float32] = logits_BNV[0].numpy()
    return logits_NV


def fed(running: TorchEngine, content: PromptTokens, cuts: List[int] = ()) -> Sequence:
    """Return a sequence of the content, fed in pieces that end at `cuts`."""
    inserted = ImageCache(running, MODES, PLENTY).inserted(content, IMAGES)
    sequence = running.new_sequence()
    for start, stop in zip((0, *cuts), (*cuts, len(content)), strict=True):
        parts = [part for each in inserted if (part := each.cut(start, stop)) is not None]
        running.step([(sequence, content.tokens[start:stop], parts)])
    return sequence


def next_logits(running: TorchEngine, sequence: Sequence) -> NDArray[np.float32]:
    (logits_V,) = running.step([(sequence, [9])])
    return logits_V


@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_equals_one_pass_of_the_model(name: str) -> None:
    running, whole = engine(name), TWO + PromptTokens([9])
    for cuts in ((), (20,), (3, 19, 30)):
        assert_close(next_logits(running, fed(running, TWO, cuts)), expected_logits(name, whole)[-1])


@pytest.mark.parametrize("name", ["shared", "windows"])
def test_snapshots_forks_and_rollbacks_keep_images(name: str) -> None:
    running, whole = engine(name), TWO + PromptTokens([9])
    sequence = fed(running, TWO, (20,))
    restored = running.restore(running.snapshot(sequence))
    assert restored.content == sequence.content == TWO
    for each in (restored, running.fork(sequence)):
        assert_close(next_logits(running, each), expected_logits(name, whole)[-1])
    running.rollback(restored, len(whole) - 25)  # behind the windows: the images are embedded again
    running.step([(restored, TWO.tokens[25:], [part for each in sequence.inserted if (part := each.cut(25, len(TWO)))])])
    assert restored.content == TWO
    assert_close(next_logits(running, restored), expected_logits(name, whole)[-1])


def test_equal_tokens_of_two_images_share_only_what_precedes_them() -> None:
    """Fails if the keys of the prefix cache leave out the digests."""
    running = engine()
    cache = PrefixCache(running, PLENTY)
    red, blue = prompt(18, (RED, BALANCED), 5), prompt(18, (BLUE, BALANCED), 5)
    plain = PromptTokens(red.tokens)
    cache.keep(fed(running, red), len(red), "conversation")
    assert [cache.begin(each).length for each in (red, blue, plain)] == [len(red), 18, 18]
    cache.keep(fed(running, blue), len(blue), "conversation")
    cache.keep(fed(running, plain), len(plain), "conversation")
    for each in (red, blue, plain):
        found = cache.begin(each)
        assert (found.length, found.content) == (len(each), each)
        assert_close(next_logits(running, found), expected_logits("shared", each + PromptTokens([9]))[-1])


def test_one_image_in_two_modes_is_not_shared() -> None:
    running = engine()
    cache = PrefixCache(running, PLENTY)
    cache.keep(fed(running, prompt(18, (RED, BALANCED), 5)), 27, "conversation")
    assert cache.begin(prompt(18, (RED, HIGH), 5)).length == 18


def test_equal_hashes_of_two_images_are_not_confused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "_key", lambda content: np.asarray(content.tokens, ">u4").tobytes())
    running = engine()
    cache = PrefixCache(running, PLENTY)
    cache.keep(fed(running, prompt(18, (RED, BALANCED), 5)), 27, "conversation")
    assert cache.begin(prompt(18, (BLUE, BALANCED), 5)).length == 18


def test_an_image_is_embedded_once_and_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    running, calls = engine(), []
    encode = running.encode_views
    monkeypatch.setattr(running, "encode_views", lambda *given: calls.append(given) or encode(*given))
    cache = ImageCache(running, MODES, PLENTY)
    first, second = (cache.inserted(TWO, IMAGES) for _ in range(2))
    assert (len(calls), [each.digest for each in first]) == (3, [each.digest for each in TWO.insertions])
    assert all(a.vectors_LD is b.vectors_LD for a, b in zip(first, second, strict=True))
    assert cache.num_bytes == sum(each.vectors_LD.nbytes for each in first)
    running.weights_version += 1
    cache.inserted(TWO, IMAGES)
    assert len(calls) == 6
    small = ImageCache(running, MODES, 4 * 32 * 4)  # one image in balanced mode
    for data in (RED, BLUE, BLUE, RED):
        small.inserted(prompt((data, BALANCED)), IMAGES)
        assert small.num_bytes == 4 * 32 * 4
    assert len(calls) == 9
    ImageCache(running, MODES, 0).inserted(TWO, IMAGES)
    assert len(calls) == 12


def test_an_update_of_the_vision_encoder_refuses_the_images_of_before() -> None:
    model = copy.deepcopy(decoder("shared"))
    running = TorchEngine(model, signature="tiny")
    cache, content = ImageCache(running, MODES, PLENTY), prompt(18, (RED, BALANCED), 5)
    inserted = cache.inserted(content, IMAGES)
    sequence = running.new_sequence()
    running.step([(sequence, content.tokens, inserted)])
    running.update_weights({"embedding": model.embedding.detach().flip(0).clone()}, version=1)
    running.step([(sequence, [1])])  # the encoder is unchanged
    name = "vision.patch.weight"
    running.update_weights({name: model.get_parameter(name).detach().flip(0).clone()}, version=2)
    other = running.new_sequence()
    for refused in ((sequence, [1]), (other, content.tokens, inserted)):
        with pytest.raises(InsertedEmbeddingsError, match="version 2 changed the vision encoder; roll the sequence back"):
            running.step([refused])
    with pytest.raises(InsertedEmbeddingsError, match="version 2 changed"):
        running.snapshot(sequence)
    running.rollback(sequence, sequence.length - 18)
    fresh = cache.inserted(content, IMAGES)
    assert not np.allclose(fresh[0].vectors_LD, inserted[0].vectors_LD, atol=1e-3)
    rest = content[18:]
    running.step([(sequence, rest.tokens, cache.inserted(rest, IMAGES))])
    new = TorchEngine(copy.deepcopy(model), signature="new")
    assert_close(next_logits(running, sequence), next_logits(new, fed(new, content)))
    assert_close(next_logits(running, running.restore(running.snapshot(sequence))), next_logits(running, sequence))


def test_bytes_that_do_not_have_their_digest_are_refused() -> None:
    cache = ImageCache(engine(), MODES, PLENTY)
    for images in ({}, {digest(RED): BLUE}):
        with pytest.raises(UnreadableImageError, match=f"image {digest(RED)[:12]} are missing"):
            cache.inserted(prompt((RED, BALANCED)), images)


def saved(mode: str, size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    PIL.Image.new(mode, size).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (saved("L", (1, 1)), "too small.*the least side is 8; pass a larger image"),
        (saved("RGB", (1, 20_000)), "aspect ratio.*1 x 20,000 pixels.*crop it"),
        (RED[:-50], "damaged.*restore the file"),
        (b"no image", "not an image.*convert it"),
    ],
)
def test_images_that_no_model_is_trained_on_are_typed_errors(data: bytes, message: str) -> None:
    with pytest.raises(UnreadableImageError, match=message):
        image_cache.model_pixels(data, BALANCED)


def test_pixels_are_upright_opaque_and_of_eight_bits() -> None:
    half = PIL.Image.new("RGBA", (16, 16), (255, 0, 0, 0))
    deep = PIL.Image.fromarray(np.full((16, 16), 40_000, np.uint16))
    for image, value in ((half, (255, 255, 255)), (deep, (156, 156, 156))):
        file = io.BytesIO()
        image.save(file, "PNG")
        assert image_cache.model_pixels(file.getvalue(), BALANCED)[0, 0].tolist() == list(value)


def test_a_text_model_encodes_no_views() -> None:
    text = TorchEngine(CONFIGS["shared"].build(seed=0))
    with pytest.raises(InsertedEmbeddingsError, match="no vision encoder"):
        text.encode_views(np.zeros((1, 16, 16, 3), np.uint8), 4)


def test_the_limit_is_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert image_cache_bytes() == image_cache.DEFAULT_MB * 2**20
    monkeypatch.setenv(image_cache.LIMIT, "0")
    assert image_cache_bytes() == 0
    monkeypatch.setenv(image_cache.LIMIT, "-1")
    with pytest.raises(CacheLimitError, match="number of megabytes"):
        image_cache_bytes()


PARTS = st.lists(st.integers(1, 4) | st.sampled_from([(RED, BALANCED), (BLUE, BALANCED), (RED, RAPID)]), max_size=5)


@given(PARTS, PARTS, PARTS)
def test_common_prefixes_end_before_the_first_difference(head: list, tail: list, other: list) -> None:
    one, two, start = prompt(*head, *tail), prompt(*head, *other), len(prompt(*head))
    common = one.num_common(two)
    assert start <= common == two.num_common(one) <= min(len(one), len(two))
    if common < min(len(one), len(two)):
        differ = {*one.insertions} ^ {*two.insertions}
        assert one.tokens[common] != two.tokens[common] or common in {each.start for each in differ}
    assert one[:common] == two[:common]
    assert one[:start] + one[start:] == one


def test_inserted_pieces_are_one_content() -> None:
    running = engine()
    vectors = np.zeros((4, 32), np.float32)
    sequence = running.new_sequence()
    whole = InsertedEmbeddings(1, vectors, "a:4")
    running.step([(sequence, [1, 2, 2], [whole.cut(0, 3)])])
    running.step([(sequence, [2, 2, 3], [whole.cut(3, 6)])])
    assert sequence.content.insertions == (Insertion(1, 5, "a:4"),)
    running.rollback(sequence, 3)
    assert sequence.content.insertions == (Insertion(1, 3, "a:4"),)
