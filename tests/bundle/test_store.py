"""The default bundle: the chosen one, else the shipped one, else this user's newest."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from openafm.bundle import (
    Bundle,
    BundleError,
    BundleNotFoundError,
    choose_model,
    find_bundle,
    list_bundles,
    open_bundle,
    resolve_model,
    shipped_bundle,
    write_bundle,
)
from openafm.models.sizes import shared_kv_decoder
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

CONFIG = shared_kv_decoder(
    vocab_size=320,
    dim=8,
    num_own_layers=1,
    num_shared_layers=0,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    hidden_dim=8,
    context_length=32,
)


def write(path: Path) -> Bundle:
    weights = {"norm.weight": np.ones(8, dtype=np.float32)}
    return write_bundle(path, config=CONFIG, tokenizer=Tokenizer(merges=()), template=ChatTemplate(), tensors=weights)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def shipped(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a model in a read-only installation."""
    place = tmp_path / "package" / "shipped"
    monkeypatch.setattr("openafm.bundle.store.SHIPPED_HOME", place)
    return write(place / "nano").path


def test_the_shipped_model_is_in_the_package() -> None:
    import openafm.shipped
    from openafm.bundle import store

    assert Path(openafm.shipped.__file__).parent == store.SHIPPED_HOME


def test_the_shipped_model_is_the_default_until_another_is_chosen(shipped: Path, home: Path) -> None:
    assert shipped_bundle() == resolve_model() == find_bundle("nano") == shipped
    assert list_bundles() == []
    micro = write(home / "bundles" / "micro").path
    assert resolve_model() == shipped, "what a user trains never replaces the shipped one by itself"
    choose_model("micro")
    assert resolve_model() == micro
    choose_model("nano")
    assert resolve_model() == shipped


def test_a_local_bundle_takes_precedence_by_name_only(shipped: Path, home: Path) -> None:
    choose_model("nano")
    local = write(home / "bundles" / "nano").path
    assert find_bundle("nano") == local
    assert resolve_model() == shipped, "the choice was made when the name meant the shipped one"
    choose_model("nano")
    assert resolve_model() == local
    choose_model(shipped)
    assert resolve_model() == shipped


def test_a_choice_of_the_shipped_model_survives_a_new_installation(
    shipped: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_model("nano")
    moved = tmp_path / "another_environment" / "shipped"
    shutil.move(shipped.parent, moved)
    monkeypatch.setattr("openafm.bundle.store.SHIPPED_HOME", moved)
    write(home / "bundles" / "newer")
    assert resolve_model() == moved / "nano"
    shutil.rmtree(moved)
    with pytest.raises(BundleNotFoundError, match=r"nano no longer exists; choose another with `openafm use NAME`"):
        resolve_model()


def test_the_shipped_model_is_never_written_to(shipped: Path, home: Path) -> None:
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in shipped.rglob("*")}
    for folder in (shipped, shipped.parent):
        folder.chmod(0o555)
    try:
        open_bundle("nano").verify()
        choose_model("nano")
        assert open_bundle(resolve_model()).tensors().keys() == {"norm.weight"}
    finally:
        for folder in (shipped, shipped.parent):
            folder.chmod(0o755)
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in shipped.rglob("*")} == before


def test_a_stripped_installation_falls_back_to_the_newest_of_this_user(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openafm.bundle.store.SHIPPED_HOME", tmp_path / "stripped")
    assert shipped_bundle() is None
    with pytest.raises(BundleNotFoundError, match="no model on this machine yet; `openafm quickstart` trains"):
        resolve_model()
    with pytest.raises(BundleNotFoundError, match="there are none yet, `openafm quickstart` trains one"):
        find_bundle("nano")
    old, new = (write(home / "bundles" / name).path for name in ("old", "new"))
    os.utime(old / "config.json", (1, 1))
    assert resolve_model() == new


def test_a_misspelled_name_suggests_the_shipped_bundle(shipped: Path) -> None:
    with pytest.raises(BundleNotFoundError, match="did you mean 'nano'"):
        find_bundle("nanno")


@pytest.mark.parametrize("text", ["", "[]", "{}", '"shipped"', '{"shipped": 1}', '{"bundle": null}'])
def test_a_damaged_choice_is_an_error_with_the_command(shipped: Path, home: Path, text: str) -> None:
    home.mkdir()
    (home / "model.json").write_text(text)
    with pytest.raises(BundleError, match=r"model\.json is damaged .*run `openafm use NAME` again"):
        resolve_model()
