"""The figure of a project, like the report's figure 4: bars of wins, ties and losses by locale group, for each pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openafm.annotation.errors import AnnotationError
from openafm.core.files import atomic_file
from openafm.core.libraries import needed

_COLORS = {"win": "#2f6fb0", "tie": "#c9c9ce", "loss": "#d98032"}


def write_figure(groups: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw the shares by group (`project_report(...)["groups"]`) into a PNG, SVG or PDF file.

    Raises:
        AnnotationError: no comparison is judged, or the name of the file has another ending.
        MissingLibraryError: matplotlib is not installed.
    """
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise AnnotationError(f"{path} is not a .png, .svg or .pdf file; choose one of these endings")
    if not groups:
        raise AnnotationError("no comparison is judged; there is nothing to draw")
    with needed("the figure", "matplotlib", "plots"):
        from matplotlib.figure import Figure
    bars = [(group, row) for group, rows in groups.items() for row in rows]
    figure = Figure(figsize=(8, 1.2 + 0.5 * len(bars) + 0.3 * len(groups)), layout="constrained")
    axes = figure.add_subplot()
    positions, place, last = list[float](), 0.0, ""
    for group, _row in bars:
        place -= 1.0 if group == last else 1.8
        positions.append(place)
        last = group
    for position, (_group, row) in zip(positions, bars, strict=True):
        _draw_bar(axes, position, row)
    for group in groups:
        top = max(position for position, (name, _) in zip(positions, bars, strict=True) if name == group)
        axes.text(0, top + 0.55, group, fontweight="bold", va="bottom", parse_math=False)
    labels = [f"{row['first']}\nvs. {row['second']}  (n={row['comparisons']})" for _, row in bars]
    axes.set_yticks(positions, labels, fontsize=8, parse_math=False)  # names may have dollar signs
    axes.set_xlim(0, 1)
    axes.set_ylim(min(positions) - 0.6, max(positions) + 1.3)
    axes.xaxis.set_major_formatter(lambda share, _position: f"{share:.0%}")
    axes.set_xlabel("Share of comparisons; lines: 95 % intervals of wins and of losses")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    for name, color in _COLORS.items():
        axes.bar(0, 0, color=color, label=name)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    with atomic_file(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)


def _draw_bar(axes: Any, position: float, row: Mapping[str, Any]) -> None:
    left = 0.0
    for name, color in _COLORS.items():
        share = row[name]["share"]
        axes.barh(position, share, left=left, height=0.7, color=color)
        if share >= 0.06:
            shade = "black" if name == "tie" else "white"
            axes.text(left + share / 2, position, f"{share:.0%}", ha="center", va="center", color=shade, fontsize=8)
        left += share
    axes.plot(row["win"]["interval"], [position - 0.41] * 2, color=_COLORS["win"], linewidth=1.8)
    axes.plot([1 - share for share in row["loss"]["interval"]], [position - 0.47] * 2, color=_COLORS["loss"], linewidth=1.8)
