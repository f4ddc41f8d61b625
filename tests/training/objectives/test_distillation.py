"""Online distillation against the plain computation, with the deployed teacher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from test_objectives import batches, model
from tiny_runs import final_bytes, tiny_model, tiny_run, write_corpus
from torch import Tensor

from openafm.bundle import Bundle, write_bundle
from openafm.data.loading.batch import Batch
from openafm.models.decoder import Decoder
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.training.config import EvaluationConfig
from openafm.training.objectives import distillation
from openafm.training.objectives.config import DistillationConfig, TeacherError
from openafm.training.objectives.distillation import Distillation
from openafm.training.observability.metrics import read_metrics
from openafm.training.run import load_trained, train

NUM_TOKENS = 90


def teacher() -> Decoder:
    decoder = replace(tiny_model(), dim=48).build(seed=7)
    with torch.no_grad():
        decoder.embedding.normal_(std=0.3, generator=torch.Generator().manual_seed(3))
    return decoder


def plain_losses(student: Decoder, batch: Batch, num_tokens: int | None) -> tuple[Tensor, Tensor, int]:
    """Return KL, cross entropy and agreement, computed document by document."""
    kl, ce, equal = torch.zeros(()), torch.zeros(()), 0
    for span in batch.documents:
        place = (span.row, slice(span.start, span.stop))
        learned_S = torch.from_numpy(batch.loss_mask_BS[place])
        tokens_1S = torch.from_numpy(batch.tokens_BS[place])[None]
        logits_NV, teacher_NV = (m(tokens_1S)[0, learned_S, :num_tokens] for m in (student, teacher()))
        log_q_NV = logits_NV.log_softmax(-1)
        kl = kl + F.kl_div(log_q_NV, teacher_NV.detach().log_softmax(-1), reduction="sum", log_target=True)
        ce = ce + F.nll_loss(log_q_NV, torch.from_numpy(batch.targets_BS[place])[learned_S], reduction="sum")
        equal += int((logits_NV.argmax(-1) == teacher_NV.argmax(-1)).sum())
    return kl, ce, equal


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(batch=batches())
@pytest.mark.parametrize("hard_weight", [0.0, 0.3])
def test_losses_and_gradients_equal_the_plain_computation(batch: Batch, hard_weight: float) -> None:
    student = model()
    losses = Distillation(teacher(), hard_weight, None)(student, batch)
    assert losses.count == batch.num_targets
    if losses.count == 0:
        return
    kl, ce, equal = plain_losses(student, batch, None)
    torch.testing.assert_close(losses.total, (kl + hard_weight * ce).detach(), rtol=1e-4, atol=1e-4, check_dtype=False)
    assert losses.parts["agreement"] == equal
    torch.testing.assert_close(losses.parts["kl"], kl.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(losses.parts["cross_entropy"], ce.detach(), rtol=1e-4, atol=1e-4)
    parameters = list(student.parameters())
    found = torch.autograd.grad(losses.total, parameters)
    expected = torch.autograd.grad(kl + hard_weight * ce, parameters)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-3, atol=1e-4)


def test_chunks_change_nothing_and_unused_rows_are_excluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = write_corpus(tmp_path / "corpus").build().batch(0)
    batch = replace(batch, tokens_BS=batch.tokens_BS % NUM_TOKENS, targets_BS=batch.targets_BS % NUM_TOKENS)
    student = model()
    whole = Distillation(teacher(), 0.1, NUM_TOKENS)(student, batch)
    kl, ce, _ = plain_losses(student, batch, NUM_TOKENS)
    torch.testing.assert_close(whole.total, (kl + 0.1 * ce).detach(), rtol=1e-4, atol=1e-4)
    (gradient_VD,) = torch.autograd.grad(whole.total, [student.embedding])
    assert gradient_VD[NUM_TOKENS:].abs().max() == 0
    monkeypatch.setattr(distillation, "CHUNK_ELEMENTS", 1)
    monkeypatch.setattr(distillation, "MIN_CHUNK", 7)
    cut = Distillation(teacher(), 0.1, NUM_TOKENS)(student, batch)
    torch.testing.assert_close(cut.total, whole.total, rtol=1e-5, atol=1e-5)


TOKENIZER = train_tokenizer(TokenizerConfig(vocab_size=320), ["a b c"] * 10)


def bundle(path: Path) -> Bundle:
    made = replace(tiny_model(), vocab_size=330).build(seed=7)
    tensors = {name: tensor.numpy() for name, tensor in made.state_dict().items()}
    return write_bundle(path, config=made.config, tokenizer=TOKENIZER, template=ChatTemplate(), tensors=tensors)


@pytest.mark.slow
def test_a_student_learns_from_its_teacher_and_the_run_resumes_bit_identically(tmp_path: Path) -> None:
    target, data = bundle(tmp_path / "target"), write_corpus(tmp_path / "corpus", digest=TOKENIZER.digest)
    objective = DistillationConfig(teacher=str(target.path), identity=target.identity, hard_weight=0.0)
    changes = {"model": replace(tiny_model(), vocab_size=330), "objective": objective, "seed": 3}
    config = tiny_run(data, num_steps=30, **changes, evaluation=EvaluationConfig(data=data, every_steps=10, num_batches=2))
    train(config, tmp_path / "run")
    lines = [line for line in read_metrics(tmp_path / "run") if "held_out_kl" in line]
    assert lines[-1]["held_out_kl"] < 0.8 * lines[0]["held_out_kl"]
    assert 0 <= lines[-1]["held_out_agreement"] <= 1
    assert load_trained(tmp_path / "run").config == config.model
    for folder in sorted((tmp_path / "run" / "checkpoints").iterdir())[-1:]:
        whole = final_bytes(tmp_path / "run")
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    train(config, tmp_path / "run")
    assert final_bytes(tmp_path / "run") == whole


def test_no_teacher_and_another_teacher_are_refused(tmp_path: Path) -> None:
    target = bundle(tmp_path / "target")
    with pytest.raises(TeacherError, match="--from"):
        DistillationConfig().build()
    with pytest.raises(TeacherError, match="began with"):
        DistillationConfig(teacher=str(target.path), identity="0" * 40).build()


def test_a_teacher_with_another_vocabulary_is_refused_before_the_first_step(tmp_path: Path) -> None:
    target, data = bundle(tmp_path / "target"), write_corpus(tmp_path / "corpus")
    objective = DistillationConfig(teacher=str(target.path))
    config = tiny_run(data, model=replace(tiny_model(), vocab_size=330), objective=objective)
    with pytest.raises(TeacherError, match="another tokenizer"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
