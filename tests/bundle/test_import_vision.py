"""Import of InternVL: the views, features, logits and tokens of transformers, or a typed error with nothing written."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import torch
import vision_checkpoints
from numpy.typing import NDArray
from vision_checkpoints import MOST_TILES, SIDE, TOKENS, picture, their_pixels

import openafm as fm
from openafm.bundle import Bundle, BundleError, open_bundle
from openafm.bundle.decoder import load_decoder
from openafm.bundle.hugging_face import Conversion, HuggingFaceError, import_hugging_face
from openafm.cli.main import run
from openafm.data.images.decoding import png
from openafm.data.images.resolution import image_views
from openafm.framework.options import ImageDetail
from openafm.framework.transcripts.prompt import prompt_content
from openafm.models.vision.image_modes import AspectTilesModeConfig
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.runtime.engines.base import InsertedEmbeddings
from openafm.runtime.engines.image_cache import ImageCache, UnreadableImageError, prompt_tokens
from openafm.runtime.engines.sequence import Insertion, PromptTokens
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.vision import VisionTower
from openafm.tokenizer.conversation import UserTurn
from openafm.tokenizer.template import opened

TOLERANCE = 1e-5  # relative to the largest value
HIGH = AspectTilesModeConfig(name="high", side=SIDE, tokens=TOKENS, most_tiles=MOST_TILES)
WIDE, TALL = picture(40, 90, seed=1), picture(90, 30, seed=2)


@pytest.fixture(autouse=True)
def _one_thread_no_grad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Bundle]:
    folder = tmp_path_factory.mktemp("internvl")
    theirs = vision_checkpoints.save(folder / "tiny-vl")
    return theirs, folder / "tiny-vl", import_hugging_face(folder / "tiny-vl", folder / "bundle").bundle


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert theirs.std() > 1e-3, "values near a constant would agree whatever the models do"
    return float((ours - theirs).abs().max() / theirs.abs().max())


def multimodal(bundle: Bundle) -> MultimodalDecoder:
    decoder = load_decoder(bundle)
    assert isinstance(decoder, MultimodalDecoder)
    return decoder


@pytest.mark.parametrize(
    ("height", "width"), [(20, 20), (28, 28), (61, 61), (90, 90), (40, 90), (70, 30), (30, 150), (200, 31)]
)
def test_views_equal_those_of_the_image_processor(height: int, width: int) -> None:
    theirs_VCYX, (num_views,) = their_pixels([picture(height, width)], tiles=True)
    views_VYXC = image_views(picture(height, width), HIGH)
    mean, std = (np.array(each, np.float32) for each in (vision_checkpoints.MEAN, vision_checkpoints.STD))
    ours_VYXC = (views_VYXC.astype(np.float32) / 255 - mean) / std
    assert len(views_VYXC) == num_views
    assert HIGH.num_tokens_of(width, height) == num_views * TOKENS
    assert HIGH.num_tokens_of(width, height) in HIGH.token_counts
    np.testing.assert_allclose(ours_VYXC.transpose(0, 3, 1, 2), theirs_VCYX.numpy(), atol=1e-5)


@pytest.mark.parametrize(("width", "height"), [(800, 800), (896, 896), (1920, 1080), (2480, 3508), (449, 447)])
def test_grids_equal_those_of_transformers_at_the_published_size(width: int, height: int) -> None:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    mode = AspectTilesModeConfig(name="high", side=448, tokens=256, most_tiles=12)
    assert mode.grid_of(width, height) == get_optimal_tiled_canvas((height, width), (448, 448), 1, 12)


VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {},
    "qwen3": {"family": "qwen3"},
    "no biases of queries": {"attention_bias": False},
    "final norm": {"use_mean_pooling": False},
    "shards": {"shards": "40KB"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_features_embeddings_and_logits_equal_transformers(variant: str, tmp_path: Path) -> None:
    theirs = vision_checkpoints.save(tmp_path / "model", **VARIANTS[variant])
    bundle = import_hugging_face(tmp_path / "model", tmp_path / "bundle").bundle
    bundle.verify()
    check_parity(theirs, bundle)


def check_parity(theirs: Any, bundle: Bundle) -> None:
    """Compare the features and embeddings of two images, and the logits of a prompt with text between them."""
    decoder = multimodal(bundle)
    pixels_VCYX, counts = their_pixels([WIDE, TALL], tiles=True)
    assert counts == [3, 4]
    views = [torch.from_numpy(image_views(image, HIGH)) for image in (WIDE, TALL)]
    states = decoder.vision(torch.cat(views))
    features = theirs.model.vision_tower(pixel_values=pixels_VCYX).last_hidden_state
    assert relative(states.registers_BRD, features[:, :1]) <= TOLERANCE
    assert relative(states.patches_BYXD.flatten(1, 2), features[:, 1:]) <= TOLERANCE
    embeddings = decoder.encode_images(torch.cat(views), TOKENS)
    assert relative(embeddings, theirs.model.get_image_features(pixels_VCYX).pooler_output.flatten(0, 1)) <= TOLERANCE
    ours = prefill(bundle, ["Left:", WIDE, "and right:", TALL, "Which?"], "high")
    (logits_NV,) = ours.engine.step([(ours.engine.new_sequence(), ours.tokens, ours.inserted)], logits="all")
    expected = theirs(input_ids=torch.tensor([ours.tokens]), pixel_values=pixels_VCYX, use_cache=False).logits[0]
    assert relative(torch.from_numpy(logits_NV), expected) <= TOLERANCE


@dataclass(frozen=True)
class Prefill:
    """A torch engine with a prompt whose images are embedded."""

    engine: TorchEngine
    tokens: list[int]
    inserted: list[InsertedEmbeddings]


def prefill(bundle: Bundle, parts: list[str | NDArray[np.uint8]], detail: ImageDetail) -> Prefill:
    model = fm.SystemLanguageModel(bundle=bundle.path)
    prompt = fm.Prompt(*(part if isinstance(part, str) else fm.Image(part) for part in parts))
    content, images = prompt_content(prompt, lambda data: model.image_part(data, detail))
    turns = opened([UserTurn(content=content)])
    tokens = prompt_tokens(bundle.template.encode(bundle.tokenizer, turns))
    assert isinstance(bundle.config, MultimodalConfig)
    engine = TorchEngine.open(bundle)
    inserted = ImageCache(engine, bundle.config.image_modes, 1 << 20).inserted(tokens, images)
    assert model.token_count_blocking(prompt, image_detail=detail) == len(tokens.tokens) + len(
        bundle.template.generation_prompt(bundle.tokenizer)
    )
    return Prefill(engine, list(tokens.tokens), inserted)


@pytest.mark.parametrize("detail", ["balanced", "high"])
def test_greedy_answers_equal_transformers(detail: ImageDetail, imported: tuple[Any, Path, Bundle]) -> None:
    theirs, _, bundle = imported
    ours = prefill(bundle, [WIDE, "Which of", TALL, "is wide?"], detail)
    pixels_VCYX, counts = their_pixels([WIDE, TALL], tiles=detail == "high")
    one, other = (f"<img>{'<IMG_CONTEXT>' * count * TOKENS}</img>\n" for count in counts)
    original = vision_checkpoints.tokenizer()
    text = f"<|im_start|>user\n{one}Which of{other}is wide?<|im_end|>\n"
    assert original.encode(text, add_special_tokens=False).ids == ours.tokens
    expected = theirs.generate(
        input_ids=torch.tensor([ours.tokens]),
        pixel_values=pixels_VCYX,
        attention_mask=torch.ones(1, len(ours.tokens), dtype=torch.long),
        max_new_tokens=16,
        min_new_tokens=16,
        do_sample=False,
        eos_token_id=None,
    )
    events = generate(
        ours.engine,
        ours.engine.new_sequence(),
        ours.tokens,
        sampling=GreedyConfig(),
        stop_tokens=[],
        max_tokens=16,
        inserted=ours.inserted,
    )
    answer = [event.token for event in events]
    assert len(set(answer)) > 3, "an answer of one repeated token proves little"
    assert answer == expected[0, -16:].tolist()


def test_the_native_engine_computes_the_same_embeddings_and_logits(imported: tuple[Any, Path, Bundle]) -> None:
    _, _, bundle = imported
    assert isinstance(bundle.config, MultimodalConfig)
    views_VYXC = image_views(WIDE, HIGH)
    ours_LD = VisionTower(bundle.config, bundle.tensors()).encode(views_VYXC, TOKENS)
    expected = multimodal(bundle).encode_images(torch.from_numpy(views_VYXC), TOKENS)
    assert relative(torch.from_numpy(ours_LD), expected) <= 2 * TOLERANCE


@pytest.mark.parametrize("weights", ["int8", "bf16"])
def test_weights_for_the_native_engine_stay_close(weights: Any, imported: tuple[Any, Path, Bundle], tmp_path: Path) -> None:
    _, folder, exact = imported
    bundle = import_hugging_face(folder, tmp_path / weights, conversion=Conversion(weights=weights)).bundle
    bundle.verify()
    views = torch.from_numpy(image_views(TALL, HIGH))
    assert relative(multimodal(bundle).encode_images(views, TOKENS), multimodal(exact).encode_images(views, TOKENS)) < 0.05
    model = fm.SystemLanguageModel(bundle=bundle.path)
    answer = fm.LanguageModelSession(model=model).respond_blocking(
        fm.Prompt(fm.Image(TALL), "Which?"), options=fm.GenerationOptions(maximum_response_tokens=3)
    )
    assert answer
    vision_bytes = {name: tensor.data.nbytes for name, tensor in bundle.stored_tensors.items() if name.startswith("vision.")}
    full = {name: tensor.data.nbytes for name, tensor in exact.stored_tensors.items() if name.startswith("vision.")}
    assert sum(vision_bytes.values()) < 0.8 * sum(full.values())


@pytest.mark.parametrize(("weights", "least_share"), [("int4", 0.999), ("int8", 0.999), ("bf16", 0.998)])
def test_choices_after_images_match_torch_in_every_weight_type(weights: Any, least_share: float, tmp_path: Path) -> None:
    vision_checkpoints.save(tmp_path / "model")
    bundle = import_hugging_face(tmp_path / "model", tmp_path / "bundle", conversion=Conversion(weights=weights)).bundle
    given = prefill(bundle, [WIDE, "Which of", TALL, "is wide?"], "high")
    draw = np.random.default_rng(5)
    num_equal = num_positions = 0
    for _ in range(3):
        tokens = [*given.tokens, *draw.integers(0, bundle.config.vocab_size, 150).tolist()]
        ours, theirs = (
            engine.step([(engine.new_sequence(), tokens, given.inserted)], "all")[0]
            for engine in (NativeEngine(bundle, num_threads=1), TorchEngine.open(bundle))
        )
        num_equal += int((ours.argmax(1) == theirs.argmax(1)).sum())
        num_positions += len(tokens)
    assert num_positions > 550
    assert num_equal / num_positions >= least_share


def test_half_precision_checkpoints_keep_their_bits(tmp_path: Path) -> None:
    theirs = vision_checkpoints.save(tmp_path / "model", dtype=torch.bfloat16)
    check_parity(theirs, import_hugging_face(tmp_path / "model", tmp_path / "bundle").bundle)


def test_names_of_modules_as_in_transformers_5_and_the_newer_processor_file(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    theirs = vision_checkpoints.save(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    renamed = {
        name.replace("language_model.model.", "model.language_model.")
        .replace("language_model.lm_head.", "lm_head.")
        .replace("vision_tower.", "model.vision_tower.")
        .replace("multi_modal_projector.", "model.multi_modal_projector."): tensor
        for name, tensor in load_file(file).items()
    }
    save_file(renamed, file)
    processor = tmp_path / "model" / "preprocessor_config.json"
    settings = json.loads(processor.read_text())
    processor.unlink()
    (tmp_path / "model" / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    check_parity(theirs, import_hugging_face(tmp_path / "model", tmp_path / "bundle").bundle)


def test_the_command_imports_and_answers_about_an_image(
    imported: tuple[Any, Path, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder, _ = imported
    assert run(["import", "hf", str(folder), "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    most = (MOST_TILES + 1) * TOKENS
    assert f"an image takes {TOKENS} tokens, {TOKENS} to {most} with image_detail high" in notes
    image = tmp_path / "wide.png"
    image.write_bytes(png(WIDE))
    command = ["respond", "What is this?", "--image", str(image), "--model", "tiny-vl", "--max-tokens", "4"]
    for detail in ("balanced", "high"):
        assert run([*command, "--image-detail", detail]) == 0
        assert capsys.readouterr().out.strip()
    assert run([*command, "--image-detail", "rapid"]) == 2
    assert "choose one of balanced, high" in capsys.readouterr().err
    assert run(["inspect", "tiny-vl"]) == 0
    assert "balanced" in capsys.readouterr().out


def test_an_image_that_another_model_counted_is_refused_by_name(imported: tuple[Any, Path, Bundle]) -> None:
    *_, bundle = imported
    data = png(WIDE)
    digest = hashlib.sha256(data).hexdigest()
    assert isinstance(bundle.config, MultimodalConfig)
    cache = ImageCache(TorchEngine.open(bundle), bundle.config.image_modes, 1 << 20)
    prompt = PromptTokens([1] * 5 * TOKENS, (Insertion(0, 5 * TOKENS, f"{digest}:{5 * TOKENS}"),))
    with pytest.raises(UnreadableImageError, match=f"this model needs {3 * TOKENS}"):
        cache.inserted(prompt, {digest: data})


def edit(file: str, **changes: Any) -> Callable[[Path], None]:
    """Return a function that changes values of a JSON file; None removes a value, `a.b` is inside of `a`."""

    def apply(folder: Path) -> None:
        values = json.loads((folder / file).read_text())
        for key, value in changes.items():
            *parents, last = key.split("__")
            place = values
            for parent in parents:
                place = place[parent]
            place.pop(last, None) if value is None else place.update({last: value})
        (folder / file).write_text(json.dumps(values))

    return apply


def remove(pattern: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        min(folder.glob(pattern)).unlink()

    return apply


def cut(folder: Path) -> None:
    file = min(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-100])


def without_image_token(folder: Path) -> None:
    checkpoints.tokenizer("qwen2").save(str(folder / "tokenizer.json"))


def template(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "chat_template.jinja").write_text(text) and None


def model(**changes: Any) -> Callable[[Path], None]:
    return edit("config.json", **changes)


def vision(**changes: Any) -> Callable[[Path], None]:
    return edit("config.json", **{f"vision_config__{key}": value for key, value in changes.items()})


def processor(**changes: Any) -> Callable[[Path], None]:
    return edit("preprocessor_config.json", **changes)


NO_IMAGES = vision_checkpoints.TEMPLATE.replace("<IMG_CONTEXT>", "")
WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "another vision family": (model(model_type="qwen2_5_vl"), "'qwen2_5_vl' model with a vision.*internvl"),
    "a misspelled one": (model(model_type="intern_vl"), "did you mean 'internvl'"),
    "the format of the original authors": (model(model_type="internvl_chat"), "ends in -hf"),
    "another encoder": (vision(model_type="siglip_vision_model"), "siglip_vision_model.*internvl_vision"),
    "another text family": (model(text_config__model_type="gemma3_text"), "gemma3_text.*qwen2"),
    "no text config": (model(text_config=None), "lacks 'text_config'"),
    "no number of layers": (vision(num_hidden_layers=None), "lacks 'num_hidden_layers'"),
    "norms of queries": (vision(use_qk_norm=True), "use_qk_norm True; supported is False"),
    "another projector": (model(projector_hidden_act="relu"), "projector_hidden_act 'relu'"),
    "wrong size of images": (vision(image_size=[56, 56]), r"\{'height': 28.*needs height and width 56"),
    "rectangles": (vision(image_size=[28, 56]), "views are squares"),
    "a side beyond any": (vision(image_size=10**9), "at most 4096"),
    "wrong patches": (vision(patch_size=14), "image_seq_length is 4, the encoder gives 1"),
    "wrong number of tokens": (model(image_seq_length=9), "image_seq_length is 9, the encoder gives 4"),
    "wrong width": (vision(intermediate_size=64), r"mlp\.fc1.*\(48, 32\), config.json implies \(64, 32\)"),
    "wrong id": (model(image_token_id=5), "image_token_id 5"),
    "one layer more": (vision(num_hidden_layers=3), "lacks the weight 'vision.encoder.layer.2"),
    "one layer less": (vision(num_hidden_layers=1), "does not describe the weight 'vision.encoder.layer.1"),
    "no image processor": (remove("preprocessor_config.json"), "no preprocessor_config.json"),
    "another processor": (processor(image_processor_type="CLIPImageProcessor"), "CLIPImageProcessor.*GotOcr2"),
    "another filter": (processor(resample=2), "resample 2; supported is 3"),
    "no colors": (processor(image_mean=None), "lacks 'image_mean'"),
    "no spread of colors": (processor(image_std=[0.2, 0, 0.2]), "pixel_std must be positive"),
    "too many tiles": (processor(max_patches=10**9), "1 to 64"),
    "no weights": (remove("*.safetensors"), "model.*safetensors is missing"),
    "cut weights": (cut, "ends inside tensor"),
    "no image token": (without_image_token, "no token '<img>'"),
    "a template without images": (template(NO_IMAGES), "expected '<IMG_CONTEXT>' once"),
}  # fmt: skip


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded") / "model"
    vision_checkpoints.save(folder, shards="200KB")
    return folder


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_folders_are_refused_and_nothing_is_written(wrong: str, sharded: Path, tmp_path: Path) -> None:
    change, message = WRONG[wrong]
    shutil.copytree(sharded, tmp_path / "model")
    change(tmp_path / "model")
    with pytest.raises((HuggingFaceError, BundleError), match=message):
        import_hugging_face(tmp_path / "model", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_the_bundle_is_read_again_from_its_folder(imported: tuple[Any, Path, Bundle]) -> None:
    *_, bundle = imported
    again = open_bundle(bundle.path)
    again.verify()
    assert again.config == bundle.config
    assert again.template == bundle.template
    assert again.template.can_take_images


@pytest.mark.parametrize("form", ["hf", "gguf"])
def test_exports_of_a_vision_model_are_refused_by_name(
    form: str, imported: tuple[Any, Path, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, bundle = imported
    assert run(["export", str(bundle.path), "--to", form, "--out", str(tmp_path / "out")]) == 1
    assert "has a vision encoder, which exports do not support" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
