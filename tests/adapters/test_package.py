"""The .fmadapter folder: atomic writes, the base signature, the digest, and errors that name the file."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors.numpy import load_file, save_file
from tiny_adapters import SIGNATURE, random_tokens, random_weights, tiny_decoder

from openafm.adapters.config import LoRAConfig, SingularValueStart, ZeroStart
from openafm.adapters.package import (
    AdapterAbout,
    AdapterError,
    AdapterMismatchError,
    AdapterNameError,
    AdapterNotFoundError,
    AdapterPackage,
    AdapterTamperedError,
    AdapterVersionError,
    IncompleteDraftError,
    open_adapter,
    write_adapter,
)
from openafm.core.config import ConfigError
from openafm.core.files import OutOfSpaceError

CONFIG = LoRAConfig(rank=3, alpha=6.0, targets=("query",))
OTHER_SIGNATURE = "f" * 40


def write(path: Path, seed: int = 0, **changes: Any) -> AdapterPackage:
    arguments = {
        "weights": random_weights(3, seed=seed),
        "config": CONFIG,
        "base_signature": SIGNATURE,
        "name": "my_Translator2",
    }
    return write_adapter(path, **(arguments | changes))


@settings(max_examples=15)
@given(
    rank=st.integers(1, 4),
    names=st.lists(st.text("abclayers.0123", min_size=1, max_size=12), min_size=1, max_size=4, unique=True),
    precision=st.sampled_from(["float16", "float32"]),
    alpha=st.floats(0.5, 64),
    data=st.data(),
)
def test_round_trip(rank: int, names: list[str], precision: Any, alpha: float, data: st.DataObject) -> None:
    dtype = np.dtype(precision)
    numbers = npst.from_dtype(dtype, allow_nan=False, allow_infinity=False)
    weights: dict[str, Any] = {}
    for name in names:
        weights[f"{name}.lora.a"] = data.draw(npst.arrays(dtype, (rank, 3), elements=numbers)).astype(np.float32)
        weights[f"{name}.lora.b"] = data.draw(npst.arrays(dtype, (2, rank), elements=numbers)).astype(np.float32)
    config = LoRAConfig(rank=rank, alpha=alpha, precision=precision)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.fmadapter"
        written = write_adapter(path, weights=weights, config=config, base_signature=SIGNATURE, name="any")
        read = open_adapter(path)
        read.verify()
        assert read == written
        assert (read.config, read.base_signature, read.name) == (config, SIGNATURE, "any")
        assert read.weights().keys() == weights.keys()
        for name, array in read.weights().items():
            assert array.dtype == np.float32
            assert array.tobytes() == weights[name].tobytes()


def test_the_folder_is_as_described(tmp_path: Path) -> None:
    adapter = write(tmp_path / "r.fmadapter")
    assert sorted(file.name for file in adapter.path.iterdir()) == ["adapter_weights.safetensors", "metadata.json"]
    metadata = json.loads((adapter.path / "metadata.json").read_text())
    assert metadata.pop("createdBy").startswith("openafm ")
    assert metadata == {
        "format": "openafm.adapter",
        "version": 2,
        "adapterIdentifier": "fmadapter-my_Translator2-0123456",
        "baseModelSignature": SIGNATURE,
        "loraRank": 3,
        "loraAlpha": 6.0,
        "loraTargets": ["query"],
        "precision": "float16",
        "author": "",
        "description": "",
        "license": "",
        "speculativeDecodingDraftTokenCount": 5,
        "draftSignature": "",
        "creatorDefined": {},
        "digest": adapter.digest,
    }
    assert len(adapter.digest) == 64
    stored = load_file(adapter.path / "adapter_weights.safetensors")
    assert {array.dtype.name for array in stored.values()} == {"float16"}
    sizes = {
        precision: write(tmp_path / precision, config=LoRAConfig(rank=3, precision=precision)).path
        / "adapter_weights.safetensors"
        for precision in ("float16", "float32")
    }
    assert sizes["float32"].stat().st_size - sizes["float16"].stat().st_size == 2 * 3 * (6 + 5)


def test_the_digest_is_of_weights_and_metadata(tmp_path: Path) -> None:
    first = write(tmp_path / "a").digest
    assert write(tmp_path / "b").digest == first
    weights = random_weights(3)
    assert write(tmp_path / "c", weights=dict(reversed(weights.items()))).digest == first
    others = [
        write(tmp_path / "d", seed=1),
        write(tmp_path / "e", name="other"),
        write(tmp_path / "f", base_signature=OTHER_SIGNATURE),
        write(tmp_path / "g", config=LoRAConfig(rank=3, alpha=5.0, targets=("query",))),
        write(tmp_path / "h", config=LoRAConfig(rank=3, alpha=6.0, targets=("query",), precision="float32")),
    ]
    assert len({first, *(adapter.digest for adapter in others)}) == 6


def test_another_base_is_refused_with_both_signatures(tmp_path: Path) -> None:
    adapter = write(tmp_path / "a")
    adapter.check_base(SIGNATURE)
    with pytest.raises(AdapterMismatchError, match="train an adapter for this one") as caught:
        adapter.check_base(OTHER_SIGNATURE)
    assert SIGNATURE in str(caught.value)
    assert OTHER_SIGNATURE in str(caught.value)


def test_a_written_adapter_starts_from_its_weights(tmp_path: Path) -> None:
    """Its config starts at zero, so that installing it does not move singular vectors a second time."""
    adapter = write(tmp_path / "a", config=LoRAConfig(rank=3, start=SingularValueStart()))
    assert open_adapter(adapter.path).config.start == ZeroStart()


def test_the_description_of_the_author_is_stored(tmp_path: Path) -> None:
    about = AdapterAbout(
        author="A. Uthor",
        description="two\nlines",
        license="MIT",
        draft_token_count=7,
        creator_defined={"prompt": "Tag it.", "nested": {"list": [1, 2.5, None, True]}},
    )
    written = write(tmp_path / "a", about=about)
    assert written.digest != write(tmp_path / "b").digest
    read = open_adapter(tmp_path / "a")
    read.verify()
    assert read == written
    assert read.metadata.creatorDefined == about.creator_defined
    assert (read.metadata.author, read.metadata.license) == ("A. Uthor", "MIT")
    assert read.metadata.speculativeDecodingDraftTokenCount == 7
    with pytest.raises(ConfigError, match="DraftTokenCount"):
        write(tmp_path / "c", about=AdapterAbout(draft_token_count=0))


def draft_bundle(folder: Path) -> Path:
    """Write a folder with the files of a bundle."""
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "chat_template.json", "model.safetensors"):
        (folder / name).write_text("{}")
    (folder / "signature.json").write_text(json.dumps({"signature": OTHER_SIGNATURE}))
    return folder


def test_a_draft_is_copied_into_the_adapter(tmp_path: Path) -> None:
    draft = draft_bundle(tmp_path / "draft")
    adapter = open_adapter(write(tmp_path / "a", draft=draft).path)
    assert adapter.draft == tmp_path / "a" / "draft"
    assert sorted(file.name for file in adapter.draft.iterdir()) == sorted(file.name for file in draft.iterdir())
    assert adapter.metadata.draftSignature == OTHER_SIGNATURE
    assert write(tmp_path / "b").draft is None


@pytest.mark.parametrize(
    "missing", ["model.safetensors", "config.json", "tokenizer.json", "chat_template.json", "signature.json"]
)
def test_an_incomplete_draft_is_neither_written_nor_opened(tmp_path: Path, missing: str) -> None:
    path = write(tmp_path / "a", draft=draft_bundle(tmp_path / "draft")).path
    (path / "draft" / missing).unlink()
    (tmp_path / "draft" / missing).unlink()
    with pytest.raises(IncompleteDraftError, match="incomplete draft"):
        open_adapter(path)
    with pytest.raises(IncompleteDraftError, match="incomplete draft"):
        write(tmp_path / "b", draft=tmp_path / "draft")
    assert not (tmp_path / "b").exists()


def test_a_draft_without_its_signature_or_with_another_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", draft=draft_bundle(tmp_path / "draft")).path
    (path / "draft" / "signature.json").write_text(json.dumps({"signature": SIGNATURE}))
    with pytest.raises(IncompleteDraftError, match=f"{SIGNATURE}.*{OTHER_SIGNATURE}"):
        open_adapter(path)
    plain = write(tmp_path / "b").path
    (tmp_path / "draft").rename(plain / "draft")
    with pytest.raises(IncompleteDraftError, match="no draftSignature"):
        open_adapter(plain)


def test_the_first_version_is_still_read(tmp_path: Path) -> None:
    """Folders of the first release's bundles: other names in the metadata, the same digest rule."""
    adapter = write(tmp_path / "a")
    old = {
        "format": "openafm.adapter",
        "version": 1,
        "name": "nano recovery",
        "base_signature": SIGNATURE,
        "config": {"rank": 3, "alpha": 6.0, "targets": ["query"], "precision": "float16"},
        "created_by": "openafm 0.1.0",
        "digest": "",
    }
    stored = load_file(adapter.path / "adapter_weights.safetensors")
    digest = hashlib.sha256(json.dumps(old, sort_keys=True, separators=(",", ":")).encode())
    for name, array in sorted(stored.items()):
        digest.update(f"\n{name} float16 {list(array.shape)}\n".encode() + array.tobytes())
    (adapter.path / "metadata.json").write_text(json.dumps(old | {"digest": digest.hexdigest()}))
    read = open_adapter(adapter.path)
    read.verify()
    assert (read.name, read.config, read.base_signature) == ("nano_recovery", CONFIG, SIGNATURE)
    (adapter.path / "metadata.json").write_text(json.dumps(old | {"digest": digest.hexdigest(), "name": "other"}))
    with pytest.raises(AdapterTamperedError):
        open_adapter(adapter.path).verify()


def test_weights_of_a_replaced_folder_are_refused(tmp_path: Path) -> None:
    """The folder was replaced by another adapter after it was opened."""
    opened = write(tmp_path / "a")
    write(tmp_path / "a", seed=1)
    with pytest.raises(AdapterTamperedError):
        opened.weights()


def test_a_trained_adapter_is_written_and_read(tmp_path: Path) -> None:
    import torch

    from openafm.adapters.lora import adapter_weights, install, load_adapter_weights

    config = LoRAConfig(rank=4, precision="float32")
    model, other = tiny_decoder(), tiny_decoder()
    install(model, config)
    for weight in adapter_weights(model).values():
        weight.normal_(std=0.2)
    weights = {name: weight.numpy() for name, weight in adapter_weights(model).items()}
    write(tmp_path / "a", weights=weights, config=config)
    adapter = open_adapter(tmp_path / "a")
    install(other, adapter.config)
    load_adapter_weights(other, adapter.weights())
    with torch.no_grad():
        assert torch.equal(other(random_tokens()), model(random_tokens()))


def test_no_tensor_library_is_needed(tmp_path: Path) -> None:
    write(tmp_path / "a")
    script = (
        "import sys\nfrom pathlib import Path\nimport openafm.adapters.package as p\n"
        f"adapter = p.open_adapter(Path({str(tmp_path / 'a')!r}))\nadapter.verify(); adapter.weights()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "there are no weights"),
        ({"layers.0.attention.query.weight": np.ones((3, 6))}, "ends in .lora.a or .lora.b"),
        ({".lora.a": np.ones((3, 6))}, "ends in .lora.a or .lora.b"),
        ({"q.lora.a": np.ones((3, 6))}, r"has no 'q\.lora\.b'"),
        ({"q.lora.a": np.ones((3, 6)), "q.lora.b": np.ones((5, 4))}, r"'q\.lora\.b' has the shape \[5, 4\]"),
        ({"q.lora.a": np.ones(3), "q.lora.b": np.ones((5, 3))}, r"'q\.lora\.a' has the shape \[3\]"),
        ({"q.lora.a": np.full((3, 6), np.nan), "q.lora.b": np.ones((5, 3))}, "train the adapter again"),
        ({"q.lora.a": np.full((3, 6), 1e5), "q.lora.b": np.ones((5, 3))}, "set precision to float32"),
    ],
)
def test_weights_that_are_not_an_adapter_are_not_written(tmp_path: Path, weights: dict[str, Any], message: str) -> None:
    before = write(tmp_path / "a").digest
    with pytest.raises(AdapterError, match=message):
        write(tmp_path / "a", weights=weights)
    adapter = open_adapter(tmp_path / "a")
    adapter.verify()
    assert adapter.digest == before


@pytest.mark.parametrize(
    "changes",
    [
        *({"name": name} for name in ("", " ", "two\nlines", "a-b", "a b", "../a", "é", "a" * 65, "a\n")),
        {"base_signature": "ABC"},
        {"base_signature": ""},
        {"base_signature": "F" * 40},
    ],
)
def test_names_and_signatures_are_checked(tmp_path: Path, changes: dict[str, str]) -> None:
    with pytest.raises((AdapterNameError, ConfigError), match=r"name|[sS]ignature"):
        write(tmp_path / "a", **changes)
    assert not (tmp_path / "a").exists()


def test_only_an_adapter_is_replaced(tmp_path: Path) -> None:
    apples = tmp_path / "apple.fmadapter"
    apples.mkdir()
    (apples / "metadata.json").write_text("{}")
    (apples / "adapter_weights.bin").write_bytes(b"\0")
    with pytest.raises(AdapterError, match="exists and is not an adapter"):
        write(apples)
    assert len(list(apples.iterdir())) == 2
    file = tmp_path / "file"
    file.write_text("a letter")
    with pytest.raises(AdapterError, match="exists and is not an adapter"):
        write(file)
    assert file.read_text() == "a letter"
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty").verify()
    write(tmp_path / "a")
    (tmp_path / "a" / "metadata.json").write_text("damaged")
    write(tmp_path / "a", seed=1).verify()


def test_a_full_disk_leaves_the_old_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = write(tmp_path / "a").digest

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(OutOfSpaceError):
        write(tmp_path / "a", seed=1)
    assert open_adapter(tmp_path / "a").digest == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_missing_and_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterNotFoundError, match="no adapter at"):
        open_adapter(tmp_path / "nowhere")
    (tmp_path / "other").mkdir()
    with pytest.raises(AdapterError, match=r"metadata\.json is missing"):
        open_adapter(tmp_path / "other")
    (tmp_path / "other" / "metadata.json").write_text('{"adapterIdentifier": "fmadapter-x-0123456"}')
    with pytest.raises(AdapterError, match=r"metadata\.json.*not the metadata of an openafm adapter"):
        open_adapter(tmp_path / "other")
    path = write(tmp_path / "a").path
    metadata = json.loads((path / "metadata.json").read_text())
    (path / "metadata.json").write_text(json.dumps(metadata | {"version": 9}))
    with pytest.raises(AdapterVersionError, match="version 9"):
        open_adapter(path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "no JSON",
        "[]",
        "[" * 100_000,
        '{"format": "openafm.adapter", "version": 1}',
        '{"format": "openafm.adapter", "version": 1, "name": 3}',
        '{"format": "openafm.adapter", "version": 2}',
        '{"format": "openafm.adapter", "version": 2, "loraRank": "x"}',
        '{"format": "openafm.adapter", "version": 2, "nme": "x"}',
    ],
)
def test_broken_metadata_names_its_file(tmp_path: Path, content: str) -> None:
    path = write(tmp_path / "a").path
    (path / "metadata.json").write_text(content)
    with pytest.raises(AdapterError, match=r"metadata\.json"):
        open_adapter(path)


def test_metadata_that_is_not_text_names_its_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a").path
    (path / "metadata.json").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(AdapterError, match=r"metadata\.json"):
        open_adapter(path)


def test_missing_and_damaged_weights_are_named(tmp_path: Path) -> None:
    adapter = write(tmp_path / "a")
    file = adapter.path / "adapter_weights.safetensors"
    whole = file.read_bytes()
    for length in (0, 5, 60, len(whole) - 1):
        file.write_bytes(whole[:length])
        for read in (adapter.weights, adapter.verify):
            with pytest.raises(AdapterError, match=r"adapter_weights\.safetensors"):
                read()
    file.write_bytes(b"\xff" * 300)
    with pytest.raises(AdapterError, match=r"adapter_weights\.safetensors"):
        adapter.weights()
    file.unlink()
    with pytest.raises(AdapterError, match=r"adapter_weights\.safetensors.*missing"):
        adapter.weights()
    with pytest.raises(AdapterError, match=r"adapter_weights\.safetensors.*missing"):
        open_adapter(adapter.path)


def test_weights_of_another_adapter_are_named(tmp_path: Path) -> None:
    adapter = write(tmp_path / "a")
    file = adapter.path / "adapter_weights.safetensors"
    for weights in (random_weights(2), {"model.weight": np.ones((2, 2), np.float32)}, {}):
        save_file(weights, file)
        with pytest.raises(AdapterError, match=r"adapter_weights\.safetensors is damaged or another adapter's"):
            adapter.weights()
    save_file({"q.lora.a": np.ones((3, 6), np.int8), "q.lora.b": np.ones((5, 3), np.int8)}, file)
    with pytest.raises(AdapterError, match=r"adapter_weights\.safetensors.*stored as I8"):
        adapter.weights()


def test_tampering_is_detected(tmp_path: Path) -> None:
    adapter = write(tmp_path / "a")
    file = adapter.path / "adapter_weights.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(AdapterTamperedError, match="has changed since"):
        open_adapter(tmp_path / "a").verify()
    write(tmp_path / "a")
    metadata = adapter.path / "metadata.json"
    metadata.write_text(metadata.read_text().replace(SIGNATURE, SIGNATURE[:-1] + "8"))
    with pytest.raises(AdapterTamperedError, match="has changed since"):
        open_adapter(tmp_path / "a").verify()
