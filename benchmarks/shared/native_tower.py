"""The native engine's vision encoder and adapter in fp32 and in 8 bits, beside onnxruntime on the same weights."""

from __future__ import annotations

import importlib
import io
import statistics
import warnings
from collections.abc import Callable
from time import process_time

import numpy as np
import torch
from torch import Tensor, nn

from openafm.compression.int8_rows import with_vision_for_products, with_vision_in_8_bits
from openafm.compression.numerics import FULL_PRECISION
from openafm.models.sizes import named_size
from openafm.models.vision.config import VisionConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.sizes import adapter_for
from openafm.runtime.native.vision import VisionTower


class Tower(nn.Module):
    """The torch modules as one, for the export."""

    def __init__(self, config: MultimodalConfig) -> None:
        super().__init__()
        self.vision = config.vision.build(seed=1)
        self.adapter = config.adapter.build(config.vision.dim, config.dim, seed=2)
        self.tokens_side = round(config.adapter.usual_tokens(config.vision, config.vision.image_side) ** 0.5)

    def forward(self, pixels_VYXC: Tensor) -> Tensor:
        tokens: Tensor = self.adapter(self.vision(pixels_VYXC), self.tokens_side)
        return tokens


def exported(tower: Tower, pixels_VYXC: Tensor) -> bytes:
    """Return the tower as an ONNX file."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shapes are constants, as intended
        torch.onnx.export(tower, (pixels_VYXC,), file, dynamo=False, input_names=["pixels"], output_names=["tokens"])
    return file.getvalue()


@torch.inference_mode()
def tower_seconds(vision: VisionConfig, rounds: int) -> dict[str, float]:
    """Return the median CPU seconds from the pixels of one view to its tokens on one thread, by contestant.

    Raises:
        ImportError: onnxruntime or onnx is not installed.
    """
    import onnxruntime

    importlib.import_module("onnx")  # the export below needs it

    config = MultimodalConfig.of(named_size("on_device.nano"), vision, adapter_for(vision))
    tower = Tower(config).eval()
    pixels_VYXC = torch.randint(256, (1, vision.image_side, vision.image_side, 3), dtype=torch.uint8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(exported(tower, pixels_VYXC), options, providers=["CPUExecutionProvider"])
    weights = {name: weight.numpy() for name, weight in tower.state_dict().items()}
    native = VisionTower(config, weights)
    rounded = VisionTower(config, with_vision_for_products(*with_vision_in_8_bits(weights, FULL_PRECISION)))
    views = pixels_VYXC.numpy()
    contestants: dict[str, Callable[[], object]] = {
        "native": lambda: native.encode(views, tower.tokens_side**2),
        "native_8_bit": lambda: rounded.encode(views, tower.tokens_side**2),
        "onnxruntime": lambda: session.run(None, {"pixels": views}),
        "torch": lambda: tower(pixels_VYXC),
    }
    expected = tower(pixels_VYXC)[0].numpy()
    for found in (native.encode(views, tower.tokens_side**2), session.run(None, {"pixels": views})[0][0]):
        error = np.abs(found - expected).max() / np.abs(expected).max()
        assert error < 1e-4, f"the towers disagree by {error}"
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):
        for name, work in contestants.items():
            start = process_time()
            work()
            times[name].append(process_time() - start)
    return {name: statistics.median(each[1:]) for name, each in times.items()}  # the first round warms up
