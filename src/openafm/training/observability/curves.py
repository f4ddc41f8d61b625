"""Plots of a run: its loss, as an image and in a terminal, and the loads of its experts. Imports no tensor library.

Shapes: L lines of the log, X experts of all tracks of a layer.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from openafm.core.errors import OpenAFMError
from openafm.training.observability.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BRAILLE = 0x2800
_DOT_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # 4 rows x 2 columns of a character


class CurveError(OpenAFMError):
    """There is no data to plot, or matplotlib is not installed."""


def plot_losses(run_folder: Path) -> Path:
    """Plot training and held-out loss over steps into `loss.png` of a run's folder.

    Raises:
        CurveError: the run has logged nothing, or matplotlib is not installed.
    """
    figure_class = _figure_class()
    lines = read_metrics(run_folder)
    figure = figure_class(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for key, label in (("loss", "training"), ("held_out_loss", "held out")):
        points = [(line["step"], line[key]) for line in lines if key in line]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, linewidth=1.2)
    if not axes.lines:
        raise CurveError(f"{run_folder} has no logged losses yet; train into it first")
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=run_folder.name)
    axes.grid(alpha=0.3)
    axes.legend()
    path = run_folder / "loss.png"
    figure.savefig(path, dpi=120)
    return path


def plot_experts(run_folder: Path) -> Path:
    """Plot the load of each expert over the run into `experts.png`: a map for each layer, 1 is an even load.

    Raises:
        CurveError: the model has no experts, the run has logged nothing, or matplotlib is not installed.
    """
    figure_class = _figure_class()
    lines = [line for line in read_metrics(run_folder) if "expert_tokens" in line]
    if not lines:
        raise CurveError(f"{run_folder} has no logged expert loads; only models with experts have them")
    layers = list(lines[0]["expert_tokens"])
    figure = figure_class(figsize=(7, 1 + 1.6 * len(layers)), layout="constrained")
    for layer, axes in zip(layers, figure.subplots(len(layers), 1, sharex=True, squeeze=False)[:, 0], strict=True):
        loads_LX = np.array([_loads(line["expert_tokens"][layer]) for line in lines])
        extent = (lines[0]["step"], max(lines[-1]["step"], lines[0]["step"] + 1), loads_LX.shape[1], 0)
        picture = axes.imshow(
            loads_LX.T, aspect="auto", interpolation="nearest", cmap="coolwarm", vmin=0, vmax=2, extent=extent
        )
        axes.set(ylabel=f"layer {layer}")
    axes.set(xlabel="step")
    figure.suptitle(f"{run_folder.name}: tokens of each expert, track after track; 1 is an even load")
    figure.colorbar(picture, ax=figure.axes, extend="max")
    path = run_folder / "experts.png"
    figure.savefig(path, dpi=120)
    return path


def _loads(tokens_TE: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the loads of the experts, one track after another [X]; 1 is an even load in the track."""
    counts_TE = np.asarray(tokens_TE, dtype=np.float64)
    loads_TE: np.ndarray = counts_TE / np.maximum(counts_TE.mean(axis=1, keepdims=True), 1e-12)
    return loads_TE.ravel()


def _figure_class() -> type[Figure]:
    if importlib.util.find_spec("matplotlib") is None:
        raise CurveError("plots need matplotlib; install openafm[plots]")
    from matplotlib.figure import Figure

    return Figure


def draw(run_folder: Path) -> tuple[Path, ...]:
    """Draw and return the plots of a run: its loss and its experts, if it has any; none without matplotlib."""
    pictures = []
    for plot in (plot_losses, plot_experts):
        with contextlib.suppress(CurveError):
            pictures.append(plot(run_folder))
    return tuple(pictures)


def terminal_curve(losses: Sequence[float], width: int = 60, height: int = 10) -> str:
    """Return the losses as `height` (at least 2) lines of braille dots `width` characters wide, labeled with high and low.

    Raises:
        CurveError: there are no losses.
    """
    if not losses:
        raise CurveError("there are no losses to plot")
    columns = np.array([part.mean() for part in np.array_split(np.asarray(losses), min(len(losses), 2 * width))])
    columns = np.interp(np.linspace(0, len(columns) - 1, 2 * width), np.arange(len(columns)), columns)
    low, high = columns.min(), columns.max()
    rows = np.rint((high - columns) / max(high - low, 1e-12) * (4 * height - 1)).astype(int)
    dots = np.zeros((4 * height, 2 * width), dtype=bool)
    for column, (row, row_before) in enumerate(zip(rows, [rows[0], *rows[:-1]], strict=True)):
        dots[min(row, row_before) : max(row, row_before) + 1, column] = True
    cells = (dots.reshape(height, 4, width, 2) * _DOT_BITS[None, :, None, :]).sum(axis=(1, 3))
    labels = [f"{high:8.3f}"] + [" " * 8] * (height - 2) + [f"{low:8.3f}"]
    return "\n".join(
        f"{label} ┤{''.join(chr(_BRAILLE + cell) for cell in line)}" for label, line in zip(labels, cells, strict=True)
    )
