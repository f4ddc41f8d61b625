"""The native runtime at the `on_device.base` shape, 56 layers of random weights, compared with its peers.

Sections, each in a file of benchmarks/native/ whose docstring describes the measurement:
- `decode`: decode_ratio, decode_stream_share, prefill_ratio_full_depth, prefill_ratio_bypass (peer.py)
- `bf16`: decode_over_bf16 (peer.py)
- `products`: gemm_peak_share, matvec_ratio_* (limits.py)
- `context`, `batch`, `overhead`, `mask`: long_context, batch_8_ratio, overhead_share, mask_overlap (decoding.py, guided.py)
- `start`: rss_gb, first_token_s, weights_shared (start.py)

Figures of one thread (CPU time) have a plain key, those of two threads (wall time) one that ends in `_2_threads`. Wall
times, also those of `batch`, `mask` and `start`, need a quiet machine. The peer is llama.cpp through llama-cpp-python,
built from its source distribution for this processor:

    pip install --no-binary llama-cpp-python llama-cpp-python     and, for one product: pip install onnxruntime onnx

in any environment, whose interpreter is passed as `--peer-python`. Missing peers are left out, with the reason.

    python benchmarks/native_runtime.py [--quick] [--json] [--peer-python PYTHON] [--only SECTION,...]

A full run takes about 10 minutes, and 8 GB of memory for the peer's BF16 file; it writes
docs/benchmarks/native_runtime.json, or with `--only` updates those sections of the existing file. `--quick` runs the
same code with the same widths at an eighth of the depth and claims nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, str(Path(__file__).parent / "native"))

import decoding
import guided
import limits
import peer
import start
from measuring import Figures, Setting
from synthetic import NUM_LAYERS, add_bundle_options, synthetic_bundle

from openafm.bundle import Bundle
from openafm.runtime.doctor import bytes_per_token
from openafm.runtime.native.library import kernel_names, native_library

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "native_runtime.json"
QUICK_LAYERS = 7
SECTIONS = ("decode", "bf16", "products", "context", "batch", "overhead", "mask", "start")
ASKED = {
    "decode_ratio": ">= 1.7",
    "decode_ratio_2_threads": ">= 1.5",
    "decode_stream_share": ">= 0.85",
    "prefill_ratio_full_depth": ">= 2.0",
    "prefill_ratio_bypass": ">= 3.0",
    "gemm_peak_share": ">= 0.85",
    "rss_gb": "<= 1.3",
    "first_token_s": "<= 1.5",
    "decode_over_bf16": ">= 6",
    "long_context_4096": "<= 1.3, or 1.15 of the bytes",
    "long_context_16384": "<= 2.2, or 1.15 of the bytes",
    "mask_overlap": "<= 1.02",
    "overhead_share": "<= 0.03",
    "overhead_share_random": "<= 0.03",
    "overhead_ms_nano": "<= 0.3",
    "overhead_ms_nano_random": "<= 0.3",
    "batch_8_ratio": ">= 2",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--peer-python", default=sys.executable, help="the interpreter that has llama_cpp")
    parser.add_argument("--only", help="sections, with commas between them")
    add_bundle_options(parser)
    options = parser.parse_args()
    setting = _setting(options.quick, options.bundle_folder, options.peer_python)
    names = options.only.split(",") if options.only else SECTIONS
    if unknown := set(names) - set(SECTIONS):
        parser.error(f"there is no section {unknown.pop()}; there are {', '.join(SECTIONS)}")
    bundle = synthetic_bundle(setting.folder, num_layers=setting.num_layers)

    figures: Figures = {}
    sections = _sections(setting, bundle)
    for name in names:
        if not options.json:
            print(f"... {name}", file=sys.stderr)
        figures |= sections[name]()
    report = {
        "figures": figures,
        "asked": ASKED,
        "peer": "llama.cpp, 2-bit types TQ2_0 and IQ2_XXS, the better one of each phase",
        "setting": {
            "layers": setting.num_layers,
            "rounds": setting.rounds,
            "steps": setting.steps,
            "prefill_rounds": setting.prefill_rounds,
            "prefill_tokens": dict(setting.prefill_tokens),
            "bytes_per_token": bytes_per_token(bundle),
            "kernels": kernel_names(native_library())[0],
            "clock": "CPU time of the process on 1 thread, wall time on 2",
            "machine": platform.machine(),
        },
    }
    if not options.quick:
        _keep(report, is_whole=not options.only)
    if not options.json:
        _print(figures)
    print(json.dumps(report))


def _setting(is_quick: bool, folder: Path, peer_python: str) -> Setting:
    return Setting(
        is_quick=is_quick,
        num_layers=QUICK_LAYERS if is_quick else NUM_LAYERS,
        folder=folder,
        peer_python=peer_python,
        rounds=2 if is_quick else 9,
        steps=8,
        prefill_rounds=1 if is_quick else 3,
        prefill_tokens={1: 64, 2: 128} if is_quick else {1: 256, 2: 512},
        contexts=(4096, 16384),
        answer_tokens=24 if is_quick else 96,
        starts=1 if is_quick else 5,
    )


def _sections(setting: Setting, bundle: Bundle) -> dict[str, Callable[[], Figures]]:
    reason = limits.Probe.unavailable()
    probe = None if reason else limits.Probe()
    return {
        "decode": lambda: peer.compare(setting, bundle, probe),
        "products": lambda: (
            (
                {"gemm_peak_share": None, "gemm_peak_share_skipped": reason}
                if probe is None
                else limits.gemm(setting, bundle, probe)
            )
            | limits.matvec(setting, bundle)
        ),
        "context": lambda: decoding.long_context(setting, bundle),
        "batch": lambda: decoding.batch(setting, bundle, probe),
        "overhead": lambda: decoding.overhead(setting, bundle),
        "mask": lambda: guided.mask_overlap(setting, bundle),
        "start": lambda: start.figures(setting, bundle),
        "bf16": lambda: peer.sixteen_bits(setting, bundle),
    }


def _keep(report: Figures, *, is_whole: bool) -> None:
    """Write the report; with `--only`, update the sections of the existing one."""
    if not is_whole and REPORT.exists():
        kept = json.loads(REPORT.read_text(encoding="utf-8"))
        report["figures"] = kept["figures"] | report["figures"]
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _print(figures: Figures) -> None:
    for key, value in figures.items():
        print(f"{key:36} {value!s:>12}   {ASKED.get(key, '')}")


if __name__ == "__main__":
    main()
