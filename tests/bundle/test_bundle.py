"""Bundles: written atomically, verified before use, with errors that name the file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
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
from openafm.bundle.files import DOCUMENTS
from openafm.bundle.resign import resign_bundle
from openafm.bundle.signature import Signature, TensorEntry, sign
from openafm.bundle.tensor_file import read_tensors
from openafm.core.config import ConfigError, UnknownKindError
from openafm.core.errors import UsageError
from openafm.core.files import ForeignFilesError, OutOfSpaceError
from openafm.core.regular_files import NotAFileError
from openafm.models.sizes import shared_kv_decoder
from openafm.tokenizer import tables
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.tables import TableTokenizer

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
    save_file({"x": values}, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(read_tensors(tmp_path / "model.safetensors")["x"].array(), values.float().numpy())


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


def test_a_changed_tensor_is_refused(tmp_path: Path) -> None:
    signature = write(tmp_path / "cat").signature
    file = tmp_path / "cat" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    bundle = open_bundle(tmp_path / "cat")
    assert bundle.signature == signature
    for read in (bundle.verify, bundle.tensors):
        with pytest.raises(BundleTamperedError, match=r"model\.safetensors.*(norm\.weight|embedding)"):
            read()


def test_other_tensors_than_the_signed_ones_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    write(tmp_path / "cat")
    norm = WEIGHTS["norm.weight"]
    for changed in ({}, {"norm.weight": norm[:8]}, {"norm.weight": norm.astype(np.float16)}, {"more": norm}):
        tensors = {**({} if not changed else WEIGHTS), **changed, "embedding": WEIGHTS["embedding"]}
        save_file(tensors, tmp_path / "cat" / "model.safetensors")
        with pytest.raises(BundleTamperedError, match=r"model\.safetensors: tensor '(norm\.weight|more)'"):
            _ = open_bundle(tmp_path / "cat").stored_tensors


def test_a_changed_config_or_a_claimed_signature_is_refused_at_open(tmp_path: Path) -> None:
    """Signatures key caches of weights and of opened models, so a bundle must not claim that of another one."""
    write(tmp_path / "cat")
    other = json.loads((write(tmp_path / "other", scale=2).path / "signature.json").read_text())
    signature = tmp_path / "cat" / "signature.json"
    true = json.loads(signature.read_text())
    for claimed in (
        true | {"signature": other["signature"]},
        true | {"tensors": other["tensors"]},
        true | {"documents": {}},
        true | {"tensors": None},
        {"signature": true["signature"]},
        {},
    ):
        signature.write_text(json.dumps(claimed))
        with pytest.raises(BundleTamperedError, match=r"signature\.json|config\.json"):
            open_bundle(tmp_path / "cat")
    signature.write_text(json.dumps(true))
    config = json.loads((tmp_path / "cat" / "config.json").read_text())
    config["model"]["norm_eps"] = 0.1
    (tmp_path / "cat" / "config.json").write_text(json.dumps(config))
    with pytest.raises(BundleTamperedError, match=r"config\.json"):
        open_bundle(tmp_path / "cat")


@pytest.mark.parametrize("name", ["a b", "a\nb", "tensor x F32 [1]", "", ".a", "a..b", "a/b", "\u0430", "a" + chr(27)])
def test_tensor_names_are_restricted(tmp_path: Path, name: str) -> None:
    with pytest.raises(BundleError, match=r"tensor name .* is not allowed"):
        write_bundle(
            tmp_path / "cat",
            config=CONFIG,
            tokenizer=TOKENIZER,
            template=ChatTemplate(),
            tensors={name: WEIGHTS["norm.weight"]},
        )
    assert not (tmp_path / "cat").exists()


def test_different_parts_have_different_signatures() -> None:
    """In version 1, a name with a line break could give two different bundles the same signed text."""
    entry = TensorEntry(dtype="F32", shape=(2,), sha256="ab")
    signatures = {
        Signature(documents=documents, tensors=tensors).hex
        for documents, tensors in (
            ({"a": "1", "b": "2"}, {}),
            ({"a": "1 b 2"}, {}),
            ({"a": "1"}, {"b": entry}),
            ({"a": "1"}, {"b": replace(entry, shape=(1, 2))}),
            ({"a": "1"}, {"b": replace(entry, dtype="F16")}),
            ({"a": "1"}, {"b": replace(entry, sha256="cd")}),
            ({"a": "1"}, {"c": entry}),
        )
    }
    assert len(signatures) == 7


def as_version_1(path: Path) -> str:
    """Rewrite a bundle in the former format and return its signature."""
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"version": 1}))
    parts = {}
    for name in ("config.json", "tokenizer.json", "chat_template.json"):
        text = json.dumps(json.loads((path / name).read_text()), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        parts[name] = hashlib.sha256(text.encode()).hexdigest()
    for tensor in read_tensors(path / "model.safetensors").values():
        parts[f"tensor {tensor.name} {tensor.dtype} [{','.join(map(str, tensor.shape))}]"] = tensor.digest()
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(parts.items()))
    signature = hashlib.sha256(b"openafm-bundle-1\n" + lines.encode()).hexdigest()[:40]
    (path / "signature.json").write_text(json.dumps({"signature": signature, "parts": parts}))
    return signature


def test_a_bundle_of_version_1_is_signed_again(tmp_path: Path) -> None:
    expected = write(tmp_path / "cat").signature
    old = as_version_1(tmp_path / "cat")
    (tmp_path / "cat" / "card.md").write_text(f"signature `{old}`")
    with pytest.raises(BundleVersionError, match="openafm resign"):
        open_bundle(tmp_path / "cat")
    bundle = resign_bundle(tmp_path / "cat")
    bundle.verify()
    assert bundle.signature == expected != old
    assert bundle.card() == f"signature `{expected}`"
    with pytest.raises(BundleVersionError, match="version 2"):
        resign_bundle(tmp_path / "cat")


def test_resigning_neither_loses_files_nor_copies_what_links_lead_to(tmp_path: Path) -> None:
    write(tmp_path / "cat")
    as_version_1(tmp_path / "cat")
    thesis = tmp_path / "cat" / "notes" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("ten years")
    with pytest.raises(ForeignFilesError, match="notes"):
        resign_bundle(tmp_path / "cat")
    assert thesis.read_text() == "ten years"
    shutil.rmtree(thesis.parent)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "cat" / "data.json").symlink_to(tmp_path / "secret")
    with pytest.raises(NotAFileError, match="links are not followed"):
        resign_bundle(tmp_path / "cat")
    assert (tmp_path / "cat" / "data.json").is_symlink()


def test_a_tampered_bundle_of_version_1_is_not_signed_again(tmp_path: Path) -> None:
    write(tmp_path / "cat")
    as_version_1(tmp_path / "cat")
    file = tmp_path / "cat" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(BundleTamperedError, match="differs"):
        resign_bundle(tmp_path / "cat")
    assert json.loads((tmp_path / "cat" / "config.json").read_text())["version"] == 1


def test_an_unknown_kind_is_not_a_damaged_bundle(tmp_path: Path) -> None:
    path = write(tmp_path / "cat").path
    config = json.loads((path / "config.json").read_text())
    config["model"]["layers"][0]["attention"]["position"] = {"type": "TinyRotaryConfig"}
    (path / "config.json").write_text(json.dumps(config))
    documents = {name: json.loads((path / name).read_text()) for name in DOCUMENTS}
    signature = sign(documents, read_tensors(path / "model.safetensors").values())
    (path / "signature.json").write_text(json.dumps(signature.to_dict()))
    with pytest.raises(UnknownKindError, match="TinyRotaryConfig"):
        open_bundle(path)


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

    monkeypatch.setattr("openafm.bundle.writer.write_tensors", full)
    with pytest.raises(OutOfSpaceError, match="cat"):
        write(tmp_path / "cat", scale=2)
    assert open_bundle(tmp_path / "cat").signature == before
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != "home"] == ["cat"]


def test_a_killed_writer_leaves_a_whole_bundle(tmp_path: Path) -> None:
    """Kill writers that repeatedly replace a bundle; the bundle always verifies."""
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


def test_the_default_bundle(home: Path, tmp_path: Path) -> None:
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
    (tmp_path / "cat" / "thesis.txt").write_text("ten years")
    with pytest.raises(ForeignFilesError, match=r"thesis\.txt, which openafm did not write"):
        write(tmp_path / "cat")
    assert (tmp_path / "cat" / "thesis.txt").read_text() == "ten years"


@pytest.mark.parametrize("name", ["", ".", "..", "../cat", "a/b", "/tmp/cat", ".hidden", "a\\b", "c:cat"])
def test_names_cannot_leave_the_bundles_folder(name: str) -> None:
    with pytest.raises(UsageError):
        bundle_place(name)


def test_plain_names_are_folders_of_the_home(home: Path) -> None:
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
    for content in ('{"version": 99}', "not JSON", "[" * 100_000, "[]"):
        (path / name).write_text(content)
        opened = open_bundle(path)
        with pytest.raises(BundleError, match=name):
            _ = opened.tokenizer, opened.template
        with pytest.raises(BundleError, match=name):
            opened.verify()


def test_keys_and_values_are_not_finer_than_what_computes_them() -> None:
    with pytest.raises(ConfigError, match="kv"):
        Numerics(activations="bfloat16")
    assert Numerics(activations="bfloat16", kv="int8_per_token_head").kv == "int8_per_token_head"


def test_a_name_takes_precedence_over_a_folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "bundles" / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"trainer": 1}')
    monkeypatch.chdir(tmp_path)
    assert open_bundle("run").path == home / "bundles" / "run"
    with pytest.raises(BundleError, match="not the config"):
        open_bundle("./run")


def test_a_changed_tokenizer_is_refused_although_there_are_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tables, "SMALLEST_FILE", 0)
    bundle = write(tmp_path / "cat")
    expected = Bundle(bundle.path).tokenizer.encode("the cat")
    quick = Bundle(bundle.path).tokenizer
    assert isinstance(quick, TableTokenizer)
    assert quick.encode("the cat") == expected
    file = bundle.path / "tokenizer.json"
    changed = file.read_text().replace("<|reserved_40|>", "<|reserved_XX|>")
    file.write_text(changed)
    with pytest.raises(BundleTamperedError):
        _ = Bundle(bundle.path).tokenizer
    with pytest.raises(BundleTamperedError):
        _ = quick.whole
