"""Zero-shot evaluation and scorers by contrastive towers: on towers that see one number, and on the shapes of real ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from openafm.bundle import Bundle, write_bundle
from openafm.cli.main import run
from openafm.core.errors import UsageError
from openafm.data.images.decoding import png, stored_image
from openafm.data.images.documents import ImageDocument, ImagePart, StoredImage
from openafm.data.images.shard_writer import finish_corpus, write_image_shard
from openafm.data.images.shards import ImageCorpus, open_image_corpus
from openafm.data.pairs.alignment import SCORE_KEY, AlignmentConfig
from openafm.data.pairs.filters import Pair
from openafm.evaluation.image_text import ImageTextEncoder, NotContrastiveError, zero_shot
from openafm.models.sizes import on_device_micro
from openafm.models.vision.config import VisionConfig, VisionLayerConfig
from openafm.models.vision.multimodal_config import ClipConfig
from openafm.recipes.pipelines.clip_scorer import ClipDomainScorerConfig, ClipScorerConfig
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

TOKENIZER = Tokenizer([])
KINDS = ("bar", "line", "pie")


class Shades:
    """Towers that see the gray level of an image and the number in a text."""

    def images(self, images: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.float32]:
        return np.stack([unit(float(image.mean())) for image in images])

    def texts(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return np.stack([unit(40.0 * KINDS.index(text) if text in KINDS else float(text.split()[-1])) for text in texts])


def unit(shade: float) -> npt.NDArray[np.float32]:
    angle = shade / 256 * np.pi
    return np.array([np.cos(angle), np.sin(angle)], np.float32)


SHADES = cast("ImageTextEncoder", Shades())


def gray(shade: int) -> StoredImage:
    image = stored_image(png(np.full((8, 8, 3), shade, np.uint8)))
    assert isinstance(image, StoredImage)
    return image


def corpus(folder: Path, shades: Sequence[int], wrong: Sequence[int] = ()) -> ImageCorpus:
    """Write charts of these shades, whose captions name them; those in `wrong` name another one of them."""
    items = []
    for number, shade in enumerate(shades):
        named = shades[number - 1] if shade in wrong else shade
        image = gray(shade)
        document = ImageDocument(
            id=f"{number}",
            kind="chart",
            parts=(ImagePart(digest=image.digest),),
            language="en",
            captions={"short": f"shade {named}"},
            metadata={"chart": KINDS[min(round(shade / 40), 2)]},
        )
        items.append((document, [image]))
    finish_corpus(folder, {}, [write_image_shard(folder, 0, items)])
    return open_image_corpus(folder)


def test_pairs_and_classes_are_picked_by_similarity(tmp_path: Path) -> None:
    scores = zero_shot(SHADES, corpus(tmp_path, [0, 30, 50, 85, 120, 180]))
    assert (scores.num_pairs, scores.candidates) == (6, 6)
    assert (scores.image_to_text, scores.text_to_image) == (1.0, 1.0)
    assert scores.kinds == {"chart": 1.0}
    assert (scores.classes, scores.num_classes) == (1.0, 3)


def test_wrong_captions_lower_the_scores(tmp_path: Path) -> None:
    shades = [0, 60, 120, 180]
    scores = zero_shot(SHADES, corpus(tmp_path, shades, wrong=shades))
    assert (scores.image_to_text, scores.text_to_image) == (0.0, 0.0)
    few = zero_shot(SHADES, corpus(tmp_path / "few", [0, 60, 120, 180]), candidates=2, most=3)
    assert (few.num_pairs, few.candidates) == (3, 2)


def test_a_corpus_without_two_captions_is_refused_with_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no two documents of a kind and language.*it has 1 of chart in .*--count 100"):
        zero_shot(SHADES, corpus(tmp_path, [10]))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    vision = VisionConfig(image_side=16, patch_side=4, dim=16, layers=(VisionLayerConfig(num_heads=2, mlp_dim=32),))
    config = ClipConfig.of(on_device_micro(), vision, shared_dim=8)
    return bundle_of(tmp_path_factory.mktemp("clip") / "clip", config)


def bundle_of(path: Path, config: Any) -> Bundle:
    tensors = {name: tensor.numpy() for name, tensor in config.build(seed=1).state_dict().items()}
    return write_bundle(path, config=config, tokenizer=TOKENIZER, template=ChatTemplate(), tensors=tensors)


def test_vectors_do_not_depend_on_the_batch(clip: Bundle) -> None:
    encoder = ImageTextEncoder(clip)
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (20 + n, 24, 3), dtype=np.uint8) for n in range(3)]
    images_IE = encoder.images(images)
    assert images_IE.shape == (3, 8)
    np.testing.assert_allclose(np.linalg.norm(images_IE, axis=-1), 1, rtol=1e-5)
    np.testing.assert_allclose(encoder.images(images[1:2]), images_IE[1:2], atol=1e-5)
    texts = ["a", "a longer text", "words " * 400]
    np.testing.assert_allclose(encoder.texts(texts)[1:2], encoder.texts(texts[1:2]), atol=1e-5)
    assert encoder.texts([]).shape == encoder.images([]).shape == (0, 8)


def test_the_scorers_give_the_similarity(clip: Bundle) -> None:
    image = gray(200)
    pair = Pair(
        text="a gray square",
        language="en",
        image_url="",
        page_url="",
        width=8,
        height=8,
        pixels=lambda: np.full((8, 8, 3), 200, np.uint8),
    )
    config = ClipScorerConfig(bundle=str(clip.path))
    encoder = ImageTextEncoder(clip)
    expected = float(encoder.images([pair.pixels()])[0] @ encoder.texts([pair.text])[0])
    assert config.build().score(pair) == pytest.approx(expected, abs=1e-3)
    assert config.input_digests() == (clip.identity,)
    assert AlignmentConfig(scorer=config, min_score=-1.0).build().check(pair) is None
    assert float(pair.metadata[SCORE_KEY]) == pytest.approx(expected, abs=1e-3)
    scores = ClipDomainScorerConfig(bundle=str(clip.path)).build().scores(image, ["a", pair.text])
    assert scores[1] == pytest.approx(expected, abs=2e-3)


def test_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotContrastiveError, match=r"train vision\.clip"):
        ImageTextEncoder(bundle_of(tmp_path / "text", on_device_micro()))


def test_the_command_evaluates_a_corpus(clip: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus(tmp_path, [0, 30, 60])
    assert run(["evaluate", str(clip.path), "--data", str(tmp_path), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert (scores["num_pairs"], scores["candidates"], scores["signature"]) == (3, 3, clip.signature)
    assert run(["evaluate", str(clip.path), "--data", str(tmp_path)]) == 0
    assert "3 pairs, 3 candidates" in capsys.readouterr().out
