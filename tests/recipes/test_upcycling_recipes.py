"""The recipes of report 4.3: trunk, upcycled teacher, distillation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openafm.bundle import Bundle, open_bundle, write_bundle
from openafm.core.config import ConfigError
from openafm.models.feed_forward.experts_config import ExpertsConfig
from openafm.models.initialization.upcycling_config import UpcyclingError
from openafm.recipes.catalog import build_run
from openafm.recipes.config import RunConfig
from openafm.recipes.on_device.upcycling import first_part
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import run_recipe
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.training.budgets import StepBudget
from openafm.training.checkpoints.checkpoint import open_checkpoint
from openafm.training.objectives.config import CachedDistillationConfig, TeacherError
from openafm.training.run import trained_model
from openafm.training.schedules import WarmupStableDecay

NUM_STEPS, NUM_FIRST = 40, 36
COPIES = {"type": "CopiesCorpusConfig", "name": "copies", "learn": "answers", "copies": {}, "num_examples": 60}
TEXT = {"type": "SyntheticCorpusConfig", "name": "built_in", "synthetic": {"languages": {"en": 1}}, "num_examples": 60}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))


def attention(keys_values: dict[str, object]) -> dict[str, object]:
    return {"type": "AttentionConfig", "num_heads": 2, "head_dim": 8, "keys_values": keys_values}


def tiny(num_steps: int) -> dict[str, str]:
    own = attention({"type": "OwnKeysValuesConfig", "num_heads": 1})
    layer = {"attention": own, "feed_forward": {"type": "DenseFeedForwardConfig", "hidden_dim": 24}}
    model = {"vocab_size": 400, "dim": 16, "layers": [layer] * 2, "context_length": 256}
    return later(num_steps) | {"trainer.model": json.dumps(model), "tokenizer.vocab_size": "400"}


def later(num_steps: int) -> dict[str, str]:
    """Return a small stage; one that starts from a bundle keeps its model and tokenizer."""
    return {
        "corpora": json.dumps([COPIES, TEXT]),
        "trainer.budget.num_steps": str(num_steps),
        "trainer.data.row_tokens": "256",
        "trainer.log_every": "1",
    }


def pretrained(tmp_path: Path, name: str = "on_device.pretrain", num_steps: int = 2) -> Bundle:
    run_recipe(prepare_run(name, "micro", changes=tiny(num_steps)), tmp_path / name, f"{name}-micro")
    return open_bundle(f"{name}-micro")


@pytest.mark.slow
def test_the_trunk_is_bit_identical_to_the_start_of_the_dense_run(tmp_path: Path) -> None:
    changes = {"trainer.checkpoint": f'{{"every_steps": {NUM_FIRST}, "every_seconds": null}}'}
    whole = prepare_run("on_device.pretrain", "micro", changes=tiny(NUM_STEPS) | changes)
    trunk = replace(whole, trainer=first_part(whole.trainer, 0.9))
    ended = replace(whole, trainer=replace(whole.trainer, budget=StepBudget(num_steps=NUM_FIRST)))
    run_recipe(whole, tmp_path / "whole", "whole")
    at_90 = trained_model(open_checkpoint(tmp_path / "whole" / "checkpoints" / f"step-{NUM_FIRST:08}"))
    for name, run in (("trunk", trunk), ("ended", ended)):
        run_recipe(run, tmp_path / name, name)
        found, expected = open_bundle(name).tensors(), at_90.state_dict()
        same = all(np.array_equal(found[key], expected[key].numpy()) for key in expected)
        assert same == (name == "trunk")  # the other run's learning rate has decayed


@pytest.mark.parametrize("size", ["micro", "nano"])
def test_the_shares_are_those_of_the_report(size: str) -> None:
    steps = {
        name: build_run(f"on_device.{name}", size).trainer.budget.num_steps  # type: ignore[attr-defined]
        for name in ("pretrain", "trunk", "upcycle_teacher", "distill")
    }
    assert steps["trunk"] + steps["distill"] == steps["pretrain"]
    assert steps["distill"] == pytest.approx(steps["pretrain"] / 10)
    assert steps["upcycle_teacher"] == round(steps["pretrain"] / 14)
    dense, trunk = (build_run(f"on_device.{name}", size).trainer.schedule for name in ("pretrain", "trunk"))
    for step in range(steps["trunk"]):
        assert dense.factor(step, steps["pretrain"]) == trunk.factor(step, steps["trunk"])


def test_an_early_decay_has_no_trunk() -> None:
    trainer = build_run("on_device.pretrain", "micro").trainer
    with pytest.raises(ConfigError, match="decays before 90%"):
        first_part(replace(trainer, schedule=WarmupStableDecay(decay_fraction=0.3)), 0.9)


def distilling(num_steps: int = 3, **changes: str) -> RunConfig:
    few = {"trainer.objective.num_logits": "8"}
    return prepare_run("on_device.distill", "micro", changes=later(num_steps) | few | changes)


def test_the_stages_chain_to_a_distilled_student(tmp_path: Path) -> None:
    """Without names each stage uses the default bundles of the stages before."""
    dense = pretrained(tmp_path)
    trunk = pretrained(tmp_path, "on_device.trunk", 4)
    config = prepare_run("on_device.upcycle_teacher", "micro", changes=later(2))
    assert config.trainer.from_identity == dense.identity
    run_recipe(config, tmp_path / "teacher", "on_device.upcycle_teacher-micro")
    teacher = open_bundle("on_device.upcycle_teacher-micro")
    assert isinstance(teacher.config.layers[1].feed_forward, ExpertsConfig)
    assert teacher.config.layers[0] == dense.config.layers[0]

    config = distilling()
    objective = config.trainer.objective
    assert isinstance(objective, CachedDistillationConfig)
    assert config.trainer.from_identity == trunk.identity
    assert (objective.identity, objective.num_tokens) == (teacher.identity, teacher.tokenizer.vocab_size)
    result = run_recipe(config, tmp_path / "student", "student")
    student = open_bundle("student")
    assert student.config == trunk.config
    assert student.signature != trunk.signature
    manifest = tmp_path / "student" / "teacher_logits" / "manifest.json"
    written = manifest.stat().st_mtime_ns
    assert json.loads(manifest.read_text())["flops"] > 0
    assert run_recipe(config, tmp_path / "student", "student").signature == result.signature
    assert manifest.stat().st_mtime_ns == written


def test_one_key_sets_the_number_of_experts(tmp_path: Path) -> None:
    pretrained(tmp_path)
    config = prepare_run("on_device.upcycle_teacher", "micro", changes=later(2) | {"trainer.upcycle.num_experts": "4"})
    experts = config.trainer.model.layers[1].feed_forward
    assert isinstance(experts, ExpertsConfig)
    assert experts.num_experts == 4
    with pytest.raises(ConfigError, match="1 experts are fewer than the 2"):
        prepare_run("on_device.upcycle_teacher", "micro", changes={"trainer.upcycle.num_experts": "1"})


def test_wrong_teachers_are_refused(tmp_path: Path) -> None:
    trunk = pretrained(tmp_path, "on_device.trunk")
    with pytest.raises(TeacherError, match=r"on_device\.upcycle_teacher first"):
        run_recipe(distilling(), tmp_path / "student", "student")
    assert not (tmp_path / "student" / "run.json").exists(), "told before anything is packed"
    foreign = write_bundle(
        tmp_path / "foreign",
        config=trunk.config,
        tokenizer=train_tokenizer(TokenizerConfig(vocab_size=335), ["quite another text, and more of it"] * 9),
        template=trunk.template,
        tensors=trunk.tensors(),
    )
    with pytest.raises(TeacherError, match="another tokenizer"):
        distilling(**{"trainer.objective.teacher": str(foreign.path)})


def test_a_teacher_is_not_upcycled_twice(tmp_path: Path) -> None:
    pretrained(tmp_path)
    run_recipe(prepare_run("on_device.upcycle_teacher", "micro", changes=later(1)), tmp_path / "teacher", "teacher")
    with pytest.raises(UpcyclingError, match="only a DenseFeedForwardConfig can be upcycled"):
        prepare_run("on_device.upcycle_teacher", "micro", start="teacher", changes=later(1))
