"""Open-weight models in 4 and 8 bits compared with llama.cpp, alternating in one run.

Random weights at the shapes of Qwen3-0.6B, 1.7B and 4B, without norms of queries and keys on either side. Ours:
int4_group64 weights (4.5 bits) with an int4_group32 embedding, and int8_group128 throughout. The peer: Q4_0 and Q4_K
(4.5 bits) with a Q4_K embedding, the faster one in each phase, and Q8_0 (8.5 bits). Times are CPU times of the process on
one thread and wall times on more, which need cores of their own.

Keys end with the shape unless it is 0.6B, and with `_2_threads` on two; ratios are the peer's value over ours, above 1 if
ours is better, and null without the peer.

- `decode_ratio_int4`, `decode_ratio_int8`, `prefill_ratio_int4`; `step_of_8_ratio_int4`: a decode step of 8 sequences.
- `stream_share`: bytes that a decode step in 4 bits reads, divided by its time and by the measured memory stream.
- `first_token_ratio_int4`: from the start of a process to the first token after 8; CPU time, files in the page cache.
- `peak_ratio_int4`: largest resident memory of that process, mapped weights included.

    python benchmarks/open_weights_native.py [--quick] [--json] [--peer-python PYTHON] [--shapes 0.6B,1.7B] [--threads 1,2]

The peer is llama.cpp through llama-cpp-python in any environment (see benchmarks/native_runtime.py). A full run of all
shapes writes docs/benchmarks/open_weights_native.json.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent / "native"))
sys.path.insert(0, str(Path(__file__).parent / "shared"))

from gguf import write_gguf
from limits import Probe
from measuring import Figures, Times, Worker, alternate, can_import, median, rounded, suffix, timed, undisturbed
from open_models import INT4, INT8, SHAPES, config_of, random_bundle
from ours import decode, prefilled, tokens_of
from reporting import benchmark_parser, hand_in
from synthetic import add_bundle_options

from openafm.runtime.doctor import bytes_per_token
from openafm.runtime.native.engine import NativeEngine

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "open_weights_native.json"
ASKED = {
    "decode_ratio_int4": ">= 1.15",
    "decode_ratio_int8": ">= 1.1",
    "prefill_ratio_int4": ">= 1.3",
    "stream_share": ">= 0.85",
    "peak_ratio_int4": ">= 1",
}
FOUR_BITS, EIGHT_BITS = ("Q4_0", "Q4_K"), ("Q8_0",)
_NATIVE = Path(__file__).with_name("native")
_OPENING, _CONTEXT, _BATCH = 64, 1024, 8
Sides = dict[str, Callable[[], Times]]


class Peer:
    """llama.cpp with a file of one type, in a process. `sequences` share the context."""

    def __init__(self, python: str, folder: Path, shape: str, body: str, sequences: int = 1) -> None:
        path = write_gguf(folder / f"open_{shape}_{body}.gguf", config_of(shape), body)
        self._worker = Worker(python, _NATIVE / "llama_worker.py")
        self._worker.ask(do="open", model=str(path), context=_CONTEXT, sequences=sequences)

    def times(self, **order: object) -> Times:
        answer = self._worker.ask(**order)
        return Times(wall_s=tuple(answer["wall_s"]), cpu_s=tuple(answer["cpu_s"]))

    def first_token(self) -> dict[str, float]:
        """Return the CPU seconds and the largest memory of the process at its first token. Called once, first."""
        return self._worker.ask(do="first", threads=1)

    def close(self) -> None:
        self._worker.close()


@contextmanager
def peers_of(
    options: argparse.Namespace, shape: str, bodies: tuple[str, ...], sequences: int = 1
) -> Iterator[dict[str, Peer]]:
    """Yield the processes of the peer by type; none without the peer."""
    has_peer = can_import(options.peer_python, "llama_cpp")
    peers: dict[str, Peer] = {}
    try:
        for body in bodies if has_peer else ():
            peers[body] = Peer(options.peer_python, options.bundle_folder, shape, body, sequences)
        yield peers
    finally:
        for peer in peers.values():
            peer.close()


def best(
    ours: Callable[[], Times],
    peers: dict[str, Peer],
    rounds: int,
    threads: int,
    beside: Sides | None = None,
    **order: object,
) -> dict[str, float]:
    """Return the seconds of one piece of work by side, and those of `beside`, measured in the same rounds."""
    sides: Sides = {"ours": ours, **(beside or {})}
    for body, peer in peers.items():
        sides[body] = lambda peer=peer: peer.times(threads=threads, **order)  # type: ignore[misc]
    return {name: undisturbed(seconds) for name, seconds in alternate(sides, rounds, threads).items()}


def ratio(values: dict[str, float]) -> float | None:
    """Return the best peer's value over ours."""
    others = [value for name, value in values.items() if name != "ours"]
    return rounded(min(others) / values["ours"]) if others else None


def speeds(options: argparse.Namespace, shape: str, threads: int) -> Figures:
    """Return the figures of decoding and prefill."""
    end = ("" if shape == "0.6B" else f"_{shape}") + suffix(threads)
    steps, rounds, prompt = (6, 4, 128) if options.quick else (8, 9, 256)
    figures: Figures = {}
    probe = None if Probe.unavailable() else Probe()
    beside: Sides = {} if probe is None else {"stream": lambda: probe.stream(threads, steps)}
    for name, numerics, bodies in (("int4", INT4, FOUR_BITS), ("int8", INT8, EIGHT_BITS)):
        bundle = random_bundle(options.bundle_folder, shape, numerics)
        engine = NativeEngine(bundle, num_threads=threads)
        sequence = prefilled(engine, _OPENING)
        with peers_of(options, shape, bodies) as peers:
            decoding = best(
                lambda: decode(engine, [sequence], steps),  # noqa: B023 called within the iteration
                peers,
                rounds,
                threads,
                beside,
                do="decode",
                steps=steps,
            )
            stream_s = decoding.pop("stream", None)
            figures[f"decode_ratio_{name}{end}"] = ratio(decoding)
            for side, seconds in decoding.items():
                figures[f"decode_ms_{name if side == 'ours' else side}{end}"] = rounded(seconds * 1e3)
            if numerics is INT4:
                prefill = best(lambda: _prefill(engine, prompt), peers, 4, threads, do="prefill", tokens=prompt)  # noqa: B023
                figures[f"prefill_ratio_int4{end}"] = ratio(prefill)
                for side, seconds in prefill.items():
                    figures[f"prefill_tokens_s_{'int4' if side == 'ours' else side}{end}"] = rounded(prompt / seconds)
                figures[f"stream_share{end}"] = None
                if probe is not None and stream_s is not None:
                    bandwidth = probe.stream_bytes / stream_s
                    figures[f"stream_share{end}"] = rounded(bytes_per_token(bundle) / decoding["ours"] / bandwidth)
                    figures[f"stream_gb_s{end}"] = rounded(bandwidth / 1e9)
    return figures | steps_of_eight(options, shape, threads, end)


def steps_of_eight(options: argparse.Namespace, shape: str, threads: int, end: str) -> Figures:
    """Return the figures of decode steps of several sequences in 4 bits."""
    engine = NativeEngine(random_bundle(options.bundle_folder, shape, INT4), num_threads=threads)
    sequences = [prefilled(engine, _OPENING) for _ in range(_BATCH)]
    steps, rounds = (4, 3) if options.quick else (8, 6)
    with peers_of(options, shape, FOUR_BITS, _BATCH) as peers:
        seconds = best(lambda: decode(engine, sequences, steps), peers, rounds, threads, do="decode", steps=steps)
    names = {side: "int4" if side == "ours" else side for side in seconds}
    return {f"step_of_8_ratio_int4{end}": ratio(seconds)} | {
        f"step_of_8_ms_{names[side]}{end}": rounded(each * 1e3) for side, each in seconds.items()
    }


def starts(options: argparse.Namespace, shape: str) -> Figures:
    """Return the figures of processes up to their first token, in 4 bits."""
    end = "" if shape == "0.6B" else f"_{shape}"
    bundle = random_bundle(options.bundle_folder, shape, INT4)
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(2 if options.quick else 5):
        worker = Worker(sys.executable, _NATIVE / "first_token_worker.py")
        found.setdefault("ours", []).append(worker.ask(bundle=str(bundle.path), threads=1))
        worker.close()
        for body in FOUR_BITS:
            with peers_of(options, shape, (body,)) as peers:
                for peer in peers.values():
                    found.setdefault(body, []).append(peer.first_token())
    figures: Figures = {}
    for key, unit in (("first_token", "cpu_s"), ("peak", "peak_gb")):
        values = {side: median(each[unit] for each in starts) for side, starts in found.items()}
        figures[f"{key}_ratio_int4{end}"] = ratio(values)
        name = "first_token_cpu_s" if key == "first_token" else "peak_gb"
        figures |= {f"{name}_{'int4' if side == 'ours' else side}{end}": rounded(value) for side, value in values.items()}
    return figures


def _prefill(engine: NativeEngine, num_tokens: int) -> Times:
    sequence, prompt = engine.new_sequence(), tokens_of(num_tokens)
    times = timed(lambda: engine.step([(sequence, prompt)]))
    engine.close(sequence)
    return times


def main() -> None:
    parser = benchmark_parser(__doc__, "fewer rounds, and the shape of 0.6B only unless --shapes names others")
    parser.add_argument("--peer-python", default=sys.executable, help="the interpreter that has llama_cpp")
    parser.add_argument("--shapes", help=f"some of {','.join(SHAPES)}")
    parser.add_argument("--threads", default="1", help="numbers of threads, such as 1,2")
    add_bundle_options(parser)
    options = parser.parse_args()
    shapes = (options.shapes or ("0.6B" if options.quick else ",".join(SHAPES))).split(",")
    figures: Figures = {}
    for shape in shapes:
        for threads in map(int, options.threads.split(",")):
            print(f"... {shape}, {threads} threads", file=sys.stderr)
            figures |= speeds(options, shape, threads)
        figures |= starts(options, shape)
    if not can_import(options.peer_python, "llama_cpp"):
        figures["peer_skipped"] = f"{options.peer_python} has no llama_cpp"
    options.quick = options.quick or shapes != list(SHAPES)  # part of the shapes is no full run
    hand_in({**figures, "figures": figures, "asked": ASKED}, REPORT, options)


if __name__ == "__main__":
    main()
