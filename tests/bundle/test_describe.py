"""The facts of `openafm inspect`: every stored bit, and the savings of keys and values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from openafm.adapters.config import LoRAConfig
from openafm.adapters.package import AdapterMismatchError, AdapterTamperedError, write_adapter
from openafm.bundle import FULL_PRECISION, Bundle, Numerics, RecoveryAdapter, open_bundle, shipped_bundle, write_bundle
from openafm.bundle.describe import describe_bundle, describe_size
from openafm.cli.main import run
from openafm.cli.output import human_bytes
from openafm.models.accounting import num_parameters
from openafm.models.sizes import shared_kv_decoder
from openafm.reading.page import FILES
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

CONFIG = shared_kv_decoder(
    vocab_size=330,
    dim=16,
    num_own_layers=2,
    num_shared_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    hidden_dim=24,
    context_length=64,
)
EIGHT_BITS = Numerics(kv="int8_per_token_head")
RECOVERY = RecoveryAdapter(
    config=LoRAConfig(rank=2, targets=("query",)),
    weights={
        "layers.0.attention.query.lora.a": np.ones((2, 16), np.float32),
        "layers.0.attention.query.lora.b": np.ones((16, 2), np.float32),
    },
)


def write(path: Path, recovery: RecoveryAdapter | None, numerics: Numerics = EIGHT_BITS) -> Path:
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=330), ["the cat sat on the mat " * 30])
    weights = {name: tensor.numpy() for name, tensor in CONFIG.build().state_dict().items()}
    write_bundle(
        path,
        config=CONFIG,
        tokenizer=tokenizer,
        template=ChatTemplate(),
        tensors=weights,
        numerics=numerics,
        recovery=recovery,
    )
    return path


def test_the_recovery_adapter_is_counted_separately_and_in_the_sum(tmp_path: Path) -> None:
    plain = describe_bundle(open_bundle(write(tmp_path / "plain", None)))
    assert (plain.bits_per_weight, plain.adapter_bits_per_weight) == (32, 0)
    adapted = describe_bundle(open_bundle(write(tmp_path / "adapted", RECOVERY)))
    assert adapted.adapter_bits_per_weight == 64 * 16 / num_parameters(CONFIG)
    assert adapted.bits_per_weight == 32 + adapted.adapter_bits_per_weight


def test_a_damaged_recovery_adapter_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "adapted", RECOVERY)
    file = path / "recovery.fmadapter" / "adapter_weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    for use in (describe_bundle, Bundle.verify):
        with pytest.raises(AdapterTamperedError):
            use(open_bundle(path))


def test_a_recovery_adapter_of_another_base_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "adapted", RECOVERY)
    folder = path / "recovery.fmadapter"
    write_adapter(folder, weights=RECOVERY.weights, config=RECOVERY.config, base_signature="0" * 40, name="another")
    with pytest.raises(AdapterMismatchError):
        open_bundle(path).verify()


def test_savings_of_shared_keys_and_values(tmp_path: Path) -> None:
    described = describe_bundle(open_bundle(write(tmp_path / "b", None)))
    assert described.kv_bytes_at_4096 == 4096 * 2 * 2 * (8 + 2)  # layers, keys and values, int8 and a scale
    assert described.kv_bytes_at_4096_in_16_bits == 4096 * 2 * 2 * 8 * 2
    assert described.kv_bytes_at_4096_in_16_bits_unshared == 4096 * 4 * 2 * 8 * 2
    assert (described.kv_saving, described.kv_saving_to_unshared) == (1 - 10 / 16, 1 - 10 / 32)


def test_keys_and_values_in_fp32_save_nothing(tmp_path: Path) -> None:
    described = describe_bundle(open_bundle(write(tmp_path / "b", None, FULL_PRECISION)))
    assert described.kv_bytes_at_4096 == 2 * described.kv_bytes_at_4096_in_16_bits
    assert (described.kv_saving, described.kv_saving_to_unshared) == (0, 0)


def test_the_savings_of_the_report() -> None:
    described = describe_size("on_device.base")
    assert described.kv_bytes_at_4096_in_16_bits_unshared == 4096 * 28_672 * 2
    assert (described.embedding, described.adapter_bits_per_weight) == ("bfloat16", 0)


def test_the_server_model_has_tracks_experts_and_windows() -> None:
    described = describe_size("server.full")
    assert (described.parameters, described.active_parameters) == (147_803_703_296, 15_834_122_240)
    assert (described.tracks, described.block_depth, described.layers) == (8, 4, 48)
    assert (described.expert_layers, described.experts_per_track, described.experts_per_token) == (24, 40, 2)
    assert (described.local_layers, described.window) == (36, 4096)


def test_windows_limit_keys_and_values() -> None:
    described = describe_size("server.full")
    of_a_layer = 2 * 8 * 4 * (128 + 2)  # keys and values, tracks, heads, int8 and a scale
    assert described.kv_bytes_at_4096 == described.kv_bytes_at_4096_all_global == 4096 * 48 * of_a_layer
    assert described.kv_bytes_at_65536_all_global == 65_536 * 48 * of_a_layer
    assert described.kv_bytes_at_65536 == (65_536 * 12 + 4096 * 36) * of_a_layer


def test_operations_of_a_token_grow_with_global_layers_alone() -> None:
    described = describe_size("server.full")
    pairs = 4 * 4 * 128 * 8  # score and value, heads, channels, tracks
    growth = 12 * pairs * (65_536 - 4096) / 2 + 36 * pairs * (4096 - 4096 / 2)
    assert described.flops_per_token_at_65536 - described.flops_per_token_at_4096 == growth
    on_device = describe_size("on_device.base")
    assert (on_device.block_depth, on_device.expert_layers, on_device.window) == (None, 0, None)
    assert on_device.kv_bytes_at_65536 == on_device.kv_bytes_at_65536_all_global


def test_vision_is_described_by_resolution_mode() -> None:
    described = describe_size("on_device.base_multimodal")
    plain = describe_size("on_device.base")
    assert plain.vision is None
    assert described.vision is not None
    assert described.vision.encoder_parameters == 304_906_240
    assert (
        plain.parameters + described.vision.encoder_parameters + described.vision.adapter_parameters == described.parameters
    )
    modes = described.vision.modes
    assert {name: (mode.views, mode.side, mode.tokens) for name, mode in modes.items()} == {
        "balanced": (1, 672, 144),
        "high": (5, 672, 720),
        "rapid": (1, 224, 9),
    }
    assert modes["high"].flops == pytest.approx(5 * modes["balanced"].flops)
    assert modes["balanced"].kv_bytes == 144 * described.kv_bytes_per_token


def test_inspect_prints_the_modes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "on_device.nano_multimodal"]) == 0
    printed = capsys.readouterr().out
    assert "720 tokens, 5 views of 336 pixels" in printed
    assert "9 tokens, 112 pixels" in printed


def test_a_reader_of_pages_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    shipped = shipped_bundle()
    assert shipped is not None
    folder = open_bundle(shipped).reader
    assert folder is not None
    described = describe_bundle(open_bundle(shipped))
    assert described.reader_bytes == sum((folder / name).stat().st_size for name in FILES) > 1_000_000
    assert run(["show", "nano"]) == 0
    assert f"a reader of pages of {human_bytes(described.reader_bytes)}" in capsys.readouterr().out
