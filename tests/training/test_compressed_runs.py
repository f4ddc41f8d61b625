"""Quantization-aware runs, and runs that train an adapter: interrupted, resumed, refused."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import exit_code, final_bytes, tiny_model, tiny_run, train_in_child, write_corpus

from openafm.adapters.config import LoRAConfig, SingularValueStart
from openafm.adapters.lora import AdapterWeightsError, adapter_weights, install
from openafm.bundle import RecoveryAdapter, open_bundle, write_bundle
from openafm.bundle.decoder import load_decoder
from openafm.compression.config import QATConfig
from openafm.compression.deploy import build_decoder, packed_tensors
from openafm.compression.errors import UncompressibleModelError
from openafm.compression.qat import FakeQuantLinear
from openafm.core.config import ConfigError
from openafm.data.loading.loader import LoaderConfig
from openafm.models.decoder import Decoder
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.training.config import BFloat16Config, EMAConfig, TrainerConfig
from openafm.training.initialization import fresh_state
from openafm.training.observability.metrics import read_metrics
from openafm.training.run import load_trained, train
from openafm.training.trainer import Trainer

QAT = QATConfig(activations_from=0.5)
MODEL = replace(tiny_model(), vocab_size=320)


@pytest.fixture
def corpus(tmp_path: Path) -> LoaderConfig:
    return write_corpus(tmp_path / "corpus")


def compressed_bundle(path: Path, recovery: RecoveryAdapter | None = None) -> str:
    """A 2-bit bundle of random weights."""
    decoder = MODEL.build(seed=5)
    QAT.install(decoder)
    write_bundle(
        path,
        config=MODEL,
        tokenizer=train_tokenizer(TokenizerConfig(vocab_size=MODEL.vocab_size), ["a few words of text"]),
        template=ChatTemplate(),
        tensors=packed_tensors(decoder),
        numerics=QAT.numerics,
        recovery=recovery,
    )
    return str(path)


@pytest.mark.long
def test_a_killed_qat_run_resumes_bit_identically(tmp_path: Path, corpus: LoaderConfig) -> None:
    config = tiny_run(corpus, num_steps=12, qat=QAT, precision=BFloat16Config(), ema=EMAConfig(decay=0.9))
    train(config, tmp_path / "undisturbed")
    process = train_in_child(config, tmp_path / "killed")
    while not any(line["step"] >= 8 for line in read_metrics(tmp_path / "killed")):
        assert os.waitpid(process, os.WNOHANG)[0] == 0
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    assert exit_code(process) == -signal.SIGKILL
    assert train(config, tmp_path / "killed").finished
    assert final_bytes(tmp_path / "killed") == final_bytes(tmp_path / "undisturbed")


@pytest.mark.long
def test_qat_learns_its_clips_and_packs_to_an_equal_model(tmp_path: Path, corpus: LoaderConfig) -> None:
    config = tiny_run(corpus, num_steps=30, qat=QAT, ema=EMAConfig(decay=0.9))
    start = fresh_state(config, "cpu").model.state_dict()
    train(config, tmp_path / "run")
    losses = [line["loss"] for line in read_metrics(tmp_path / "run") if "loss" in line]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3
    trained = load_trained(tmp_path / "run")
    clips = [name for name in start if name.endswith(".clip")]
    assert len(clips) == sum(isinstance(module, FakeQuantLinear) for module in trained.modules())
    assert all(not torch.equal(start[name], trained.state_dict()[name]) for name in clips)
    for module in trained.modules():
        if isinstance(module, FakeQuantLinear):
            module._awareness.advance(1.0)
    deployed = build_decoder(trained.config, QAT.numerics, packed_tensors(trained))
    tokens_BS = torch.arange(1, 30)[None]
    with torch.inference_mode():
        assert torch.equal(trained(tokens_BS), deployed(tokens_BS))


def test_activations_are_quantized_in_the_last_part_of_a_run(corpus: LoaderConfig) -> None:
    config = tiny_run(corpus, num_steps=4, qat=QATConfig(activations_from=0.5))
    state = fresh_state(config, "cpu")
    trainer = Trainer(config, state, corpus.build())
    linear = next(module for module in state.model.modules() if isinstance(module, FakeQuantLinear))
    active = []
    for step in range(4):
        trainer.update(trainer.source.batch(step))
        active.append(linear._awareness.active)
    assert active == [False, False, True, True]


def adapter_run(corpus: LoaderConfig, base: str, **changes: object) -> TrainerConfig:
    return tiny_run(corpus, num_steps=12, model=MODEL, from_bundle=base, adapter=LoRAConfig(rank=4), **changes)


def base_weights(model: Decoder) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if ".lora." not in name}


@pytest.mark.long
def test_an_adapter_learns_over_a_frozen_2_bit_base_and_resumes(tmp_path: Path, corpus: LoaderConfig) -> None:
    base = compressed_bundle(tmp_path / "base")
    config = adapter_run(corpus, base)
    before = base_weights(fresh_state(config, "cpu").model)
    train(config, tmp_path / "undisturbed")
    process = train_in_child(config, tmp_path / "killed")
    while not any(line["step"] >= 7 for line in read_metrics(tmp_path / "killed")):
        assert os.waitpid(process, os.WNOHANG)[0] == 0
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    exit_code(process)
    assert train(config, tmp_path / "killed").finished
    assert final_bytes(tmp_path / "killed") == final_bytes(tmp_path / "undisturbed")
    trained = load_trained(tmp_path / "killed")
    after = base_weights(trained)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert any(bool(weight.any()) for name, weight in adapter_weights(trained).items() if name.endswith(".b"))
    losses = [line["loss"] for line in read_metrics(tmp_path / "killed") if "loss" in line]
    assert losses[-1] < losses[0]


def test_the_adapter_of_a_bundle_is_trained_further(tmp_path: Path, corpus: LoaderConfig) -> None:
    base = compressed_bundle(tmp_path / "base")
    config = adapter_run(corpus, base)
    train(config, tmp_path / "first")
    first = {name: weight.numpy() for name, weight in adapter_weights(load_trained(tmp_path / "first")).items()}
    carried = compressed_bundle(
        tmp_path / "carried", RecoveryAdapter(config=LoRAConfig(rank=4, precision="float32"), weights=first)
    )
    assert open_bundle(carried).signature == open_bundle(base).signature
    start = adapter_weights(fresh_state(adapter_run(corpus, carried), "cpu").model)
    assert all(np.array_equal(start[name].numpy(), weight) for name, weight in first.items())
    for other, message in (
        (LoRAConfig(rank=2), "rank 4"),
        (LoRAConfig(rank=4, targets=("query",)), "which the new one lacks"),
    ):
        with pytest.raises(AdapterWeightsError, match=message):
            fresh_state(replace(config, from_bundle=carried, adapter=other), "cpu")


@pytest.mark.long
def test_a_larger_adapter_starts_equal_to_that_of_the_bundle(tmp_path: Path, corpus: LoaderConfig) -> None:
    """Rank padded, another alpha: the same function at the start, and every new row can learn."""
    config = LoRAConfig(rank=4, precision="float32")
    decoder = MODEL.build(seed=5)
    install(decoder, config)
    weights = {name: torch.randn(w.shape).mul(0.3).numpy() for name, w in adapter_weights(decoder).items()}
    carried = compressed_bundle(tmp_path / "carried", RecoveryAdapter(config=config, weights=weights))
    tokens_BS = torch.arange(1, 30)[None]
    bundle = open_bundle(carried)
    expected = load_decoder(bundle, adapter=bundle.recovery_adapter)(tokens_BS).detach()
    assert (expected - load_decoder(bundle)(tokens_BS)).abs().max() > 0.1
    for larger in (LoRAConfig(rank=32), LoRAConfig(rank=7, alpha=3.0)):
        run = replace(adapter_run(corpus, carried), adapter=larger)
        model = fresh_state(run, "cpu").model
        torch.testing.assert_close(model(tokens_BS).detach(), expected, rtol=1e-4, atol=1e-4)
        train(run, tmp_path / f"rank {larger.rank}")
        trained = adapter_weights(load_trained(tmp_path / f"rank {larger.rank}"))
        assert all(bool(b[:, 4:].any()) for name, b in trained.items() if name.endswith(".b"))


def test_training_compressed_weights_is_refused(tmp_path: Path, corpus: LoaderConfig) -> None:
    base = compressed_bundle(tmp_path / "base")
    for changes in ({}, {"qat": QAT}):
        with pytest.raises(UncompressibleModelError, match=r"is compressed \(int2_balanced\)"):
            train(tiny_run(corpus, model=MODEL, from_bundle=base, **changes), tmp_path / "run")


def test_contradictory_configs_are_refused(corpus: LoaderConfig) -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        tiny_run(corpus, qat=QAT, adapter=LoRAConfig())
    with pytest.raises(ConfigError, match="must be ZeroStart"):
        tiny_run(corpus, adapter=LoRAConfig(start=SingularValueStart()))
