"""`openafm import`: import open-weight models."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from openafm.cli.models.bundles import check_name_is_free
from openafm.cli.models.compress import Method
from openafm.cli.output import JsonOption, print_json, print_text
from openafm.core.errors import UsageError
from openafm.core.progress import progress

if TYPE_CHECKING:
    from openafm.bundle.hugging_face import Conversion, ImportReport

app = typer.Typer(help="Import open-weight models as bundles.", no_args_is_help=True, rich_markup_mode=None)


class Compute(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Weights(StrEnum):
    INT4 = "int4"
    INT8 = "int8"
    BF16 = "bf16"


class FileWeights(StrEnum):
    """Weights of an imported GGUF file."""

    NEAREST = "nearest"
    FLOAT32 = "float32"
    INT4 = "int4"
    INT8 = "int8"
    BF16 = "bf16"


NameOption = Annotated[str | None, typer.Option(help="Name of the bundle; default: that of the folder or file.")]
ComputeOption = Annotated[Compute, typer.Option(help="Compute dtype: float32 is exact, bfloat16 halves the memory.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a bundle of this name, or hide the shipped model.")]
WeightsOption = Annotated[
    Weights | None,
    typer.Option(help="Convert the weights for the native engine, layer by layer; default: keep them, for torch."),
]
FileWeightsOption = Annotated[
    FileWeights,
    typer.Option(
        help="nearest: native formats nearest to the file's types; float32: every value of the file, 32 bits each."
    ),
]
MethodOption = Annotated[
    Method,
    typer.Option(help="With --weights int4: round to nearest, by HQQ, or by GPTQ, which takes longest and loses least."),
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="Text or JSON lines for GPTQ; default: built-in conversations."),
]


@app.command()
def hf(
    path: Annotated[Path, typer.Argument(exists=True, help="Folder with config.json, *.safetensors and tokenizer.json.")],
    name: NameOption = None,
    compute: ComputeOption = Compute.FLOAT32,
    weights: WeightsOption = None,
    method: MethodOption = Method.RTN,
    calibration: CalibrationOption = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Import a local Hugging Face checkpoint (Llama, Qwen2, Qwen3, SmolLM3, InternVL) with tokenizer and chat template."""
    from openafm.bundle.hugging_face import import_hugging_face

    place = _place(name or path.resolve().name, force)
    conversion = _conversion(weights, compute, method, calibration)
    _print_report(_imported(import_hugging_face, path, place, compute, conversion), json)


@app.command()
def gguf(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A GGUF file of llama.cpp.")],
    name: NameOption = None,
    compute: ComputeOption = Compute.FLOAT32,
    weights: FileWeightsOption = FileWeights.NEAREST,
    method: MethodOption = Method.RTN,
    calibration: CalibrationOption = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Import a GGUF file (Llama, Qwen2, Qwen3, SmolLM3) with its tokenizer and chat template."""
    from openafm.bundle.gguf import import_gguf

    place = _place(name or file.resolve().stem, force)
    if weights is FileWeights.NEAREST and compute is not Compute.FLOAT32:
        raise UsageError(f"--compute {compute.value} is for --weights float32; pass both")
    chosen = None if weights.value not in list(Weights) else Weights(weights.value)
    rounded = _conversion(chosen, compute, method, calibration)
    conversion: Conversion | Literal["nearest"] | None = "nearest" if weights is FileWeights.NEAREST else rounded
    _print_report(_imported(import_gguf, file, place, compute, conversion), json)


def _imported(
    importer: Callable[..., ImportReport],
    source: Path,
    place: Path,
    compute: Compute,
    conversion: Conversion | Literal["nearest"] | None,
) -> ImportReport:
    """Run an importer, with progress where it converts weights."""
    with progress("import", 1) if conversion is not None else nullcontext() as bar:
        return importer(
            source,
            place,
            compute=compute.value,
            conversion=conversion,
            on_part=lambda done, total: bar.update(done / total, f"part {done} of {total}") if bar else None,
        )


def _place(name: str, force: bool) -> Path:
    from openafm.bundle import bundle_place

    place = bundle_place(name)
    check_name_is_free(place.name, force)
    return place


def _conversion(weights: Weights | None, compute: Compute, method: Method, calibration: Path | None) -> Conversion | None:
    from openafm.bundle.hugging_face import Calibration, Conversion
    from openafm.compression.grouped import NEAREST
    from openafm.compression.post_training.half_quadratic import HalfQuadraticRange

    if weights is not None and compute is not Compute.FLOAT32:
        raise UsageError(f"--compute {compute.value} is for imports without --weights; leave it out")
    if method is not Method.RTN and weights is not Weights.INT4:
        raise UsageError(f"--method {method.value} is for --weights int4; leave it out")
    if calibration is not None and method is not Method.GPTQ:
        raise UsageError("--calibration is for --method gptq; leave it out")
    if weights is None:
        return None
    return Conversion(
        weights=weights.value,
        calibration=Calibration(file=calibration) if method is Method.GPTQ else None,
        range=HalfQuadraticRange() if method is Method.HQQ else NEAREST,
    )


@app.command()
def peft(
    path: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Folder of a LoRA adapter of PEFT.")],
    base: Annotated[str, typer.Option(help="The bundle that was imported from, or exported as, the adapter's base.")],
    name: Annotated[str | None, typer.Option(help="Name of the adapter; default: that of the folder.")] = None,
    json: JsonOption = False,
) -> None:
    """Import and install a LoRA adapter of the PEFT library."""
    from openafm.adapters.store import adapter_place
    from openafm.bundle import open_bundle
    from openafm.bundle.hugging_face.peft import import_peft

    bundle = open_bundle(base)
    chosen = name or path.resolve().name
    adapter = import_peft(path, bundle, adapter_place(chosen, bundle.signature), name=chosen)
    if json:
        print_json({"identifier": adapter.identifier, "path": str(adapter.path)})
    else:
        print_text(f"{adapter.identifier} is installed ({adapter.path})")


def _print_report(report: ImportReport, json: bool) -> None:
    place = report.bundle.path
    if json:
        print_json({"bundle": str(place), "notes": report.notes, "tools": report.bundle.template.can_call_tools})
        return
    for note in report.notes:
        print_text(f"note: {note}")
    print_text(f"imported {place.name} ({place}); `openafm use {place.name}` makes it the current model")
