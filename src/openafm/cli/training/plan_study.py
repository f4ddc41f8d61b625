"""`openafm plan SIZE --study`: a whole run on several kinds of chips, with failures and cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.cli.output import print_json, print_table, print_text
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.training.planning.chips import Chip
    from openafm.training.planning.plan import Workload
    from openafm.training.planning.study import Assumptions, StudiedRun

HEADINGS = ("chip", "mesh", "bounded by", "s/step", "MFU %", "days", "failures", "save every s", "goodput %", "simulated %")
PLOT_ENDINGS = (".png", ".svg", ".pdf")


def parse_prices(texts: list[str]) -> dict[str, float]:
    """Return prices by name of the chip, from texts such as `h100=2.5`.

    Raises:
        UsageError: a text has another form.
    """
    prices = {}
    for text in texts:
        chip, _, price = text.partition("=")
        try:
            prices[chip] = float(price)
        except ValueError:
            raise UsageError(f"'{text}' is not a price of a chip-hour; write it as h100=2.5") from None
    return prices


def check_plot(path: Path | None) -> None:
    """Check before a study that its plot can be written: the ending of the file, its folder, matplotlib.

    Raises:
        UsageError: it cannot be written.
    """
    import importlib.util

    if path is None:
        return
    if path.suffix.lower() not in PLOT_ENDINGS:
        raise UsageError(f"--plot {path} does not end in {', '.join(PLOT_ENDINGS)}; choose one of these endings")
    if not path.parent.is_dir():
        raise UsageError(f"the folder of --plot {path} does not exist; create it first")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("a plot needs matplotlib: pip install 'openafm[plots]'")


def compare_chips(
    size: str,
    devices: int,
    slices: int,
    workload: Workload,
    assumptions: Assumptions,
    *,
    plotted: Chip,
    plot: Path | None,
    json: bool,
) -> None:
    """Print a table with a line per kind of chip, or JSON, and the reason for each chip on which nothing fits.

    `plot` gets an image of the run on the chip `plotted`.
    """
    from openafm.models.sizes import named_size
    from openafm.training.planning.chips import PlanError
    from openafm.training.planning.search import Axes, make_plan
    from openafm.training.planning.study import Impossible, StudiedRun, studied_run, study

    model = named_size(size)
    runs = study(model, num_devices=devices, slices=slices, workload=workload, assumptions=assumptions)
    if plot is not None:
        plan = make_plan(model, num_devices=devices, chip=plotted, workload=workload, axes=Axes(), slices=slices)
        plot_study(studied_run(plan, assumptions), plot)
    if json:
        print_json({"model": size, "runs": [run.to_dict() for run in runs]})
        return
    fitting = [run for run in runs if isinstance(run, StudiedRun)]
    if not fitting:
        raise PlanError("\n".join(f"{run.chip}: {run.reason}" for run in runs if isinstance(run, Impossible)))
    with_cost = any(run.cost is not None for run in fitting)
    headings = (*HEADINGS, "million chip-hours", *(["cost in millions"] if with_cost else []))
    print_table(headings, [_row(run, with_cost) for run in fitting])
    for run in runs:
        if not isinstance(run, StudiedRun):
            print_text(f"{run.chip}: {run.reason}")


def _row(run: StudiedRun, with_cost: bool) -> tuple[Any, ...]:
    from openafm.training.planning.search import layout_name

    facts = run.to_dict()
    row = (
        facts["chip"],
        layout_name(run.plan.shape),
        run.plan.bound,
        f"{facts['step_seconds']:.3g}",
        f"{100 * facts['model_flops_utilization']:.1f}",
        f"{facts['days']:.1f}",
        f"{run.simulated.num_failures:.0f}",
        f"{facts['interval_seconds']:.0f}",
        f"{100 * facts['goodput_formula']:.1f}",
        f"{100 * facts['goodput_simulated']:.1f}",
        f"{facts['chip_hours'] / 1e6:.2f}",
    )
    return (*row, "-" if run.cost is None else f"{run.cost / 1e6:,.1f}") if with_cost else row


def plot_study(run: StudiedRun, path: Path) -> None:
    """Plot the goodput over the checkpoint interval: formula and simulation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    intervals, formula, simulated = zip(*run.curve(), strict=True)
    axes.plot(intervals, [100 * share for share in formula], label="Daly's formula", linewidth=1.2)
    axes.plot(intervals, [100 * share for share in simulated], "o", label="simulated", markersize=4)
    axes.axvline(run.failures.best_interval, color="gray", linestyle=":", linewidth=1.0, label="Daly's best interval")
    axes.set(
        xscale="log",
        xlabel="seconds in steps between checkpoints",
        ylabel="goodput (%)",
        title=f"{run.plan.shape.world:,} of {run.plan.chip.name}, {run.failures.between / 3600:.1f} hours between failures",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
