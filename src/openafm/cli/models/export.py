"""`openafm export`: bundles for other libraries."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_text
from openafm.core.errors import UsageError


class Format(StrEnum):
    HF = "hf"
    GGUF = "gguf"
    PEFT = "peft"


_NOT_WRITTEN = {
    "onnx": "ONNX has no single graph for a decoder with a KV cache that its generation tools load;"
    " export --to hf and convert that folder with Optimum",
    "mlx": "mlx_lm.convert reads folders of transformers; export --to hf and convert that folder",
}


def _format(text: str) -> Format:
    if text in _NOT_WRITTEN:
        raise typer.BadParameter(_NOT_WRITTEN[text])
    if text not in list(Format):
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(map(repr, map(str, Format)))}")
    return Format(text)


class MatrixType(StrEnum):
    STORED = "stored"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"


def export(
    name: Annotated[str, typer.Argument(help="A bundle by name or path; not compressed.")],
    to: Annotated[
        Format,
        typer.Option(
            parser=_format,
            metavar="[hf|gguf|peft]",
            help="hf: for transformers; gguf: for llama.cpp; peft: an adapter of the bundle.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder or file to write; must not exist.")],
    type: Annotated[MatrixType, typer.Option(help="Type of the matrices in a GGUF file.")] = MatrixType.STORED,
    adapter: Annotated[str | None, typer.Option(help="With --to peft: an installed adapter or its folder.")] = None,
    json: JsonOption = False,
) -> None:
    """Write a bundle for another library, with its tokenizer and chat template. What is lost is printed as notes."""
    from openafm.bundle import open_bundle

    if (to is Format.PEFT) != (adapter is not None):
        raise UsageError("--to peft and --adapter belong together; pass both")
    if adapter is not None:
        _export_adapter(name, adapter, out, json)
        return
    if to is Format.GGUF:
        from openafm.bundle.gguf import export_gguf

        report = export_gguf(open_bundle(name), out, type=type.value)
    else:
        from openafm.bundle.hugging_face import export_hugging_face

        if type is not MatrixType.STORED:
            raise UsageError("--type belongs to --to gguf; a folder for transformers has the stored dtype")
        report = export_hugging_face(open_bundle(name), out)
    if json:
        print_json({"path": str(report.path), "family": report.family, "notes": report.notes})
        return
    for note in report.notes:
        print_text(f"note: {note}")
    print_text(f"wrote {report.path}, a {report.family} checkpoint")


def _export_adapter(name: str, adapter: str, out: Path, json: bool) -> None:
    from openafm.adapters.package import open_adapter
    from openafm.adapters.store import find_adapter
    from openafm.bundle import open_bundle
    from openafm.bundle.hugging_face.peft import export_peft

    bundle = open_bundle(name)
    is_path = Path(adapter).is_dir()
    notes = export_peft(open_adapter(Path(adapter)) if is_path else find_adapter(adapter, bundle.signature), bundle, out)
    if json:
        print_json({"path": str(out), "notes": notes})
        return
    for note in notes:
        print_text(f"note: {note}")
    print_text(f"wrote {out}, an adapter for PEFT; its base is the folder of `openafm export {name} --to hf`")
