"""The report of a project as one HTML file without scripts and without requests, and its figures."""

from __future__ import annotations

import base64
from importlib.resources import files
from pathlib import Path
from typing import Any

from openafm.annotation.errors import writing_to
from openafm.annotation.statistics.figure import write_figure
from openafm.core.files import atomic_file, write_json


def write_report(report: dict[str, Any], folder: Path) -> list[Path]:
    """Write report.json, report.html, and preferred.png and preferred.svg if a comparison is judged. Return their paths.

    Raises:
        AnnotationError: the folder cannot be written.
        MissingLibraryError: matplotlib is not installed.
    """
    with writing_to(folder):
        return _write(report, folder)


def _write(report: dict[str, Any], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    figures = [folder / "preferred.png", folder / "preferred.svg"] if report["groups"] else []
    for path in figures:
        write_figure(report["groups"], path)
    write_json(folder / "report.json", report)
    image = base64.b64encode(figures[1].read_bytes()).decode() if figures else ""
    with atomic_file(folder / "report.html", "w") as file:
        file.write(report_page(report, image))
    return [folder / "report.html", folder / "report.json", *figures]


def report_page(report: dict[str, Any], image: str = "") -> str:
    """Return the HTML page of a report.

    Args:
        image: the SVG figure in base64.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = lambda share: "–" if share is None else f"{share:.1%}"
    environment.filters["number"] = lambda value: "–" if value is None else f"{value:.2f}"
    environment.filters["interval"] = lambda pair: f"[{pair[0]:.1%}, {pair[1]:.1%}]"
    template = files("openafm.annotation").joinpath("pages", "report", "report.html").read_text(encoding="utf-8")
    page: str = environment.from_string(template).render(report=report, image=image)
    return page
