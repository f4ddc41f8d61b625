"""CLIP's and SigLIP's losses: against transformers', over several processes, on pairs of a batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from processes import run_ranks
from tiny_contrastive import batch_of, clip_config
from torch import Tensor

from openafm.core.config import ConfigError
from openafm.data.loading.batch import Batch
from openafm.models.attention.spans import EmbeddingSpan, Span
from openafm.models.vision.clip import contrastive_loss, sigmoid_loss
from openafm.models.vision.multimodal_config import ClipConfig
from openafm.models.vision.sizes import convolutions, stem_of
from openafm.recipes.catalog import build_run
from openafm.training.objectives.config import ContrastiveConfig, SigmoidContrastiveConfig
from openafm.training.objectives.contrastive import Contrastive, PairsError


def vectors() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images, texts = (F.normalize(torch.randn(6, 8, generator=generator), dim=-1) for _ in range(2))
    return images, texts


def test_clip_loss_equals_transformers() -> None:
    clip = pytest.importorskip("transformers.models.clip.modeling_clip")
    images, texts = vectors()
    scale, bias = torch.tensor(7.0), torch.tensor(-4.0)
    ours = contrastive_loss(images, texts, images, texts, scale, bias, 0) / len(images)
    torch.testing.assert_close(ours, clip.image_text_contrastive_loss(scale * texts @ images.T))


def test_siglip_loss_is_a_sum_over_all_pairs() -> None:
    images, texts = vectors()
    expected = 0.0
    for i, image in enumerate(images):
        for t, text in enumerate(texts):
            logit = float(7.0 * image @ text - 3.0)
            expected += float(np.log1p(np.exp(-logit if i == t else logit)))
    ours = sigmoid_loss(images, texts, torch.tensor(7.0), torch.tensor(-3.0), 0)
    assert ours.item() == pytest.approx(expected, rel=1e-5)


def test_shares_of_the_pairs_add_up_to_all() -> None:
    images, texts = vectors()
    scale, bias = torch.tensor(5.0), torch.tensor(-2.0)
    parts = [contrastive_loss(images[a:b], texts[a:b], images, texts, scale, bias, a) for a, b in ((0, 2), (2, 6))]
    torch.testing.assert_close(sum(parts), contrastive_loss(images, texts, images, texts, scale, bias, 0))
    signs = [sigmoid_loss(images[a:b], texts, scale, bias, a) for a, b in ((0, 2), (2, 6))]
    torch.testing.assert_close(sum(signs), sigmoid_loss(images, texts, scale, bias, 0))


@pytest.mark.long
@pytest.mark.parametrize("config", [ContrastiveConfig(), SigmoidContrastiveConfig()], ids=["softmax", "sigmoid"])
def test_pairs_are_learned(config: ContrastiveConfig) -> None:
    torch.manual_seed(0)
    model, batch = clip_config().build(seed=0), batch_of(range(6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    objective = config.build()
    for _ in range(60):
        losses = objective(model, batch)
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
    assert losses.count == 6
    assert losses.parts["accuracy"] == 6


@pytest.mark.parametrize("num_after", [0, 2])
def test_the_first_image_and_the_text_after_it_are_a_pair(num_after: int) -> None:
    """The document ends with its second image, or with tokens after it."""
    batch = batch_of([0, 1])
    first, second = batch.embedding_spans
    one_document = Batch(
        tokens_BS=batch.tokens_BS,
        targets_BS=batch.targets_BS,
        loss_mask_BS=batch.loss_mask_BS,
        documents=(Span(0, 0, second.stop + num_after),),
        embedding_spans=(first, EmbeddingSpan(*second)),
        images=batch.images,
    )
    model = clip_config().build()
    losses = SigmoidContrastiveConfig().build()(model, one_document)  # softmax over one pair is 0
    assert losses.count == 1
    images_IE = model.encode_images(torch.from_numpy(batch.images[first.image]))
    texts_IE = model.encode_texts([torch.from_numpy(batch.tokens_BS[0, first.stop : second.start])])
    expected = sigmoid_loss(images_IE, texts_IE, model.scale, model.bias, 0)
    torch.testing.assert_close(losses.total, expected)


def test_a_batch_without_images_is_refused() -> None:
    batch = batch_of([0])
    without = Batch(
        tokens_BS=batch.tokens_BS, targets_BS=batch.targets_BS, loss_mask_BS=batch.loss_mask_BS, documents=batch.documents
    )
    with pytest.raises(PairsError, match="pack an image corpus with captions"):
        ContrastiveConfig().build()(clip_config().build(), without)


def test_masking_changes_with_each_call_and_follows_the_seed() -> None:
    model = clip_config().build()
    pixels = torch.from_numpy(np.concatenate(list(batch_of(range(3)).images.values())))
    torch.manual_seed(1)
    first, second = model.encode_images(pixels, 0.5), model.encode_images(pixels, 0.5)
    torch.manual_seed(1)
    assert torch.equal(first, model.encode_images(pixels, 0.5))
    assert not torch.equal(first, second)


def test_convolutions_alone_have_no_masked_patches() -> None:
    trainer = build_run("vision.clip", "micro").trainer
    assert isinstance(trainer.model, ClipConfig)
    trainer = replace(trainer, model=replace(trainer.model, vision=convolutions(112, stem_of(8, 16))))
    ContrastiveConfig().check(trainer)
    with pytest.raises(ConfigError, match=r"convolutions encode the whole image; set kept to 1, got 0\.5"):
        ContrastiveConfig(kept=0.5).check(trainer)


def test_the_last_steps_and_evaluation_encode_all_patches() -> None:
    objective = ContrastiveConfig(kept=0.5, unmasked_share=0.25).build()
    assert isinstance(objective, Contrastive)
    kept = []
    for step in range(8):
        objective.progress = step / 8
        kept.append(objective.kept)
    assert kept == [0.5] * 6 + [1.0] * 2
    objective.progress = 0.0
    with torch.no_grad():
        assert objective.kept == 1.0
    model, batch = clip_config().build(), batch_of(range(4))
    masked = objective(model, batch)
    objective.progress = 0.9
    unmasked = objective(model, batch)
    assert masked.flops < unmasked.flops
    torch.testing.assert_close(unmasked.total, ContrastiveConfig().build()(model, batch).total)


@pytest.mark.slow
@pytest.mark.xdist_group("parallel")
@pytest.mark.parametrize(
    "shares", [pytest.param("3,3", marks=pytest.mark.slow), "5,1", pytest.param("6,0", marks=pytest.mark.slow)]
)
def test_two_processes_equal_one(shares: str) -> None:
    one, two = (run_ranks("tiny_contrastive.py", world, parts) for world, parts in ((1, "6"), (2, shares)))
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert two["gradients"].keys() == one["gradients"].keys()
    for name, norm in one["gradients"].items():
        assert two["gradients"][name] == pytest.approx(norm, rel=1e-4, abs=1e-6), name
