"""Images in the native engine: the native tower equals torch's, and embeddings enter the prefill."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from native_bundles import CONFIG, write_compressed, write_random_adapter
from torch import nn

from openafm.bundle import Bundle
from openafm.bundle.decoder import load_decoder
from openafm.bundle.errors import BundleError
from openafm.compression.deploy import FixedRounding, build_decoder
from openafm.compression.group_linear import GroupedProduct, GroupLinear
from openafm.compression.grouped import FORMATS, GroupedMatrix
from openafm.compression.int8_rows import with_vision_for_products, with_vision_in_8_bits
from openafm.compression.numerics import FULL_PRECISION
from openafm.models.layers import Linear
from openafm.models.vision.config import (
    ConvolutionConfig,
    GlobalScopeConfig,
    RegisterWindowScopeConfig,
    VisionConfig,
    WindowScopeConfig,
)
from openafm.models.vision.image_modes import ImageModeConfig
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.pixel_shuffle_config import PixelShuffleAdapterConfig
from openafm.models.vision.sizes import adapter_for, convolutions, stem_of, windowed_encoder
from openafm.runtime.engines.base import InsertedEmbeddings, InsertedEmbeddingsError
from openafm.runtime.engines.prefix_cache import PrefixCache
from openafm.runtime.engines.selection import engine_name
from openafm.runtime.engines.sequence import Insertion, PromptTokens
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.library import kernel_names, native_library
from openafm.runtime.native.support import unsupported
from openafm.runtime.native.vision import LazyVisionTower, VisionTower, interpolated
from openafm.runtime.native.vision_parts import TowerParts
from openafm.runtime.native.vision_stem import neighborhoods

VISION = windowed_encoder(
    image_side=32, patch_side=4, window_side=4, dim=32, num_layers=3, num_heads=4, mlp_dim=48, num_global_layers=1
)
STEM = (ConvolutionConfig(channels=8, kernel_side=5, stride=2), ConvolutionConfig(channels=12))
MODES = (ImageModeConfig(name="balanced", side=32, tokens=9), ImageModeConfig(name="high", side=32, tokens=4, grid=2))


def seeing(vision: VisionConfig = VISION) -> MultimodalConfig:
    return MultimodalConfig.of(CONFIG, vision, adapter_for(vision, 3), MODES)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_compressed(tmp_path_factory.mktemp("bundles") / "seeing", config=seeing())


def views(num: int, side: int) -> np.ndarray:
    return np.random.default_rng(side).integers(256, size=(num, side, side, 3), dtype=np.uint8)


def scoped(scope: RegisterWindowScopeConfig | WindowScopeConfig | GlobalScopeConfig, **values: object) -> VisionConfig:
    first, *rest = VISION.layers
    return replace(VISION, layers=(replace(first, scope=scope, layer_scale=0.5), *rest), **values)


@pytest.mark.parametrize("side", [16, 32, 48])
@pytest.mark.parametrize(
    "vision",
    [
        VISION,
        scoped(WindowScopeConfig(), num_registers=3),
        scoped(GlobalScopeConfig(), pixel_mean=(0.4, 0.5, 0.6)),
        replace(
            scoped(WindowScopeConfig()), layers=(replace(VISION.layers[0], scope=WindowScopeConfig()),), num_registers=0
        ),
        replace(VISION, stem=STEM, pixel_mean=(0.4, 0.5, 0.6)),
    ],
)
def test_the_tower_equals_the_torch_modules(vision: VisionConfig, side: int) -> None:
    config = seeing(vision)
    model = config.build(seed=5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith(("bias", "_scale")):
                parameter.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
        model.adapter.convolution.taps.weight.mul_(50)
        expected = model.encode_images(torch.tensor(views(2, side)), 4).numpy()
    tower = VisionTower(config, {name: weight.detach().numpy() for name, weight in model.state_dict().items()})
    found = tower.encode(views(2, side), 4)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("side", [64, 128])
def test_convolutions_alone_equal_the_torch_modules(side: int, tmp_path: Path) -> None:
    config = MultimodalConfig.of(CONFIG, convolutions(64, stem_of(8, 12)), PixelShuffleAdapterConfig(factor=2))
    bundle = write_compressed(tmp_path / "seeing", config=config)
    model, num_tokens = load_decoder(bundle), (side // 16) ** 2
    assert isinstance(model, MultimodalDecoder)
    with torch.no_grad():
        expected = model.encode_images(torch.tensor(views(2, side)), num_tokens).float().numpy()
    tower = LazyVisionTower(bundle, 1, None)
    found = tower.encode(views(2, side), num_tokens)
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()
    with pytest.raises(BundleError, match=f"a view of {side} pixels has {num_tokens} tokens, not 9"):
        tower.encode(views(1, side), 9)


@pytest.mark.parametrize(("side", "kernel_side", "stride"), [(9, 3, 1), (9, 5, 2), (16, 7, 4), (10, 1, 3)])
def test_inputs_of_convolutions_equal_torch(
    side: int, kernel_side: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.rand(2, side, side, 5, generator=torch.Generator().manual_seed(side))
    margin, border = kernel_side // 2, np.arange(5, dtype=np.float32)
    padded = torch.from_numpy(border).expand(2, side + 2 * margin, side + 2 * margin, 5).clone()
    padded[:, margin : margin + side, margin : margin + side] = x
    columns = torch.nn.functional.unfold(padded.permute(0, 3, 1, 2), kernel_side, stride=stride)  # [V, C * K * K, P]
    expected = columns.unflatten(1, (5, -1)).permute(0, 3, 2, 1).flatten(2)
    for num_bytes in (1, 10**6):
        monkeypatch.setattr("openafm.runtime.native.vision_stem.NEIGHBORHOOD_BYTES", num_bytes)
        parts = list(neighborhoods(x.numpy(), kernel_side, stride, border))
        assert (len(parts) > 1) == (num_bytes == 1)
        found = np.concatenate(parts, axis=1)
        assert np.array_equal(found.reshape(2, -1, found.shape[-1]), expected.numpy())


def test_convolutions_that_their_weights_do_not_fit_are_refused_before_they_take_memory() -> None:
    config = seeing(replace(VISION, stem=STEM))
    tensors = {name: weight.detach().numpy() for name, weight in config.build(seed=5).state_dict().items()}
    hostile = replace(VISION, stem=(STEM[0], replace(STEM[1], kernel_side=99_999)))
    with pytest.raises(ValueError, match=r"convolutions\.1\.product\.weight has the shape \(12, 72\), expected \(12, 7999"):
        VisionTower(seeing(hostile), tensors)


def parts_of(weights: dict[str, np.ndarray], num_threads: int, kernels: str) -> TowerParts:
    return TowerParts({name: each.copy() for name, each in weights.items()}, num_threads, kernels)


def kernels_and_threads() -> list[tuple[str, int]]:
    return [(name, threads) for name in kernel_names(native_library()) for threads in (1, 3)]


def relative(found: np.ndarray, expected: torch.Tensor) -> float:
    return float(np.abs(found - expected.numpy()).max() / expected.abs().max())


@pytest.mark.parametrize(("num_inputs", "num_outputs", "num_rows"), [(5, 3, 1), (48, 64, 7), (130, 77, 50)])
def test_products_and_norms_equal_torch_on_all_kernels(num_inputs: int, num_outputs: int, num_rows: int) -> None:
    rng = np.random.default_rng(num_inputs)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    weights = {"up.weight": draw(num_outputs, num_inputs), "up.bias": draw(num_outputs)}
    weights |= {"norm.weight": draw(num_inputs), "norm.bias": draw(num_inputs)}
    x_TI = 3 * draw(num_rows, num_inputs) + 20
    w = {name: torch.tensor(each, dtype=torch.float64) for name, each in weights.items()}
    x = torch.tensor(x_TI, dtype=torch.float64)
    product = torch.nn.functional.linear(x - 20, w["up.weight"], w["up.bias"])
    for kernels, threads in kernels_and_threads():
        parts = parts_of(weights, threads, kernels)
        assert relative(parts.linear("up", x_TI - 20), product) < 2e-6
        assert relative(parts.linear("up", x_TI - 20, has_gelu=True), torch.nn.functional.gelu(product)) < 2e-6
        norm = torch.nn.functional.layer_norm(x, (num_inputs,), w["norm.weight"], w["norm.bias"], 1e-6)
        assert relative(parts.norm("norm", 1e-6, x_TI), norm) < 5e-6
        with pytest.raises(ValueError, match=f"up has {num_inputs} inputs, got rows of {num_inputs + 1}"):
            parts.linear("up", np.zeros((2, num_inputs + 1), np.float32))


def rounded_weights(num_outputs: int, num_inputs: int, name: str) -> tuple[dict[str, np.ndarray], GroupLinear]:
    """Codes of 8 bits for the native kernels, and the Linear that multiplies them in torch."""
    rng = np.random.default_rng(num_outputs)
    codes_RI = rng.integers(-127, 128, (num_outputs, num_inputs)).astype(np.int8)
    scale_R, bias_R = (rng.uniform(0.001, 0.01, num_outputs).astype(np.float32) for _ in range(2))
    linear = Linear(num_inputs, num_outputs, bias=True)
    linear.bias = nn.Parameter(torch.tensor(bias_R))
    matrix = GroupedMatrix(format=FORMATS["int8_per_row"], codes_RC=codes_RI, scale=scale_R, minimum_RG=None)
    tensors = {f"{name}.weight": codes_RI, f"{name}.weight.scale": scale_R, f"{name}.bias": bias_R}
    return tensors, GroupLinear(linear, GroupedProduct(matrix, FixedRounding(True)))


@pytest.mark.parametrize("num_rows", [1, 5, 6, 13, 97, 200])
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(32, 3), (96, 64), (384, 200)])
def test_products_with_8_bits_have_the_bits_of_torch(num_inputs: int, num_outputs: int, num_rows: int) -> None:
    weights, linear = rounded_weights(num_outputs, num_inputs, "up")
    x_TI = np.random.default_rng(num_rows).normal(size=(num_rows, num_inputs)).astype(np.float32)
    with torch.no_grad():
        expected = linear(torch.tensor(x_TI))
    for kernels, threads in kernels_and_threads():
        parts = parts_of(weights, threads, kernels)
        assert np.array_equal(parts.linear("up", x_TI), expected.numpy())
        assert relative(parts.linear("up", x_TI, has_gelu=True), torch.nn.functional.gelu(expected)) < 2e-6


def test_no_rows_give_no_rows() -> None:
    for kernels, threads in kernels_and_threads():
        parts = parts_of(rounded_weights(64, 32, "up")[0], threads, kernels)
        assert parts.linear("up", np.zeros((0, 32), np.float32)).shape == (0, 64)


@pytest.mark.parametrize("num_rows", [1, 97, 200])
@pytest.mark.parametrize("has_codes", [False, True])
def test_a_feed_forward_equals_torch_on_all_kernels(has_codes: bool, num_rows: int) -> None:
    dim, mlp_dim = 64, 96
    (up_weights, up), (down_weights, down) = rounded_weights(mlp_dim, dim, "up"), rounded_weights(dim, mlp_dim, "down")
    weights = up_weights | down_weights
    if not has_codes:
        for name in ("up", "down"):
            scale_R = weights.pop(f"{name}.weight.scale")
            weights[f"{name}.weight"] = weights[f"{name}.weight"] * scale_R[:, None]
    rng = np.random.default_rng(num_rows)
    weights |= {name: rng.uniform(0.5, 1.5, dim).astype(np.float32) for name in ("norm.weight", "norm.bias")}
    w = {name: torch.tensor(each) for name, each in weights.items()}
    x_TD = rng.normal(size=(num_rows, dim)).astype(np.float32)
    x = torch.tensor(x_TD)
    with torch.no_grad():
        normed = torch.nn.functional.layer_norm(x, (dim,), w["norm.weight"], w["norm.bias"], 1e-6)
        if has_codes:
            expected = x + down(torch.nn.functional.gelu(up(normed)))
        else:
            hidden = torch.nn.functional.gelu(torch.nn.functional.linear(normed, w["up.weight"], w["up.bias"]))
            expected = x + torch.nn.functional.linear(hidden, w["down.weight"], w["down.bias"])
    for kernels, threads in kernels_and_threads():
        found = parts_of(weights, threads, kernels).feed_forward("norm", "up", "down", 1e-6, x_TD)
        if has_codes:  # norms and GELU differ in their last bits, so that a few inputs round to the next integer
            assert relative(found, expected) < 2e-2
            assert np.abs(found - expected.numpy()).mean() < 2e-4 * np.abs(expected.numpy()).mean()
        else:
            assert relative(found, expected) < 5e-6


@pytest.mark.parametrize("stem", [(), (ConvolutionConfig(channels=32, stride=2), ConvolutionConfig(channels=32))])
@pytest.mark.parametrize("layer_scale", [None, 0.5])
def test_the_tower_in_8_bits_equals_the_torch_modules(
    layer_scale: float | None, stem: tuple[ConvolutionConfig, ...]
) -> None:
    layers = tuple(replace(layer, layer_scale=layer_scale, mlp_dim=64) for layer in VISION.layers)
    config = seeing(replace(VISION, layers=layers, stem=stem))
    tensors = {name: weight.detach().numpy() for name, weight in config.build(seed=5).state_dict().items()}
    stored, numerics = with_vision_in_8_bits(tensors, FULL_PRECISION)
    assert numerics.rounds_vision
    model = build_decoder(config, numerics, stored)
    assert isinstance(model, MultimodalDecoder)
    rounded = {name for name, module in model.named_modules() if isinstance(module, GroupLinear)}
    assert len(rounded) == 4 * (len(layers) + 1) + 2
    with torch.no_grad():
        expected = model.encode_images(torch.tensor(views(2, 32)), 4).numpy()
        original = build_decoder(config, FULL_PRECISION, tensors)
        assert isinstance(original, MultimodalDecoder)
        exact = original.encode_images(torch.tensor(views(2, 32)), 4).numpy()
    found = VisionTower(config, with_vision_for_products(stored, numerics)).encode(views(2, 32), 4)
    scale = np.linalg.norm(exact)
    largest = 1.5e-2 if stem else 1e-2  # some inputs round to the next integer; products have equal bits
    assert np.linalg.norm(found - expected) < largest * scale
    assert 1e-2 * scale < np.linalg.norm(expected - exact) < 5e-2 * scale


@pytest.mark.parametrize(("shared", "windows", "own", "heads", "head_dim"), [(0, 1, 120, 2, 32), (3, 4, 13, 3, 12)])
def test_attention_equals_torch_on_all_kernels(shared: int, windows: int, own: int, heads: int, head_dim: int) -> None:
    qkv = 2 * np.random.default_rng(own).normal(size=(shared + windows * own, 3, heads, head_dim)).astype(np.float32)
    expected = []
    for window in range(windows):
        first = shared + window * own
        rows = torch.tensor(np.concatenate([qkv[:shared], qkv[first : first + own]]), dtype=torch.float64)
        q, k, v = rows.permute(1, 2, 0, 3)
        expected.append(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))
    for kernels, threads in kernels_and_threads():
        found = parts_of({}, threads, kernels).attention(qkv, num_shared=shared, num_windows=windows)
        assert relative(found, torch.stack(expected)) < 3e-6


def test_gelu_equals_torch_far_from_zero() -> None:
    x = np.linspace(-12, 12, 100_001, dtype=np.float32)[:, None]
    expected = torch.nn.functional.gelu(torch.tensor(x)).numpy()
    for kernels in kernel_names(native_library()):
        parts = parts_of({"up.weight": np.ones((1, 1), np.float32), "up.bias": np.zeros(1, np.float32)}, 1, kernels)
        assert np.abs(parts.linear("up", x, has_gelu=True) - expected).max() < 2e-6


def test_bicubic_positions_equal_torch() -> None:
    position_GGD = np.random.default_rng(0).normal(size=(7, 7, 3)).astype(np.float32)
    for grid in (3, 7, 12):
        resized = torch.nn.functional.interpolate(
            torch.tensor(position_GGD).permute(2, 0, 1)[None], (grid, grid), mode="bicubic"
        )
        assert np.abs(interpolated(position_GGD, grid) - resized[0].permute(1, 2, 0).numpy()).max() < 2e-6


def test_prefill_with_images_equals_the_torch_engine(bundle: Bundle) -> None:
    assert unsupported(bundle) is None
    assert engine_name(bundle) == "native"
    native, reference = NativeEngine(bundle, num_threads=1), TorchEngine.open(bundle)
    vectors = [reference.encode_views(views(1, 32), 9), reference.encode_views(views(5, 32), 4)]
    assert [each.shape for each in vectors] == [(9, 64), (20, 64)]
    for expected, found in zip(
        vectors, (native.encode_views(views(1, 32), 9), native.encode_views(views(5, 32), 4)), strict=True
    ):
        assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()
    inserted = [InsertedEmbeddings(3, vectors[0], "a:9"), InsertedEmbeddings(15, vectors[1], "b:20")]
    tokens = [*range(1, 4), *[7] * 9, *range(1, 4), *[7] * 20, 5, 6]
    whole = native.step([(native.new_sequence(), tokens, inserted)], "all")[0]
    exact = reference.step([(reference.new_sequence(), tokens, inserted)], "all")[0]
    assert np.abs(whole - exact).max() < 1e-4 * np.abs(exact).max()
    plain = native.step([(native.new_sequence(), tokens)], "all")[0]
    assert np.array_equal(plain[:3], whole[:3])
    assert not np.allclose(plain[-1], whole[-1], atol=1e-3)
    for cut in (3, 7, 12, 30):  # in two steps, beside another sequence
        one, other = native.new_sequence(), native.new_sequence()
        parts = [[part for each in inserted if (part := each.cut(*span)) is not None] for span in ((0, cut), (cut, 37))]
        native.step([(other, [4, 5, 6]), (one, tokens[:cut], parts[0])])
        last = native.step([(one, tokens[cut:], parts[1]), (other, [1])], "all")[0]
        assert np.array_equal(last, whole[cut:])


def test_adapters_change_the_decoder_and_not_the_images(bundle: Bundle, tmp_path: Path) -> None:
    adapter = write_random_adapter(tmp_path / "random.fmadapter", bundle, seed=1)
    engines = NativeEngine(bundle, adapter, num_threads=1), TorchEngine.open(bundle, adapter)
    plain = NativeEngine(bundle, num_threads=1)
    vectors_LD = plain.encode_views(views(1, 32), 9)
    tokens, inserted = [1, *[7] * 9, 2], [InsertedEmbeddings(1, vectors_LD, "a:9")]
    native, exact, without = (each.step([(each.new_sequence(), tokens, inserted)])[0] for each in (*engines, plain))
    assert np.array_equal(engines[0].encode_views(views(1, 32), 9), vectors_LD)
    assert np.abs(native - exact).max() < 1e-4 * np.abs(exact).max()
    assert not np.allclose(native, without, atol=1e-3)


def test_snapshots_and_prefixes_keep_images(bundle: Bundle) -> None:
    engine = NativeEngine(bundle, num_threads=1)
    tokens = [*range(1, 18), *[7] * 9, 3]
    prompts = [PromptTokens(tokens, (Insertion(17, 26, f"{name}:9"),)) for name in "ab"]
    vectors = [engine.encode_views(views(1, side), 9) for side in (32, 16)]
    cache, logits = PrefixCache(engine, 1 << 30), []
    for prompt, vectors_LD in zip(prompts, vectors, strict=True):
        sequence = engine.new_sequence()
        engine.step([(sequence, tokens, [InsertedEmbeddings(17, vectors_LD, prompt.insertions[0].digest)])])
        cache.keep(sequence, len(tokens), "conversation")
        restored = engine.restore(engine.snapshot(sequence))
        assert restored.content == prompt
        logits.append([engine.step([(each, [2])])[0] for each in (sequence, restored)])
    for prompt, (expected, again) in zip(prompts, logits, strict=True):
        found = cache.begin(prompt)
        assert found.length == len(prompt)
        assert np.array_equal(engine.step([(found, [2])])[0], expected)
        assert np.array_equal(again, expected)
    assert not np.array_equal(logits[0][0], logits[1][0])


def test_embeddings_of_another_dim_are_refused(bundle: Bundle) -> None:
    engine = NativeEngine(bundle, num_threads=1)
    with pytest.raises(InsertedEmbeddingsError, match="dim is 64"):
        engine.step([(engine.new_sequence(), [1, 2], [InsertedEmbeddings(0, np.zeros((2, 32), np.float32), "a")])])


def test_a_text_bundle_encodes_no_views(tmp_path: Path) -> None:
    engine = NativeEngine(write_compressed(tmp_path / "text"), num_threads=1)
    with pytest.raises(InsertedEmbeddingsError, match="no vision encoder"):
        engine.encode_views(views(1, 32), 9)


def test_images_need_no_torch(bundle: Bundle) -> None:
    program = """
import sys
import numpy as np
import openafm as fm
session = fm.LanguageModelSession(model=fm.SystemLanguageModel(bundle=sys.argv[1]))
picture = fm.Image(np.random.default_rng(0).integers(256, size=(40, 40, 3), dtype=np.uint8))
session.respond_blocking(fm.Prompt(picture, "name"), options=fm.GenerationOptions(maximum_response_tokens=3))
assert not {"torch", "transformers"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program, str(bundle.path)], check=True, timeout=120)
