"""Generators that sample with the policy in 8 or 4 bits, and the importance weights that correct their samples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_rl_runs import check_equal
from tiny_bundles import write_wide_bundle
from tiny_policies import tiny_policy_run, write_prompts

from openafm.bundle import open_bundle, write_bundle
from openafm.core.config import ConfigError
from openafm.models.sizes import named_size
from openafm.rl.batches import step_batch
from openafm.rl.buffer import ReplayBuffer
from openafm.rl.config import RLConfig
from openafm.rl.engines import RoundedPolicyError, check_rounding
from openafm.rl.reference import reference_log_probs
from openafm.rl.run import train_policy
from openafm.runtime.engines.selection import open_engine
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.training.checkpoints.record import AnotherRunError
from openafm.training.objectives.policy_config import RLOOConfig


def rounded_run(folder: Path, generator_weights: str) -> RLConfig:
    if not (folder / "bundle").is_dir():
        write_wide_bundle(folder / "bundle")
        write_prompts(folder / "prompts.jsonl")
    return tiny_policy_run(folder, num_steps=2, generator_weights=generator_weights)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_rounded_samples_are_recorded_and_weighted(tmp_path: Path, weights: str) -> None:
    config = rounded_run(tmp_path, weights)
    result = train_policy(config, tmp_path / "run")
    assert result.finished
    bundle = open_bundle(tmp_path / "bundle")
    group = ReplayBuffer(tmp_path / "run" / "buffer", bundle.tokenizer.digest).read(0)
    exact = reference_log_probs(
        open_engine(bundle, num_threads=1, full_precision="native"), group.trajectories, config.objective
    )
    ratios = np.concatenate(
        [abs(each.log_probs_N - found)[each.loss_mask_N] for each, found in zip(group.trajectories, exact, strict=True)]
    )
    assert 1e-4 < ratios.mean() < 0.5  # the first step samples with the start weights, rounded
    log = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert log[0]["off_policy_tokens"] == 1
    assert log[0]["log_ratio"] == pytest.approx(ratios.mean(), rel=1)
    assert 0.5 < log[0]["effective_share"] < 1
    found = step_batch([group], config.objective, group_size=4, step=0, lag=0, row_tokens=64, is_rounded=True).batch
    assert found.token_fields["is_off_policy"][found.loss_mask_BS].all()
    with pytest.raises(AnotherRunError, match="generator_weights"):
        train_policy(replace(config, generator_weights="full"), tmp_path / "run")


@pytest.mark.slow
def test_rounded_generators_are_bit_equal_to_the_synchronous_loop(tmp_path: Path) -> None:
    config = rounded_run(tmp_path, "int8")
    train_policy(config, tmp_path / "one")
    train_policy(config, tmp_path / "other", num_generators=1)
    check_equal(tmp_path / "one", tmp_path / "other")


def test_policies_that_cannot_be_rounded_are_errors_before_the_run(tmp_path: Path) -> None:
    config = tiny_policy_run(tmp_path)  # 48 inputs do not divide into groups
    with pytest.raises(RoundedPolicyError, match=r"has 48 inputs; .*use generator_weights=full"):
        train_policy(replace(config, generator_weights="int8"), tmp_path / "run")
    assert not (tmp_path / "run" / "rl.json").exists()
    with pytest.raises(ConfigError, match=r"set trainer\.objective\.truncation"):
        unweighted = replace(config.trainer, objective=RLOOConfig(truncation=None))
        replace(config, trainer=unweighted, generator_weights="int8")
    with pytest.raises(ConfigError, match="use engine fastest"):
        replace(config, engine="torch", generator_weights="int8")


def test_policies_with_tracks_are_refused_without_advice_about_formats(tmp_path: Path) -> None:
    config = rounded_run(tmp_path, "int8")
    tokenizer = open_bundle(tmp_path / "bundle").tokenizer
    decoder = replace(named_size("server.micro"), vocab_size=tokenizer.vocab_size).build()
    tensors = {name: tensor.numpy() for name, tensor in decoder.state_dict().items()}
    server = write_bundle(
        tmp_path / "server", config=decoder.config, tokenizer=tokenizer, template=ChatTemplate(), tensors=tensors
    )
    with pytest.raises(RoundedPolicyError, match="policy: it has parallel tracks or mixtures of experts; use"):
        check_rounding(config, server)
