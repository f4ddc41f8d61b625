"""The cache of a teacher's logits: its content, its checks, and training from it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_runs import exit_code, final_bytes, in_child, tiny_model, tiny_run, write_corpus
from torch import Tensor

from openafm.bundle import Bundle, write_bundle
from openafm.core.config import ConfigError
from openafm.data.loading.batch import Batch
from openafm.data.loading.loader import LoaderConfig
from openafm.models.decoder import Decoder
from openafm.models.initialization.upcycling import upcycle
from openafm.models.initialization.upcycling_config import UpcyclingConfig
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.training.budgets import StepBudget, TimeBudget
from openafm.training.config import EvaluationConfig, TrainerConfig
from openafm.training.distributed.parallel import dummy_batch
from openafm.training.objectives import distillation, teacher_logits
from openafm.training.objectives.cached_distillation import CachedDistillation
from openafm.training.objectives.config import CachedDistillationConfig, TeacherError
from openafm.training.objectives.teacher_logits import (
    TeacherLogits,
    TeacherLogitsError,
    open_teacher_logits,
    write_teacher_logits,
)
from openafm.training.observability.metrics import read_metrics
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.run import train

VOCAB_SIZE = 330
TOKENIZER = train_tokenizer(TokenizerConfig(vocab_size=320), ["a b c"] * 10)


def corpus(folder: Path, seed: int = 0, digest: str = TOKENIZER.digest) -> LoaderConfig:
    return write_corpus(folder, seed=seed, digest=digest)


def bundle(path: Path, seed: int = 7, tokenizer: Tokenizer = TOKENIZER) -> Bundle:
    made = replace(tiny_model(), vocab_size=VOCAB_SIZE).build(seed=seed)
    with torch.no_grad():
        made.embedding.normal_(std=0.3, generator=torch.Generator().manual_seed(3))
    tensors = {name: tensor.numpy() for name, tensor in made.state_dict().items()}
    return write_bundle(path, config=made.config, tokenizer=tokenizer, template=ChatTemplate(), tensors=tensors)


def run(tmp_path: Path, num_steps: int = 6, **objective: object) -> TrainerConfig:
    """Return a student's run; teacher and data are written if missing."""
    data = corpus(tmp_path / "corpus")
    teacher = bundle(tmp_path / "teacher") if not (tmp_path / "teacher").is_dir() else Bundle(tmp_path / "teacher")
    config = CachedDistillationConfig(
        teacher=str(teacher.path), identity=teacher.identity, cache=str(tmp_path / "cache"), num_tokens=320, **objective
    )
    return tiny_run(data, num_steps, model=replace(tiny_model(), vocab_size=VOCAB_SIZE), objective=config)


def teacher_of(config: TrainerConfig) -> Decoder:
    assert isinstance(config.objective, CachedDistillationConfig)
    return config.objective.open().load()


def logits(decoder: Decoder, batch: Batch) -> Tensor:
    """Return the logits at the positions that carry loss, document by document, without unused rows."""
    pieces = []
    for span in batch.documents:
        place = (span.row, slice(span.start, span.stop))
        logits_SV = decoder(torch.from_numpy(batch.tokens_BS[place])[None])[0]
        pieces.append(logits_SV[torch.from_numpy(batch.loss_mask_BS[place]), :320])
    return torch.cat(pieces)


def targets(batch: Batch) -> Tensor:
    return torch.from_numpy(batch.targets_BS[batch.loss_mask_BS])


def read_files(cache: TeacherLogits) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in cache.folder.iterdir() if file.name != ".lock"}


def test_every_position_of_the_student_is_cached_once(tmp_path: Path) -> None:
    config = run(tmp_path, num_steps=30)  # more than two epochs
    loader = config.data.build()
    assert max(loader.epochs(30).values()) > 2
    cache = write_teacher_logits(config)
    teacher = teacher_of(config)
    for step in (0, 17, 29):
        batch = loader.batch(step)
        rows_N = cache.rows(batch)
        log_p_NV = logits(teacher, batch).detach().log_softmax(-1)
        top = log_p_NV.topk(64)
        assert (top.indices.numpy() == rows_N["ids"]).mean() > 0.999  # except for ties
        np.testing.assert_allclose(rows_N["log_p"], top.values.numpy(), rtol=1e-3, atol=1e-3)
        tail_N = log_p_NV.scatter(1, top.indices, -torch.inf).logsumexp(-1)
        np.testing.assert_allclose(rows_N["log_tail"], tail_N.numpy(), rtol=1e-4, atol=1e-4)
    distinct = sum(s.shards.manifest.num_tokens for s in loader.sources)
    assert cache.manifest.num_positions < distinct
    seen = {(o, i) for step in range(30) for b in [loader.batch(step)] for o, s in zip(b.origins, b.documents, strict=True)
            for i in np.flatnonzero(b.loss_mask_BS[s.row, s.start : s.stop])}  # fmt: skip
    assert cache.manifest.num_positions == len(seen)
    assert cache.manifest.flops > 0


def test_the_teacher_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = run(tmp_path)
    first = write_teacher_logits(config)
    monkeypatch.setattr(Decoder, "hidden_at", None)
    assert read_files(write_teacher_logits(config)) == read_files(first)


def bucket_loss(student: Decoder, teacher: Decoder, batch: Batch, num_logits: int) -> tuple[Tensor, Tensor]:
    """Return KL over the cached tokens and the bucket of all others, and cross entropy."""
    p_NV, q_NV = logits(teacher, batch).detach().softmax(-1), logits(student, batch).softmax(-1)
    top = p_NV.topk(num_logits)
    p_NK, q_NK = top.values, q_NV.gather(1, top.indices)
    p_N, q_N = 1 - p_NK.sum(1), 1 - q_NK.sum(1)
    kl = (p_NK * (p_NK / q_NK).log()).sum() + (p_N * (p_N / q_N).log()).sum()
    return kl, F.nll_loss(q_NV.log(), targets(batch), reduction="sum")


@pytest.mark.parametrize("num_logits", [1, 5, 64])
@pytest.mark.parametrize("hard_weight", [0.0, 0.7])
def test_losses_and_gradients_equal_the_plain_computation(
    tmp_path: Path, num_logits: int, hard_weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run(tmp_path, num_steps=1, num_logits=num_logits)
    cache, batch = write_teacher_logits(config), config.data.build().batch(0)
    student = replace(tiny_model(), vocab_size=VOCAB_SIZE).build(seed=1)
    losses = CachedDistillation(cache, hard_weight)(student, batch)
    kl, cross_entropy = bucket_loss(student, teacher_of(config), batch, num_logits)
    torch.testing.assert_close(losses.total, (kl + hard_weight * cross_entropy).detach(), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(losses.parts["cross_entropy"], cross_entropy.detach(), rtol=1e-4, atol=1e-4)
    parameters = list(student.parameters())
    found = torch.autograd.grad(losses.total, parameters)
    expected = torch.autograd.grad(kl + hard_weight * cross_entropy, parameters)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=5e-3, atol=5e-3 * e.abs().max().item())
    assert found[0][320:].abs().max() == 0
    monkeypatch.setattr(distillation, "CHUNK_ELEMENTS", 1)
    monkeypatch.setattr(distillation, "MIN_CHUNK", 7)
    torch.testing.assert_close(CachedDistillation(cache, hard_weight)(student, batch).total, losses.total)


def test_a_rank_without_rows_runs_a_dummy_batch(tmp_path: Path) -> None:
    """Collectives of the other ranks need it, with any objective."""
    config = run(tmp_path, num_steps=1)
    student = replace(tiny_model(), vocab_size=VOCAB_SIZE).build(seed=1)
    losses = CachedDistillation(write_teacher_logits(config), 1.0)(student, dummy_batch(config.data.build().batch(0)))
    losses.total.backward()
    assert losses.total.isfinite()
    assert losses.parts.keys() == {"kl", "cross_entropy", "agreement"}


def test_a_student_with_experts_gets_routing_losses(tmp_path: Path) -> None:
    config = run(tmp_path, num_steps=1)
    cache, batch = write_teacher_logits(config), config.data.build().batch(0)
    dense = replace(tiny_model(), vocab_size=VOCAB_SIZE).build(seed=1)
    plain = CachedDistillation(cache, 1.0)(dense, batch)
    losses = CachedDistillation(cache, 1.0)(upcycle(dense, UpcyclingConfig(num_experts=4)), batch)
    extra = 0.01 * losses.parts["expert_balance"] + 0.001 * losses.parts["router_z"]
    assert extra > 0
    torch.testing.assert_close(losses.total.detach(), plain.total.detach() + extra, rtol=1e-4, atol=1e-4)
    assert set(losses.expert_tokens) == {1}


@pytest.mark.slow
def test_a_student_learns_from_the_cache_and_the_run_resumes_bit_identically(tmp_path: Path) -> None:
    config = replace(run(tmp_path, num_steps=30, hard_weight=0.0), optimizer=AdamWConfig(learning_rate=2e-2))
    held_out = corpus(tmp_path / "held_out", seed=5)
    held_out = replace(held_out, sources=(replace(held_out.sources[0], name="held_out"),))
    config = replace(config, evaluation=EvaluationConfig(data=held_out, every_steps=2, num_batches=2))
    write_teacher_logits(config)
    shutil.rmtree(tmp_path / "teacher")  # not needed after the cache is complete
    train(config, tmp_path / "run")
    lines = [line for line in read_metrics(tmp_path / "run") if "held_out_kl" in line]
    assert lines[-1]["held_out_kl"] < 0.8 * lines[0]["held_out_kl"]
    whole = final_bytes(tmp_path / "run")
    shutil.rmtree(max((tmp_path / "run" / "checkpoints").glob("step-*")))
    train(config, tmp_path / "run")
    assert final_bytes(tmp_path / "run") == whole
    microbatches = replace(config, microbatch_rows=1)
    train(microbatches, tmp_path / "cut")
    cut = [line for line in read_metrics(tmp_path / "cut") if "held_out_kl" in line]
    assert cut[-1]["held_out_kl"] == pytest.approx(lines[-1]["held_out_kl"], rel=1e-3)


def test_a_killed_writer_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After SIGKILL the same call computes only the missing shards, to the same bytes."""
    monkeypatch.setattr(teacher_logits, "POSITIONS_PER_SHARD", 60)
    config = run(tmp_path, num_steps=8)
    whole = read_files(write_teacher_logits(config))
    assert len(whole) > 6
    shutil.rmtree(tmp_path / "cache")

    def slowly() -> None:
        plain = Decoder.hidden_at
        monkeypatch.setattr(Decoder, "hidden_at", lambda *arguments: (time.sleep(0.2), plain(*arguments))[1])
        write_teacher_logits(config)

    process = in_child(slowly)  # type: ignore[arg-type]
    while not (tmp_path / "cache" / "00001.npy").is_file():
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    assert exit_code(process) == -signal.SIGKILL
    standing = {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").glob("0*.npy")}
    assert 2 <= len(standing) < 8
    with pytest.raises(TeacherLogitsError, match="no complete cache"):
        train(config, tmp_path / "run")
    cache = write_teacher_logits(config)
    assert {file: file.stat().st_mtime_ns for file in standing} == standing
    assert read_files(cache) == whole


def test_shards_of_another_cache_are_replaced_and_other_files_kept(tmp_path: Path) -> None:
    config = run(tmp_path)
    write_teacher_logits(config)
    shutil.rmtree(tmp_path / "teacher")
    other = bundle(tmp_path / "teacher", seed=8)
    objective = replace(config.objective, identity=other.identity)
    with pytest.raises(TeacherLogitsError, match="another teacher"):
        train(replace(config, objective=objective), tmp_path / "run")
    with pytest.raises(TeacherError, match="the run began with"):
        write_teacher_logits(config)
    before = read_files(open_teacher_logits(tmp_path / "cache"))
    (tmp_path / "cache" / "thesis.txt").write_text("of the user")
    after = read_files(write_teacher_logits(replace(config, objective=objective)))
    assert before.keys() == after.keys() - {"thesis.txt"}
    assert before["00000.npy"] != after["00000.npy"]
    assert (tmp_path / "cache" / "thesis.txt").read_text() == "of the user"


def test_a_cache_of_another_run_is_refused_before_the_first_step(tmp_path: Path) -> None:
    config = run(tmp_path)
    write_teacher_logits(config)
    other_data = replace(config, data=corpus(tmp_path / "other", seed=1))
    for changed, message in (
        (other_data, "other data"),
        (replace(config, budget=StepBudget(num_steps=7)), "another number of steps"),
        (replace(config, objective=replace(config.objective, num_logits=32)), "another number of logits"),
        (replace(config, objective=replace(config.objective, num_tokens=300)), "another vocabulary"),
        (replace(config, objective=replace(config.objective, cache=str(tmp_path / "none"))), "no complete cache"),
    ):
        with pytest.raises(TeacherLogitsError, match=message):
            train(changed, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(TeacherLogitsError, match="lacks '"):
        open_teacher_logits(tmp_path / "cache").rows(other_data.data.build().batch(0))
    with pytest.raises(ConfigError, match="StepBudget"):
        write_teacher_logits(replace(config, budget=TimeBudget(seconds=1)))
    with pytest.raises(ConfigError, match="below the teacher's 320 tokens, got 320"):
        write_teacher_logits(replace(config, objective=replace(config.objective, num_logits=320)))
    with pytest.raises(TeacherError, match=r"trainer\.objective\.teacher"):
        write_teacher_logits(replace(config, objective=replace(config.objective, teacher=None)))


def test_a_teacher_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    config = run(tmp_path)
    shutil.rmtree(tmp_path / "teacher")
    other = bundle(tmp_path / "teacher", tokenizer=train_tokenizer(TokenizerConfig(vocab_size=322), ["d e f"] * 10))
    objective = replace(config.objective, identity=other.identity)
    with pytest.raises(TeacherError, match="another tokenizer"):
        write_teacher_logits(replace(config, objective=objective))


@pytest.mark.parametrize("name", ["00000.npy", "pieces.npy", "manifest.json"])
def test_a_damaged_cache_is_refused(tmp_path: Path, name: str) -> None:
    config = run(tmp_path)
    write_teacher_logits(config)
    file = tmp_path / "cache" / name
    content = bytearray(file.read_bytes())
    content[-5 if name.endswith("npy") else 0] ^= 1
    file.write_bytes(content)
    with pytest.raises(TeacherLogitsError, match=name):
        train(config, tmp_path / "run")
    file.unlink()
    with pytest.raises(TeacherLogitsError):
        train(config, tmp_path / "run")
