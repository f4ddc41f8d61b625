"""Scores on sets by other authors over training tokens and parameters: what limits the shipped model.

Each model is a bundle and the tokens that it was trained on; bundles of running trainings come from
`openafm checkpoint consolidate`. A full run writes docs/benchmarks/shipped_scaling.json and .png, which keep the rows of
models that it does not measure. `[=NAME]` is the name of the row.

    python benchmarks/shipped_scaling.py BUNDLE=TOKENS[=NAME] ... [--natural FOLDER] [--count 60] [--quick] [--json]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in, with_former_rows

import openafm as fm
from openafm.bundle import open_bundle
from openafm.bundle.describe import describe_bundle
from openafm.evaluation.fresh.cases import Case
from openafm.evaluation.fresh.figures import fresh_cases, fresh_figures

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "shipped_scaling.json"
TICKS = (1, 2, 5, 10, 20, 50)  # of tokens, in millions
QUICK = 8  # every how many cases one is taken in a smoke run


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("models", nargs="*", default=["nano=8174623"], metavar="BUNDLE=TOKENS[=NAME]")
    parser.add_argument("--natural", type=Path, help="folder of NAME-test.jsonl.gz files")
    parser.add_argument("--count", type=int, default=60, help="cases of each natural set and task")
    options = parser.parse_args()
    cases = fresh_cases(options.natural, options.count)
    rows = [measure(model, cases[::QUICK] if options.quick else cases) for model in options.models]
    if not options.quick:
        rows = with_former_rows(rows, REPORT)
    hand_in({"figures": {row["model"]: row["scores"] for row in rows}, "rows": rows}, REPORT, options)
    if not options.quick:
        draw(rows, REPORT.with_suffix(".png"))


def measure(model: str, cases: list[Case]) -> dict[str, Any]:
    """Return parameters, tokens and scores of a model."""
    bundle_name, tokens, *row_name = model.split("=")
    bundle = open_bundle(bundle_name)
    figures = fresh_figures(fm.SystemLanguageModel(bundle=bundle.path), cases)
    return {
        "model": row_name[0] if row_name else bundle.path.name,
        "parameters": describe_bundle(bundle).parameters,
        "tokens": int(tokens),
        "scores": {figure: round(score.model, 4) for figure, score in figures.items()},
    }


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw each figure over tokens: a line for each number of parameters."""
    from matplotlib import pyplot as plt

    names = list(rows[0]["scores"])
    columns = 4
    drawn, axes = plt.subplots(-(-len(names) // columns), columns, figsize=(13, 10), sharex=True, sharey=True)
    for axis, name in zip(axes.flat, names, strict=False):
        for parameters in sorted({row["parameters"] for row in rows}):
            line = sorted((row for row in rows if row["parameters"] == parameters), key=lambda row: row["tokens"])
            shares = [100 * row["scores"][name] for row in line]
            axis.plot([row["tokens"] / 1e6 for row in line], shares, "o-", label=f"{parameters / 1e6:.1f} M parameters")
        axis.set(title=name, xscale="log", ylim=(0, 100))
        axis.grid(alpha=0.3)
        axis.set_xticks(TICKS, labels=map(str, TICKS))
        axis.minorticks_off()
        axis.tick_params(labelbottom=True)
        axis.set_xlabel("training tokens, millions")
    for axis in axes.flat[len(names) :]:
        axis.remove()
    axes.flat[0].set_ylabel("%")
    axes.flat[0].legend()
    drawn.tight_layout()
    drawn.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
