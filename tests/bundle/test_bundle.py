"""Bundles: whole or absent, signed over what they compute, and clear about what is wrong with them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from openafm.bundle import (
    Bundle,
    BundleError,
    BundleNotFoundError,
    BundleTamperedError,
    BundleVersionError,
    Numerics,
    bundle_place,
    choose_model,
    list_bundles,
    open_bundle,
    resolve_model,
    write_bundle,
)
from openafm.bundle.tensor_file import read_tensors
from openafm.core.config import ConfigError
from openafm.core.errors import UsageError
from openafm.core.files import OutOfSpaceError
from openafm.models.sizes import shared_kv_decoder
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

TOKENIZER = train_tokenizer(TokenizerConfig(vocab_size=330), ["the cat sat on the mat, the dog sat on the log. " * 30])
CONFIG = shared_kv_decoder(
    vocab_size=330,
    dim=16,
    num_own_layers=2,
    num_shared_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    hidden_dim=24,
    context_length=64,
)
WEIGHTS = {
    "embedding": np.arange(5280, dtype=np.float32).reshape(330, 16),
    "norm.weight": np.ones(16, dtype=np.float32),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("openafm.bundle.store.SHIPPED_HOME", tmp_path / "stripped")
    return tmp_path / "home"


def write(path: Path, scale: float = 1.0) -> Bundle:
    weights = {name: array * np.float32(scale) for name, array in WEIGHTS.items()}
    return write_bundle(path, config=CONFIG, tokenizer=TOKENIZER, template=ChatTemplate(), tensors=weights, card="# Cat\n")


def test_round_trip(tmp_path: Path) -> None:
    written = write(tmp_path / "cat")
    bundle = open_bundle(tmp_path / "cat")
    bundle.verify()
    assert bundle.signature == written.signature
    assert len(bundle.signature) == 40
    assert bundle.config == CONFIG
    assert bundle.card() == "# Cat\n"
    assert bundle.tokenizer.encode("the cat") == TOKENIZER.encode("the cat")
    assert bundle.template == ChatTemplate()
    assert bundle.tensors().keys() == WEIGHTS.keys()
    for name, array in bundle.tensors().items():
        np.testing.assert_array_equal(array, WEIGHTS[name])


def test_signature_covers_weights_and_config_but_not_files(tmp_path: Path) -> None:
    first, again, other = write(tmp_path / "a"), write(tmp_path / "b"), write(tmp_path / "c", scale=2)
    assert first.signature == again.signature != other.signature
    config = tmp_path / "b" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()), indent=7))
    open_bundle(tmp_path / "b").verify()


def test_bfloat16_is_widened_exactly(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    values = torch.randn(3, 5).to(torch.bfloat16)
    write(tmp_path / "cat")
    save_file({"x": values}, tmp_path / "cat" / "model.safetensors")
    np.testing.assert_array_equal(open_bundle(tmp_path / "cat").tensors()["x"], values.float().numpy())


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "chat_template.json", "model.safetensors", "signature.json"]
)
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path / "cat")
    (tmp_path / "cat" / name).unlink()
    with pytest.raises((BundleError, BundleNotFoundError), match="config.json|" + name.split(".")[-1]):
        open_bundle(tmp_path / "cat").verify()


def test_truncated_weights_are_named(tmp_path: Path) -> None:
    write(tmp_path / "cat")
    file = tmp_path / "cat" / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 5, 60, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(BundleError, match=r"model\.safetensors"):
            open_bundle(tmp_path / "cat").tensors()
    file.write_bytes(b"\xff" * 200)
    with pytest.raises(BundleError, match="header"):
        open_bundle(tmp_path / "cat").tensors()


def test_tampering_is_named(tmp_path: Path) -> None:
    write(tmp_path / "cat")
    file = tmp_path / "cat" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(BundleTamperedError, match=r"model\.safetensors.*norm\.weight|model\.safetensors.*embedding"):
        open_bundle(tmp_path / "cat").verify()
    write(tmp_path / "cat")
    config = json.loads((tmp_path / "cat" / "config.json").read_text())
    config["model"]["norm_eps"] = 0.1
    (tmp_path / "cat" / "config.json").write_text(json.dumps(config))
    with pytest.raises(BundleTamperedError, match=r"config\.json"):
        open_bundle(tmp_path / "cat").verify()


def test_other_versions_and_foreign_folders_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "cat")
    config = json.loads((tmp_path / "cat" / "config.json").read_text())
    (tmp_path / "cat" / "config.json").write_text(json.dumps(config | {"version": 99}))
    with pytest.raises(BundleVersionError, match="version 99"):
        open_bundle(tmp_path / "cat")
    (tmp_path / "cat" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(BundleError, match="not the config of an openafm bundle"):
        open_bundle(tmp_path / "cat")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BundleError, match="has no config"):
        open_bundle(tmp_path / "empty")


def test_broken_weights_are_not_saved(tmp_path: Path) -> None:
    write(tmp_path / "cat")
    before = open_bundle(tmp_path / "cat").signature
    with pytest.raises(BundleError, match="not finite"), np.errstate(invalid="ignore"):
        write(tmp_path / "cat", scale=float("nan"))
    assert open_bundle(tmp_path / "cat").signature == before


def test_full_disk_leaves_the_old_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = write(tmp_path / "cat").signature

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("openafm.bundle.bundle.write_tensors", full)
    with pytest.raises(OutOfSpaceError, match="cat"):
        write(tmp_path / "cat", scale=2)
    assert open_bundle(tmp_path / "cat").signature == before
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != "home"] == ["cat"]


def test_a_killed_writer_leaves_a_whole_bundle(tmp_path: Path) -> None:
    """Writers that replace one bundle over and over are killed at random; what stands always verifies."""
    write(tmp_path / "cat")
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\nimport test_bundle as t\n"
        "print('ready', flush=True)\n"
        f"while True:\n    for scale in (1, 2):\n        t.write(Path({str(tmp_path / 'cat')!r}), scale)\n"
    )
    for delay_s in (0.02, 0.05, 0.11):
        writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(delay_s)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        open_bundle(tmp_path / "cat").verify()


def test_which_bundle_answers(home: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleNotFoundError, match="quickstart"):
        resolve_model()
    write(home / "bundles" / "old")
    os.utime(home / "bundles" / "old" / "config.json", (1, 1))
    write(home / "bundles" / "new", scale=2)
    assert [path.name for path in list_bundles()] == ["new", "old"]
    assert resolve_model().name == "new"
    choose_model("old")
    assert resolve_model().name == "old"
    with pytest.raises(BundleNotFoundError, match="did you mean 'new'"):
        open_bundle("newt")


def test_only_a_bundle_is_ever_replaced(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "config.json").write_text("{}")
    with pytest.raises(BundleError, match="letters exists and is not a bundle"):
        write(tmp_path / "letters")
    assert [file.name for file in (tmp_path / "letters").iterdir()] == ["config.json"]
    write(tmp_path / "cat")
    (tmp_path / "cat" / "config.json").write_text("damaged")
    write(tmp_path / "cat").verify()


@pytest.mark.parametrize("name", ["", ".", "..", "../cat", "a/b", "/tmp/cat", ".hidden", "a\\b", "c:cat"])
def test_a_name_never_leads_out_of_the_bundles(name: str) -> None:
    with pytest.raises(UsageError):
        bundle_place(name)


def test_plain_names_have_a_place(home: Path) -> None:
    assert bundle_place("on_device.sft-nano") == home / "bundles" / "on_device.sft-nano"


def test_a_bundle_without_a_signature_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "cat")
    (tmp_path / "cat" / "signature.json").write_text("{}")
    with pytest.raises(BundleTamperedError, match=r"signature\.json"):
        open_bundle(tmp_path / "cat")


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b'"text"',
        b"[" * 100_000,
        b'{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F32","shape":[-1,-2],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0.0,8]}}',
        b'{"a":{"dtype":"F32","shape":["x"],"data_offsets":[0,8]}}',
    ],
)
def test_odd_tensor_headers_are_typed_errors(tmp_path: Path, header: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(BundleError, match=r"model\.safetensors"):
        read_tensors(file)


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.json"])
def test_a_broken_part_names_its_file(tmp_path: Path, name: str) -> None:
    path = write_bundle(tmp_path / "b", config=CONFIG, tokenizer=TOKENIZER, template=ChatTemplate(), tensors=WEIGHTS).path
    for content in ('{"version": 99}', "not JSON", "[" * 100_000):
        (path / name).write_text(content)
        opened = open_bundle(path)
        with pytest.raises(BundleError, match=name):
            _ = opened.tokenizer, opened.template


def test_keys_and_values_are_not_finer_than_what_computes_them() -> None:
    with pytest.raises(ConfigError, match="kv"):
        Numerics(activations="bfloat16")
    assert Numerics(activations="bfloat16", kv="int8_per_token_head").kv == "int8_per_token_head"


def test_a_name_comes_before_a_folder_that_is_called_so(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "bundles" / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"trainer": 1}')
    monkeypatch.chdir(tmp_path)
    assert open_bundle("run").path == home / "bundles" / "run"
    with pytest.raises(BundleError, match="not the config"):
        open_bundle("./run")
