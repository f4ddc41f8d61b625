"""The server model's recipes, and `respond` and `inspect` on its bundle."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_sources import tokenizer

from openafm.bundle import write_bundle
from openafm.cli.main import run
from openafm.models.sizes import named_size
from openafm.recipes.catalog import build_run, find_recipe
from openafm.tokenizer.chat_template import ChatTemplate


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A bundle of `server.micro` with random weights."""
    config = named_size("server.micro")
    torch.set_num_threads(1)
    tensors = {name: tensor.numpy() for name, tensor in config.build().state_dict().items()}
    path = tmp_path / "server"
    write_bundle(path, config=config, tokenizer=tokenizer(), template=ChatTemplate(), tensors=tensors)
    return path


def test_respond_and_inspect_on_a_server_bundle(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["respond", "--model", str(server), "--max-tokens", "3", "Hello"]) == 0
    capsys.readouterr()
    assert run(["inspect", str(server)]) == 0
    inspected = capsys.readouterr().out
    assert "tracks" in inspected
    assert "per token" in inspected


@pytest.mark.parametrize("recipe", ["server.sft", "on_device.sft_multilingual"])
@pytest.mark.parametrize("size", ["micro", "nano"])
def test_tuning_is_80_percent_english_and_starts_from_pretraining(recipe: str, size: str) -> None:
    sft = build_run(recipe, size)
    weights = {source.name: source.weight for source in sft.trainer.data.sources}
    others = weights["multilingual"] + weights["mixed"]
    assert weights["english"] / (weights["english"] + others) == pytest.approx(0.8)
    assert weights["mixed"] / others == pytest.approx(0.004)
    assert all(corpus.learn == "answers" for corpus in sft.corpora)
    assert sft.tokenizer is None
    assert find_recipe(recipe).starts_from == recipe.partition(".")[0] + ".pretrain"
