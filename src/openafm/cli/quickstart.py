"""`openafm quickstart`, which `make run` calls."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.output import JsonOption, counted, print_json, print_table, print_text
from openafm.core.terminal import escaped

if TYPE_CHECKING:
    from openafm.recipes.quickstart import QuickstartResult


def quickstart(
    sentence: Annotated[str | None, typer.Option(help="The message to extract an event from.")] = None,
    json: JsonOption = False,
) -> None:
    """Train a micro model on the built-in corpus (about 6 minutes), compress it to 2 bits, score it and extract an event."""
    from openafm.recipes import quickstart as recipe

    def report(line: str) -> None:
        print(escaped(line), file=sys.stderr if json else sys.stdout, flush=True)

    result = recipe.quickstart(report, sentence or recipe.SENTENCE)
    if json:
        print_json(result.to_dict())
    else:
        _show(result)


def _show(result: QuickstartResult) -> None:
    use = result.use
    print_text(f"   {use.event}\n   first token after {use.ttft_ms:.0f} ms, then {use.tokens_per_second:.0f} tokens/s\n")
    print(f"Held-out event extraction, {counted(result.scores.trained.num_examples, 'message')} in English, exact match:")
    rows = [
        (
            label,
            *(f"{scores.fields[field]:.1%}" for field in scores.fields),
            f"{scores.exact_match:.1%}",
            f"{scores.whole_event:.1%}",
        )
        for label, scores in (
            ("before compression", result.scores.uncompressed),
            ("this model, 2 bits", result.scores.trained),
            ("untrained model", result.scores.untrained),
            ("regular expressions (English)", result.scores.regex),
            ("constant answer", result.scores.constant),
        )
    ]
    print_table(("", *result.scores.trained.fields, "mean", "whole event"), rows)
    print("The date of a weekday takes more training than this; the shipped model `nano` has it.")
    print("\nSize with 2-bit weights, a 4-bit embedding and 8-bit keys and values, scales counted:")
    sizes = [
        (label, f"{size.bits_per_weight:.2f}", f"{size.weight_bytes:,}", f"{size.kv_bytes_per_token:,}")
        for label, size in (("before compression", result.size_before), ("this model", result.size))
    ]
    print_table(("", "bits per weight", "bytes of weights", "KV cache bytes per token"), sizes)
    print(
        "\nA model this small does one task, in messages like those of its training data. It has no knowledge of the"
        "\nworld, cannot hold a conversation and often misreads other messages. Its answers always satisfy the schema,"
        "\nwhether their values are right or wrong."
        "\n\nWritten:"
    )
    for file in result.files:
        print_text(f"  {file}")
    print(
        f"\nTrained for {result.train_seconds:.0f} s. Try a sentence of your own:"
        '\n  openafm respond "Coffee with Ana tomorrow at 10:30 in Cafe Roma" --schema examples/event.json -m micro'
        '\n  openafm quickstart --sentence "..."   openafm inspect micro   openafm recipes list'
    )
