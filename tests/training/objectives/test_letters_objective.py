"""Letters by place: against a loop over cells, sums over microbatches and processes, and wrong documents."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from processes import run_ranks
from tiny_letters import CONFIG, DOCUMENTS, batch_of

from openafm.core.config import ConfigError
from openafm.models.vision.letters import CELL, NO_LETTER
from openafm.recipes.catalog import build_run
from openafm.training.distributed.config import ParallelConfig
from openafm.training.distributed.parallel import dummy_batch
from openafm.training.objectives.config import LettersConfig
from openafm.training.objectives.letters import Letters, LettersError


def test_the_loss_equals_a_loop_over_cells() -> None:
    model, batch, objective = CONFIG.build(seed=1), batch_of(DOCUMENTS), LettersConfig().build()
    with torch.no_grad():
        model.letters.weight.mul_(20)  # so that some letters are right
    losses = objective(model, batch)
    expected, right, view_flops = 0.0, 0, 0.0
    for span, (side, letters) in zip(batch.embedding_spans, DOCUMENTS, strict=True):
        logits_RCK = model.letter_logits(torch.tensor(batch.images[span.image]))[0]
        there = {(row, column): letter for row, column, letter in letters}
        for row in range(side // CELL[0]):
            for column in range(side // CELL[1]):
                letter = there.get((row, column), NO_LETTER)
                expected += F.cross_entropy(logits_RCK[row, column], torch.tensor(letter)).item()
                right += int(letter != NO_LETTER and int(logits_RCK[row, column].argmax()) == letter)
        view_flops += CONFIG.view_flops(side)
    assert losses.count == 5
    assert losses.total.item() == pytest.approx(expected, rel=1e-5)
    assert losses.parts["letters"].item() == right
    assert losses.flops == pytest.approx(3 * view_flops)


def test_gradients_reach_the_encoder_and_the_layer() -> None:
    model = CONFIG.build(seed=1)
    Letters()(model, batch_of(DOCUMENTS[1:2])).total.backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


def test_microbatches_add_up() -> None:
    model, batch = CONFIG.build(seed=1), batch_of(DOCUMENTS)
    whole, parts = Letters()(model, batch), [Letters()(model, each) for each in batch.microbatches(2)]
    assert len(parts) == 2
    assert whole.count == sum(each.count for each in parts)
    assert whole.total.item() == pytest.approx(sum(each.total.item() for each in parts), rel=1e-5)
    assert whole.parts["letters"].item() == sum(each.parts["letters"].item() for each in parts)
    assert whole.flops == sum(each.flops for each in parts)


def test_letters_are_learned() -> None:
    model, batch = CONFIG.build(seed=1), batch_of(DOCUMENTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        Letters()(model, batch).total.backward()
        optimizer.step()
    losses = Letters()(model, batch)
    assert losses.parts["letters"].item() == losses.count == 5


def test_a_page_without_letters_teaches_that_there_are_none() -> None:
    model = CONFIG.build(seed=1)
    losses = Letters()(model, batch_of([(32, [])]))
    assert losses.count == 0
    assert losses.total.item() > 0


@pytest.mark.parametrize("documents", ["none", "of a process without targets"])
def test_a_batch_without_documents_gives_zero_gradients(documents: str) -> None:
    model, batch = CONFIG.build(seed=1), batch_of(DOCUMENTS)
    losses = Letters()(model, dummy_batch(batch) if documents != "none" else batch.rows(0, 0))
    assert (losses.count, losses.total.item(), losses.flops) == (0, 0.0, 0)
    losses.total.backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in model.parameters())


@pytest.mark.slow
@pytest.mark.xdist_group("parallel")
@pytest.mark.parametrize("divided", ["2,2", "0,4", "4,0"])
def test_two_processes_equal_one(divided: str) -> None:
    one, two = run_ranks("tiny_letters.py", 1, "4"), run_ranks("tiny_letters.py", 2, divided)
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert two["gradients"].keys() == one["gradients"].keys()
    for name, norm in one["gradients"].items():
        assert two["gradients"][name] == pytest.approx(norm, rel=1e-4, abs=1e-6), name


def test_letters_in_bf16() -> None:
    model, batch = CONFIG.build(seed=1), batch_of(DOCUMENTS)
    exact = Letters()(model, batch)
    model.compute_dtype = torch.bfloat16
    rounded = Letters()(model, batch)
    assert rounded.total.dtype == torch.float32
    assert rounded.total.item() == pytest.approx(exact.total.item(), rel=0.02)
    assert rounded.total.item() != exact.total.item()
    rounded.total.backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("damage", ["an image", "a number"])
def test_damaged_documents_are_refused(damage: str) -> None:
    batch = batch_of(DOCUMENTS)
    if damage == "an image":
        batch = replace(batch, embedding_spans=batch.embedding_spans[1:])
    else:
        mask_BS = batch.loss_mask_BS.copy()
        mask_BS[0, 3] = False
        batch = replace(batch, loss_mask_BS=mask_BS)
    found = "0 images and 9 numbers" if damage == "an image" else "1 images and 8 numbers"
    with pytest.raises(LettersError, match=f"{found} in a row; expected one image and three numbers a letter"):
        Letters()(CONFIG.build(), batch)


@pytest.mark.parametrize("letter", [(4, 0, 1), (0, 8, 1), (0, 0, 97)])
def test_letters_out_of_range_are_refused(letter: tuple[int, int, int]) -> None:
    with pytest.raises(LettersError, match="a view of 32 pixels has 4 rows, 8 columns and 97 classes"):
        Letters()(CONFIG.build(), batch_of([(32, [(0, 0, 1), letter])]))


def test_configs_are_checked() -> None:
    trainer = build_run("vision.letters", "micro").trainer
    trainer.objective.check(trainer)
    other = build_run("vision.clip", "micro").trainer.model
    with pytest.raises(ConfigError, match="needs a LettersModelConfig as the model, got ClipConfig"):
        trainer.objective.check(replace(trainer, model=other))
    with pytest.raises(ConfigError, match="cannot train divided weights"):
        trainer.objective.check(replace(trainer, parallel=ParallelConfig(shard=2)))
