"""Contrastive towers and models of letters generate nothing: they are neither served nor asked."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tiny_contrastive import clip_config
from tiny_letters import CONFIG

import openafm as fm
from openafm.bundle import NotGenerativeError, write_bundle
from openafm.cli.main import run
from openafm.models.config import DecoderConfig
from openafm.serving.models import ModelCatalog
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate


@pytest.fixture
def towers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path))
    return written(dataclasses.replace(clip_config(), vocab_size=320), tmp_path / "models" / "towers")


def written(config: DecoderConfig, path: Path) -> Path:
    tensors = {name: tensor.numpy() for name, tensor in config.build(seed=1).state_dict().items()}
    return write_bundle(path, config=config, tokenizer=Tokenizer([]), template=ChatTemplate(), tensors=tensors).path


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["respond", "Hello"], ["chat"], ["complete", "Hello"]])
def test_commands_refuse_it(towers: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--model", str(towers)]) == 2
    error = capsys.readouterr().err
    assert "towers encodes images and generates no text" in error
    assert len(error.splitlines()) == 1


def test_it_is_left_out_of_the_models_of_a_machine(towers: Path) -> None:
    with pytest.raises(NotGenerativeError):
        ModelCatalog([str(towers)])
    assert "towers" not in [model.name for model in ModelCatalog([]).served()]
    assert not fm.SystemLanguageModel(bundle=str(towers)).is_available()[0]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["respond", "Hello", "--model"], "generates no text"),
        (["doctor"], "generates no text"),
        (["adapter", "train", "--data", "none.jsonl", "--name", "x", "--base"], "generates no text"),
        (["compress"], "has no decoder to compress"),
        (["export", "--to", "hf", "--out", "exported"], "which exports do not support"),
    ],
)
def test_commands_refuse_letters(
    command: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path))
    assert run([*command, str(written(CONFIG, tmp_path / "letters"))]) != 0
    assert message in capsys.readouterr().err
