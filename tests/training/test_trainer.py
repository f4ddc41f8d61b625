"""Optimizer steps: accumulation, clipping, precision, non-finite values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import tiny_run, write_corpus

from openafm.data.loading.batch import Batch
from openafm.data.loading.loader import Loader, LoaderConfig
from openafm.models.attention.spans import EmbeddingSpan
from openafm.models.decoder import Decoder
from openafm.training.config import BFloat16Config, CompileConfig, Float32Config, PrecisionConfig, TrainerConfig
from openafm.training.initialization import fresh_state
from openafm.training.objectives.base import Losses, NextToken, ScheduledObjective
from openafm.training.observers import Observer
from openafm.training.optimizer_config import AdamWConfig, MuonConfig, OptimizerConfig
from openafm.training.schedules import Constant
from openafm.training.trainer import NonFiniteError, Trainer


@pytest.fixture
def corpus(tmp_path: Path) -> LoaderConfig:
    return write_corpus(tmp_path / "corpus")


def trainer_of(config: TrainerConfig) -> Trainer:
    return Trainer(config, fresh_state(config, "cpu"), config.data.build())


@pytest.mark.parametrize("rows", [1, 3])
def test_accumulated_microbatches_give_the_update_of_the_whole_batch(corpus: LoaderConfig, rows: int) -> None:
    # With a small epsilon AdamW amplifies rounding in gradients near 0.
    optimizer = AdamWConfig(learning_rate=3e-3, eps=1e-3)
    whole, cut = (trainer_of(tiny_run(corpus, microbatch_rows=n, optimizer=optimizer)) for n in (None, rows))
    for step in range(3):
        expected, found = (trainer.update(trainer.source.batch(step)) for trainer in (whole, cut))
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
        assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-5)
        assert found.num_tokens == expected.num_tokens
    pairs = zip(whole.state.model.parameters(), cut.state.model.parameters(), strict=True)
    assert max((a - b).abs().max().item() for a, b in pairs) < 1e-6


def test_microbatches_have_every_row_document_and_field_once(corpus: LoaderConfig) -> None:
    loaded = corpus.build().batch(0)
    advantages_BS = np.arange(loaded.tokens_BS.size, dtype=np.float32).reshape(loaded.tokens_BS.shape)
    images = tuple(EmbeddingSpan(row=row, start=2, stop=5, digest="ab") for row in (1, 3))
    batch = replace(loaded, token_fields={"advantages": advantages_BS}, embedding_spans=images)
    parts = batch.microbatches(3)
    assert [part.num_rows for part in parts] == [3, 1]
    np.testing.assert_array_equal(np.concatenate([part.tokens_BS for part in parts]), batch.tokens_BS)
    np.testing.assert_array_equal(np.concatenate([part.token_fields["advantages"] for part in parts]), advantages_BS)
    documents = [span._replace(row=span.row + 3 * i) for i, part in enumerate(parts) for span in part.documents]
    assert tuple(documents) == batch.documents
    assert tuple(origin for part in parts for origin in part.origins) == batch.origins
    assert [part.embedding_spans for part in parts] == [images[:1], (images[1]._replace(row=0),)]


def test_ranks_with_fewer_rows_have_as_many_microbatches(corpus: LoaderConfig) -> None:
    batch = corpus.build().batch(0)
    assert [part.num_rows for part in batch.rows(0, 3).microbatches(2, max_rows=6)] == [2, 1, 0]
    assert [part.num_rows for part in batch.microbatches(None, max_rows=9)] == [4]


@pytest.mark.parametrize("clip", [None, 1e-3, 1e3])
def test_the_gradient_is_clipped_by_its_whole_norm(corpus: LoaderConfig, clip: float | None) -> None:
    trainer = trainer_of(tiny_run(corpus, optimizer=AdamWConfig(gradient_clip=clip)))
    seen: list[torch.Tensor] = []
    (optimizer,) = trainer.state.optimizers
    optimizer.register_step_pre_hook(
        lambda *_: seen.extend(p.grad.clone() for p in trainer.state.model.parameters() if p.grad is not None)
    )
    update = trainer.update(trainer.source.batch(0))
    norm = torch.cat([gradient.flatten() for gradient in seen]).norm().item()
    assert norm == pytest.approx(min(update.gradient_norm, clip or np.inf), rel=1e-5)


def test_the_learning_rate_follows_the_schedule(corpus: LoaderConfig) -> None:
    trainer = trainer_of(tiny_run(corpus, num_steps=4, schedule=Constant(warmup_fraction=0.5)))
    rates = [trainer.update(trainer.source.batch(step)).learning_rate for step in range(4)]
    assert rates == pytest.approx([1.5e-3, 3e-3, 3e-3, 3e-3])


@pytest.mark.parametrize("fails_together", [False, True])
def test_a_stop_waits_for_a_batch_only_if_one_rank_may_fail_to_read_it(
    fails_together: bool, corpus: LoaderConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, read = trainer_of(tiny_run(corpus)), list[int]()
    load = Loader.batch
    monkeypatch.setattr(Loader, "batch", lambda loader, step: read.append(step) or load(loader, step))
    monkeypatch.setattr(Loader, "fails_together", fails_together)
    monkeypatch.setattr(trainer.state.parallelism, "world", 2)
    trainer.run([Stopping()])
    assert trainer.state.step == 0
    assert (read == []) == fails_together


class Stopping(Observer):
    requests_stop = True


class Recording(ScheduledObjective):
    """Next-token prediction that records the progress of the run at each batch."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        self.seen.append(self.progress)
        return NextToken()(model, batch)


def test_a_scheduled_objective_gets_the_progress_of_the_run(corpus: LoaderConfig) -> None:
    trainer = trainer_of(tiny_run(corpus, num_steps=4))
    trainer.objective = Recording()
    trainer.run()
    assert trainer.objective.seen == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.long
@pytest.mark.parametrize("precision", [Float32Config(), BFloat16Config()], ids=["fp32", "bf16"])
def test_the_loss_falls(corpus: LoaderConfig, precision: PrecisionConfig) -> None:
    trainer = trainer_of(tiny_run(corpus, num_steps=40, precision=precision, optimizer=AdamWConfig(learning_rate=0.02)))
    losses = [trainer.update(trainer.source.batch(step)).loss for step in range(40)]
    assert losses[0] > 4.3
    assert np.mean(losses[-3:]) < 3.0
    assert {p.dtype for p in trainer.state.model.parameters()} == {torch.float32}


def test_a_non_finite_loss_raises_before_anything_changes(corpus: LoaderConfig) -> None:
    trainer = trainer_of(tiny_run(corpus, microbatch_rows=1))
    trainer.update(trainer.source.batch(0))
    batch = trainer.source.batch(1)
    poisoned = int(batch.tokens_BS[2, batch.documents[-1].start])
    with torch.no_grad():
        trainer.state.model.embedding[poisoned] = torch.nan
    before = {name: p.clone() for name, p in trainer.state.model.named_parameters()}
    with pytest.raises(NonFiniteError, match=r"loss of step 1 is not finite.*count shard \d+ \[\d+:\d+\]") as raised:
        trainer.update(batch)
    assert raised.value.step == 1
    assert set(raised.value.origins) <= set(batch.origins)
    assert len(raised.value.origins) < len(batch.origins)
    for name, parameter in trainer.state.model.named_parameters():
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0, equal_nan=True)


def test_a_non_finite_gradient_raises(corpus: LoaderConfig) -> None:
    trainer = trainer_of(tiny_run(corpus))
    trainer.state.model.norm.weight.register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(NonFiniteError, match="gradient of step 0"):
        trainer.update(trainer.source.batch(0))
    assert trainer.state.step == 0


@pytest.mark.parametrize("optimizer", [AdamWConfig(), MuonConfig()], ids=lambda config: type(config).__name__)
def test_a_step_without_targets_counts_and_changes_no_weight(corpus: LoaderConfig, optimizer: OptimizerConfig) -> None:
    trainer = trainer_of(tiny_run(corpus, microbatch_rows=1, optimizer=optimizer))
    for step in range(2):  # with a new optimizer, and with one that has momentum
        batch = trainer.source.batch(2 * step)
        nothing = replace(batch, loss_mask_BS=np.zeros_like(batch.loss_mask_BS))
        before = {name: p.detach().clone() for name, p in trainer.state.model.named_parameters()}
        update = trainer.update(nothing)
        assert (update.loss, update.gradient_norm, update.num_tokens) == (0.0, 0.0, batch.num_real_tokens)
        assert trainer.state.step == 2 * step + 1
        assert all(torch.equal(p, before[name]) for name, p in trainer.state.model.named_parameters())
        assert trainer.update(trainer.source.batch(2 * step + 1)).gradient_norm > 0


@pytest.mark.slow
def test_a_compiled_model_makes_the_same_steps(corpus: LoaderConfig) -> None:
    eager, compiled = (trainer_of(tiny_run(corpus, compile=config)) for config in (None, CompileConfig()))
    for step in range(2):
        expected, found = (trainer.update(trainer.source.batch(step)) for trainer in (eager, compiled))
        assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert compiled.state.snapshot().tensors["model"].keys() == eager.state.snapshot().tensors["model"].keys()
