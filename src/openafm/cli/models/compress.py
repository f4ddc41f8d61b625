"""`openafm compress BUNDLE`, `openafm compress decode` and `openafm compress report`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from openafm.cli.options import PluginsOption, SetOption, parse_changes
from openafm.cli.output import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from openafm.recipes.compression.report import BundleReport, CompressionReport


class Method(StrEnum):
    """How matrices are rounded to 4 bits."""

    RTN = "rtn"
    HQQ = "hqq"
    GPTQ = "gptq"


_DEFAULT = "BUNDLE"
"""Name of the default subcommand in the help; the user leaves it out."""


class _BundleOrReport(TyperGroup):
    """Dispatch `compress report ...` and `compress decode ...` to these and everything else to the default subcommand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_BundleOrReport,
    no_args_is_help=True,
    help="Compress a bundle after training (`openafm compress NAME --format astc`), or compare bundles "
    "(`openafm compress report A B`). If a bundle has the name of a subcommand, pass its path.",
)


@app.command(_DEFAULT)
def compress(
    bundle: Annotated[str, typer.Argument(metavar="NAME", help="Uncompressed bundle, by name or path.")],
    format: Annotated[
        str,
        typer.Option(
            help="astc: ASTC blocks at 3.56 bits a weight with an adapter; int2: 2 bits, rounded without training; "
            "int4: groups of 4 bits by GPTQ; int8: groups of 8 bits."
        ),
    ] = "astc",
    method: Annotated[
        Method | None,
        typer.Option(help="How to round in int4: gptq (the default), calibrated on data; hqq or rtn (to nearest), without."),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Singular vectors of each matrix to store in the adapter (astc); 0 for none.")
    ] = None,
    no_calibration: Annotated[
        bool, typer.Option("--no-calibration", help="Encode matrices without calibration data (astc, int4).")
    ] = False,
    changes: SetOption = None,
    plugins: PluginsOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the compressed bundle; default: NAME-FORMAT.")] = None,
    json: JsonOption = False,
) -> None:
    """Compress a bundle into a new one. The word BUNDLE may be left out: `openafm compress NAME --format astc`."""
    from openafm.bundle import open_bundle
    from openafm.core.errors import UsageError
    from openafm.recipes.compression import compress as recipe
    from openafm.recipes.compression.formats import compression_config

    values = parse_changes(changes)
    if rank is not None:
        values |= {"adapter": "null"} if rank == 0 else {"adapter.rank": str(rank)}
    if method is not None and (format != "int4" or (no_calibration and method is Method.GPTQ)):
        raise UsageError(f"--method {method.value} is for --format int4 with calibration; leave one of the options out")
    if method is Method.HQQ:
        values["range"] = '{"type": "HalfQuadraticRange"}'
    if no_calibration or method in (Method.HQQ, Method.RTN):
        values["calibration"] = "null"
    config = compression_config(format, values)
    source = open_bundle(bundle)
    result = recipe.compress(source, config, name or f"{source.name}-{format}")
    if json:
        print_json(result.to_dict())
    else:
        print_table(("", ""), list(result.to_dict().items()))


@app.command()
def report(
    bundles: Annotated[list[str], typer.Argument(help="Bundles by name or path; the uncompressed one first.")],
    examples: Annotated[int, typer.Option(help="Held-out examples of each task.")] = 50,
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Compare bundles: bits per weight, bytes, held-out loss, scores by task, retention, KV cache bytes."""
    from openafm.recipes.compression.report import compression_report

    made = compression_report(bundles, examples)
    if json:
        print_json(made.to_dict())
    else:
        _show(made)


@app.command("decode")
def decode_(
    bundle: Annotated[str, typer.Argument(metavar="NAME", help="Compressed bundle, by name or path.")],
    plugins: PluginsOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the new bundle; default: NAME-decoded.")] = None,
    json: JsonOption = False,
) -> None:
    """Write a compressed bundle's weights in fp32, its recovery adapter merged, so that they can be trained again."""
    from openafm.bundle import open_bundle
    from openafm.recipes.compression.decode import decode

    source = open_bundle(bundle)
    made = decode(source, name or f"{source.name}-decoded")
    values = {"bundle": str(made.path), "signature": made.signature, "source": source.name}
    if json:
        print_json(values)
    else:
        print_table(("", ""), list(values.items()))


def _show(made: CompressionReport) -> None:
    rows: list[tuple[object, ...]] = []
    for bundle in made.bundles:
        values = bundle.to_dict()
        scores = [task.text for task in bundle.scores.tasks.values()]
        rows.append(
            (
                values["name"],
                values["bits_per_weight"],
                values["adapter_bits_per_weight"],
                values["bytes"],
                values["loss"],
                *scores,
                f"{values['exact_match']:.1%}",
                _retained(bundle),
                values["kv_bytes_per_token"],
                values["kv_bytes_at_4096"],
            )
        )
        if bundle.change:
            changes = [change.text if change else "-" for change in bundle.change.values()]
            rows.append(("  change", *[""] * 4, *changes, *[""] * 4))
    tasks = tuple(made.bundles[0].scores.tasks)
    header = ("bundle", "bits/weight", "of them adapter", "bytes", "loss", *tasks, "exact match", "retained")
    print_table((*header, "KV bytes/token", "KV bytes at 4,096"), rows)
    print(
        f"\n{made.num_examples} held-out examples of each task. summary and rewrite: ROUGE-L; the others: share of correct"
        "\nanswers (exact match is their mean). Bits count everything stored: codes, scales, minima, embedding, norms,"
        "\nadapter. Loss: nats per answer token. Intervals are 95 %; change: points to the uncompressed bundle on the same"
        "\nexamples, by a paired bootstrap; * excludes 0."
    )
    retention = made.bundles[0].retention
    if retention is None:
        print("No retention: none of the bundles is uncompressed.")
    else:
        named = ", ".join(retention.well_above) or "none"
        print(
            f"retained: scores divided by those of {retention.reference}, mean over the tasks in which it is at least ten"
            f"\npoints above every baseline: {named}."
        )


def _retained(bundle: BundleReport) -> str:
    mean = None if bundle.retention is None else bundle.retention.mean
    return "-" if mean is None else f"{mean:.1%}"
