"""Selection of the engine for a bundle, and the messages when the native one is unavailable."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from native_bundles import LORA, compressed_bundle, random_adapter_weights, write_compressed, write_random_adapter
from tiny_engines import random_tokens

from openafm.adapters.package import AdapterMismatchError, AdapterTamperedError, open_adapter, write_adapter
from openafm.bundle import Bundle, RecoveryAdapter, shipped_bundle
from openafm.bundle.decoder import load_decoder
from openafm.compression.config import QATConfig
from openafm.compression.numerics import FULL_PRECISION, Numerics
from openafm.core.native_build import NativeBuildError
from openafm.runtime.engines import selection as engines
from openafm.runtime.engines.base import Engine
from openafm.runtime.engines.selection import EngineChoiceError, engine_name, open_engine
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native import build
from openafm.runtime.native.engine import KernelsError, NativeEngine, ThreadsError
from openafm.runtime.native.support import unsupported
from openafm.runtime.native.weights import _opened, weights_file

TOKENS = random_tokens(20)


@pytest.fixture(autouse=True)
def free_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAFM_ENGINE", raising=False)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No compiler and an empty cache."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "SOURCES", replace(build.SOURCES, built_in=tmp_path / "none.so"))
    native_library = sys.modules["openafm.runtime.native.library"].native_library
    native_library.cache_clear()
    engines._warn.cache_clear()
    yield
    native_library.cache_clear()


def logits(engine: Engine) -> np.ndarray:
    return engine.step([(engine.new_sequence(), TOKENS)])[0]


BFLOAT16 = Numerics(activations="bfloat16", kv="bfloat16")


def plain_bundle(path: Path, numerics: Numerics = FULL_PRECISION) -> Bundle:
    from openafm.bundle import write_bundle

    base = compressed_bundle()
    tensors = {name: tensor.detach().numpy() for name, tensor in base.config.build(seed=0).state_dict().items()}
    return write_bundle(
        path, config=base.config, tokenizer=base.tokenizer, template=base.template, tensors=tensors, numerics=numerics
    )


def test_a_compressed_bundle_runs_natively_and_a_plain_one_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, bf16 = plain_bundle(tmp_path / "plain"), plain_bundle(tmp_path / "bf16", BFLOAT16)
    assert isinstance(open_engine(compressed_bundle()), NativeEngine)
    assert isinstance(open_engine(plain), TorchEngine)
    assert engine_name(plain) == "torch"
    assert isinstance(open_engine(plain, full_precision="native"), NativeEngine)
    assert isinstance(open_engine(bf16, full_precision="native"), TorchEngine)
    monkeypatch.setenv("OPENAFM_ENGINE", "native")
    assert isinstance(open_engine(plain), NativeEngine)
    assert engine_name(plain) == "native"


def test_the_shipped_model_runs_natively() -> None:
    path = shipped_bundle()
    assert path is not None
    assert unsupported(Bundle(path)) is None


@pytest.mark.parametrize(("choice", "kind"), [("torch", TorchEngine), ("native", NativeEngine)])
def test_openafm_engine_forces_an_engine(monkeypatch: pytest.MonkeyPatch, choice: str, kind: type[Engine]) -> None:
    monkeypatch.setenv("OPENAFM_ENGINE", choice)
    assert isinstance(open_engine(compressed_bundle()), kind)


def test_an_invalid_choice_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAFM_ENGINE", "fast")
    with pytest.raises(EngineChoiceError, match="fast"):
        open_engine(compressed_bundle())
    monkeypatch.setenv("OPENAFM_ENGINE", "native")
    with pytest.raises(EngineChoiceError, match="bfloat16"):
        open_engine(plain_bundle(tmp_path / "bf16", BFLOAT16))


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_torch_is_used_with_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert isinstance(open_engine(compressed_bundle()), TorchEngine)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "install one" in said
    assert "openafm doctor" in said


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_a_forced_native_engine_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_ENGINE", "native")
    with pytest.raises(NativeBuildError, match="compiler"):
        open_engine(compressed_bundle())


def test_an_invalid_number_of_threads_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("many", "-1", "0", "1000000"):
        monkeypatch.setenv("OPENAFM_THREADS", wrong)
        with pytest.raises(ThreadsError, match="OPENAFM_THREADS"):
            NativeEngine(compressed_bundle())


def test_engines_of_one_bundle_share_its_weights(tmp_path: Path) -> None:
    bundle = write_compressed(tmp_path / "b", seed=5)
    opened = [
        open_engine(bundle),
        *(open_engine(bundle, write_random_adapter(tmp_path / f"{s}", bundle, s)) for s in (1, 2)),
    ]
    natives = [engine for engine in opened if isinstance(engine, NativeEngine)]
    assert len({engine._model._weights.address("embedding") for engine in natives}) == 1
    assert len(natives) == len({engine.signature for engine in natives}) == 3
    path = weights_file(bundle, natives[0]._model.library)
    assert path in _opened
    opened.clear()
    natives.clear()
    gc.collect()
    assert path not in _opened


def test_each_engine_computes_with_its_own_adapter(tmp_path: Path) -> None:
    bundle = write_compressed(tmp_path / "b", recovery=RecoveryAdapter(config=LORA, weights=random_adapter_weights(9)))
    adapters = [write_random_adapter(tmp_path / str(seed), bundle, seed) for seed in (1, 2)]
    found = [logits(open_engine(bundle, adapter)) for adapter in (None, *adapters)]
    for adapter, native in zip((bundle.recovery_adapter, *adapters), found, strict=True):
        engine = TorchEngine.open(bundle, adapter)
        assert np.abs(native - logits(engine)).mean() < 0.05 * np.abs(native).mean()
    assert min(np.abs(found[a] - found[b]).max() for a, b in ((0, 1), (0, 2), (1, 2))) > 0.05


def test_an_adapter_replaced_on_disk_affects_new_engines_only(tmp_path: Path) -> None:
    bundle = compressed_bundle()
    first = write_random_adapter(tmp_path / "a", bundle, 1)
    engine = open_engine(bundle, first)
    before = logits(engine)
    write_random_adapter(tmp_path / "a", bundle, 2)
    assert np.array_equal(logits(engine), before)
    assert not np.array_equal(logits(open_engine(bundle, open_adapter(tmp_path / "a"))), before)
    with pytest.raises(AdapterTamperedError):
        open_engine(bundle, first)


def test_an_adapter_of_other_shapes_raises(tmp_path: Path) -> None:
    bundle = compressed_bundle()
    good = random_adapter_weights(1)
    some = "layers.1.attention.query.lora"
    other = write_compressed(tmp_path / "other", seed=8)
    with pytest.raises(AdapterMismatchError, match=other.signature):
        open_engine(other, write_random_adapter(tmp_path / "a", bundle, 1))
    for number, wrong in enumerate(
        (
            {**good, f"{some}.a": good[f"{some}.a"][:, :32]},
            {**good, f"{some}.b": np.concatenate([good[f"{some}.b"]] * 2)},
            {name: weight for name, weight in good.items() if not name.startswith(some)},
            {
                **good,
                "layers.9.attention.query.lora.a": good[f"{some}.a"],
                "layers.9.attention.query.lora.b": good[f"{some}.b"],
            },
        )
    ):
        adapter = write_adapter(
            tmp_path / str(number), weights=wrong, config=LORA, base_signature=bundle.signature, name="wrong"
        )
        with pytest.raises(AdapterMismatchError, match=r"layers\.[19]\.attention\.query"):
            open_engine(bundle, adapter)


def test_the_reference_decoder_matches_a_plain_forward_pass() -> None:
    """Checks the reference that other tests compare the native engine with."""
    import torch

    bundle = compressed_bundle()
    assert bundle.numerics == QATConfig().numerics
    with torch.inference_mode():
        expected = load_decoder(bundle)(torch.tensor([TOKENS]))[0, -1].numpy()
    assert np.abs(logits(open_engine(bundle)) - expected).mean() < 0.05 * np.abs(expected).mean()


def test_a_process_that_runs_natively_never_imports_torch(tmp_path: Path) -> None:
    """The command, a session with a schema, with tools, streamed, and with an adapter."""
    path = shipped_bundle()
    assert path is not None
    shipped = Bundle(path)
    lora = random_adapter_weights(1, shipped.config)
    adapter = tmp_path / "a.fmadapter"
    write_adapter(adapter, weights=lora, config=LORA, base_signature=shipped.signature, name="some")
    program = Path(__file__).with_name("no_torch.py")
    done = subprocess.run([sys.executable, str(program), str(adapter)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("imported: []\n"), done.stdout


def test_openafm_kernels_forces_a_kernel_set(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logits(NativeEngine(compressed_bundle(), kernels="portable"))
    monkeypatch.setenv("OPENAFM_KERNELS", "portable")
    engine = NativeEngine(compressed_bundle())
    assert engine.kernels == "portable"
    assert np.array_equal(logits(engine), expected)
    monkeypatch.setenv("OPENAFM_KERNELS", "sve9")
    with pytest.raises(KernelsError, match=r"'sve9'.*portable"):
        NativeEngine(compressed_bundle())
