"""`openafm average`: the mean of weights, and what has no mean."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_sources import write_source

from openafm.bundle import Bundle, BundleTamperedError, bundle_place, open_bundle, write_bundle
from openafm.cli.main import run
from openafm.core.errors import UsageError
from openafm.recipes.average import AverageError, average
from openafm.recipes.compression.compress import compress
from openafm.recipes.compression.formats import compression_config
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate


def write_variant(source: Bundle, name: str, factor: float, *, half: bool = False) -> Bundle:
    """A bundle whose weights are those of `source` times `factor`, as float16 if `half`."""
    dtype = np.float16 if half else np.float32
    tensors = {key: (factor * array).astype(dtype) for key, array in source.tensors().items()}
    return write_bundle(
        bundle_place(name), config=source.config, tokenizer=source.tokenizer, template=source.template, tensors=tensors
    )


@pytest.fixture
def bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Bundle]:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    first = write_source(bundle_place("first"), hidden_dim=64)
    return [first, write_variant(first, "third", 3.0), write_variant(first, "half", 0.5, half=True)]


def test_a_mean_is_that_of_each_weight(bundles: list[Bundle]) -> None:
    first = bundles[0].tensors()
    equal, shared = average(bundles[:2], "equal"), average(bundles, "shared", (1, 2, 5))
    for name, array in first.items():
        np.testing.assert_allclose(equal.tensors()[name], 2 * array, rtol=1e-6)
        np.testing.assert_allclose(shared.tensors()[name], (1 + 6 + 2.5) / 8 * array, rtol=1e-3, atol=1e-6)
    assert equal.tokenizer.digest == bundles[0].tokenizer.digest
    assert equal.config == bundles[0].config
    assert all(array.dtype == np.float32 for array in shared.tensors().values())
    assert bundles[1].signature in (equal.path / "card.md").read_text()


def test_what_has_no_mean_is_refused(bundles: list[Bundle], tmp_path: Path) -> None:
    first = bundles[0]
    with pytest.raises(AverageError, match="another architecture"):
        average([first, write_source(bundle_place("wide"), hidden_dim=96)], "mean")
    other = train_tokenizer(TokenizerConfig(vocab_size=330), ["another text, with other words"] * 30)
    write_bundle(
        bundle_place("other"), config=first.config, tokenizer=other, template=first.template, tensors=first.tensors()
    )
    with pytest.raises(AverageError, match="another tokenizer"):
        average([first, open_bundle("other")], "mean")
    template = ChatTemplate(tool_definition=("<|tool_definition|>", "{name}", ": {description}", " {parameters}"))
    write_bundle(
        bundle_place("spaced"), config=first.config, tokenizer=first.tokenizer, template=template, tensors=first.tensors()
    )
    with pytest.raises(AverageError, match="another chat template"):
        average([first, open_bundle("spaced")], "mean")
    compress(first, compression_config("int8", {}), "small")
    with pytest.raises(AverageError, match="openafm compress decode small"):
        average([first, open_bundle("small")], "mean")
    with pytest.raises(AverageError, match="two bundles or more, got 1"):
        average([first], "mean")
    with pytest.raises(UsageError, match="must not be overwritten"):
        average(bundles, "third")
    for shares in ((1.0,), (1.0, 0.0, 1.0), (1.0, float("nan"), 1.0), (1e308, 1e308, 1e308)):
        with pytest.raises(UsageError, match="share"):
            average(bundles, "mean", shares)
    assert not bundle_place("mean").exists()


def test_a_damaged_bundle_is_refused(bundles: list[Bundle]) -> None:
    file = bundles[1].path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 0x40
    file.write_bytes(data)
    with pytest.raises(BundleTamperedError):
        average([bundles[0], open_bundle("third")], "mean")


def test_the_verb(bundles: list[Bundle], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["average", "first", "third", "--shares", "3,1", "--name", "mean", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["signature"] == open_bundle("mean").signature
    for name, array in bundles[0].tensors().items():
        np.testing.assert_allclose(open_bundle("mean").tensors()[name], 1.5 * array, rtol=1e-6)
    assert run(["average", "first", "third", "--shares", "3;1", "--name", "mean"]) == 2
    assert "such as 0.4,0.6" in capsys.readouterr().err
