"""Speed of the vision encoder (report 2.3): images per second on one core, beside transformers' VitDet of the same shape.

Both encode the same images; the windows, layers and sizes are equal, and the outputs agree within 1e-4. The floor is the
time of the matrix products and of torch's attention alone, with the same shapes. Contestants alternate, on one thread, in
CPU time; figures are medians over rounds. `register_window` is the share of the speed that Register-Window costs.

`native_ratio` is the speed of the native engine's encoder and adapter in fp32 beside onnxruntime on the same weights,
`native_8_bit_ratio` that with rounded inputs and codes of 8 bits (`pip install onnx onnxruntime`; null without them).
`native_8_bit_to_vitdet` compares the native encoder alone, with Register-Window and codes of 8 bits, with VitDet.
Of several shapes the last one counts.

    python benchmarks/vision_encoder.py [--quick] [--json]

A full run writes docs/benchmarks/vision_encoder.json. `--quick` runs the same code for one round and claims nothing.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import process_time

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.nn.functional as F
from shared.native_tower import tower_seconds
from shared.reporting import benchmark_parser, hand_in

from openafm.compression.int8_rows import with_vision_for_products, with_vision_in_8_bits
from openafm.compression.numerics import FULL_PRECISION
from openafm.models.sizes import named_size
from openafm.models.vision.config import GlobalScopeConfig, VisionConfig, WindowScopeConfig
from openafm.models.vision.encoder import VisionEncoder
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.sizes import adapter_for, encoder_of, windowed_encoder
from openafm.runtime.native.vision import VisionTower

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "vision_encoder.json"
SHAPES: Mapping[str, VisionConfig] = {
    "nano": encoder_of("rw_vitdet.nano"),
    "small_672": windowed_encoder(
        image_side=672, patch_side=16, window_side=14, dim=384, num_layers=12, num_heads=6, mlp_dim=1536
    ),
}


def plain(config: VisionConfig) -> VisionConfig:
    """Return the encoder without registers, as ViTDet has it."""
    layers = tuple(
        layer if isinstance(layer.scope, GlobalScopeConfig) else replace(layer, scope=WindowScopeConfig())
        for layer in config.layers
    )
    return replace(config, layers=layers, num_registers=0)


def vitdet(ours: VisionEncoder) -> torch.nn.Module:
    """Return transformers' VitDet with the weights of our encoder; it has no final norm."""
    from transformers import VitDetConfig, VitDetModel

    config, layer = ours.config, ours.config.layers[0]
    theirs = VitDetModel(
        VitDetConfig(
            hidden_size=config.dim,
            num_hidden_layers=len(config.layers),
            num_attention_heads=layer.num_heads,
            mlp_ratio=layer.mlp_dim // config.dim,
            image_size=config.image_side,
            pretrain_image_size=config.image_side,
            patch_size=config.patch_side,
            window_size=config.window_side,
            window_block_indices=[
                index for index, each in enumerate(config.layers) if not isinstance(each.scope, GlobalScopeConfig)
            ],
        )
    ).eval()
    names = {
        "attention_norm": "norm1",
        "query_key_value": "attention.qkv",
        "output": "attention.proj",
        "mlp_norm": "norm2",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    }
    weights = {
        f"encoder.layer.{index}.{their}.{kind}": module.get_parameter(f"{our}.{kind}")
        for index, module in enumerate(ours.layers)
        for our, their in names.items()
        for kind in ("weight", "bias")
    }
    patch_DCPP = ours.patch.weight.unflatten(1, (config.patch_side, config.patch_side, 3)).permute(0, 3, 1, 2)
    weights |= {"embeddings.projection.weight": patch_DCPP, "embeddings.projection.bias": ours.patch.get_parameter("bias")}
    positions = torch.cat((torch.zeros(1, config.dim), ours.position_GGD.flatten(0, 1)))
    theirs.load_state_dict(weights | {"embeddings.position_embeddings": positions[None]}, strict=True)
    return theirs


def floor(config: VisionConfig) -> Callable[[], None]:
    """Return the products and the attention of one image, without norms, activations, biases and copies."""
    num_windows, window_tokens = config.windows(config.image_side)
    num_tokens = num_windows * window_tokens
    x, wide = torch.randn(num_tokens, config.dim), torch.randn(num_tokens, config.layers[0].mlp_dim)
    dim, mlp_dim = config.dim, config.layers[0].mlp_dim
    matrices = [torch.randn(shape) for shape in ((3 * dim, dim), (dim, dim), (mlp_dim, dim))]
    down = torch.randn(dim, mlp_dim)

    def attention(windows: int) -> None:
        heads = config.layers[0].num_heads
        q = torch.randn(windows, heads, num_tokens // windows, dim // heads)
        F.scaled_dot_product_attention(q, q, q)

    def run() -> None:
        for layer in config.layers:
            for matrix in matrices:
                F.linear(x, matrix)
            F.linear(wide, down)
            attention(1 if isinstance(layer.scope, GlobalScopeConfig) else num_windows)

    return run


def native_encoder(config: VisionConfig, encoder: VisionEncoder) -> VisionTower:
    """Return the encoder in the native engine, with codes of 8 bits and rounded inputs."""
    weights = {f"vision.{name}": weight.detach().numpy() for name, weight in encoder.state_dict().items()}
    stored = with_vision_for_products(*with_vision_in_8_bits(weights, FULL_PRECISION))
    return VisionTower(MultimodalConfig.of(named_size("on_device.nano"), config, adapter_for(config)), stored)


def seconds(work: Callable[[], object]) -> float:
    start = process_time()
    work()
    return process_time() - start


@torch.inference_mode()
def measure(config: VisionConfig, rounds: int) -> dict[str, float]:
    bare, with_registers = plain(config).build(), config.build()
    theirs = vitdet(bare)
    pixels = torch.rand(1, config.image_side, config.image_side, 3)
    channels_first = ((pixels - 0.5) / 0.5).permute(0, 3, 1, 2).contiguous()
    expected = F.layer_norm(theirs(channels_first).last_hidden_state.permute(0, 2, 3, 1), (config.dim,))
    error = (F.layer_norm(bare(pixels).patches_BYXD, (config.dim,)) - expected).abs().max().item()
    assert error < 1e-4, f"the encoders disagree by {error}"
    native = native_encoder(config, with_registers)
    view = (pixels[0] * 255).to(torch.uint8).numpy()
    contestants: dict[str, Callable[[], object]] = {
        "ours": lambda: bare(pixels),
        "register_window": lambda: with_registers(pixels),
        "native_8_bit": lambda: native.states(view),
        "transformers": lambda: theirs(channels_first),
        "floor": floor(config),
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):
        for name, work in contestants.items():
            times[name].append(seconds(work))
    return {name: statistics.median(each[1:]) for name, each in times.items()}  # the first round warms up


def towers_measured(shape: VisionConfig, rounds: int) -> dict[str, float]:
    """Return the seconds of the native tower and of its peers; nothing where onnxruntime is not installed."""
    try:
        return tower_seconds(shape, rounds)
    except ImportError as error:
        print(f"native_ratio needs onnx and onnxruntime: {error}", file=sys.stderr)
        return {}


def main() -> None:
    options = benchmark_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shapes = {"nano": SHAPES["nano"]} if options.quick else SHAPES
    measured = {name: measure(config, 1 if options.quick else 9) for name, config in shapes.items()}
    towers = {name: towers_measured(shape, 3 if options.quick else 9) for name, shape in shapes.items()}
    last, last_tower = measured[list(shapes)[-1]], towers[list(shapes)[-1]]
    figures: dict[str, object] = {
        "native_ratio": None,
        "native_8_bit_ratio": None,
        "native_8_bit_to_vitdet": round(last["transformers"] / last["native_8_bit"], 2),
        "ratio": round(last["transformers"] / last["ours"], 2),
        "floor_ratio": round(last["floor"] / last["ours"], 2),
    }
    if last_tower:
        figures["native_ratio"] = round(last_tower["onnxruntime"] / last_tower["native"], 2)
        figures["native_8_bit_ratio"] = round(last_tower["onnxruntime"] / last_tower["native_8_bit"], 2)
    for name, times in measured.items():
        figures[f"{name}.images_per_core_s"] = round(1 / times["ours"], 2)
        figures[f"{name}.ratio"] = round(times["transformers"] / times["ours"], 2)
        figures[f"{name}.floor_ratio"] = round(times["floor"] / times["ours"], 2)
        figures[f"{name}.register_window"] = round(times["ours"] / times["register_window"], 2)
        figures[f"{name}.native_8_bit_to_vitdet"] = round(times["transformers"] / times["native_8_bit"], 2)
        for tower in ("native", "native_8_bit"):
            if towers[name]:
                figures[f"{name}.{tower}_to_onnxruntime"] = round(towers[name]["onnxruntime"] / towers[name][tower], 2)
    report = {
        "benchmark": "vision_encoder",
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
    }
    hand_in({**report, "seconds": measured, "tower_seconds": towers, "figures": figures}, REPORT, options)


if __name__ == "__main__":
    main()
