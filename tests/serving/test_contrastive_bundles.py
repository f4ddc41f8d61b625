"""A bundle of contrastive towers generates nothing: it is neither served nor asked."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tiny_contrastive import clip_config

import openafm as fm
from openafm.bundle import NotGenerativeError, write_bundle
from openafm.cli.main import run
from openafm.serving.models import ModelCatalog
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate


@pytest.fixture
def towers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path))
    config = dataclasses.replace(clip_config(), vocab_size=320)
    tensors = {name: tensor.numpy() for name, tensor in config.build(seed=1).state_dict().items()}
    path = tmp_path / "models" / "towers"
    return write_bundle(path, config=config, tokenizer=Tokenizer([]), template=ChatTemplate(), tensors=tensors).path


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["respond", "Hello"], ["chat"], ["complete", "Hello"]])
def test_commands_refuse_it(towers: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--model", str(towers)]) == 2
    error = capsys.readouterr().err
    assert "towers has contrastive towers" in error
    assert len(error.splitlines()) == 1


def test_it_is_left_out_of_the_models_of_a_machine(towers: Path) -> None:
    with pytest.raises(NotGenerativeError):
        ModelCatalog([str(towers)])
    assert "towers" not in [model.name for model in ModelCatalog([]).served()]
    assert not fm.SystemLanguageModel(bundle=str(towers)).is_available()[0]
