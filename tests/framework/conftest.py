"""Fixtures of tiny models."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from endpoints import num_sockets, wait_until
from tiny_bundles import SlowEngine, write_native_bundle, write_tiny_bundle

import openafm as fm
from openafm.runtime.engines.prefix_cache import PrefixCache
from openafm.runtime.engines.torch_engine import TorchEngine


@pytest.fixture(scope="session")
def bundle_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bundle(tmp_path_factory.mktemp("bundles") / "tiny").path


@pytest.fixture(scope="module", params=["native", "torch"])
def engine_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle for each engine, named after the engine."""
    write = write_native_bundle if request.param == "native" else write_tiny_bundle
    return write(tmp_path_factory.mktemp("bundles") / request.param).path


@pytest.fixture
def model(bundle_path: Path) -> fm.SystemLanguageModel:
    return fm.SystemLanguageModel(bundle=bundle_path)


@pytest.fixture
def slow_model(model: fm.SystemLanguageModel, monkeypatch: pytest.MonkeyPatch) -> fm.SystemLanguageModel:
    loaded = model.load()
    assert isinstance(loaded.engine, TorchEngine)
    engine = SlowEngine(loaded.engine.decoder)
    monkeypatch.setattr(loaded, "engine", engine)
    monkeypatch.setattr(loaded, "prefixes", PrefixCache(engine, 0))
    return model


@pytest.fixture
def no_leaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test of endpoints that leaves threads or sockets open."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    before = num_sockets(), threading.active_count()
    yield
    wait_until(lambda: num_sockets() <= before[0] and threading.active_count() <= before[1])
