"""Whole runs: killed, stopped, started twice, budgeted, resumed, extended; their weights stay bit-identical."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import exit_code, final_bytes, tiny_model, tiny_run, train_in_child, wait_for_step, write_corpus

from openafm.core.errors import UsageError
from openafm.core.folder_lock import FolderInUseError, folder_lock
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.data.shards.writer import write_shards
from openafm.models.initialization.induction import start_induction
from openafm.training.budgets import TimeBudget
from openafm.training.checkpoints.checkpoint import open_checkpoint
from openafm.training.checkpoints.folder import checkpoint_paths
from openafm.training.checkpoints.record import AnotherRunError, CheckpointError
from openafm.training.config import BFloat16Config, CheckpointConfig, EMAConfig, EvaluationConfig, InductionStart, PlainStart
from openafm.training.initialization import fresh_state
from openafm.training.observability.metrics import FILE, read_metrics
from openafm.training.optimizer_config import AdamWConfig, MuonConfig
from openafm.training.run import VocabularyMismatchError, load_trained, train
from openafm.training.schedules import Constant
from openafm.training.trainer import NonFiniteError

VARIANTS = {
    "adamw": {"ema": EMAConfig(decay=0.9), "microbatch_rows": 3},
    "muon in bf16, averaged": {
        "optimizer": MuonConfig(),
        "precision": BFloat16Config(),
        "ema": EMAConfig(decay=0.9),
        "start": InductionStart(),
    },
}


@pytest.fixture
def corpus(tmp_path: Path) -> LoaderConfig:
    return write_corpus(tmp_path / "corpus")


@pytest.mark.parametrize("variant", ["adamw", pytest.param("muon in bf16, averaged", marks=pytest.mark.slow)])
def test_a_repeatedly_killed_run_ends_with_the_same_bytes(tmp_path: Path, corpus: LoaderConfig, variant: str) -> None:
    config = tiny_run(corpus, num_steps=20, **VARIANTS[variant])
    config = replace(config, checkpoint=CheckpointConfig(every_steps=2, every_seconds=None))
    undisturbed = train(config, tmp_path / "undisturbed")
    choose = random.Random(variant)
    output, num_kills, step = tmp_path / "killed", 0, 0
    while (step := step + choose.randint(3, 6)) < 20:
        process = train_in_child(config, output)
        if not wait_for_step(output, step, process):
            break
        time.sleep(choose.random() * 0.03)  # before, during or after a checkpoint
        os.kill(process, signal.SIGKILL)
        assert exit_code(process) in (-signal.SIGKILL, 0)
        num_kills += 1
    result = train(config, output)
    assert num_kills >= 3
    assert result.finished
    assert final_bytes(output) == final_bytes(tmp_path / "undisturbed")
    assert (result.num_tokens, result.loss) == (undisturbed.num_tokens, undisturbed.loss)
    curve = [(line["step"], line["loss"]) for line in read_metrics(output)]
    assert curve == [(line["step"], line["loss"]) for line in read_metrics(tmp_path / "undisturbed")]
    assert [step for step, _ in curve] == list(range(1, 21))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends_the_run_with_0(tmp_path: Path, corpus: LoaderConfig, number: int) -> None:
    output = tmp_path / "run"
    process = train_in_child(tiny_run(corpus, num_steps=100_000), output)
    assert wait_for_step(output, 5, process)
    os.kill(process, number)
    assert exit_code(process) == 0
    last = read_metrics(output)[-1]["step"]
    assert 5 <= last < 100_000
    assert checkpoint_paths(output / "checkpoints")[0].name == f"step-{last:08}"


def test_a_run_that_diverges_stops_and_leaves_whole_checkpoints(tmp_path: Path, corpus: LoaderConfig) -> None:
    config = tiny_run(corpus, num_steps=40, optimizer=AdamWConfig(learning_rate=1e30))
    config = replace(config, checkpoint=CheckpointConfig(every_steps=1, every_seconds=None))
    with pytest.raises(NonFiniteError, match=r"of step \d+ is not finite.*count shard") as raised:
        train(config, tmp_path / "run")
    newest = open_checkpoint(checkpoint_paths(tmp_path / "run" / "checkpoints")[0])
    assert newest.load().step == raised.value.step
    assert all(np.isfinite(line["loss"]) for line in read_metrics(tmp_path / "run"))
    with pytest.raises(NonFiniteError, match=f"step {raised.value.step} "):
        train(config, tmp_path / "run")


def test_a_second_trainer_in_a_folder_is_refused(tmp_path: Path, corpus: LoaderConfig) -> None:
    with folder_lock(tmp_path / "run"), pytest.raises(FolderInUseError, match=f"in use by process {os.getpid()}"):
        train(tiny_run(corpus), tmp_path / "run")
    assert train(tiny_run(corpus, num_steps=1), tmp_path / "run").finished


def test_a_finished_run_is_left_alone_and_another_config_refused(tmp_path: Path, corpus: LoaderConfig) -> None:
    config = tiny_run(corpus)
    first = train(config, tmp_path / "run")
    before = final_bytes(tmp_path / "run")
    assert train(config, tmp_path / "run") == first
    assert final_bytes(tmp_path / "run") == before
    with pytest.raises(AnotherRunError, match="seed is 0, not 1"):
        train(replace(config, seed=1), tmp_path / "run")
    with pytest.raises(AnotherRunError, match="beyond the 11 steps of the config"):
        train(tiny_run(corpus, num_steps=11), tmp_path / "run")
    assert '"num_steps": 12' in (tmp_path / "run" / "config.json").read_text()


def test_a_moved_run_is_extended_with_other_microbatches_and_says_so(
    tmp_path: Path, corpus: LoaderConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    train(tiny_run(corpus, schedule=Constant()), tmp_path / "run")
    shutil.move(tmp_path / "corpus", tmp_path / "moved_corpus")
    shutil.move(tmp_path / "run", tmp_path / "moved")
    moved = replace(corpus, sources=(replace(corpus.sources[0], path=str(tmp_path / "moved_corpus")),))
    config = tiny_run(moved, num_steps=15, microbatch_rows=2, num_threads=1, schedule=Constant())
    result = train(config, tmp_path / "moved")
    assert (result.finished, result.step, result.num_steps) == (True, 15, 15)
    printed = capfd.readouterr().err
    assert "the run had 12 steps and now has 15" in printed
    assert "microbatch_rows was None and is now 2: results differ by rounding" in printed
    whole = train(tiny_run(corpus, num_steps=15, data=moved, schedule=Constant()), tmp_path / "whole")
    assert result.loss == pytest.approx(whole.loss, abs=1e-4)


def test_a_time_budget_sets_the_number_of_steps_once(tmp_path: Path, corpus: LoaderConfig) -> None:
    train(tiny_run(corpus, num_steps=1), tmp_path / "imports")  # outside of the budget
    config = tiny_run(corpus, budget=TimeBudget(seconds=2.0, measured_steps=3))
    process = train_in_child(config, tmp_path / "run")
    assert wait_for_step(tmp_path / "run", 1, process)
    os.kill(process, signal.SIGKILL)
    exit_code(process)
    result = train(config, tmp_path / "run")
    assert result.finished
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == list(range(1, result.num_steps + 1))

    # The measured steps are undone: the same number of steps without them gives the same weights.
    again = replace(config, budget=replace(tiny_run(corpus).budget, num_steps=result.num_steps))  # type: ignore[call-arg]
    train(again, tmp_path / "again")
    assert final_bytes(tmp_path / "again") == final_bytes(tmp_path / "run")


def test_a_damaged_newest_checkpoint_is_quarantined_and_trained_again(tmp_path: Path, corpus: LoaderConfig) -> None:
    config = tiny_run(corpus)
    train(config, tmp_path / "run")
    wanted, checkpoints = final_bytes(tmp_path / "run"), tmp_path / "run" / "checkpoints"
    for path in checkpoint_paths(checkpoints)[:1]:
        (path / "model.safetensors").write_bytes(b"damaged")
    earlier = open_checkpoint(checkpoint_paths(checkpoints)[1]).load().tensors["model"]
    assert all(torch.equal(tensor, earlier[name]) for name, tensor in load_trained(tmp_path / "run").state_dict().items())

    assert train(config, tmp_path / "run").finished
    assert final_bytes(tmp_path / "run") == wanted
    assert (checkpoints / "damaged-step-00000012").exists()

    for path in checkpoint_paths(checkpoints):
        (path / "record.json").unlink()
    for resume in (lambda: load_trained(tmp_path / "run"), lambda: train(config, tmp_path / "run")):
        with pytest.raises(CheckpointError, match=r"all \d checkpoints in .* are damaged"):
            resume()


def test_data_of_a_larger_vocabulary_is_refused_before_the_first_step(tmp_path: Path, corpus: LoaderConfig) -> None:
    small = replace(tiny_model(), vocab_size=96)
    message = rf"{tmp_path}/corpus have a vocabulary of 97 tokens, the model's vocab_size is 96"
    with pytest.raises(VocabularyMismatchError, match=message):
        train(tiny_run(corpus, model=small), tmp_path / "run")
    with write_shards(tmp_path / "held_out", tokenizer_digest="0" * 64, vocab_size=98) as writer:
        writer.add([1, 2, 97])
    held_out = replace(corpus, sources=(SourceConfig(name="held out", path=str(tmp_path / "held_out")),))
    with pytest.raises(VocabularyMismatchError, match="98 tokens"):
        train(tiny_run(corpus, evaluation=EvaluationConfig(data=held_out)), tmp_path / "run")
    assert not (tmp_path / "run" / FILE).exists()
    assert train(tiny_run(corpus, num_steps=1, model=replace(small, vocab_size=98)), tmp_path / "run").finished


def test_held_out_loss_is_that_of_the_averaged_weights(tmp_path: Path, corpus: LoaderConfig) -> None:
    held_out = write_corpus(tmp_path / "held_out", num_documents=30, seed=1)
    evaluation = EvaluationConfig(data=held_out, every_steps=5, num_batches=2)
    config = tiny_run(corpus, evaluation=evaluation, ema=EMAConfig(decay=0.5))
    result = train(config, tmp_path / "run")
    lines = [line for line in read_metrics(tmp_path / "run") if "held_out_loss" in line]
    assert [line["step"] for line in lines] == [0, 5, 10, 12]
    assert result.held_out_loss == lines[-1]["held_out_loss"]

    model = load_trained(tmp_path / "run")
    objective, loader = config.objective.build(), held_out.build()
    with torch.no_grad():
        losses = [objective(model, loader.batch(step)) for step in range(2)]
    expected = sum(loss.total.item() for loss in losses) / sum(loss.count for loss in losses)
    assert result.held_out_loss == pytest.approx(expected, rel=1e-5)

    train(replace(config, evaluation=None), tmp_path / "without")
    assert final_bytes(tmp_path / "without") == final_bytes(tmp_path / "run")


def test_a_run_starts_from_a_bundle_of_its_own_shape_only(tmp_path: Path, corpus: LoaderConfig) -> None:
    from openafm.bundle import write_bundle
    from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
    from openafm.tokenizer.chat_template import ChatTemplate

    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=320), ["a few words of text"])
    model = replace(tiny_model(), vocab_size=tokenizer.vocab_size).build(seed=7)
    tensors = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in model.state_dict().items()}
    write_bundle(tmp_path / "start", config=model.config, tokenizer=tokenizer, template=ChatTemplate(), tensors=tensors)
    config = tiny_run(corpus, model=model.config, from_bundle=str(tmp_path / "start"), start=InductionStart())
    weights = fresh_state(config, "cpu").model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())  # without `start`
    with pytest.raises(UsageError, match="vocab_size is"):
        train(tiny_run(corpus, from_bundle=str(tmp_path / "start")), tmp_path / "run")

    # A run that resumes from a checkpoint does not need the bundle.
    train(config, tmp_path / "undisturbed")
    process = train_in_child(config, tmp_path / "run")
    assert exit_code(process) == 0
    shutil.rmtree(checkpoint_paths(tmp_path / "run" / "checkpoints")[0])
    shutil.rmtree(tmp_path / "start")
    assert train(config, tmp_path / "run").finished
    assert final_bytes(tmp_path / "run") == final_bytes(tmp_path / "undisturbed")


def test_the_induction_start_is_for_fresh_weights_only(
    tmp_path: Path, corpus: LoaderConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_run(corpus, num_steps=6, start=InductionStart())
    expected = config.model.build(config.seed)
    start_induction(expected, config.seed)
    weights = fresh_state(config, "cpu").model.state_dict()
    plain = fresh_state(replace(config, start=PlainStart()), "cpu").model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in expected.state_dict().items())
    assert not torch.equal(weights["embedding"], plain["embedding"])

    calls: list[int] = []
    monkeypatch.setattr("openafm.models.initialization.induction.start_induction", lambda model, seed: calls.append(seed))
    train(config, tmp_path / "run")
    shutil.rmtree(checkpoint_paths(tmp_path / "run" / "checkpoints")[0])
    assert train(config, tmp_path / "run").finished
    assert calls == [config.seed]
