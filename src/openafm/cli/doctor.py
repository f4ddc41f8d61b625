"""`openafm doctor`: the engine and the speed of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from openafm.runtime.doctor import Machine, ModelSpeed


def doctor(
    model: Annotated[str | None, typer.Argument(help="Bundle by name or path; default: the current model.")] = None,
    json: JsonOption = False,
) -> None:
    """Print which engine runs a model on this machine, why, and the speed that memory bandwidth allows."""
    from openafm.bundle import BundleNotFoundError, open_bundle, resolve_model
    from openafm.runtime.doctor import examine

    try:
        bundle = open_bundle(resolve_model() if model is None else model)
    except BundleNotFoundError:
        if model is not None:
            raise
        bundle = None
    report = examine(bundle)
    if json:
        print_json(report.to_dict())
        return
    print_table(("machine", ""), _machine_rows(report.machine))
    print()
    if report.model is None:
        print("no model on this machine: `openafm quickstart` trains one")
    else:
        print_table(("model", ""), _model_rows(report.model))


def _machine_rows(machine: Machine) -> list[tuple[str, str]]:
    return [
        ("processor", machine.processor),
        ("features", " ".join(machine.features) or "-"),
        ("threads", str(machine.threads)),
        ("compiler", machine.compiler or "none: install g++ or clang++, or set CXX"),
        ("kernels", f"{machine.kernels[0]} (also: {', '.join(machine.kernels[1:])})" if machine.kernels else "none"),
        ("library", machine.library or "-"),
        ("build log", machine.log or ("-" if machine.library is None else "part of the installation")),
        *([("problem", machine.problem)] if machine.problem else []),
        ("cache", f"{machine.cache}, safe to remove"),
        ("cached libraries", _megabytes(machine.cached_library_bytes)),
        ("cached weights", _megabytes(machine.cached_weights_bytes)),
        ("memory, all threads", f"{machine.stream_gb_s:.1f} GB/s read"),
        ("memory, one thread", f"{machine.stream_gb_s_1_thread:.1f} GB/s read"),
    ]


def _model_rows(model: ModelSpeed) -> list[tuple[str, str]]:
    rows = [("bundle", model.model), ("engine", model.engine)]
    if model.why_not_native is not None:
        rows.append(("not native because", model.why_not_native))
    if model.decoded is not None:
        rows.append(("weights", f"decoded to {model.decoded} when loaded"))
    if model.bytes_per_token is not None and model.expected_tokens_s is not None:
        rows.append(("read per token", _megabytes(model.bytes_per_token)))
        rows.append(("memory allows", f"{model.expected_tokens_s:,.0f} tokens/s"))
    rows.append(("measured", f"{model.measured_tokens_s:,.0f} tokens/s"))
    allowed = model.bundle_kv_bytes_per_token
    note = "" if model.kv_bytes_per_token == allowed else f"; the bundle's numerics need {allowed:,}"
    return [*rows, ("KV cache", f"{model.kv_bytes_per_token:,} bytes per token{note}")]


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
