"""Training within the minutes of a borrowed machine: what comes back, its room, and interruptions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from openafm.bundle import open_bundle, write_bundle
from openafm.bundle.decoder import load_decoder
from openafm.core.config import ConfigError
from openafm.core.errors import UsageError
from openafm.core.pieces import join_pieces
from openafm.models.sizes import named_size
from openafm.recipes.borrowed import run
from openafm.recipes.borrowed.__main__ import main
from openafm.recipes.borrowed.config import BorrowedConfig
from openafm.recipes.borrowed.outbox import Outbox, RoomError, write_in_16_bits
from openafm.recipes.borrowed.run import compiles, first_model, stage_corpora, stage_run, with_deadline
from openafm.recipes.catalog import build_run
from openafm.recipes.sources.corpora import SyntheticCorpusConfig
from openafm.training.budgets import DeadlineBudget

TRAIN = ["train", "--size", "micro", "--examples", "200", "--stage", "on_device.pretrain=1", "--stage", "on_device.sft=3"]


def micro_bundle(path: Path) -> Path:
    """A bundle of on_device.micro with shipped nano's tokenizer and random weights."""
    source = open_bundle("nano")
    config = replace(named_size("on_device.micro"), vocab_size=source.tokenizer.vocab_size)
    weights = {name: weight.numpy() for name, weight in config.build(1).state_dict().items()}
    write_bundle(path, config=config, tokenizer=source.tokenizer, template=source.template, tensors=weights)
    return path


def test_weights_in_16_bits_are_the_rounded_ones(tmp_path: Path) -> None:
    bundle = open_bundle(micro_bundle(tmp_path / "micro"))
    small = write_in_16_bits(bundle, tmp_path / "small")
    small.verify()
    assert (
        0.5 < (small.path / "model.safetensors").stat().st_size / (bundle.path / "model.safetensors").stat().st_size < 0.51
    )
    for name, array in small.tensors().items():
        rounded = torch.from_numpy(bundle.tensors()[name].copy()).to(torch.bfloat16).float().numpy()
        assert np.array_equal(array, rounded)
    assert not small.numerics.is_compressed  # so that the next stage trains it
    load_decoder(small)


def test_bundles_get_16_bits_only_without_room(tmp_path: Path) -> None:
    bundle = open_bundle(micro_bundle(tmp_path / "micro"))
    config = BorrowedConfig(size="micro", num_pieces=9, piece_mb=1.0)
    pieces = Outbox(config, bundle.config, tmp_path / "work", tmp_path / "pieces").put(bundle, "on_device.sft")
    assert len(pieces) == 7
    tight = replace(config, num_pieces=6)
    pieces = Outbox(tight, bundle.config, tmp_path / "work", tmp_path / "pieces").put(bundle, "on_device.sft")
    assert len(pieces) == 4
    with pytest.raises(RoomError, match=r"1,657,376 parameters take 4 MB, the pieces hold 3 MB"):
        Outbox(replace(config, num_pieces=4), bundle.config, tmp_path, tmp_path / "pieces")


@pytest.mark.parametrize("num_pieces", [9, 6])
def test_a_kill_while_a_bundle_is_replaced_leaves_a_whole_one(
    tmp_path: Path, num_pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = open_bundle(micro_bundle(tmp_path / "micro"))
    config = BorrowedConfig(size="micro", num_pieces=num_pieces, piece_mb=1.0)
    outbox = Outbox(config, bundle.config, tmp_path / "work", tmp_path / "pieces")
    outbox.put(bundle, "on_device.sft")
    kept = tmp_path / "work" / "bundles" / "on_device.sft"

    class KilledError(BaseException):
        pass

    def killed(temporary: Path, path: Path) -> None:
        assert temporary.is_dir()
        shutil.copytree(temporary, temporary.with_name(".on_device.sft.left"))  # a real kill does not clean up
        raise KilledError

    with monkeypatch.context() as patched, pytest.raises(KilledError):
        patched.setattr("openafm.core.files._publish", killed)
        outbox.put(bundle, "on_device.sft")
    open_bundle(kept).verify()
    outbox.put(bundle, "on_device.sft")
    join_pieces(tmp_path / "pieces", tmp_path / "joined")
    assert [path.name for path in (tmp_path / "joined").iterdir()] == ["on_device.sft"]
    open_bundle(tmp_path / "joined" / "on_device.sft").verify()


def test_a_bundle_leaves_room_for_those_of_later_stages(tmp_path: Path) -> None:
    bundle = open_bundle(micro_bundle(tmp_path / "micro"))
    stages = dict.fromkeys(
        ("on_device.pretrain", "on_device.sft", "on_device.sft_multilingual", "on_device.long_context"), 1.0
    )
    config = BorrowedConfig(size="micro", stages=stages, num_pieces=15, piece_mb=1.0)
    outbox = Outbox(config, bundle.config, tmp_path / "work", tmp_path / "pieces")
    for stage in config.kept_stages:
        assert len(outbox.put(bundle, stage)) <= config.num_pieces


def test_the_built_in_corpus_follows_the_machine(tmp_path: Path) -> None:
    config = BorrowedConfig(natural=str(tmp_path), num_examples=70)
    training, held_out, _ = stage_corpora(config, "on_device.sft")
    assert isinstance(training, SyntheticCorpusConfig)
    assert isinstance(held_out, SyntheticCorpusConfig)
    assert (training.num_examples, training.synthetic.natural) == (70, str(tmp_path))
    assert (held_out.num_examples, held_out.synthetic.natural) == (1_000, "")


def test_a_first_stage_that_sees_has_the_model_of_its_recipe() -> None:
    config = BorrowedConfig(size="micro", stages={"vision.letters": 1.0}, num_drawings=7)
    for stage in ("vision.letters", "vision.joint"):
        model = first_model(replace(config, stages={stage: 1.0}), 1000)
        assert model == replace(build_run(stage, "micro").trainer.model, vocab_size=1000)
    with pytest.raises(UsageError, match=r"on_device\.small is a text decoder"):
        first_model(replace(config, model="on_device.small"), 1000)
    counts = {corpus.name: corpus.drawing.count for corpus in stage_corpora(config, "vision.letters")}
    assert counts == {
        **dict.fromkeys(("letters", "half_letters", "quarter_letters", "word_letters", "small_letters"), 7),
        "held_out_letters": 50,
    }


def test_only_later_stages_take_changes(tmp_path: Path) -> None:
    config = BorrowedConfig(changes={"trainer.optimizer.learning_rate": "0.5"}, rows=7)
    source, cpu = open_bundle("nano"), torch.device("cpu")
    model = named_size("on_device.small")
    first = stage_run(config, "on_device.pretrain", None, model, source.path / "tokenizer.json", cpu, print)
    assert (first.trainer.model, first.trainer.data.rows_per_step) == (model, 1)
    start = str(micro_bundle(tmp_path / "micro"))
    second = stage_run(config, "on_device.sft", start, model, source.path / "tokenizer.json", cpu, print)
    assert second.trainer.optimizer.learning_rate == 0.5 != first.trainer.optimizer.learning_rate
    assert (second.trainer.data.rows_per_step, second.trainer.model.dim) == (7, 128)


def test_an_only_stage_takes_changes(tmp_path: Path) -> None:
    config = BorrowedConfig(stages={"on_device.sft": 1.0}, changes={"trainer.optimizer.learning_rate": "0.5"}, rows=7)
    model, tokenizer = named_size("on_device.small"), open_bundle("nano").path / "tokenizer.json"
    only = stage_run(config, "on_device.sft", None, model, tokenizer, torch.device("cpu"), print)
    assert (only.trainer.model, only.trainer.data.rows_per_step, only.trainer.optimizer.learning_rate) == (model, 7, 0.5)


def test_a_compiler_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(function: object) -> object:
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(torch, "compile", no_compiler)
    said: list[str] = []
    assert not compiles(torch.device("cpu"), said.append)
    assert said == ["without torch.compile: RuntimeError: no C compiler"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--minutes", "0.2"], "minutes must be above 20 s"),
        (["--stage", "on_device.sft"], "expected KEY=VALUE, got 'on_device.sft'"),
        (["--stage", "on_device.sft=all"], "the share of on_device.sft is a number"),
        (["--stage", "on_device.stf=1"], "did you mean 'on_device.sft'"),
        (["--stage", "on_device.sft=0"], "shares of the time must be above 0"),
        (["--model", "on_device.smal"], "did you mean 'on_device.small'"),
        (["--model", "on_device.base"], "choose a smaller model"),
        (["--tokenizer", "none"], "none"),
        (["--examples", "-5"], "num_examples, num_drawings and rows must not be negative"),
        (["--rows", "-5"], "num_examples, num_drawings and rows must not be negative"),
        (["--natural", "none"], "no folder none"),
        (["--stage", "vision.clip=1"], "vision.clip trains no decoder"),
    ],
)
def test_wrong_options_are_named(
    tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--out", str(tmp_path / "out"), *options]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "pieces").exists()


@pytest.mark.long
def test_another_config_and_no_time_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    command = [*TRAIN, "--minutes", "0.34", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("cores, 20 s")
    assert "on_device.sft: no time is left; it ends after a step" in lines
    assert main([*command, "--set", "trainer.optimizer.learning_rate=0.5"]) == 2
    assert "choose another --work or remove it" in capsys.readouterr().err


def test_pieces_that_do_not_exist_are_a_wrong_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["join", str(tmp_path / "none"), "--out", str(tmp_path / "joined")]) == 2
    assert "no folder" in capsys.readouterr().err


def test_a_model_needs_a_config() -> None:
    with pytest.raises(ConfigError, match="stages must not be empty"):
        BorrowedConfig(stages={})


def test_a_call_that_continues_reserves_a_share_of_its_own_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = build_run("on_device.sft", "micro").trainer
    fresh = with_deadline(trainer, tmp_path, 100.0).budget
    assert isinstance(fresh, DeadlineBudget)
    spent = SimpleNamespace(record=SimpleNamespace(seconds=3_600.0))
    monkeypatch.setattr(run, "checkpoint_paths", lambda folder: [folder])
    monkeypatch.setattr(run, "last_checkpoint", lambda folder: spent)
    continued = with_deadline(trainer, tmp_path, 100.0).budget
    assert isinstance(continued, DeadlineBudget)
    ends = [budget.seconds * (1 - budget.reserve) for budget in (fresh, continued)]  # as `Pace` computes
    assert ends[1] - 3_600 == pytest.approx(ends[0]) == pytest.approx(97)


@pytest.mark.long
def test_what_comes_back_can_be_joined_and_trained_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    out = tmp_path / "out"
    assert main([*TRAIN, "--minutes", "0.7", "--out", str(out)]) == 0
    figures = json.loads((out / "figures.json").read_text())
    assert figures["stages"]["on_device.sft"]["steps"] >= 1
    assert figures["stages"]["on_device.sft"]["epochs"]["built_in"] > 0
    assert main(["join", str(out / "pieces"), "--out", str(tmp_path / "joined")]) == 0
    joined = open_bundle(tmp_path / "joined" / "on_device.sft")
    joined.verify()
    steps = figures["stages"]["on_device.sft"]["steps"]
    assert main([*TRAIN, "--minutes", "0.7", "--out", str(out)]) == 0  # finished: nothing is trained again
    assert json.loads((out / "figures.json").read_text())["stages"]["on_device.sft"]["steps"] == steps


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_call_leaves_pieces_and_continues(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "openafm.recipes.borrowed", *TRAIN, "--minutes", "30", "--out", str(out)]
    command += ["--stage", "on_device.pretrain=0.0001", "--set", "trainer.checkpoint.every_seconds=2"]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        while not (out / "pieces").is_dir() and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(number)
    assert process.returncode == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    assert main(["join", str(out / "pieces"), "--out", str(tmp_path / "joined")]) == 0
    open_bundle(tmp_path / "joined" / "on_device.sft").verify()
    options = ["--stage", "on_device.pretrain=0.0001", "--set", "trainer.checkpoint.every_seconds=2"]
    assert main([*TRAIN, *options, "--minutes", "0.7", "--out", str(out)]) == 0
