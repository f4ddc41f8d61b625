"""`openafm recipes ablate`: short runs over a grid of mixture weights, and their held-out losses by task."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.options import PluginsOption, SetOption, parse_changes
from openafm.cli.output import JsonOption, print_json, print_table
from openafm.core.errors import UsageError


def ablate(
    recipe: Annotated[str, typer.Argument(help="A recipe that starts from a bundle, such as on_device.sft_multilingual.")],
    weights: Annotated[
        list[str],
        typer.Option("--weight", metavar="SOURCE=W,W,...", help="Weights of a source to try; 0 leaves it out. Repeatable."),
    ],
    size: Annotated[str | None, typer.Option(help="The model size; default: the recipe's largest.")] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Bundle that all runs start from; default: that of the recipe before it.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Your data, as for `openafm train`.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of each run.")] = 100,
    examples: Annotated[int, typer.Option(min=1, help="Held-out examples of each task.")] = 40,
    changes: SetOption = None,
    plugins: PluginsOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder; default: runs/RECIPE-ablation.")] = None,
    json: JsonOption = False,
) -> None:
    """Train each mixture of a grid from one bundle and compare held-out losses. Repeat the command to continue."""
    from openafm.recipes.ablation import ablate_mixtures, mixture_name
    from openafm.recipes.prepare import prepare_run

    tried = parse_weights(weights)
    config = prepare_run(recipe, size, start=start, data=data, changes=parse_changes(changes), plugins=plugins or ())
    folder = output or Path("runs") / f"{recipe}-ablation"
    results = ablate_mixtures(config, tried, folder, num_steps=steps, num_examples=examples)
    best = min(results, key=lambda result: result.mean_held_out)
    if json:
        runs = [{"shares": each.shares, "loss": each.loss, "held_out": each.held_out} for each in results]
        print_json({"folder": str(folder), "runs": runs, "best": best.shares})
        return
    names = list(results[0].held_out)
    rows = [
        (mixture_name(each.shares), *(f"{each.held_out[name]:.3f}" for name in names), f"{each.mean_held_out:.3f}")
        for each in results
    ]
    print_table(("mixture", *names, "mean"), rows)
    print(f"lowest mean: {mixture_name(best.shares)}; {folder / 'ablation.json'}", file=sys.stderr)


def parse_weights(texts: list[str]) -> dict[str, list[float]]:
    """Return the weights to try by source, from texts such as `english=0.5,0.8`.

    Raises:
        UsageError: a text has another form, or a source is named twice.
    """
    weights: dict[str, list[float]] = {}
    for text in texts:
        source, _, numbers = text.partition("=")
        try:
            found = [float(number) for number in numbers.split(",")]
        except ValueError:
            raise UsageError(f"--weight {text} is not SOURCE=NUMBER,NUMBER,..., such as english=0.5,0.8") from None
        if source in weights:
            raise UsageError(f"--weight names '{source}' twice; list its weights once, separated by commas")
        weights[source] = found
    return weights
