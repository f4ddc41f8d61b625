"""Time to the first token of a prompt with one image, by resolution mode (report 5.1), on both engines.

The model is `on_device.nano_multimodal` with random weights in fp32 and the tokenizer of the shipped nano: times do not
depend on what it learned. `native_8_bit` has vision weights in 8 bits. Each prompt has another image of 1,000 x 800 pixels
and a new session, so no cache has its embeddings or its keys and values. `ttft_MODE_ENGINE` are median seconds from the call
to the first token, `cpu_s_MODE_ENGINE` its CPU seconds, which other work on the machine changes less, `tokens_MODE` the
tokens of an image. Modes and engines alternate, on one thread; all models stay loaded.

    python benchmarks/image_ttft.py [--quick] [--json]

A full run writes docs/benchmarks/image_ttft.json. `--quick` runs the same code for fewer rounds and claims nothing.
"""

from __future__ import annotations

import io
import os
import statistics
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, cast

os.environ["OMP_NUM_THREADS"] = os.environ["OPENAFM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from PIL import Image
from shared.reporting import benchmark_parser, hand_in
from shared.vision_runs import home

import openafm as fm
from openafm.bundle import open_bundle, write_bundle
from openafm.compression.int8_rows import with_vision_in_8_bits
from openafm.compression.numerics import FULL_PRECISION
from openafm.framework.backends.loaded_model import LoadedModel
from openafm.models.sizes import named_size
from openafm.models.vision.multimodal_config import MultimodalConfig

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "image_ttft.json"
ENGINES = ("torch", "native", "native_8_bit")
"""Engines; the last one has the vision weights of a compressed bundle."""
SIDES = (800, 1000)


def photo(seed: int) -> bytes:
    """Return a JPEG that no other seed gives."""
    coarse = np.random.default_rng(seed).integers(256, size=(40, 50, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize(SIDES[::-1], Image.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()


def seconds(model: fm.SystemLanguageModel, mode: str, seed: int) -> tuple[float, float]:
    """Return the wall and CPU seconds from the call to the first token of an answer about a new image."""
    session = fm.LanguageModelSession(model=model)
    prompt = fm.Prompt(fm.Image(photo(seed)), "What does the sign say?")
    options = fm.GenerationOptions(maximum_response_tokens=1, image_detail=cast(Any, mode))
    start, cpu_start = perf_counter(), process_time()
    session.respond_blocking(prompt, options=options)
    return perf_counter() - start, process_time() - cpu_start


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    shipped, config = open_bundle("nano"), named_size("on_device.nano_multimodal")
    assert isinstance(config, MultimodalConfig)
    models: dict[str, fm.SystemLanguageModel] = {}
    loaded: dict[str, LoadedModel] = {}  # a model that nothing holds would be loaded again for each request
    for seed, engine in enumerate(ENGINES):
        # Bundles with equal weights would share one loaded model, and its caches.
        weights = {name: weight.numpy() for name, weight in config.build(seed=seed).state_dict().items()}
        has_8_bits = engine == "native_8_bit"
        tensors, numerics = with_vision_in_8_bits(weights, FULL_PRECISION) if has_8_bits else (weights, FULL_PRECISION)
        bundle = write_bundle(
            folder / engine,
            config=config,
            tokenizer=shipped.tokenizer,
            template=shipped.template,
            tensors=tensors,
            numerics=numerics,
        )
        os.environ["OPENAFM_ENGINE"] = engine.removesuffix("_8_bit")  # chosen when a model is loaded
        models[engine] = fm.SystemLanguageModel(bundle=bundle.path)
        loaded[engine] = models[engine].load()
        assert ("Torch" in type(loaded[engine].engine).__name__) == (engine == "torch")
    modes = {mode.name: mode for mode in config.image_modes}
    times: dict[tuple[str, str], list[tuple[float, float]]] = {(mode, engine): [] for mode in modes for engine in ENGINES}
    for seed in range(rounds + 1):  # the first one warms up
        for mode, engine in times:
            times[mode, engine].append(seconds(models[engine], mode, seed))
    assert all(models[engine].load() is loaded[engine] for engine in ENGINES)
    figures: dict[str, Any] = {f"tokens_{name}": mode.num_tokens for name, mode in modes.items()}
    for (mode, engine), measured in times.items():
        wall, cpu = zip(*measured[1:], strict=True)
        figures[f"ttft_{mode}_{engine}"] = round(statistics.median(wall), 3)
        figures[f"cpu_s_{mode}_{engine}"] = round(statistics.median(cpu), 3)
    return {
        "benchmark": "image_ttft",
        "peer": "the same model in the other modes and on the other engine",
        "setting": {"model": "on_device.nano_multimodal", "rounds": rounds, "image": "1000 x 800"},
        "figures": figures,
    }


def main() -> None:
    options = benchmark_parser(__doc__, "3 rounds; claims nothing").parse_args()
    with home() as folder:
        hand_in(measure(folder, 3 if options.quick else 15), REPORT, options)


if __name__ == "__main__":
    main()
