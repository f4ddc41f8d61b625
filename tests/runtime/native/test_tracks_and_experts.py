"""Tracks, experts and ASTC weights on the native engine: the logits of torch, whatever the step."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native_bundles import CONFIG as DENSE
from numpy.typing import NDArray
from tiny_engines import CONFIGS, assert_close, config, layer, random_tokens, with_experts
from tiny_tokenizer import TOKENIZER

from openafm.adapters.config import LoRAConfig
from openafm.adapters.lora import adapter_weights, install
from openafm.adapters.package import write_adapter
from openafm.bundle import Bundle, BundleError, write_bundle
from openafm.bundle.decoder import load_decoder
from openafm.bundle.writer import RecoveryAdapter
from openafm.compression.astc.config import AstcConfig
from openafm.compression.grouped import FORMATS
from openafm.compression.numerics import FULL_PRECISION, Numerics, WeightNumerics
from openafm.models.config import DecoderConfig, DenseFeedForwardConfig, TrackNormConfig, TracksConfig
from openafm.models.feed_forward.experts_config import ExpertsConfig, TopKRouterConfig
from openafm.models.sizes import server_micro
from openafm.recipes.compression.formats import AstcCompression
from openafm.runtime import doctor
from openafm.runtime.agreement import compare_choices
from openafm.runtime.engines.base import Engine
from openafm.runtime.engines.selection import engine_name, weight_bytes
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.decoding import decoded
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.layout import layouts, stored_tensors
from openafm.runtime.native.library import kernel_names, native_library
from openafm.runtime.native.support import unsupported
from openafm.tokenizer.chat_template import ChatTemplate

TOKENS = random_tokens(150)
KINDS: dict[str, DecoderConfig] = {
    "tracks with windows and shared keys and values": CONFIGS["tracks"],
    "server": server_micro(),
    "norms of tracks, added": replace(
        CONFIGS["tracks"], tracks=TracksConfig(num_tracks=2, block_depth=1, combine="sum", norm=TrackNormConfig(eps=1e-3))
    ),
    "experts without tracks": config(with_experts(layer()), layer(), with_experts(layer(source=1)), untied=True),
}


def random_tensors(config: DecoderConfig) -> dict[str, NDArray[Any]]:
    """Weights whose norms are not 1 and whose routers are not nearly uniform."""
    torch.set_num_threads(1)
    model, generator = config.build(seed=5), torch.Generator().manual_seed(6)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5, generator=generator)
            elif "router" in name:
                parameter.normal_(std=0.5, generator=generator)
        model.embedding.normal_(std=0.1, generator=generator)
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def sized(config: DecoderConfig) -> DecoderConfig:
    return replace(config, vocab_size=TOKENIZER.vocab_size, context_length=200)


def write(
    path: Path,
    config: DecoderConfig,
    tensors: dict[str, NDArray[Any]],
    numerics: Numerics = FULL_PRECISION,
    recovery: RecoveryAdapter | None = None,
) -> Bundle:
    return write_bundle(
        path,
        config=config,
        tokenizer=TOKENIZER,
        template=ChatTemplate(),
        tensors=tensors,
        numerics=numerics,
        recovery=recovery,
    )


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    folder = tmp_path_factory.mktemp("bundles")

    @cache
    def made(kind: str) -> Bundle:
        config = sized(KINDS[kind])
        return write(folder / str(list(KINDS).index(kind)), config, random_tensors(config))

    return made


def logits(engine: Engine, tokens: list[int] = TOKENS, chunk: int = len(TOKENS)) -> NDArray[np.float32]:
    sequence = engine.new_sequence()
    parts = [tokens[start : start + chunk] for start in range(0, len(tokens), chunk)]
    return np.concatenate([engine.step([(sequence, part)], "all")[0] for part in parts])


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_those_of_torch_and_do_not_depend_on_the_step(kind: str, bundle_of: Callable[[str], Bundle]) -> None:
    bundle = bundle_of(kind)
    assert unsupported(bundle) is None
    with torch.inference_mode():
        expected = load_decoder(bundle)(torch.tensor([TOKENS]))[0].numpy()
    for kernels in kernel_names(native_library()):
        engine = NativeEngine(bundle, num_threads=2, kernels=kernels)
        found = logits(engine)
        assert_close(found, expected)
        for chunk in (1, 7):
            np.testing.assert_array_equal(logits(engine, chunk=chunk), found)


@pytest.mark.parametrize("kind", ["server", "tracks with windows and shared keys and values"])
def test_only_wanted_rows_pass_the_last_layers(kind: str, bundle_of: Callable[[str], Bundle]) -> None:
    """Also where no row is wanted: every track stores its keys and values."""
    engine = NativeEngine(bundle_of(kind), num_threads=1)
    expected = logits(engine)
    sequence = engine.new_sequence()
    rows = [engine.step([(sequence, TOKENS[start:stop])])[0] for start, stop in ((0, 3), (3, 80), (80, 150))]
    for row, position in zip(rows, (2, 79, 149), strict=True):
        np.testing.assert_array_equal(row, expected[position])
    fed = engine.new_sequence()
    engine.step([(fed, TOKENS[:100])], "none")
    np.testing.assert_array_equal(engine.step([(fed, TOKENS[100:])], "all")[0], expected[100:])


def test_batches_forks_and_snapshots_have_the_bits_of_one_sequence(
    tmp_path: Path, bundle_of: Callable[[str], Bundle]
) -> None:
    engine = NativeEngine(bundle_of("server"), num_threads=1)
    alone = logits(engine)
    origin = engine.new_sequence()
    engine.step([(origin, TOKENS[:70])])
    engine.save(origin, tmp_path / "saved")
    sequences = [engine.fork(origin, length) for length in (3, 64, 65)] + [engine.load(tmp_path / "saved")]
    found = engine.step([(sequence, [TOKENS[sequence.length]]) for sequence in sequences])
    for length, row in zip((3, 64, 65, 70), found, strict=True):
        np.testing.assert_array_equal(row, alone[length])


def test_new_weights_of_stacks_replace_the_old_ones(bundle_of: Callable[[str], Bundle]) -> None:
    bundle = bundle_of("norms of tracks, added")
    engine, peer = NativeEngine(bundle, num_threads=1), TorchEngine.open(bundle)
    before, draw = logits(engine), np.random.default_rng(1)
    changed = {
        name: tensor.numpy() + np.float32(0.05) * draw.standard_normal(tensor.shape).astype(np.float32)
        for name, tensor in peer.decoder.state_dict().items()
    }
    peer.update_weights(changed, 1)
    engine.update_weights(changed, 1)
    expected = logits(peer)
    assert_close(logits(engine), expected)
    assert np.abs(before - expected).max() > 0.05


def test_an_adapter_has_separate_weights_for_each_track(tmp_path: Path, bundle_of: Callable[[str], Bundle]) -> None:
    bundle, lora = bundle_of("server"), LoRAConfig(rank=3, targets=("query", "down", "value"), precision="float32")
    decoder, generator = bundle.config.build(), torch.Generator().manual_seed(2)
    install(decoder, lora)
    weights = {
        name: torch.randn(w.shape, generator=generator).mul(0.2).numpy() for name, w in adapter_weights(decoder).items()
    }
    assert weights["layers.0.attention.query.lora.a"].shape == (2, 3, 64)
    adapter = write_adapter(
        tmp_path / "a.fmadapter", weights=weights, config=lora, base_signature=bundle.signature, name="some"
    )
    found = logits(NativeEngine(bundle, adapter, num_threads=1))
    assert_close(found, logits(TorchEngine.open(bundle, adapter)))
    assert np.abs(found - logits(NativeEngine(bundle, num_threads=1))).max() > 0.1


def packed(weights: WeightNumerics, matrix_RI: NDArray[np.float32], name: str) -> dict[str, NDArray[Any]]:
    if weights in FORMATS:
        return FORMATS[weights].quantize(matrix_RI, name).tensors(name)
    if weights == "bfloat16":
        return {name: torch.from_numpy(matrix_RI).bfloat16().view(torch.uint16).numpy()}
    codes = np.random.default_rng(len(name)).integers(0, 256, (len(matrix_RI), matrix_RI.shape[1] // 4), np.uint8)
    return {name: codes, f"{name}.scale": np.linspace(0.03, 0.06, len(matrix_RI), dtype=np.float32)}


@pytest.mark.parametrize("weights", ["int2_balanced", "int4_group32", "int8_per_row", "int8_group32"])
def test_equal_tracks_and_equal_experts_have_the_bits_of_a_dense_model(weights: WeightNumerics, tmp_path: Path) -> None:
    """The mean of two equal tracks is each of them, and the weight of one chosen expert is 1. For every integer format."""
    dense = replace(DENSE, vocab_size=TOKENIZER.vocab_size, context_length=200)
    numerics = Numerics(weights=weights, embedding="int4_group32", activations="int8_per_token", kv="int8_per_token_head")
    experts = ExpertsConfig(num_experts=3, hidden_dim=96, router=TopKRouterConfig(num_chosen=1))
    stacked = replace(
        dense,
        layers=tuple(replace(each, feed_forward=experts) for each in dense.layers),
        tracks=TracksConfig(num_tracks=2, block_depth=2),
    )
    given, wanted = random_tensors(dense), {name: t.shape for name, t in random_tensors(stacked).items()}
    one: dict[str, NDArray[Any]] = {}
    many = {name: t for name, t in random_tensors(stacked).items() if "router" in name}
    for name, tensor in given.items():
        if tensor.ndim == 1:
            parts = {name: tensor}
        else:
            parts = packed("int4_group32" if name == "embedding" else weights, tensor, name)
        one |= parts
        for part, array in parts.items():
            known = name if name in wanted else name.removesuffix(".weight")  # experts are not modules
            leading = wanted[known][: len(wanted[known]) - tensor.ndim]
            many[part.replace(name, known)] = np.ascontiguousarray(np.broadcast_to(array, (*leading, *array.shape)))
    dense_bundle = write(tmp_path / "dense", dense, one, numerics)
    bundle = write(tmp_path / "stacked", stacked, many, numerics)
    assert isinstance(dense.layers[0].feed_forward, DenseFeedForwardConfig)
    for kernels in kernel_names(native_library()):
        expected = logits(NativeEngine(dense_bundle, num_threads=1, kernels=kernels))
        np.testing.assert_array_equal(logits(NativeEngine(bundle, num_threads=2, kernels=kernels)), expected)


ASTC = "tracks with windows and shared keys and values"


@pytest.fixture(scope="module")
def astc(bundle_of: Callable[[str], Bundle], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """A compressed server model with its recovery adapter, with activations in bfloat16 and in fp32."""
    source, folder = bundle_of(ASTC), tmp_path_factory.mktemp("astc")
    blocks = AstcConfig(partitions=1, num_candidates=1)
    made = AstcCompression(adapter=LoRAConfig(rank=2), blocks=blocks, calibration=None).compress(source)
    assert made.numerics.activations == "bfloat16"
    return {
        activations: write(
            folder / activations,
            source.config,
            dict(made.tensors),
            replace(made.numerics, activations=activations),
            made.recovery,
        )
        for activations in ("bfloat16", "float32")
    }


def test_an_astc_bundle_runs_natively_with_the_choices_of_torch(astc: dict[str, Bundle]) -> None:
    bundle = astc["float32"]
    assert engine_name(bundle) == "native"
    texts = [random_tokens(200, seed) for seed in range(5)]
    found = compare_choices(TorchEngine.open(bundle), NativeEngine(bundle, num_threads=1), texts, chunk=100)
    assert found.num_positions == 1000
    assert found.share >= 0.999
    assert found.largest_margin < 0.01


def test_beside_bfloat16_activations_the_weights_are_those_that_torch_multiplies(astc: dict[str, Bundle]) -> None:
    """Everything else is computed in fp32, which torch rounds to bfloat16 after every operation."""
    bundle = astc["bfloat16"]
    peer, stored = TorchEngine.open(bundle), stored_tensors(bundle)
    weights = {name: tensor.detach() for name, tensor in peer.decoder.named_parameters() if tensor.ndim > 1}
    found = layouts(bundle)
    assert len(found) == 3 * (4 * 4 + 2 * 3 + 2 * (1 + 3 * 3)) - 3 * 2 + 1
    for layout in found.values():
        expected = weights[layout.tensor].flatten(0, -3)[layout.index] if layout.stack else weights[layout.tensor]
        if layout.is_decoded:
            assert layout.weights == "bfloat16"
            bits = expected.bfloat16().view(torch.uint16).numpy()
            np.testing.assert_array_equal(decoded(layout, stored), bits)
    exact, rounded = logits(NativeEngine(bundle, num_threads=1)), logits(peer)
    assert np.abs(exact - rounded).mean() < 0.02 * np.abs(rounded).mean()


def test_a_process_that_runs_an_astc_bundle_never_imports_torch(astc: dict[str, Bundle]) -> None:
    program = (
        "import sys; from openafm.bundle import open_bundle; from openafm.runtime.engines.selection import open_engine; "
        f"engine = open_engine(open_bundle({str(astc['bfloat16'].path)!r})); "
        "engine.step([(engine.new_sequence(), [1, 2, 3])]); "
        "print(type(engine).__name__, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "NativeEngine False\n", done.stderr


def choosing(bundle: Bundle, experts: ExpertsConfig) -> Bundle:
    """Return the bundle with other experts in its config."""
    changed = Bundle(bundle.path)
    layers = tuple(
        replace(each, feed_forward=experts) if isinstance(each.feed_forward, ExpertsConfig) else each
        for each in bundle.config.layers
    )
    changed.config = replace(bundle.config, layers=layers)
    return changed


def test_doctor_names_the_decoded_format(astc: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "stream_bandwidth", lambda _: 1e9)
    monkeypatch.setattr(doctor, "_MOST_TOKENS", 2)
    bundle = astc["bfloat16"]
    report = doctor.examine(bundle).model
    assert report is not None
    assert (report.engine, report.decoded) == ("native", "bfloat16")
    assert weight_bytes(bundle, 1000, 3.6, "native") == 2000
    assert weight_bytes(bundle, 1000, 3.6, "torch") == 4000


def test_a_decode_step_reads_the_chosen_experts_only(astc: dict[str, Bundle]) -> None:
    bundle = astc["bfloat16"]
    two, three = (
        doctor.bytes_per_token(
            choosing(bundle, ExpertsConfig(num_experts=3, hidden_dim=16, router=TopKRouterConfig(num_chosen=chosen)))
        )
        for chosen in (2, 3)
    )
    expert = 3 * 16 * 32 * 2  # gate, up and down of 16 hidden numbers, in bfloat16
    assert three - two == 2 * 3 * expert  # in two layers of three tracks


@pytest.mark.parametrize("damage", ["missing scale", "other shape", "illegal block"])
def test_damaged_astc_weights_raise(damage: str, astc: dict[str, Bundle], tmp_path: Path) -> None:
    bundle, name = astc["float32"], "layers.1.feed_forward.gate"
    tensors = {each: np.array(tensor) for each, tensor in bundle.tensors().items()}
    if damage == "missing scale":
        del tensors[f"{name}.scale"]
    elif damage == "other shape":
        tensors[name] = tensors[name][:-1]
    else:
        tensors[name][0, 0, 0] = 255
    broken = write(tmp_path / "b", bundle.config, tensors, bundle.numerics)
    with pytest.raises(BundleError, match=name.replace(".", r"\.")):
        NativeEngine(broken, num_threads=1)


def test_unknown_routers_and_activations_have_a_reason(bundle_of: Callable[[str], Bundle]) -> None:
    bundle = bundle_of("server")

    class OtherRouterConfig(TopKRouterConfig):
        pass

    for experts, reason in (
        (ExpertsConfig(num_experts=4, hidden_dim=64, activation="gelu"), "gelu"),
        (ExpertsConfig(num_experts=4, hidden_dim=64, router=OtherRouterConfig()), "OtherRouterConfig"),
    ):
        assert reason in (unsupported(choosing(bundle, experts)) or "")
