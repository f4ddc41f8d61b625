"""The vision recipes end to end at a tiny budget: towers, joint training, adaptation of a text model, fine-tuning."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tiny_bundles import write_multimodal_bundle

from openafm.bundle import Bundle, open_bundle, write_bundle
from openafm.bundle.decoder import load_decoder
from openafm.bundle.describe import describe_bundle
from openafm.bundle.errors import NotGenerativeError
from openafm.core.errors import UsageError
from openafm.data.drawing.corpus import draw_document
from openafm.models.accounting import num_parameters
from openafm.models.vision.letters_model import LettersModel
from openafm.models.vision.multimodal_config import ClipConfig, LettersModelConfig, MultimodalConfig
from openafm.reading.page import reader_of
from openafm.recipes.catalog import build_run
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import run_recipe
from openafm.recipes.sources.drawn_corpus import DrawnCorpusConfig
from openafm.recipes.vision.mixtures import CLIP_RESOLUTIONS, RESOLUTIONS
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.training.config import VisionStart

pytest.importorskip("PIL")
FEW = {"trainer.budget.num_tokens": "3000", "trainer.evaluation.every_steps": "1000"}


def few_drawings(recipe: str) -> dict[str, str]:
    """Return changes that draw three charts for each corpus."""
    corpora = prepare_run(recipe, "micro").corpora
    return {f"corpora.{c.name}.drawing.count": "3" for c in corpora if hasattr(c, "drawing")}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))


def trained(recipe: str, folder: Path, changes: dict[str, str]) -> str:
    name = f"{recipe}-micro"
    result = run_recipe(prepare_run(recipe, "micro", changes=changes | few_drawings(recipe)), folder / recipe, name)
    assert result.held_out_loss is not None
    return name


@pytest.mark.parametrize("model", ["on_device", "server"])
def test_mixture_of_adaptation_is_the_reports(model: str) -> None:
    """60 % text of continued pre-training, 10 % interleaved, 28.5 % captions, 1.5 % domain-specific images."""
    for size in ("micro", "nano"):
        config = build_run(f"{model}.multimodal", size)
        weights = {source.name: source.weight for source in config.trainer.data.sources}
        images = {name: weights.pop(name) for name in ("interleaved", "captions", "domain")}
        assert images == {"interleaved": 0.1, "captions": 0.285, "domain": 0.015}
        assert sum(weights.values()) == pytest.approx(0.6)
        text = build_run(f"{model}.text_continued", size).trainer.data.sources
        assert weights == pytest.approx({source.name: 0.6 * source.weight for source in text})


@pytest.mark.parametrize("size", ["micro", "nano"])
def test_stages_have_the_reports_resolutions_in_proportion(size: str) -> None:
    """448, 672 and 224 pixels with windows of 224: two, three and one window of a side."""
    clip, joint = build_run("vision.clip", size).trainer.model, build_run("vision.joint", size).trainer.model
    assert isinstance(clip, ClipConfig)
    assert isinstance(joint, MultimodalConfig)
    window = clip.vision.patch_side * (clip.vision.window_side or 0)
    resolution = RESOLUTIONS[size]
    assert (clip.vision.image_side, joint.vision.image_side) == (2 * window, 3 * window)
    assert (resolution.side, resolution.rapid_side) == (3 * window, window)
    assert CLIP_RESOLUTIONS[size].side == 2 * window
    assert joint.adapter.tokens_side**2 == resolution.tokens


@pytest.mark.parametrize("size", ["micro", "nano"])
def test_the_server_has_the_resolution_of_its_contrastive_stage(size: str) -> None:
    """ViT-g is pre-trained at 448 pixels, trained jointly at 672, and adapted at 448, with 144 tokens of an image."""
    stages = ("vision.server_clip", "vision.server_joint", "server.multimodal", "server.multimodal_sft")
    clip, joint, adapted, tuned = (build_run(stage, size).trainer.model for stage in stages)
    assert isinstance(clip, ClipConfig)
    assert isinstance(joint, MultimodalConfig)
    assert isinstance(adapted, MultimodalConfig)
    assert isinstance(tuned, MultimodalConfig)
    assert 3 * clip.vision.image_side == 2 * joint.vision.image_side
    assert adapted.vision == clip.vision
    assert adapted.decoder == build_run("server.text_continued", size).trainer.model
    assert {mode.name for mode in tuned.modes} == {"balanced", "high"}


def test_fine_tuning_draws_the_modes_by_the_reports_coin_flips() -> None:
    """Rapid: half of low-resolution images, 1 % of the others. Of the rest 20 % balanced mode, the others high mode."""
    config = build_run("on_device.multimodal_sft", "nano")
    shares = {}
    for corpus in config.corpora:
        if isinstance(corpus, DrawnCorpusConfig) and corpus.name != "held_out":
            assert corpus.packing.mode == "drawn"
            rng = random.Random(0)
            drawn = Counter(corpus.packing.resolution.draw_mode(640, 480, rng) for _ in range(20_000))
            shares[corpus.name] = {mode: drawn[mode] / 20_000 for mode in ("rapid", "balanced", "high")}
    assert shares["questions"] == pytest.approx({"rapid": 0.01, "balanced": 0.198, "high": 0.792}, abs=0.01)
    assert shares["scene_questions"] == pytest.approx({"rapid": 0.5, "balanced": 0.1, "high": 0.4}, abs=0.01)
    assert isinstance(config.trainer.model, MultimodalConfig)
    assert {mode.name for mode in config.trainer.model.modes} == {"rapid", "balanced", "high"}


def test_fine_tuning_asks_about_places_absent_things_and_pairs_of_images() -> None:
    (corpus,) = (
        corpus for corpus in build_run("on_device.multimodal_sft", "nano").corpora if corpus.name == "scene_questions"
    )
    assert isinstance(corpus, DrawnCorpusConfig)
    generator = corpus.drawing.generators[0].build()
    drawn = [draw_document(generator, "scenes", "en", "train", 0, number) for number in range(20)]
    kinds = {question.kind for each in drawn for question in each.questions}
    assert {"ground.box", "refer.box", "refer.point", "refer.mark", "absent", "compare", "counting"} <= kinds
    assert {len(each.images) for each in drawn} == {1, 2}


@pytest.mark.parametrize("size", ["micro", "nano"])
def test_views_of_letters_divide_into_patches(size: str) -> None:
    config = build_run("vision.letters", size)
    assert isinstance(config.trainer.model, LettersModelConfig)
    sides = {}
    for corpus in config.corpora:
        assert isinstance(corpus, DrawnCorpusConfig)
        assert corpus.packing.learn == ("letters",)
        sides[corpus.name] = corpus.packing.resolution.side
        assert config.trainer.model.vision.grid_side(sides[corpus.name]) > 0
    assert sides["letters"] == sides["held_out_letters"] == 2 * sides["half_letters"] == 4 * sides["quarter_letters"]


def test_letters_start_from_letters_alone(tmp_path: Path) -> None:
    model = build_run("vision.letters", "micro").trainer.model
    tensors = {name: tensor.numpy() for name, tensor in model.build().state_dict().items()}
    kept = {"tokenizer": Tokenizer([]), "template": ChatTemplate(), "tensors": tensors}
    letters, seeing = write_bundle(tmp_path / "letters", config=model, **kept), write_multimodal_bundle(tmp_path / "seeing")
    assert prepare_run("vision.letters", "micro", start=str(letters.path)).trainer.from_identity == letters.identity
    for recipe, bundle in (("vision.letters", seeing), ("on_device.sft", letters)):
        with pytest.raises(UsageError, match=f"{recipe} cannot start from {bundle.name}, which is another kind of model"):
            prepare_run(recipe, "micro", start=str(bundle.path))


@pytest.mark.slow
def test_letters_become_a_page_reader_in_another_process_too(tmp_path: Path) -> None:
    """A new process has not imported the generators of the run's drawings."""
    bundle = open_bundle(trained("vision.letters", tmp_path, FEW))
    command = ["checkpoint", "consolidate", str(tmp_path / "vision.letters"), "--name", "again"]
    subprocess.run([sys.executable, "-m", "openafm", *command], check=True, timeout=300)
    again = open_bundle("again")
    assert again.signature == bundle.signature
    assert (describe_bundle(again).parameters, describe_bundle(again).kv_bytes_at_4096) == (num_parameters(bundle.config), 0)
    assert "that classify the letters of an image" in (again.path / "card.md").read_text()
    with pytest.raises(NotGenerativeError):
        again.check_generates()
    fresh = bundle.config.build(build_run("vision.letters", "micro").trainer.seed).state_dict()
    assert all((weight != fresh[name].numpy()).any() for name, weight in again.tensors().items()), "all weights are trained"
    view = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    model = load_decoder(again)
    assert isinstance(model, LettersModel)
    expected = model.letter_logits(torch.tensor(view[None])).softmax(-1)[0].detach().numpy()
    np.testing.assert_allclose(reader_of(again).probabilities(view), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "prefix"), [("on_device", ""), ("server", "server_")])
def test_stages_build_on_each_other(model: str, prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"tokenizer.vocab_size": "400", "trainer.model.vocab_size": "400"}
    text = {f"corpora.{name}.num_examples": "20" for name in ("math", "code", "knowledge", "multilingual")}
    few_held_out = {"corpora.held_out_text.num_examples": "20"}
    unmoved = {"trainer.optimizer.learning_rate": "1e-12", "trainer.optimizer.weight_decay": "0"}
    clip = open_bundle(trained(f"vision.{prefix}clip", tmp_path, FEW | small))
    assert isinstance(clip.config, ClipConfig)

    assert prepare_run(f"vision.{prefix}joint", "micro").trainer.start == VisionStart(
        bundle=str(clip.path), identity=clip.identity
    )
    joint = open_bundle(trained(f"vision.{prefix}joint", tmp_path, FEW | small | text | unmoved))
    assert isinstance(joint.config, MultimodalConfig)
    raised = clip.config.vision.image_side, joint.config.vision.image_side
    assert raised == (112, 168)
    check_equal(encoder_of(joint), encoder_of(clip), apart="position_GGD")

    corpora = prepare_run(f"{model}.pretrain", "micro").corpora
    few = {"trainer.budget.num_steps": "1"} | {f"corpora.{corpus.name}.num_examples": "50" for corpus in corpora}
    name = f"{model}.text_continued-micro"
    run_recipe(prepare_run(f"{model}.pretrain", "micro", changes=small | few), tmp_path / "text", name)
    config = prepare_run(f"{model}.multimodal", "micro")
    assert config.trainer.start == VisionStart(bundle=str(joint.path), identity=joint.identity)
    assert config.trainer.from_bundle == str(open_bundle(name).path)
    adapted = open_bundle(trained(f"{model}.multimodal", tmp_path, FEW | text | few_held_out | unmoved))
    check_equal(encoder_of(adapted), encoder_of(joint), apart="position_GGD" if prefix else "nothing")
    decoder = open_bundle(name).tensors()
    check_equal({each: adapted.tensors()[each] for each in decoder}, decoder)

    few_text = {f"corpora.{name}.num_examples": "20" for name in ("text", "multilingual")}
    tuned = open_bundle(trained(f"{model}.multimodal_sft", tmp_path, FEW | few_text | few_held_out))
    assert isinstance(tuned.config, MultimodalConfig)
    assert isinstance(adapted.config, MultimodalConfig)
    assert [mode.name for mode in tuned.config.modes] == ["balanced", "high", "rapid"][: 2 if prefix else 3]
    assert replace(tuned.config, modes=adapted.config.modes) == adapted.config
    before, after = adapted.tensors(), tuned.tensors()
    unchanged = [name for name in after if np.array_equal(after[name], before[name])]
    assert not unchanged, "all parameters are trained"
    assert "random weights" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_missing_encoder_is_warned_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = {f"corpora.{name}.num_examples": "20" for name in ("math", "code", "knowledge", "multilingual")}
    small = {"tokenizer.vocab_size": "400", "trainer.model.vocab_size": "400", "trainer.budget.num_tokens": "1024"}
    trained("vision.joint", tmp_path, FEW | small | text)
    assert "starts from random weights; train vision.clip first" in capsys.readouterr().err


Tensors = Mapping[str, npt.NDArray[Any]]


def encoder_of(bundle: Bundle) -> Tensors:
    tensors = bundle.tensors()
    return {name: tensors[name] for name in tensors if name.startswith("vision.")}


def check_equal(found: Tensors, expected: Tensors, apart: str = "nothing") -> None:
    assert expected
    for name in expected:
        if not name.endswith(apart):
            np.testing.assert_allclose(found[name], expected[name], atol=1e-6, err_msg=name)
