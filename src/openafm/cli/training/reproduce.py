"""`openafm reproduce`: the stages of the report one after the other, and its claims beside our figures."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openafm.cli.output import JsonOption, counted, print_json, print_table, print_text
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.terminal import escaped

if TYPE_CHECKING:
    from openafm.recipes.reproduction.claims.claim import MeasuredClaim
    from openafm.recipes.reproduction.results import StageResult
    from openafm.recipes.reproduction.stages.stage import Stage

HERE_WIDTH = 72
"""Characters of our figure in the terminal; the page has all of them."""

app = typer.Typer(
    help="Reproduce the report: data, both models, training, compression, use, evaluation.", invoke_without_command=True
)


@app.callback()
def reproduce(
    context: typer.Context,
    size: Annotated[str, typer.Option(help="tiny (two steps of each training), micro or nano; base with --plan.")] = "micro",
    only: Annotated[str, typer.Option(help="Names of stages, separated by commas; the others stay as they are.")] = "",
    plan: Annotated[bool, typer.Option("--plan", help="List the stages and what is done, and run nothing.")] = False,
    chip: Annotated[str | None, typer.Option(help="Kind of chip for the plan of the size base; default: tpu-v5p.")] = None,
    price: Annotated[
        float | None, typer.Option(help="Price of a chip-hour, for the cost of the size base.", min=0.0)
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; a run in it is continued.")] = Path("reproduction"),
    json: JsonOption = False,
) -> None:
    """Run the stages of the report and write the page of claims. Repeat the command to continue after an interruption."""
    if context.invoked_subcommand is not None:
        return
    from openafm.recipes.reproduction.results import release_space
    from openafm.recipes.reproduction.runner import check_names, run_stages
    from openafm.recipes.reproduction.stages.catalog import report_stages

    if size == "base":
        _plan_base(plan, chip or "tpu-v5p", price, [name for name in only.split(",") if name], json)
        return
    if chip is not None or price is not None:
        raise UsageError("--chip and --price are options of --size base --plan; leave them out")
    stages = report_stages(_checked(size))
    chosen = [name for name in only.split(",") if name]
    check_names(stages, chosen)
    estimates = _estimates(stages, size, out)
    if plan:
        _print_plan([stage for stage in stages if not chosen or stage.name in chosen], stages, out, estimates, json)
        return

    def report(line: str) -> None:
        print(escaped(line), file=sys.stderr, flush=True)

    results = run_stages(stages, out, size, chosen, report, estimates)
    release_space(out)
    _finish(out, size, results, json)
    missing = [result.name for result in results if result.name in chosen and result.state == "skipped"]
    if failed := [result.name for result in results if result.state == "failed"] or missing:
        raise OpenAFMError(
            f"these stages were not done: {', '.join(failed)}; the page has the reasons; repeat the command afterwards"
        )


def _plan_base(is_plan: bool, chip: str, price: float | None, only: list[str], json: bool) -> None:
    """Print layout, days and chip-hours of the report's trainings, and the options of `train` for each."""
    from openafm.recipes.reproduction.base_plan import BASE_STAGES, PlannedOnlyError, plan_base
    from openafm.training.planning.search import layout_name

    if not is_plan:
        raise PlannedOnlyError
    known = [stage.recipe for stage in BASE_STAGES]
    if unknown := [name for name in only if name not in known]:
        raise UsageError(f"the size base has no training '{unknown[0]}'; its trainings: {', '.join(known)}")
    chosen = tuple(stage for stage in BASE_STAGES if not only or stage.recipe in only)
    planned = plan_base(chip, {} if price is None else {chip: price}, chosen)
    if json:
        print_json([one.to_dict() for one in planned])
        return
    rows = []
    for one in planned:
        stage, run = one.stage, one.run
        facts = (stage.section, stage.recipe, stage.model, f"{stage.tokens / 1e9:,.0f}{'' if stage.is_stated else ' *'}")
        if run is None:
            rows.append((*facts, stage.devices, "does not fit", "-", "-", "-", "-"))
            continue
        mesh = layout_name(run.plan.shape) + (", recomputed" if run.plan.workload.activation_checkpointing else "")
        cost = "-" if run.cost is None else f"{run.cost / 1e6:,.2f}"
        days, thousands = f"{run.simulated.wall / 86400:.2f}", f"{run.chip_hours / 1000:,.1f}"
        rows.append((*facts, stage.devices, mesh, f"{run.step_seconds:.3g}", days, thousands, cost))
    headings = ("section", "training", "model", "10^9 tokens", "chips", "mesh", "s/step", "days", "1,000 chip-hours")
    print_table((*headings, "cost in millions"), rows)
    print_text("\n* assumed: the report does not state it. Speed is half of the plan's, which is at peak rates.\n")
    for one in planned:
        print_text(f"{one.stage.recipe}: {' '.join(one.settings) or one.reason}")


@app.command("report")
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a reproduction.")],
    json: JsonOption = False,
) -> None:
    """Write the page of a reproduction again, from what its stages stored."""
    from openafm.recipes.reproduction.results import read_results

    size, results = read_results(run)
    _finish(run, size, results, json)


def _estimates(stages: Sequence[Stage], size: str, folder: Path) -> dict[str, float]:
    from openafm.recipes.reproduction.calibration import calibrated
    from openafm.recipes.reproduction.estimates import estimated_seconds

    return estimated_seconds(stages, size, calibrated(size), folder)


def _print_plan(
    chosen: Sequence[Stage], stages: Sequence[Stage], folder: Path, estimates: Mapping[str, float], json: bool
) -> None:
    """Print which stages are done, and how long the others take on this machine."""
    from openafm.recipes.reproduction.forecast import clock_time
    from openafm.recipes.reproduction.runner import kept_stages

    done = kept_stages(stages, folder)
    left = {stage.name: estimates[stage.name] for stage in chosen if stage.name not in done}
    if json:
        print_json(
            [
                {
                    "section": stage.section,
                    "stage": stage.name,
                    "state": "to run" if stage.name in left else "done",
                    "seconds": round(left.get(stage.name, done[stage.name].seconds if stage.name in done else 0.0), 1),
                    "title": stage.title,
                }
                for stage in chosen
            ]
        )
        return
    rows = [
        (
            stage.section,
            stage.name,
            f"about {clock_time(left[stage.name])}" if stage.name in left else f"done in {done[stage.name].seconds:.0f} s",
            stage.title,
        )
        for stage in chosen
    ]
    print_table(("section", "stage", "time", "title"), rows)
    print_text(
        f"\n{counted(len(left), 'stage')} to run, about {clock_time(sum(left.values()))} on this machine when it is quiet"
    )


def _finish(folder: Path, size: str, results: list[StageResult], json: bool) -> None:
    from openafm.recipes.reproduction.claims.catalog import measured_claims
    from openafm.recipes.reproduction.next_commands import next_commands
    from openafm.recipes.reproduction.page.page import summary, write_pages
    from openafm.recipes.reproduction.stages.catalog import report_stages

    stages = report_stages(size)
    claims = measured_claims(results, stages, size)
    html, markdown = write_pages(folder, size, stages, results, claims)
    if json:
        print_json(_figures(results, claims) | {"page": str(html), "markdown": str(markdown)})
        return
    words = {True: "yes", False: "no", None: "-"}
    rows = [(each.section, words[each.holds], each.text, each.reported, shorten(each.ours, HERE_WIDTH)) for each in claims]
    print_table(("section", "holds", "claim", "report", "here"), rows)
    print_text(f"\n{summary(size, results, claims)}\npage: {html}")
    if (folder / "home").is_dir():
        print_text(f"bundles: {folder / 'home'}")
    if commands := next_commands(folder, size, results):
        print_text("\nto try next:\n" + "\n".join(f"  {command}" for command in commands))


def _figures(results: list[StageResult], claims: list[MeasuredClaim]) -> dict[str, Any]:
    return {
        "stages": {
            result.name: {"state": str(result.state), "seconds": result.seconds, "reason": result.reason}
            for result in results
        },
        "claims": [vars(claim) for claim in claims],
        "claims_measured": sum(claim.holds is not None for claim in claims),
        "claims_holding": sum(claim.holds is True for claim in claims),
        "minutes": round(sum(result.seconds for result in results) / 60, 1),
    }


def _checked(size: str) -> str:
    from openafm.recipes.reproduction.sizes import SIZES

    if size not in SIZES:
        raise UsageError(f"the size '{size}' is not one of {', '.join(SIZES)}, nor base, which is planned only")
    return size
