"""Letters by place: against a loop over letters, beside the next token of texts, and wrong documents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from processes import run_ranks
from tiny_reading import IMAGE_TOKENS, LETTERS, STEM, TEXT, batch_of, reader_config

from openafm.core.config import ConfigError
from openafm.models.vision.config import ConvolutionConfig
from openafm.models.vision.letters_adapter import LettersAdapter
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.pixel_shuffle_config import PixelShuffleAdapterConfig
from openafm.recipes.catalog import build_run
from openafm.training.distributed.config import ParallelConfig
from openafm.training.objectives.base import NextToken
from openafm.training.objectives.config import ReadingConfig
from openafm.training.objectives.reading import LettersError, Reading
from openafm.training.optimizer_config import AdamWConfig


@pytest.mark.parametrize("stem", [STEM, ()])
def test_letters_equal_a_loop(stem: tuple[ConvolutionConfig, ...]) -> None:
    model, batch = reader_config(stem).build(seed=1), batch_of(LETTERS, with_text=False)
    losses = Reading(ReadingConfig())(model, batch)
    expected, right, adapter = 0.0, 0, model.adapter
    assert isinstance(adapter, LettersAdapter)
    weight, bias = adapter.letters.weight, adapter.letters.bias
    assert bias is not None
    for span, places in zip(batch.embedding_spans, LETTERS, strict=True):
        state_YXD = model.vision(torch.tensor(batch.images[span.image])).patches_BYXD[0]
        for row, column, letter in places:
            rows = slice(96 * (column % 2), 96 * (column % 2 + 1))  # a patch has two cells beside each other
            logits = weight[rows] @ state_YXD[row, column // 2] + bias[rows]
            expected += F.cross_entropy(logits, torch.tensor(letter)).item()
            right += int(logits.argmax()) == letter
    assert losses.count == 4
    assert losses.total.item() == pytest.approx(expected, rel=1e-5)
    assert losses.parts["letters"].item() == right
    assert losses.flops > 0


def test_images_of_several_sides_add_up() -> None:
    model, objective, batch = reader_config().build(seed=1), Reading(ReadingConfig()), batch_of(LETTERS, with_text=False)
    large = {batch.embedding_spans[0].image: np.random.default_rng(7).integers(0, 256, (1, 64, 64, 3), dtype=np.uint8)}
    both = objective(model, replace(batch, images={**batch.images, **large}))
    alone = []
    for places, pixels in zip(LETTERS, [*large.values(), *list(batch.images.values())[1:]], strict=True):
        single = batch_of([places], with_text=False)
        alone.append(objective(model, replace(single, images={single.embedding_spans[0].image: pixels})))
    assert both.count == sum(each.count for each in alone)
    assert both.total.item() == pytest.approx(sum(each.total.item() for each in alone), rel=1e-5)
    assert both.parts["letters"].item() == sum(each.parts["letters"].item() for each in alone)
    assert both.flops == pytest.approx(sum(each.flops for each in alone))


def test_letters_and_texts_add_up() -> None:
    model, objective = reader_config().build(seed=1), Reading(ReadingConfig())
    letters, both = batch_of(LETTERS, with_text=False), batch_of(LETTERS, with_text=True)
    texts = batch_of([], with_text=True)
    of_letters, of_texts, of_both = (objective(model, each) for each in (letters, texts, both))
    assert of_texts.total.item() == pytest.approx(NextToken()(model, texts).total.item(), rel=1e-6)
    assert of_both.total.item() == pytest.approx(of_letters.total.item() + of_texts.total.item(), rel=1e-5)
    assert of_both.count == of_letters.count + of_texts.count == 4 + len(TEXT)
    of_both.total.backward()
    assert all(weight.grad is not None for weight in model.parameters())
    assert model.adapter.letters.weight.grad is not None
    assert model.adapter.letters.weight.grad.abs().sum() > 0


def test_what_learns_from_letters_gets_no_gradient_of_texts() -> None:
    objective = Reading(ReadingConfig(letters_learn_from="letters"))
    model = reader_config().build(seed=1)
    of_letters = [*model.vision.parameters(), *model.adapter.letters.parameters()]
    objective(model, batch_of([], with_text=True)).total.backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in of_letters)
    for scale in (model.adapter.scale_ND, model.adapter.scale_before_PND):
        assert scale.grad is not None
    assert model.adapter.scale_ND.grad.any()
    both = objective(model, batch_of(LETTERS, with_text=True))
    expected = Reading(ReadingConfig())(model, batch_of(LETTERS, with_text=True))
    assert both.total.item() == pytest.approx(expected.total.item(), rel=1e-6)
    # 4 tokens of 8 cells: 96 classes of 12 channels, 94 letters with embeddings, and two tokens to the left of two in a row.
    dim = model.config.dim
    layer, embeddings, before = 2 * 4 * 8 * 96 * 12, 2 * 4 * 8 * 94 * dim, 2 * 4 * 2 * 2 * dim
    assert expected.flops - both.flops == 2 * (model.config.vision.flops(32) + layer) + embeddings + before
    both.total.backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in of_letters)


def test_scales_of_letters_have_no_weight_decay() -> None:
    model = reader_config().build(seed=1)
    (optimizer,) = AdamWConfig(weight_decay=0.5, learning_rate=0.1).build(dict(model.named_parameters()))
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert torch.equal(model.adapter.scale_ND, torch.ones_like(model.adapter.scale_ND))
    assert torch.equal(model.adapter.scale_before_PND.abs(), torch.ones_like(model.adapter.scale_before_PND))


def test_what_learns_from_nothing_stays_as_it_is() -> None:
    trainer = build_run("vision.transcribe", "micro").trainer
    model, batch = reader_config().build(seed=1), batch_of([], with_text=True)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    (optimizer,) = trainer.optimizer.build(dict(model.named_parameters()))
    for _ in range(2):
        trainer.objective.build()(model, batch).total.backward()
        optimizer.step()
    same = {name for name, weight in model.named_parameters() if torch.equal(weight, before[name])}
    assert same == {name for name in before if name.startswith(("vision.", "adapter.letters."))}


def test_letters_are_learned() -> None:
    model, batch = reader_config().build(seed=1), batch_of(LETTERS, with_text=False)
    objective, optimizer = Reading(ReadingConfig()), torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(30):
        losses = objective(model, batch)
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
    assert objective(model, batch).parts["letters"].item() == 4


def test_a_batch_without_targets_and_a_part_of_a_source() -> None:
    model, objective = reader_config().build(seed=1), Reading(ReadingConfig())
    nothing = objective(model, replace(batch_of(LETTERS, with_text=False), origins=(), loss_mask_BS=np.zeros((1, 20), bool)))
    assert (nothing.count, nothing.total.item()) == (0, 0.0)
    batch = batch_of(LETTERS, with_text=False)
    parts = replace(batch, origins=tuple(origin._replace(source="letters/en") for origin in batch.origins))
    assert objective(model, parts).total.item() == objective(model, batch).total.item()


@pytest.mark.slow
@pytest.mark.xdist_group("parallel")
@pytest.mark.parametrize(
    ("alone", "divided"),
    [
        ("both:everything", "letters,texts:everything"),
        ("both:everything", "texts,letters:everything"),
        ("both:letters", "both,empty:letters"),
        ("texts:nothing", "empty,texts:nothing"),
    ],
)
def test_two_processes_equal_one(alone: str, divided: str) -> None:
    one, two = run_ranks("tiny_reading.py", 1, alone), run_ranks("tiny_reading.py", 2, divided)
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert two["gradients"].keys() == one["gradients"].keys()
    for name, norm in one["gradients"].items():
        assert two["gradients"][name] == pytest.approx(norm, rel=1e-4, abs=1e-6), name


def test_letters_in_bf16() -> None:
    model, batch = reader_config().build(seed=1), batch_of(LETTERS, with_text=True)
    exact = Reading(ReadingConfig())(model, batch)
    model.compute_dtype = torch.bfloat16
    rounded = Reading(ReadingConfig())(model, batch)
    assert rounded.total.dtype == torch.float32
    assert rounded.total.item() == pytest.approx(exact.total.item(), rel=0.02)
    assert rounded.total.item() != exact.total.item()
    rounded.total.backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


def test_frozen_weights_stay_frozen() -> None:
    model = reader_config().build(seed=1)
    model.vision.stem.requires_grad_(False)
    Reading(ReadingConfig(letters_learn_from="letters"))(model, batch_of(LETTERS, with_text=True))
    assert not any(weight.requires_grad for weight in model.vision.stem.parameters())


@pytest.mark.parametrize("damage", ["an image", "a number"])
def test_damaged_documents_are_refused(damage: str) -> None:
    batch = batch_of(LETTERS, with_text=False)
    if damage == "an image":
        batch = replace(batch, embedding_spans=batch.embedding_spans[1:])
    else:
        mask = batch.loss_mask_BS.copy()
        mask[0, IMAGE_TOKENS - 1] = False
        batch = replace(batch, loss_mask_BS=mask)
    with pytest.raises(LettersError, match="three numbers a letter"):
        Reading(ReadingConfig())(reader_config().build(), batch)


@pytest.mark.parametrize("letter", [(4, 0, 1), (0, 8, 1), (0, 0, 96)])
def test_letters_out_of_range_are_refused(letter: tuple[int, int, int]) -> None:
    with pytest.raises(LettersError, match="a view of 32 pixels has 4 rows, 8 columns and 96 classes"):
        Reading(ReadingConfig())(reader_config().build(), batch_of([[letter]], with_text=False))


def test_configs_are_checked() -> None:
    trainer = build_run("vision.letters", "nano").trainer
    assert isinstance(trainer.model, MultimodalConfig)
    plain = replace(trainer.model, adapter=PixelShuffleAdapterConfig(factor=2))
    for model in (plain, plain.decoder):
        with pytest.raises(ConfigError, match="needs a model with vision and a LettersAdapterConfig"):
            ReadingConfig().check(replace(trainer, model=model))
    with pytest.raises(ConfigError, match=r"no source of the run is one of letters \(other\)"):
        ReadingConfig(sources=("other",)).check(trainer)
    with pytest.raises(ConfigError, match="letters are among the sources, and nothing learns from them"):
        ReadingConfig(letters_learn_from="nothing").check(trainer)
    decaying = replace(trainer, optimizer=AdamWConfig(weight_decay=0.1))
    ReadingConfig().check(decaying)
    with pytest.raises(ConfigError, match=r"need weight_decay 0, got 0\.1"):
        ReadingConfig(letters_learn_from="letters").check(decaying)
    with pytest.raises(ConfigError, match="cannot train divided weights"):
        trainer.objective.check(replace(trainer, parallel=ParallelConfig(shard=2)))
    assert reader_config().other_parameters() == sum(
        weight.numel()
        for name, weight in reader_config().build().named_parameters()
        if name.startswith(("vision", "adapter"))
    )
