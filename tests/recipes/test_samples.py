"""Texts that a model generates during its training: prompts, log, TensorBoard, and no effect on the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_sources import write_source

from openafm.bundle import Bundle, bundle_place, open_bundle
from openafm.core.config import ConfigError
from openafm.framework.backends.system_model import SystemLanguageModel
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import run_recipe
from openafm.training.observability.metrics import read_metrics

QUICK = {
    "trainer.budget": '{"type": "StepBudget", "num_steps": 5}',
    "trainer.data.rows_per_step": "1",
    "trainer.data.row_tokens": "128",
    "trainer.log_every": "1",
}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    turns = [[{"role": "user", "content": f"Say {n}"}, {"role": "assistant", "content": f"number {n}"}] for n in range(120)]
    (tmp_path / "chats.jsonl").write_text("\n".join(json.dumps({"messages": messages}) for messages in turns))
    (tmp_path / "notes.txt").write_text("one two three four five six seven eight nine ten " * 40)
    return write_source(bundle_place("base"))


def samples_of(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(folder) if "samples" in line]


@pytest.mark.parametrize("recipe", ["on_device.sft", pytest.param("on_device.qat", marks=pytest.mark.slow)])
def test_samples_answer_held_out_prompts_and_leave_the_weights_alone(
    recipe: str, base: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signatures = []
    for name, samples in (("with", '{"every_steps": 2, "max_tokens": 6}'), ("without", "null")):
        changes = QUICK | {"samples": samples}
        config = prepare_run(recipe, "micro", start="base", data=tmp_path / "chats.jsonl", changes=changes)
        signatures.append(run_recipe(config, tmp_path / name, name).signature)
    assert signatures[0] == signatures[1]
    lines = samples_of(tmp_path / "with")
    assert [line["step"] for line in lines] == [2, 4, 5]
    assert samples_of(tmp_path / "without") == []
    for sample in lines[-1]["samples"]:
        number = sample["expected"].removeprefix("number ")
        assert f"Say {number}" in sample["prompt"]
        assert sample["expected"] not in sample["prompt"]
    assert len(lines[-1]["samples"]) == 3
    assert 'step 5: "' in capsys.readouterr().err
    events = next((tmp_path / "with" / "tensorboard").iterdir()).read_bytes()
    assert b"samples/0" in events


def test_given_prompts_are_continued_as_by_complete(base: Bundle, tmp_path: Path) -> None:
    samples = '{"every_steps": 5, "prompts": ["one two"], "max_tokens": 4}'
    changes = QUICK | {"samples": samples, "trainer.ema": "null"}
    config = prepare_run("on_device.text_continued", "micro", start="base", data=tmp_path / "notes.txt", changes=changes)
    run_recipe(config, tmp_path / "run", "continued")
    (line,) = samples_of(tmp_path / "run")
    *_, continued = SystemLanguageModel(bundle="continued").load().scorer.continuations("one two", max_tokens=4)
    assert line["samples"] == [{"prompt": "one two", "text": continued, "expected": ""}]


def test_texts_are_prompted_with_their_first_tokens(base: Bundle, tmp_path: Path) -> None:
    changes = QUICK | {"samples": '{"every_steps": 5, "count": 1, "max_tokens": 8}'}
    config = prepare_run("on_device.text_continued", "micro", start="base", data=tmp_path / "notes.txt", changes=changes)
    run_recipe(config, tmp_path / "run", "continued")
    ((sample,),) = (line["samples"] for line in samples_of(tmp_path / "run"))
    tokenizer = open_bundle("base").tokenizer
    text = (tmp_path / "notes.txt").read_text()
    assert sample["prompt"] + sample["expected"] in text  # the row may begin inside of a document
    assert 14 <= len(tokenizer.encode(sample["prompt"])) <= 17
    assert len(tokenizer.encode(sample["expected"])) >= 7


def test_samples_are_refused_where_weights_are_divided(base: Bundle, tmp_path: Path) -> None:
    changes = QUICK | {
        "samples": '{"every_steps": 1}',
        "trainer.parallel.shard": "2",
        "trainer.optimizer": '{"type": "AdamWConfig"}',
    }
    with pytest.raises(ConfigError, match="weights are divided over processes; leave samples out"):
        prepare_run("on_device.sft", "micro", start="base", data=tmp_path / "chats.jsonl", changes=changes)


def test_samples_may_change_when_a_run_resumes(base: Bundle, tmp_path: Path) -> None:
    for samples in ("null", '{"every_steps": 3}'):
        changes = QUICK | {"samples": samples}
        config = prepare_run("on_device.sft", "micro", start="base", data=tmp_path / "chats.jsonl", changes=changes)
        run_recipe(config, tmp_path / "run", "tuned")
