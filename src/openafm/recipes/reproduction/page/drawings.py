"""Drawings of the page as SVG: the stages with their digests, and the curves of trainings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from openafm.core.files import lines_of
from openafm.recipes.reproduction.results import StageResult
from openafm.recipes.reproduction.stages.stage import Stage

_BOX, _GAP = (136, 40), (34, 14)
_CURVE = (220, 70)
_MOST_POINTS = 200


def diagram(stages: Sequence[Stage], results: Mapping[str, StageResult]) -> str:
    """Return the stages as boxes with name and digest, from left to right, with lines from those that they need."""
    columns: dict[str, int] = {}
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for stage in stages:
        column = max((columns[name] + 1 for name in stage.needs), default=0)
        columns[stage.name] = column
        rows[column] = rows.get(column, -1) + 1
        places[stage.name] = (column * (_BOX[0] + _GAP[0]) + 1, rows[column] * (_BOX[1] + _GAP[1]) + 1)
    width = max(x for x, _ in places.values()) + _BOX[0] + 1
    height = max(y for _, y in places.values()) + _BOX[1] + 1
    lines = "".join(_line(places[name], places[stage.name]) for stage in stages for name in stage.needs)
    boxes = "".join(_box(stage, places[stage.name], results.get(stage.name)) for stage in stages)
    label = "Stages from left to right, each with its digest and lines from the stages that it needs"
    return f'<svg class="diagram" width="{width}" height="{height}" role="img" aria-label="{label}">{lines}{boxes}</svg>'


def _line(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1, x2, y2 = start[0] + _BOX[0], start[1] + _BOX[1] // 2, end[0], end[1] + _BOX[1] // 2
    middle = x2 - _GAP[0] // 2
    return f'<path d="M{x1} {y1} C{x1 + 20} {y1} {middle - 14} {y2} {x2} {y2}"/>'


def _box(stage: Stage, place: tuple[int, int], result: StageResult | None) -> str:
    x, y = place
    state, digest = ("not run", "") if result is None else (str(result.state), result.digest[:8])
    return (
        f'<g class="{escape(state)}"><title>{escape(f"{stage.section} {stage.title}: {state}")}</title>'
        f'<rect x="{x}" y="{y}" width="{_BOX[0]}" height="{_BOX[1]}" rx="5"/>'
        f'<text x="{x + 8}" y="{y + 17}">{escape(stage.name)}</text>'
        f'<text class="digest" x="{x + 8}" y="{y + 32}">{escape(digest or state)}</text></g>'
    )


def curves(folder: Path, stages: Sequence[Stage], results: Mapping[str, StageResult]) -> str:
    """Return the losses of trainings by step, and the reward of reinforcement learning, from the files of the runs."""
    found = []
    for stage in (each for each in stages if each.name != "rlhf"):  # its loss says nothing about progress
        for path in sorted((folder / stage.name).glob("*/metrics.jsonl")):
            points = _points(path)
            if len(points) > 1:
                name = stage.name if path.parent.name == "run" else path.parent.name
                found.append(_curve(f"{name}: loss", points))
    report = results["rlhf"].figures.get("report", {}) if "rlhf" in results else {}
    rewards = list(enumerate(report.get("curves", {}).get("reward", ()), start=1))
    if len(rewards) > 1:
        found.append(_curve("rlhf: reward", rewards))
    return "".join(found) or "<p>No training made two measurements.</p>"


def _points(path: Path) -> list[tuple[float, float]]:
    points = []
    for line in lines_of(path.read_text(encoding="utf-8")):
        try:
            values = json.loads(line)
            points.append((float(values["step"]), float(values["loss"])))
        except (ValueError, KeyError, TypeError):  # another kind of line, or one that a kill cut
            continue
    return points[:: max(len(points) // _MOST_POINTS, 1)]


def _curve(title: str, points: Sequence[tuple[float, float]]) -> str:
    (x0, x1), (y0, y1) = ((min(each), max(each)) for each in zip(*points, strict=True))
    width, height = _CURVE
    shown = " ".join(
        f"{width * (x - x0) / ((x1 - x0) or 1):.1f},{height - (height - 4) * (y - y0) / ((y1 - y0) or 1) - 2:.1f}"
        for x, y in points
    )
    return (
        f'<figure><svg width="{width}" height="{height}" role="img" aria-label="{escape(title)}">'
        f'<polyline points="{shown}"/></svg><figcaption>{escape(title)} {points[0][1]:.3g} to {points[-1][1]:.3g}'
        f" in {x1:.0f} steps</figcaption></figure>"
    )
