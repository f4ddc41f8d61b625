"""Open-weight models in 4 and 8 bits: decoding and prefill compared with llama.cpp, alternating in one run, one thread.

Random weights at the shapes of Qwen3-0.6B, and in a full run of 1.7B and 4B, without norms of queries and keys on either
side. Ours: int4_group64 weights (4.5 bits) with an int4_group32 embedding, and int8_group128 throughout. The peer: Q4_0 and
Q4_K (4.5 bits) with a Q4_K embedding, the faster one in each phase, and Q8_0 (8.5 bits). Times are CPU times of the process.

- `decode_ratio_int4`, `decode_ratio_int8`, `prefill_ratio_int4`: the peer's time over ours at 0.6B, above 1 if ours is
  faster; with `_1.7B` and `_4B` at the other shapes. None without the peer.
- `stream_share`: bytes that a decode step in 4 bits reads, divided by its time and by the measured memory stream of one
  thread.

    python benchmarks/open_weights_native.py [--quick] [--json] [--peer-python PYTHON]

The peer is llama.cpp through llama-cpp-python in any environment (see benchmarks/native_runtime.py). A full run writes
docs/benchmarks/open_weights_native.json.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent / "native"))
sys.path.insert(0, str(Path(__file__).parent / "shared"))

import numpy as np
from gguf import write_gguf
from measuring import Figures, Times, Worker, alternate, can_import, rounded, undisturbed
from numpy.typing import NDArray
from ours import decode, prefilled, tokens_of
from reporting import hand_in
from synthetic import add_bundle_options, synthetic_tokenizer

from openafm.bundle import Bundle, open_bundle, write_bundle
from openafm.compression.grouped import FORMATS
from openafm.compression.numerics import Numerics
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    RotaryConfig,
)
from openafm.runtime.doctor import bytes_per_token, stream_bandwidth
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.shapes import matrices, vectors
from openafm.tokenizer.chat_template import ChatTemplate

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "open_weights_native.json"
ASKED = {
    "decode_ratio_int4": ">= 1.15",
    "decode_ratio_int8": ">= 1.1",
    "prefill_ratio_int4": ">= 1.3",
    "stream_share": ">= 0.85",
}
SHAPES = {  # layers, dim, heads, hidden dim; 8 key/value heads of 128 and a vocabulary of 151,936
    "0.6B": (28, 1024, 16, 3072),
    "1.7B": (28, 2048, 16, 6144),
    "4B": (36, 2560, 32, 9728),
}
INT4 = Numerics(weights="int4_group64", embedding="int4_group32", activations="int8_per_token", kv="int8_per_token_head")
INT8 = Numerics(weights="int8_group128", embedding="int8_group128", activations="int8_per_token", kv="int8_per_token_head")
_WORKER = Path(__file__).with_name("native") / "llama_worker.py"
_OPENING, _CONTEXT = 64, 1024


def config_of(shape: str) -> DecoderConfig:
    num_layers, dim, num_heads, hidden_dim = SHAPES[shape]
    layer = LayerConfig(
        attention=AttentionConfig(
            num_heads=num_heads,
            head_dim=128,
            keys_values=OwnKeysValuesConfig(num_heads=8),
            position=RotaryConfig(theta=1e6, layout="half"),
            qk_norm=None,
        ),
        feed_forward=DenseFeedForwardConfig(hidden_dim=hidden_dim),
    )
    return DecoderConfig(vocab_size=151_936, dim=dim, layers=(layer,) * num_layers, norm_eps=1e-6, context_length=32_768)


def random_bundle(folder: Path, shape: str, numerics: Numerics) -> Bundle:
    """Return the bundle of random weights in `folder`; write it if absent."""
    path = folder / f"open_{shape}_{numerics.weights}_1"
    if (path / "signature.json").is_file():
        return open_bundle(path)
    config = config_of(shape)
    return write_bundle(
        path,
        config=config,
        tokenizer=synthetic_tokenizer(),
        template=ChatTemplate(),
        tensors=_random_tensors(config, numerics),
        numerics=numerics,
        card="# Random weights of an open model's shape\n\nFor measurements of speed and memory only.\n",
    )


def _random_tensors(config: DecoderConfig, numerics: Numerics) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(0)
    tensors: dict[str, NDArray[Any]] = {name: np.ones(length, np.float32) for name, length in vectors(config).items()}
    for name, shape in {**{f"{name}.weight": shape for name, shape in matrices(config).items()}}.items():
        share = 1 / sqrt(2 * len(config.layers)) if ".output." in name or ".down." in name else 1.0
        tensors |= _random_matrix(generator, name, shape, numerics.weights, share / sqrt(shape[1]))
    return tensors | _random_matrix(generator, "embedding", (config.vocab_size, config.dim), numerics.embedding, 0.05)


def _random_matrix(
    generator: np.random.Generator, name: str, shape: tuple[int, int], weights: str, std: float
) -> dict[str, NDArray[Any]]:
    format = FORMATS[weights]
    scale = std / (4.6 if format.bits == 4 else 73)
    made: dict[str, NDArray[Any]] = {}
    for suffix, (dtype, wanted) in format.shapes(*shape).items():
        if suffix:
            made[name + suffix] = np.full(wanted, scale if suffix == ".scale" else -7.5 * scale, dtype)
            continue
        codes = np.frombuffer(generator.bytes(wanted[0] * wanted[1]), dtype).reshape(wanted)
        made[name] = np.maximum(codes, -127) if format.bits == 8 else codes
    return made


class Peer:
    """llama.cpp with a file of one type, in a process."""

    def __init__(self, python: str, folder: Path, shape: str, body: str) -> None:
        path = write_gguf(folder / f"open_{shape}_{body}.gguf", config_of(shape), body)
        self._worker = Worker(python, _WORKER)
        self._worker.ask(do="open", model=str(path), context=_CONTEXT)

    def times(self, **order: object) -> Times:
        answer = self._worker.ask(threads=1, **order)
        return Times(wall_s=tuple(answer["wall_s"]), cpu_s=tuple(answer["cpu_s"]))

    def close(self) -> None:
        self._worker.close()


def compare(
    options: argparse.Namespace, shape: str, numerics: Numerics, bodies: tuple[str, ...], is_prefill: bool
) -> Figures:
    """Return the seconds of a decode step and, if asked for, of a prefill, by side."""
    bundle = random_bundle(options.bundle_folder, shape, numerics)
    engine = NativeEngine(bundle, num_threads=1)
    sequence = prefilled(engine, _OPENING)
    peers = {body: Peer(options.peer_python, options.bundle_folder, shape, body) for body in bodies}
    steps, rounds, prompt = (6, 4, 128) if options.quick else (8, 9, 256)
    sides: dict[str, Callable[[], Times]] = {"ours": lambda: decode(engine, [sequence], steps)}
    sides |= {body: lambda peer=peer: peer.times(do="decode", steps=steps) for body, peer in peers.items()}  # type: ignore[misc]
    figures: Figures = {"decode": _best(sides, rounds), "bytes": bytes_per_token(bundle)}
    if is_prefill:
        sides = {"ours": lambda: _prefill(engine, prompt)}
        sides |= {body: lambda peer=peer: peer.times(do="prefill", tokens=prompt) for body, peer in peers.items()}  # type: ignore[misc]
        figures["prefill"] = _best(sides, 2 if options.quick else 4)
        figures["prompt"] = prompt
    for peer in peers.values():
        peer.close()
    return figures


def _best(sides: dict[str, Callable[[], Times]], rounds: int) -> dict[str, float]:
    return {name: undisturbed(seconds) for name, seconds in alternate(sides, rounds, 1).items()}


def _prefill(engine: NativeEngine, num_tokens: int) -> Times:
    from measuring import timed

    sequence, prompt = engine.new_sequence(), tokens_of(num_tokens)
    times = timed(lambda: engine.step([(sequence, prompt)]))
    engine.close(sequence)
    return times


def _ratio(seconds: dict[str, float]) -> float | None:
    """The fastest peer's time over ours."""
    others = [value for name, value in seconds.items() if name != "ours"]
    return rounded(min(others) / seconds["ours"]) if others else None


def measure(options: argparse.Namespace, shape: str, end: str) -> Figures:
    has_peer = can_import(options.peer_python, "llama_cpp")
    print(f"... {shape}", file=sys.stderr)
    four = compare(options, shape, INT4, ("Q4_0", "Q4_K") if has_peer else (), is_prefill=True)
    eight = compare(options, shape, INT8, ("Q8_0",) if has_peer else (), is_prefill=False)
    stream = max(stream_bandwidth(1) for _ in range(3))
    figures: Figures = {
        f"decode_ratio_int4{end}": _ratio(four["decode"]),
        f"decode_ratio_int8{end}": _ratio(eight["decode"]),
        f"prefill_ratio_int4{end}": _ratio(four["prefill"]),
        f"stream_share{end}": rounded(four["bytes"] / four["decode"]["ours"] / stream),
        f"stream_gb_s{end}": rounded(stream / 1e9),
    }
    for name, seconds in (("int4", four["decode"]), ("int8", eight["decode"])):
        figures |= {
            f"decode_ms_{name if side == 'ours' else side}{end}": rounded(each * 1e3) for side, each in seconds.items()
        }
    prompt = four["prompt"]
    figures |= {
        f"prefill_tokens_s_{'int4' if side == 'ours' else side}{end}": rounded(prompt / each)
        for side, each in four["prefill"].items()
    }
    return figures if has_peer else figures | {"peer_skipped": f"{options.peer_python} has no llama_cpp"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the shape of 0.6B only, fewer rounds")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--peer-python", default=sys.executable, help="the interpreter that has llama_cpp")
    add_bundle_options(parser)
    options = parser.parse_args()
    figures = measure(options, "0.6B", "")
    for shape in () if options.quick else ("1.7B", "4B"):
        figures |= measure(options, shape, f"_{shape}")
    report = {**figures, "figures": figures, "asked": ASKED}
    hand_in(report, REPORT, options)


if __name__ == "__main__":
    main()
