"""Running a recipe: tokenizer, shards, training, bundle; reuse, resumption and the user's own text."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_runs import exit_code, in_child
from tiny_sources import write_source

from openafm.bundle import open_bundle
from openafm.core.config import UnknownKeyError
from openafm.data.documents import NotADocumentError
from openafm.data.pack import pack_path
from openafm.recipes.config import RunConfig
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import StartBundleError, run_recipe
from openafm.recipes.sources.corpora import NothingToLearnError
from openafm.training.device import DeviceConfig, DeviceError

STEPS = '{"type": "StepBudget", "num_steps": 4}'
TINY = {
    "tokenizer.vocab_size": "400",
    "trainer.model": "",
    "trainer.budget": '{"type": "StepBudget", "num_steps": 4}',
    "trainer.data.sources": '[{"name": "built_in", "path": "built_in"}]',
    "trainer.data.rows_per_step": "1",
    "trainer.data.row_tokens": "256",
    "trainer.log_every": "1",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def tiny_model(vocab_size: int) -> str:
    attention = {
        "type": "AttentionConfig",
        "num_heads": 2,
        "head_dim": 8,
        "keys_values": {"type": "OwnKeysValuesConfig", "num_heads": 1},
    }
    layer = {"attention": attention, "feed_forward": {"type": "DenseFeedForwardConfig", "hidden_dim": 24}}
    return json.dumps({"vocab_size": vocab_size, "dim": 16, "layers": [layer], "context_length": 256})


def tiny_pretraining(**changes: str) -> RunConfig:
    corpus = (
        '[{"type": "SyntheticCorpusConfig", "name": "built_in", "synthetic": {"languages": {"en": 1}}, "num_examples": 60}]'
    )
    return prepare_run(
        "on_device.pretrain", "micro", changes=TINY | {"trainer.model": tiny_model(400), "corpora": corpus} | changes
    )


def test_a_recipe_writes_a_bundle_and_reuses_finished_stages(tmp_path: Path) -> None:
    result = run_recipe(tiny_pretraining(), tmp_path / "run", "tiny")
    bundle = open_bundle("tiny")
    bundle.verify()
    assert bundle.signature == result.signature
    assert result.steps == 4
    assert "built-in corpus" in bundle.card()
    shards = (tmp_path / "run" / "data" / "built_in" / "manifest.json").stat().st_mtime_ns
    again = run_recipe(tiny_pretraining(), tmp_path / "run", "tiny")
    assert again.signature == result.signature
    assert (tmp_path / "run" / "data" / "built_in" / "manifest.json").stat().st_mtime_ns == shards


def test_fine_tuning_starts_from_the_bundle_and_keeps_its_tokenizer(tmp_path: Path) -> None:
    base = run_recipe(tiny_pretraining(), tmp_path / "base", "base")
    changes = {key: value for key, value in TINY.items() if not key.startswith(("tokenizer", "trainer.model"))}
    corpus = (
        '[{"type": "SyntheticCorpusConfig", "name": "built_in", "learn": "answers", "synthetic": {"languages": {"en": 1}},'
        ' "num_examples": 60}]'
    )
    tuned = prepare_run(
        "on_device.sft", "micro", start="base", changes=changes | {"corpora": corpus, "trainer.data.rows_per_step": "4"}
    )
    result = run_recipe(tuned, tmp_path / "tuned", "tuned")
    assert open_bundle("tuned").tokenizer.digest == open_bundle("base").tokenizer.digest
    assert result.signature != base.signature


def test_fine_tuning_without_a_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartBundleError, match="--from"):
        run_recipe(prepare_run("on_device.sft", "micro"), tmp_path, "x")


def test_own_text(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("It was a bright cold day in April, and the clocks were striking thirteen. " * 60)
    changes = {key: value for key, value in TINY.items() if key != "trainer.data.sources"}
    changes |= {"trainer.model": tiny_model(340), "tokenizer.vocab_size": "340"}
    config = prepare_run("on_device.pretrain", "micro", data=tmp_path / "own.txt", changes=changes)
    run_recipe(config, tmp_path / "run", "own")
    open_bundle("own").verify()


def test_unknown_key() -> None:
    with pytest.raises(UnknownKeyError, match="did you mean 'optimizer'"):
        prepare_run("on_device.pretrain", "micro", changes={"trainer.optimiser.learning_rate": "1"})


@pytest.mark.long
def test_a_killed_run_resumes_to_the_same_bundle(tmp_path: Path) -> None:
    """After SIGKILL at the first checkpoint the same command gives the same signature."""
    steps = {"trainer.budget": '{"type": "StepBudget", "num_steps": 40}', "trainer.checkpoint": '{"every_steps": 5}'}
    expected = run_recipe(tiny_pretraining(**steps), tmp_path / "undisturbed", "undisturbed").signature
    killed = tmp_path / "killed"
    child = in_child(lambda: run_recipe(tiny_pretraining(**steps), killed, "killed"))
    deadline_s = time.monotonic() + 60
    while not list((killed / "checkpoints").glob("step-*")) and time.monotonic() < deadline_s:
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    assert exit_code(child) == -signal.SIGKILL
    assert run_recipe(tiny_pretraining(**steps), killed, "killed").signature == expected


def later_stage(recipe: str, start: str | None) -> RunConfig:
    changes = {key: value for key, value in TINY.items() if not key.startswith(("tokenizer", "trainer.model"))}
    corpus = (
        '[{"type": "SyntheticCorpusConfig", "name": "built_in", "learn": "answers", "synthetic": {"languages": {"en": 1}},'
        ' "num_examples": 60}]'
    )
    return prepare_run(recipe, "micro", start=start, changes=changes | {"corpora": corpus})


def test_the_stages_of_compression_chain(tmp_path: Path) -> None:
    wide = json.loads(tiny_model(400)) | {"dim": 32}
    run_recipe(tiny_pretraining(**{"trainer.model": json.dumps(wide)}), tmp_path / "base", "base")
    packed = run_recipe(later_stage("on_device.qat", "base"), tmp_path / "qat", "on_device.qat-micro")
    bundle = open_bundle("on_device.qat-micro")
    assert (bundle.numerics.weights, bundle.numerics.embedding) == ("int2_balanced", "int4_group32")
    assert "layers.0.attention.query.weight.scale" in bundle.stored_tensors

    # Without --from the recipe starts from the default bundle of the recipe before it.
    config = later_stage("on_device.recovery_adapter", None)
    assert config.trainer.from_bundle == str(bundle.path)
    recovered = run_recipe(config, tmp_path / "recovered", "recovered")
    assert recovered.signature == packed.signature
    adapter = open_bundle("recovered").recovery_adapter
    assert adapter is not None
    adapter.verify()
    adapter.check_base(packed.signature)
    assert bundle.recovery_adapter is None


def test_the_start_bundle_is_not_overwritten(tmp_path: Path) -> None:
    base = run_recipe(tiny_pretraining(), tmp_path / "base", "base")
    with pytest.raises(StartBundleError, match="another --name"):
        run_recipe(later_stage("on_device.qat", "base"), tmp_path / "run", "base")
    assert open_bundle("base").signature == base.signature


def test_a_stage_without_a_start_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartBundleError, match=r"starts from a bundle of on_device\.sft: name one with --from"):
        run_recipe(later_stage("on_device.qat", None), tmp_path / "run", "tiny")


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.json"])
def test_fine_tuning_without_an_assistants_turn_is_refused(tmp_path: Path, name: str) -> None:
    base = write_source(tmp_path / "base")
    lines = [json.dumps({"messages": [{"role": "user", "content": f"prompt {n}"}]}) for n in range(8)]
    (tmp_path / name).write_text("\n".join(lines) if name.endswith("l") else f"[{','.join(lines)}]")
    with pytest.raises(NothingToLearnError, match="no assistant's turn"):
        prepare_run("on_device.sft", "micro", start=str(base.path), data=tmp_path / name)
    packed = pack_path(tmp_path / name, tmp_path / "shards", base.tokenizer, base.template)
    assert packed.num_without_answer == 8
    config = prepare_run("on_device.sft", "micro", start=str(base.path), data=tmp_path / "shards")
    with pytest.raises(NothingToLearnError, match="no assistant's turn"):
        run_recipe(config, tmp_path / "run", "tuned")


@pytest.mark.parametrize("content", ["", "\n\n", '{"text": " "}\n'])
def test_data_without_text_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "empty.jsonl").write_text(content)
    with pytest.raises(NothingToLearnError, match=r"empty\.jsonl has no text"):
        prepare_run("on_device.pretrain", "micro", data=tmp_path / "empty.jsonl")


def test_a_refused_run_leaves_no_folder(tmp_path: Path) -> None:
    base = write_source(tmp_path / "base")
    lines = [json.dumps({"text": "a text"})] * 1100 + ["not JSON"]  # more than are counted before the run
    (tmp_path / "notes.jsonl").write_text("\n".join(lines))
    changes = {"trainer.budget": STEPS}
    config = prepare_run(
        "on_device.text_continued", "micro", start=str(base.path), data=tmp_path / "notes.jsonl", changes=changes
    )
    with pytest.raises(NotADocumentError, match=r"notes\.jsonl:1101"):
        run_recipe(config, tmp_path / "runs" / "continued", "continued")
    assert not (tmp_path / "runs").exists()


def test_a_precision_without_hardware_is_refused_before_data_is_packed(tmp_path: Path) -> None:
    config = prepare_run("server.pretrain", "nano", changes={"trainer.precision": '{"type": "Float8Config"}'})
    config = replace(config, trainer=replace(config.trainer, device=DeviceConfig(kind="cpu")))
    with pytest.raises(DeviceError, match="Float8Config needs a GPU"):
        run_recipe(config, tmp_path / "run", "refused")
    assert not (tmp_path / "run").exists()
