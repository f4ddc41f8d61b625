"""Runs that start from an upcycled dense bundle: equal to it at step 0, resumed bit-identically."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_runs import final_bytes, tiny_model, tiny_run, write_corpus

from openafm.bundle import Bundle, write_bundle
from openafm.core.config import ConfigError
from openafm.models.decoder import Decoder
from openafm.models.feed_forward.experts_config import TopKRouterConfig
from openafm.models.initialization.upcycling_config import UpcyclingConfig, UpcyclingError, upcycled_config
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.training.config import TrainerConfig
from openafm.training.initialization import BundleMismatchError, fresh_state
from openafm.training.observability.metrics import read_metrics
from openafm.training.optimizer_config import MuonConfig
from openafm.training.run import load_trained, train

UPCYCLING = UpcyclingConfig(num_experts=4)


def bundle_of(decoder: Decoder, path: Path) -> Bundle:
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=320), ["a b c"] * 10)
    tensors = {name: tensor.detach().numpy() for name, tensor in decoder.state_dict().items()}
    return write_bundle(path, config=decoder.config, tokenizer=tokenizer, template=ChatTemplate(), tensors=tensors)


def upcycled_run(tmp_path: Path, **changes: object) -> TrainerConfig:
    dense = bundle_of(replace(tiny_model(), vocab_size=330).build(seed=7), tmp_path / "dense")
    start = {"from_bundle": str(dense.path), "from_identity": dense.identity, "upcycle": UPCYCLING}
    config = tiny_run(write_corpus(tmp_path / "corpus"), model=upcycled_config(dense.config, UPCYCLING), **start)
    return replace(config, **changes)  # type: ignore[arg-type]


def test_the_upcycled_model_starts_with_the_outputs_of_the_dense_one(tmp_path: Path) -> None:
    config = upcycled_run(tmp_path)
    dense = replace(tiny_model(), vocab_size=330).build(seed=7)
    tokens_BS = torch.arange(20).view(2, 10)
    with torch.no_grad():
        assert (fresh_state(config, "cpu").model(tokens_BS) - dense(tokens_BS)).abs().max() <= 1e-5


@pytest.mark.parametrize("optimizer", [None, MuonConfig(learning_rate=3e-3)])
def test_it_learns_and_resumes_bit_identically_without_its_bundle(tmp_path: Path, optimizer: MuonConfig | None) -> None:
    config = upcycled_run(tmp_path)
    config = config if optimizer is None else replace(config, optimizer=optimizer)
    train(config, tmp_path / "run")
    assert load_trained(tmp_path / "run").config == config.model
    lines = read_metrics(tmp_path / "run")
    assert lines[-1]["cross_entropy"] < lines[0]["cross_entropy"]
    assert lines[0]["expert_balance"] > 0
    whole = final_bytes(tmp_path / "run")
    shutil.rmtree(max((tmp_path / "run" / "checkpoints").glob("step-*")))
    shutil.rmtree(tmp_path / "dense")
    train(config, tmp_path / "run")
    assert final_bytes(tmp_path / "run") == whole


def test_other_start_bundles_are_refused(tmp_path: Path) -> None:
    config = upcycled_run(tmp_path)
    other = bundle_of(replace(tiny_model(), vocab_size=330, dim=48).build(), tmp_path / "other")
    with pytest.raises(BundleMismatchError, match=r"upcycled model of .*other differs from the config's: dim is 48, not 32"):
        train(replace(config, from_bundle=str(other.path), from_identity=None), tmp_path / "run")
    with pytest.raises(BundleMismatchError, match=r"num_experts is 8, not 4"):
        train(replace(config, upcycle=UpcyclingConfig(num_experts=8)), tmp_path / "run")
    with pytest.raises(UpcyclingError, match="from_bundle"):
        train(replace(config, from_bundle=None, from_identity=None), tmp_path / "run")
    experts = bundle_of(config.model.build(), tmp_path / "experts")
    with pytest.raises(UpcyclingError, match="only a DenseFeedForwardConfig can be upcycled"):
        train(replace(config, from_bundle=str(experts.path), from_identity=None), tmp_path / "run")


def test_fewer_experts_than_chosen_are_refused() -> None:
    with pytest.raises(ConfigError, match="fewer than the 5"):
        upcycled_config(tiny_model(), replace(UPCYCLING, router=TopKRouterConfig(num_chosen=5)))
