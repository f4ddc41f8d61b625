"""Decoding and prefill compared with llama.cpp: the same shape, random weights, alternating in one run.

The peer's 2-bit types store less than ours. TQ2_0 is ternary: three values (1.58 bits of information) in 2 bits,
and an fp16 scale for each 256 weights. IQ2_XXS encodes eight weights together by a codebook of 256 points and seven signs:
1.88 bits a weight, a 4-bit scale for each 32 and an fp16 scale for each 256. Our matrices have four levels for every
weight, 2 bits, and a scale per row. Neither of the peer's types can store such a matrix.

No type is fastest in both phases, so both run, and `decode_ratio` and the prefill ratios are relative to the faster type in
each phase. The peer computes keys and values in all layers and has no bypass. Hence `prefill_ratio_full_depth` uses a model
whose layers all have their own keys and values, and `prefill_ratio_bypass` the unchanged model, whose upper layers compute
only the last token of a prompt. Both sides compute the logits of the last token.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gguf import write_gguf
from limits import Probe
from measuring import Figures, Setting, Times, Worker, alternate, can_import, median, rounded, suffix, undisturbed
from ours import Ours
from synthetic import synthetic_bundle, synthetic_config

from openafm.bundle import Bundle
from openafm.runtime.doctor import bytes_per_token

TWO_BIT_TYPES = ("TQ2_0", "IQ2_XXS")
_WORKER = Path(__file__).with_name("llama_worker.py")
_CONTEXT = 1024  # tokens


class Peer:
    """llama.cpp with a model of one type."""

    def __init__(self, setting: Setting, body: str, context: int = _CONTEXT) -> None:
        path = setting.folder / f"peer_{body}_{setting.num_layers}_layers.gguf"
        write_gguf(path, synthetic_config(setting.num_layers), body)
        self.path = path
        self._worker = Worker(setting.peer_python, _WORKER)
        self.version: str = self._worker.ask(do="open", model=str(path), context=context)["version"]

    def prefill(self, num_tokens: int, num_threads: int) -> Times:
        return self._times(do="prefill", tokens=num_tokens, threads=num_threads)

    def decode(self, steps: int, num_threads: int) -> Times:
        return self._times(do="decode", steps=steps, threads=num_threads)

    def close(self) -> None:
        self._worker.close()

    def _times(self, **order: object) -> Times:
        answer = self._worker.ask(**order)
        return Times(wall_s=tuple(answer["wall_s"]), cpu_s=tuple(answer["cpu_s"]))


def unavailable(setting: Setting) -> str | None:
    """The reason why the peer cannot run, or None."""
    if can_import(setting.peer_python, "llama_cpp"):
        return None
    return f"{setting.peer_python} has no llama_cpp; pip install --no-binary llama-cpp-python llama-cpp-python"


def compare(setting: Setting, bundle: Bundle, probe: Probe | None) -> Figures:
    """Decoding and prefill on 1 and 2 threads; without the peer, ours alone."""
    reason = unavailable(setting)
    peers = {} if reason else {body: Peer(setting, body) for body in TWO_BIT_TYPES}
    figures: Figures = {"peer_skipped": reason} if reason else {"llama_cpp_python": peers["TQ2_0"].version}
    ours = Ours(bundle)
    for num_threads in (1, 2):
        figures |= _decoding(setting, ours, peers, probe, bytes_per_token(bundle), num_threads)
    every_layer = Ours(synthetic_bundle(setting.folder, num_layers=setting.num_layers, own_share=1))
    for num_threads in (1, 2):
        figures |= _prefill(setting, ours, every_layer, peers, num_threads)
    for peer in peers.values():
        peer.close()
    return figures


def _decoding(
    setting: Setting, ours: Ours, peers: dict[str, Peer], probe: Probe | None, num_bytes: int, num_threads: int
) -> Figures:
    sides: dict[str, Callable[[], Times]] = {"ours": lambda: ours.decode(setting.steps, num_threads)}
    for body, peer in peers.items():
        sides[body] = lambda peer=peer: peer.decode(setting.steps, num_threads)
    if probe is not None:
        sides["stream"] = lambda: probe.stream(num_threads, setting.steps)
    seconds = alternate(sides, setting.rounds, num_threads)
    end = suffix(num_threads)
    best = {name: undisturbed(each) for name, each in seconds.items()}
    figures: Figures = {f"decode_ms{end}": rounded(best["ours"] * 1e3)}
    if peers:
        fastest = min(peers, key=lambda body: best[body])
        figures[f"decode_ratio{end}"] = rounded(best[fastest] / best["ours"])
        figures[f"decode_ratio_of_medians{end}"] = rounded(median(seconds[fastest]) / median(seconds["ours"]))
        figures |= {f"decode_ms_{body}{end}": rounded(best[body] * 1e3) for body in peers}
    if probe is not None:
        bandwidth = probe.stream_bytes / best["stream"]
        figures[f"decode_stream_share{end}"] = rounded(num_bytes / best["ours"] / bandwidth)
        figures[f"stream_gb_s{end}"] = rounded(bandwidth / 1e9)
    return figures


def _prefill(setting: Setting, ours: Ours, every_layer: Ours, peers: dict[str, Peer], num_threads: int) -> Figures:
    count = setting.prefill_tokens[num_threads]
    sides: dict[str, Callable[[], Times]] = {
        "bypass": lambda: ours.prefill(count, num_threads),
        "full_depth": lambda: every_layer.prefill(count, num_threads),
    }
    for body, peer in peers.items():
        sides[body] = lambda peer=peer: peer.prefill(count, num_threads)
    seconds = alternate(sides, setting.prefill_rounds, num_threads)
    best = {name: undisturbed(each) for name, each in seconds.items()}
    end = suffix(num_threads)
    figures: Figures = {}
    for name in ("full_depth", "bypass"):
        figures[f"prefill_tokens_s_{name}{end}"] = rounded(count / best[name])
        if peers:
            fastest = min(best[body] for body in peers)
            figures[f"prefill_ratio_{name}{end}"] = rounded(fastest / best[name])
    return figures | {f"prefill_tokens_s_{body}{end}": rounded(count / best[body]) for body in peers}


def sixteen_bits(setting: Setting, bundle: Bundle) -> Figures:
    """`decode_over_bf16`: one thread compared with the peer's BF16 of the same shape, a file of 6.3 GB that is then removed.

    The file is read once before measurement: it must fit into memory.
    """
    if reason := unavailable(setting):
        return {"decode_over_bf16": None, "decode_over_bf16_skipped": reason}
    ours, peer = Ours(bundle), Peer(setting, "BF16")
    try:
        sides = {"ours": lambda: ours.decode(setting.steps, 1), "BF16": lambda: peer.decode(setting.steps, 1)}
        seconds = {name: undisturbed(each) for name, each in alternate(sides, max(1, setting.rounds // 3), 1).items()}
    finally:
        peer.close()
        peer.path.unlink()
    return {
        "decode_over_bf16": rounded(seconds["BF16"] / seconds["ours"]),
        "decode_ms_bf16": rounded(seconds["BF16"] * 1e3),
    }
