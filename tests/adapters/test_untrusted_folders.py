"""Adapters from others: links, devices, foreign files and oversized files are neither read, copied, served nor removed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_adapters import SIGNATURE

from openafm.adapters import package
from openafm.adapters.config import LoRAConfig
from openafm.adapters.delivery.server import build_catalog
from openafm.adapters.package import METADATA, WEIGHTS, AdapterError, AdapterPackage, open_adapter, write_adapter
from openafm.adapters.store import install_adapter, remove_adapter, remove_obsolete_adapters
from openafm.core.files import ForeignFilesError

PRIVATE = "1" * 64


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def adapter(tmp_path: Path) -> AdapterPackage:
    draft = tmp_path / "draft"
    draft.mkdir()
    for name in ("config.json", "tokenizer.json", "chat_template.json", "model.safetensors", "card.md", "data.toml"):
        (draft / name).write_text(name)
    (draft / "signature.json").write_text(json.dumps({"signature": "f" * 40}))
    weights = {"q.lora.a": np.ones((3, 4)), "q.lora.b": np.ones((5, 3))}
    path = tmp_path / "shelf" / "tags.fmadapter"
    return write_adapter(
        path, weights=weights, config=LoRAConfig(rank=3), base_signature=SIGNATURE, name="tags", draft=draft
    )


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("a secret of this user")
    return file


def link(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def fifo(path: Path, target: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path, target: Path) -> None:
    link(path, Path("/dev/zero"))


@pytest.mark.parametrize("replace", [link, fifo, endless])
@pytest.mark.parametrize("name", [METADATA, WEIGHTS, "draft/card.md"])
def test_links_and_devices_are_neither_installed_nor_served(
    adapter: AdapterPackage, secret: Path, home: Path, name: str, replace: Callable[[Path, Path], None]
) -> None:
    replace(adapter.path / name, secret)
    with pytest.raises(AdapterError, match="not a regular file"):
        install_adapter(adapter.path)
    with pytest.raises(AdapterError, match="not a regular file"):
        build_catalog(adapter.path.parent, PRIVATE)
    assert not list(home.rglob("*.json"))


def test_links_to_folders_are_neither_installed_nor_served(adapter: AdapterPackage, tmp_path: Path) -> None:
    shutil.move(adapter.path / "draft", tmp_path / "elsewhere")
    (adapter.path / "draft").symlink_to(tmp_path / "elsewhere")
    for refused in (install_adapter, lambda path: build_catalog(path.parent, PRIVATE)):
        with pytest.raises(AdapterError, match="links are not followed"):
            refused(adapter.path)
    shutil.move(adapter.path, tmp_path / "tags.fmadapter")
    adapter.path.symlink_to(tmp_path / "tags.fmadapter")
    with pytest.raises(AdapterError, match="symbolic link, which is not served"):
        build_catalog(adapter.path.parent, PRIVATE)


def test_only_files_of_an_adapter_are_installed_and_served(adapter: AdapterPackage) -> None:
    for foreign in ("thesis.txt", ".hidden.json", "draft/.lock", "draft/run.py"):
        (adapter.path / foreign).write_text("x")
    installed = install_adapter(adapter.path)
    installed.verify()
    names = {path.relative_to(installed.path).as_posix() for path in installed.path.rglob("*") if path.is_file()}
    draft = ("config.json", "tokenizer.json", "chat_template.json", "model.safetensors", "card.md", "data.toml")
    assert names == {METADATA, WEIGHTS, "draft/signature.json", *(f"draft/{name}" for name in draft)}
    catalog = build_catalog(adapter.path.parent, PRIVATE)
    assert {path.removeprefix("/fmadapter-tags-0123456/") for path in catalog.files} == names


def test_oversized_files_are_refused(adapter: AdapterPackage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MAX_BYTES", 500)
    with pytest.raises(AdapterError, match="more than the 500 bytes"):
        install_adapter(adapter.path)
    monkeypatch.setattr(package, "MAX_METADATA_BYTES", 100)
    with pytest.raises(AdapterError, match="more than 100 bytes"):
        open_adapter(adapter.path)


def test_adapters_are_readable_by_other_users(adapter: AdapterPackage, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    expected = (tmp_path / "plain").stat().st_mode
    for root in (adapter.path, install_adapter(adapter.path).path):
        assert {file.stat().st_mode for file in root.rglob("*") if file.is_file()} == {expected}


def test_a_folder_with_files_of_the_user_is_neither_removed_nor_replaced(adapter: AdapterPackage) -> None:
    installed = install_adapter(adapter.path).path
    (installed / "thesis.txt").write_text("ten years")
    weights = {"q.lora.a": np.ones((3, 4)), "q.lora.b": np.ones((5, 3))}
    for destructive in (
        lambda: remove_adapter("tags"),
        lambda: remove_obsolete_adapters([]),
        lambda: install_adapter(adapter.path),
        lambda: write_adapter(installed, weights=weights, config=LoRAConfig(rank=3), base_signature=SIGNATURE, name="tags"),
    ):
        with pytest.raises(ForeignFilesError, match=r"thesis\.txt, which openafm did not write"):
            destructive()
    assert (installed / "thesis.txt").read_text() == "ten years"
    open_adapter(installed).verify()
    (installed / "thesis.txt").unlink()
    assert remove_adapter("tags") == [installed]
    assert not installed.parent.exists()
