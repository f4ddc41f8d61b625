"""`openafm doctor`: its report on a machine and a model, with and without a compiler."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from native_bundles import LORA, compressed_bundle, random_adapter_weights, write_compressed

from openafm.bundle import RecoveryAdapter
from openafm.cli.main import run
from openafm.runtime import doctor
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native import build
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.weights import open_weights, weights_file


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_STREAM_BYTES", 1 << 22)
    monkeypatch.setattr(doctor, "_STREAM_SECONDS", 0.01)
    monkeypatch.setattr(doctor, "_MOST_SECONDS", 0.05)
    monkeypatch.delenv("OPENAFM_ENGINE", raising=False)


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    assert run(["doctor", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_report_names_the_engine_and_the_limit_by_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, str(compressed_bundle().path))
    machine, model = found["machine"], found["model"]
    assert machine["kernels"][-1] == "portable"
    assert Path(machine["library"]).is_file()
    assert machine["problem"] is None
    assert machine["stream_gb_s"] > 0
    assert (model["engine"], model["why_not_native"]) == ("native", None)
    assert model["expected_tokens_s"] == pytest.approx(machine["stream_gb_s"] * 1e9 / model["bytes_per_token"])
    assert model["measured_tokens_s"] > 0
    engine = NativeEngine(compressed_bundle())
    sequence = engine.new_sequence()
    engine.step([(sequence, [1] * 64)])
    assert 64 * model["kv_bytes_per_token"] == sum(engine.memory(sequence).values())


def test_bytes_of_a_token_are_those_of_the_file_and_of_the_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = compressed_bundle()
    monkeypatch.setattr("openafm.runtime.native.weights.cache_home", lambda: tmp_path)  # others remove files
    library = sys.modules["openafm.runtime.native.library"].native_library()
    open_weights(plain, library)
    file = weights_file(plain, library)
    assert 0 <= file.stat().st_size - doctor.bytes_per_token(plain) < 16_384  # its header and padding
    lora = random_adapter_weights(1)
    adapted = write_compressed(tmp_path / "b", recovery=RecoveryAdapter(config=LORA, weights=lora))
    expected = sum(2 * weight.size for weight in lora.values())  # 16 bits each
    assert doctor.bytes_per_token(adapted) - doctor.bytes_per_token(plain) == expected


def test_the_reason_for_the_torch_engine_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAFM_ENGINE", "torch")
    found = report(capsys, str(compressed_bundle().path))
    assert (found["model"]["engine"], found["model"]["why_not_native"]) == ("torch", "OPENAFM_ENGINE is torch")
    engine = TorchEngine.open(compressed_bundle())
    sequence = engine.new_sequence()
    engine.step([(sequence, [1] * 64)])  # the first capacity
    assert 64 * found["model"]["kv_bytes_per_token"] == sum(engine.memory(sequence).values())
    assert found["model"]["kv_bytes_per_token"] > 3 * found["model"]["bundle_kv_bytes_per_token"]
    assert run(["inspect", str(compressed_bundle().path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["engine"], shown["engine_kv_bytes_per_token"]) == ("torch", found["model"]["kv_bytes_per_token"])
    state = engine.decoder.state_dict().values()
    assert shown["engine_weight_bytes"] == pytest.approx(sum(tensor.nbytes for tensor in state), rel=0.01)
    monkeypatch.delenv("OPENAFM_ENGINE")
    monkeypatch.setattr(build, "SOURCES", replace(build.SOURCES, built_in=tmp_path / "none.so"))
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    sys.modules["openafm.runtime.native.library"].native_library.cache_clear()
    found = report(capsys, str(compressed_bundle().path))
    assert found["model"]["engine"] == "torch"
    assert "no-such-compiler" in found["model"]["why_not_native"]
    assert found["machine"]["kernels"] == []
    assert found["machine"]["compiler"] is None
    sys.modules["openafm.runtime.native.library"].native_library.cache_clear()


def test_without_json_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(compressed_bundle().path)]) == 0
    printed = capsys.readouterr().out
    for word in ("processor", "kernels", "build log", "memory allows", "measured"):
        assert word in printed
    assert run(["doctor", "no-such-bundle"]) == 2


def test_without_a_model_the_machine_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("openafm.bundle.store.SHIPPED_HOME", tmp_path / "stripped")
    assert report(capsys)["model"] is None
    assert run(["doctor"]) == 0
    assert "quickstart" in capsys.readouterr().out
