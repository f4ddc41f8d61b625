"""Adapters: resolved for a bundle by name or folder, or refused with a typed error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_bundles import tiny_recovery, write_native_bundle, write_random_adapter, write_tiny_bundle

import openafm as fm
from openafm.adapters import package
from openafm.adapters.package import AdapterAbout, write_adapter
from openafm.adapters.store import adapters_home, install_adapter
from openafm.bundle import Bundle, bundle_place, choose_model
from openafm.framework.backends.adapter import (
    Adapter,
    AssetError,
    CompatibleAdapterNotFoundError,
    InvalidAdapterNameError,
    InvalidAssetError,
    resolve_adapter,
)
from openafm.framework.errors import FoundationModelsError
from openafm.runtime.engines.torch_engine import TorchEngine


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """Return the default bundle, in a separate home."""
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    bundle = write_tiny_bundle(bundle_place("base"))
    choose_model("base")
    return bundle


def write(path: Path, base_signature: str, name: str = "tags", scale: float = 1.0) -> package.AdapterPackage:
    recovery = tiny_recovery()
    return write_adapter(
        path,
        weights={key: scale * weight for key, weight in recovery.weights.items()},
        config=recovery.config,
        base_signature=base_signature,
        name=name,
        about=AdapterAbout(creator_defined={"topics": ["news"]}),
    )


def test_by_file(base: Bundle, tmp_path: Path) -> None:
    written = write(tmp_path / "tags.fmadapter", base.signature)
    adapter = Adapter(written.path)
    assert (adapter.name, adapter.creator_defined_metadata) == ("tags", {"topics": ["news"]})
    for given in (adapter, written.path, str(written.path)):
        assert resolve_adapter(given, base) == written


def test_by_name_for_the_default_bundle(base: Bundle, tmp_path: Path) -> None:
    other = write_tiny_bundle(bundle_place("other"), seed=1)
    for bundle, scale in ((base, 1.0), (other, 2.0)):
        install_adapter(write(tmp_path / "a", bundle.signature, scale=scale).path)
    adapter = Adapter(name="tags")
    assert adapter.creator_defined_metadata == {"topics": ["news"]}
    for bundle, scale in ((base, 1.0), (other, 2.0)):
        for given in (adapter, "tags"):
            found = resolve_adapter(given, bundle)
            assert found.base_signature == bundle.signature
            assert all(np.all(weight == scale) for weight in found.weights().values())
        assert Adapter.compatible_identifiers("tags", bundle.path) == [f"fmadapter-tags-{bundle.signature[:7]}"]
    assert Adapter.compatible_identifiers("tags") == [f"fmadapter-tags-{base.signature[:7]}"]
    assert Adapter.compatible_identifiers("none") == []


def test_another_base_is_refused_by_name(base: Bundle, tmp_path: Path) -> None:
    path = write(tmp_path / "a", "f" * 40).path
    words = rf"not on this machine \(signature {'f' * 40}\), not to the bundle '{base.name}' \(signature {base.signature}\)"
    with pytest.raises(CompatibleAdapterNotFoundError, match=words):
        resolve_adapter(path, base)
    install_adapter(path)
    with pytest.raises(CompatibleAdapterNotFoundError, match="installed: fmadapter-tags-fffffff for a bundle that is not"):
        resolve_adapter("tags", base)
    other = write_tiny_bundle(bundle_place("other"), seed=1)
    theirs = write(tmp_path / "b", other.signature).path
    with pytest.raises(CompatibleAdapterNotFoundError, match=f"belongs to the bundle 'other' .*, not to .*'{base.name}'"):
        resolve_adapter(theirs, base)
    # A folder with the right name and an adapter of another base.
    shutil.copytree(path, adapters_home() / "tags" / f"fmadapter-tags-{base.signature[:7]}")
    with pytest.raises(CompatibleAdapterNotFoundError, match=base.signature):
        resolve_adapter("tags", base)


def test_missing_adapters_are_refused(base: Bundle, tmp_path: Path) -> None:
    for make in (lambda: Adapter(name="tags"), lambda: resolve_adapter("tags", base)):
        with pytest.raises(CompatibleAdapterNotFoundError, match="no adapter 'tags' is installed"):
            make()
    for make in (lambda: Adapter(tmp_path / "x"), lambda: resolve_adapter("./x", base), lambda: Adapter(tmp_path)):
        with pytest.raises(InvalidAssetError):
            make()


@pytest.mark.parametrize("name", ["", " ", "two words", "tägs", "-x", "a" * 65])
def test_bad_names_are_refused(base: Bundle, name: str) -> None:
    for make in (
        lambda: Adapter(name=name),
        lambda: resolve_adapter(name, base),
        lambda: Adapter.compatible_identifiers(name),
    ):
        with pytest.raises(InvalidAdapterNameError, match="letters"):
            make()


def test_an_adapter_has_a_file_or_a_name() -> None:
    for arguments in ({}, {"file": "a", "name": "b"}):
        with pytest.raises(ValueError, match="pass one of them"):
            Adapter(**arguments)  # type: ignore[arg-type]


def test_damage_is_found_before_use(base: Bundle, tmp_path: Path) -> None:
    path = write(tmp_path / "a", base.signature).path
    weights = path / package.WEIGHTS
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    adapter = Adapter(path)
    with pytest.raises(InvalidAssetError, match="has changed since"):
        resolve_adapter(adapter, base)
    metadata = json.loads((path / package.METADATA).read_text())
    (path / package.METADATA).write_text(json.dumps(metadata | {"draftSignature": "0" * 40}))
    with pytest.raises(InvalidAssetError, match="incomplete draft"):
        Adapter(path)


def test_obsolete_adapters_are_removed(base: Bundle, tmp_path: Path) -> None:
    kept = install_adapter(write(tmp_path / "a", base.signature).path)
    for name in ("tags", "other"):
        install_adapter(write(tmp_path / "a", "f" * 40, name=name).path)
    assert sorted(Adapter.remove_obsolete()) == ["fmadapter-other-fffffff", "fmadapter-tags-fffffff"]
    assert [folder.name for folder in adapters_home().iterdir()] == ["tags"]
    assert resolve_adapter("tags", base) == kept
    assert Adapter.remove_obsolete() == []


def test_the_error_hierarchy() -> None:
    for error in (InvalidAssetError, InvalidAdapterNameError, CompatibleAdapterNotFoundError):
        assert issubclass(error, AssetError)
    assert issubclass(AssetError, FoundationModelsError)


def answer(model: fm.SystemLanguageModel, session: fm.LanguageModelSession | None = None) -> str:
    session = session or fm.LanguageModelSession(model=model)
    options = fm.GenerationOptions(sampling=fm.SamplingMode.greedy(), maximum_response_tokens=12)
    return str(session.respond_blocking("the cat", options=options))


def test_sessions_with_different_adapters_share_the_weights(tmp_path: Path) -> None:
    base = write_tiny_bundle(tmp_path / "unique", seed=123)  # no other test has loaded a bundle of this signature
    plain = fm.SystemLanguageModel(bundle=base.path)
    adapted = [
        fm.SystemLanguageModel(bundle=base.path, adapter=write(tmp_path / name, base.signature, scale=scale).path)
        for name, scale in (("one", 1.0), ("two", 0.3))
    ]
    engines = [model.load().engine for model in (plain, *adapted)]
    assert all(isinstance(engine, TorchEngine) for engine in engines)
    pointers = {engine.decoder.embedding.data_ptr() for engine in engines if isinstance(engine, TorchEngine)}
    assert len(engines) == 3
    assert len(pointers) == 1
    assert len({answer(model) for model in (plain, *adapted)}) == 3


def test_a_copy_of_a_loaded_bundle_in_another_folder_has_its_own_engine(tmp_path: Path) -> None:
    first, copy = (write_tiny_bundle(tmp_path / name) for name in ("first", "copy"))
    adapter = write_random_adapter(tmp_path / "a", copy).path
    loaded = fm.SystemLanguageModel(bundle=first.path).load()
    adapted = fm.SystemLanguageModel(bundle=copy.path, adapter=adapter).load()
    assert adapted.engine.scheduler is not loaded.engine.scheduler


def test_models_with_different_adapters_share_steps_and_no_prefixes(tmp_path: Path) -> None:
    bundle = write_native_bundle(tmp_path / "b")
    path = write_random_adapter(tmp_path / "a", bundle).path
    plain, adapted = (fm.SystemLanguageModel(bundle=bundle.path, adapter=each) for each in (None, path))
    for model in (plain, adapted):
        session = fm.LanguageModelSession("Speak like the cat that sat on the log.", model=model)
        session.respond_blocking("hello", options=fm.GenerationOptions(maximum_response_tokens=2))
        if model is plain:
            loaded = plain.load(), adapted.load()
            assert loaded[0].engine.scheduler is loaded[1].engine.scheduler
            assert loaded[0].prefixes.num_bytes > loaded[1].prefixes.num_bytes == 0
    assert loaded[1].prefixes.num_bytes > 0


def test_a_replaced_adapter_applies_to_the_next_session(base: Bundle, tmp_path: Path) -> None:
    path = write(tmp_path / "a", base.signature).path
    model = fm.SystemLanguageModel(bundle=base.path, adapter=path)
    undisturbed, session = (fm.LanguageModelSession(model=model) for _ in range(2))
    expected = [answer(model, undisturbed) for _ in range(2)]
    assert answer(model, session) == expected[0]
    write(path, base.signature, scale=0.3)
    assert answer(model, session) == expected[1]
    assert answer(fm.SystemLanguageModel(bundle=base.path, adapter=path)) != expected[0]


def test_a_model_with_an_adapter_of_another_base_is_unavailable(base: Bundle, tmp_path: Path) -> None:
    model = fm.SystemLanguageModel(bundle=base.path, adapter=write(tmp_path / "a", "f" * 40).path)
    assert model.is_available()[0] is False
    with pytest.raises(AssetError):
        answer(model)
