"""Whole runs: synchronous, asynchronous, resumed, with generators that die or hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tiny_policies import LetterShareConfig, tiny_policy_run, write_prompts
from torch import Tensor

from openafm.core.config import ConfigError, dump, from_dict
from openafm.core.executors import LocalConfig, RayConfig
from openafm.core.folder_lock import FolderInUseError, folder_lock
from openafm.rl.buffer import BufferError
from openafm.rl.config import RLConfig, replay_data
from openafm.rl.prompt_sources import PromptFileConfig
from openafm.rl.run import PolicyRunError, train_policy
from openafm.rl.updater import WeightPublisher
from openafm.rl.weights import WeightStoreError
from openafm.tokenizer.conversation import ConversationError
from openafm.training.budgets import StepBudget
from openafm.training.checkpoints.record import AnotherRunError
from openafm.training.objectives.policy_config import RLOOConfig
from openafm.training.observers import StepResult
from openafm.training.optimizer_config import AdamWConfig


def weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights of the newest checkpoint."""
    return load_file(max((folder / "checkpoints").glob("step-*")) / "model.safetensors")


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check_equal(one: Path, other: Path) -> None:
    """Check that two runs have bit-identical weights and figures."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)
    for this, that in zip(lines(one), lines(other), strict=True):
        skipped = ("seconds", "in_flight", "generated", "replaced")
        assert {k: v for k, v in this.items() if k not in skipped} == {k: v for k, v in that.items() if k not in skipped}


@pytest.mark.slow
def test_a_policy_learns_and_every_sample_is_counted(tmp_path: Path) -> None:
    config = tiny_policy_run(tmp_path, num_steps=9)
    trainer = replace(config.trainer, data=replay_data(32, 64), optimizer=AdamWConfig(learning_rate=0.03))
    config = replace(config, trainer=replace(trainer, objective=RLOOConfig()))
    result = train_policy(config, tmp_path / "run")
    log = lines(tmp_path / "run")
    assert result.finished
    assert len(log) == 9
    assert sum(line["reward"] for line in log[-3:]) > 1.3 * sum(line["reward"] for line in log[:3])
    assert log[-1]["generated"] == log[-1]["trained"] == 9 * 32
    assert log[0]["off_policy_kl"] == pytest.approx(0, abs=1e-5)
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert samples[0].keys() >= {"step", "prompt", "text", "reward", "terms"}


@pytest.mark.long
def test_lag_0_with_generators_is_bit_equal_to_the_synchronous_loop(tmp_path: Path) -> None:
    config = tiny_policy_run(tmp_path)
    train_policy(config, tmp_path / "synchronous")
    train_policy(config, tmp_path / "asynchronous", num_generators=2)
    check_equal(tmp_path / "synchronous", tmp_path / "asynchronous")


class InterruptedPublisher(WeightPublisher):
    """A publisher that ends the process's run in the third step."""

    def on_step(self, result: StepResult) -> None:
        if result.step == 3:
            raise KeyboardInterrupt
        super().on_step(result)


def test_a_resumed_run_is_bit_equal_and_another_config_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_policy_run(tmp_path, num_steps=4)
    train_policy(config, tmp_path / "whole")
    monkeypatch.setattr("openafm.rl.run.WeightPublisher", InterruptedPublisher)
    with pytest.raises(KeyboardInterrupt):
        train_policy(config, tmp_path / "resumed")
    monkeypatch.undo()
    assert train_policy(config, tmp_path / "resumed").finished
    check_equal(tmp_path / "whole", tmp_path / "resumed")
    with pytest.raises(AnotherRunError, match="max_tokens is 6, not 8"):
        train_policy(replace(config, max_tokens=8), tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("dies", [True, False], ids=["dies", "hangs"])
def test_a_generator_that_dies_or_hangs_is_replaced(tmp_path: Path, dies: bool) -> None:
    config = tiny_policy_run(tmp_path, task_seconds=60.0)
    train_policy(config, tmp_path / "whole")
    trap = tmp_path / "trap"
    trap.touch()
    trapped = replace(config, reward=LetterShareConfig(trap=str(trap), dies=dies))
    result = train_policy(trapped, tmp_path / "trapped", num_generators=2)
    assert (result.finished, result.replaced) == (True, 1)
    check_equal(tmp_path / "whole", tmp_path / "trapped")


@pytest.mark.slow
def test_a_killed_updater_resumes_with_the_samples_of_the_buffer(tmp_path: Path) -> None:
    config = tiny_policy_run(tmp_path, num_steps=6)
    train_policy(config, tmp_path / "whole")
    script = (
        "import sys; from pathlib import Path; from tiny_policies import tiny_policy_run; from openafm.rl.run import "
        "train_policy; folder = Path(sys.argv[1]); train_policy(tiny_policy_run(folder, num_steps=6), folder / 'killed', "
        "num_generators=1)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=environment)
    metrics = tmp_path / "killed" / "metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.read_text().count("\n") >= 3):
        time.sleep(0.05)
    process.kill()
    process.wait()
    before = set((tmp_path / "killed" / "buffer").iterdir())
    assert train_policy(config, tmp_path / "killed", num_generators=1).finished
    check_equal(tmp_path / "whole", tmp_path / "killed")
    assert before


@pytest.mark.slow
def test_lag_bounds_the_age_of_samples(tmp_path: Path) -> None:
    config = tiny_policy_run(tmp_path, num_steps=8, lag=2, swap="tokens")
    result = train_policy(config, tmp_path / "run", num_generators=2)
    log = lines(tmp_path / "run")
    assert result.finished
    assert max(line["max_lag"] for line in log) in (1, 2)
    assert log[-1]["generated"] == log[-1]["trained"] == 8 * 8


@pytest.mark.slow
def test_ray_gives_the_weights_of_local_processes(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    config = tiny_policy_run(tmp_path)
    train_policy(config, tmp_path / "local", num_generators=1, executor=LocalConfig(num_workers=1))
    train_policy(config, tmp_path / "ray", num_generators=1, executor=RayConfig(num_workers=1))
    check_equal(tmp_path / "local", tmp_path / "ray")


def test_rewards_that_fail_drop_their_samples(tmp_path: Path) -> None:
    config = tiny_policy_run(tmp_path, num_steps=1, reward=LetterShareConfig(seconds=-1.0))  # time.sleep raises
    result = train_policy(config, tmp_path / "run")
    (line,) = lines(tmp_path / "run")
    assert result.figures is not None
    assert (line["trained"], line["dropped"], line["gradient_norm"]) == (0, 8, 0)
    assert result.figures.errors == {"ValueError: sleep length must be non-negative": 8}


def test_prompts_beyond_the_window_are_dropped_and_counted(tmp_path: Path) -> None:
    config = tiny_policy_run(tmp_path, num_steps=1)
    write_prompts(tmp_path / "prompts.jsonl", messages=[{"role": "user", "content": "the cat and the dog " * 300}])
    train_policy(config, tmp_path / "run")
    (line,) = lines(tmp_path / "run")
    assert line["dropped"] == 8
    assert "the context window 512" in str(line["errors"])


def test_damaged_files_of_a_run_are_typed_errors(tmp_path: Path) -> None:
    config = tiny_policy_run(tmp_path, num_steps=1)
    run = tmp_path / "run"
    train_policy(config, run)
    longer = replace(config, trainer=replace(config.trainer, budget=StepBudget(num_steps=2)))
    (run / "weights" / "version-00000009.safetensors").write_bytes(b"half")  # a resumed run publishes its own
    assert train_policy(longer, run).finished
    group = run / "buffer" / "group-00000000004.npz"
    group.write_bytes(b"half")
    with pytest.raises(BufferError, match="not a readable group"):
        train_policy(replace(longer, trainer=replace(longer.trainer, budget=StepBudget(num_steps=3))), run)


def test_wrong_settings_are_errors(tmp_path: Path) -> None:
    config = tiny_policy_run(tmp_path)
    with pytest.raises(ConfigError, match=r"lag must be 0 \(synchronous\) or more optimizer updates, got -1"):
        replace(config, lag=-1)
    with pytest.raises(ConfigError, match="must be a multiple of group_size 3, got 8"):
        replace(config, group_size=3)
    with pytest.raises(PolicyRunError, match="name one with --from BUNDLE"):
        train_policy(replace(config, trainer=replace(config.trainer, from_bundle=None)), tmp_path / "run")
    (tmp_path / "empty.jsonl").write_text('{"kind": 3}\n')
    with pytest.raises(ConversationError, match=r"line 1 of .*empty\.jsonl is not a prompt"):
        train_policy(replace(config, prompts=PromptFileConfig(path=str(tmp_path / "empty.jsonl"))), tmp_path / "run2")
    with folder_lock(tmp_path / "busy"), pytest.raises(FolderInUseError):
        train_policy(config, tmp_path / "busy")


def test_the_config_is_read_from_its_json(tmp_path: Path) -> None:
    config = tiny_policy_run(tmp_path)
    assert from_dict(RLConfig, json.loads(dump(config))) == config


def test_a_damaged_weight_file_ends_the_run_with_its_name(tmp_path: Path) -> None:
    from openafm.rl.generator import TrajectoryGenerator

    config = tiny_policy_run(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "version-00000001.safetensors").write_bytes(b"half")
    with pytest.raises(WeightStoreError, match="version-00000001"):
        TrajectoryGenerator(config, tmp_path, part="test").generate([0])
