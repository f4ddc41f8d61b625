"""The report of a run: curves, counters, time of each part, warnings and samples, on the terminal, as PNG and as HTML."""

from __future__ import annotations

import base64
import html
import importlib.util
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.core.errors import UsageError
from openafm.core.files import atomic_file
from openafm.rl.collapse import CollapseWatch
from openafm.rl.config import CONFIG, SAMPLES
from openafm.rl.events import PartTimes, part_times, read_events, seconds_per_update
from openafm.training.observability.curves import terminal_curve
from openafm.training.observability.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = {
    "reward": "mean reward",
    "kl": "KL divergence from the reference, nats per sample",
    "entropy": "entropy, nats per token",
    "length": "tokens per sample",
    "lag": "updates since the sampling weights",
    "gradient_norm": "gradient norm",
    "log_ratio": "|log ratio| of policy and sampling weights, per token",
    "effective_share": "effective share of the tokens of a sample",
}
COUNTERS = ("generated", "trained", "stale", "dropped", "in_flight")
_SHOWN_SAMPLES = 40
_SAMPLE_KEYS = {"step", "prompt", "text", "reward", "terms", "error"}


class NoPolicyRunError(UsageError):
    """The folder holds no run of `openafm rl`, or one without a step."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a run has logged: lines by step, times of its parts, warnings in order, samples by step.

    `seconds_per_update` is the median wall time of an update with the generation of its samples, None for one update.
    """

    name: str
    lines: list[dict[str, Any]]
    parts: list[PartTimes]
    warnings: list[str]
    samples: list[dict[str, Any]]
    seconds_per_update: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON, without samples."""
        last = self.lines[-1]
        parts = {
            part.part: {
                "seconds": {name: round(seconds, 3) for name, seconds in part.seconds.items()},
                "idle_share": round(part.idle_share, 4),
                "tokens_per_second": round(part.tokens_per_second, 1),
            }
            for part in self.parts
        }
        curves = {name: [line[name] for line in self.lines if name in line] for name in CURVES}
        counters = {name: last[name] for name in COUNTERS}
        return {
            "steps": last["step"],
            "seconds_per_update": self.seconds_per_update,
            "counters": counters,
            "parts": parts,
            "warnings": self.warnings,
            "curves": curves,
        }


def read_report(folder: Path) -> Report:
    """Return the report of a run.

    Raises:
        NoPolicyRunError: the folder holds no run with a step.
        MetricsError: the log is damaged.
    """
    if not (folder / CONFIG).is_file():
        raise NoPolicyRunError(f"{folder} is not the folder of a run of `openafm rl`: {CONFIG} is missing")
    lines = read_metrics(folder)
    if not lines:
        raise NoPolicyRunError(f"{folder} has no step yet; start it with `openafm rl`")
    watch, events = CollapseWatch(), read_events(folder)
    return Report(
        name=folder.resolve().name,
        lines=lines,
        parts=part_times(events),
        warnings=[warning for line in lines for warning in watch.warnings(line["step"], line)],
        samples=_read_samples(folder / SAMPLES, lines[-1]["step"]),
        seconds_per_update=seconds_per_update(events),
    )


def _read_samples(path: Path, last_step: int) -> list[dict[str, Any]]:
    """Return the samples up to a step. Of a step that was repeated after an interruption, the last ones count.

    Raises:
        NoPolicyRunError: a line is damaged.
    """
    if not path.is_file():
        return []
    by_step: dict[int, list[dict[str, Any]]] = {}
    previous = 0
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            sample = json.loads(line)
            is_whole = isinstance(sample["step"], int) and sample.keys() >= _SAMPLE_KEYS
        except (ValueError, KeyError, TypeError, RecursionError):
            is_whole = False
        if not is_whole:
            raise NoPolicyRunError(f"line {number} of {path} is not a sample; remove the file for a report without samples")
        if sample["step"] < previous:
            by_step = {step: samples for step, samples in by_step.items() if step < sample["step"]}
        previous = sample["step"]
        by_step.setdefault(previous, []).append(sample)
    return [sample for step, samples in sorted(by_step.items()) if step <= last_step for sample in samples]


def terminal_report(report: Report) -> str:
    """Return the report as text."""
    last = report.lines[-1]
    parts = [f"{report.name}: {last['step']} steps", ""]
    parts += [CURVES["reward"], terminal_curve([line["reward"] for line in report.lines]), ""]
    for name, title in CURVES.items():
        if name in last:
            parts.append(f"{title:55} {report.lines[0][name]:10.4g} -> {last[name]:10.4g}")
    counters = " + ".join(f"{last[name]} {name.replace('_', ' ')}" for name in COUNTERS[1:])
    parts += ["", f"samples: {last['generated']} generated = {counters}", ""]
    if report.seconds_per_update is not None:
        parts.append(f"time from update to update: {report.seconds_per_update:.2f} s (median)")
    for part in report.parts:
        seconds = ", ".join(f"{name} {value:.1f} s" for name, value in part.seconds.items())
        parts.append(f"{part.part}: idle {part.idle_share:.0%}, {part.tokens_per_second:,.0f} tokens/s ({seconds})")
    parts += ["", *[f"warning: {warning}" for warning in report.warnings]]
    for sample in report.samples[-2:]:
        parts += ["", f"step {sample['step']}, reward {sample['reward']:.3f}: {sample['text']}"]
    return "\n".join(parts).rstrip()


def write_picture(report: Report, folder: Path) -> Path | None:
    """Write the curves to `report.png` and return its path; None if matplotlib is not installed."""
    figure = _figure(report)
    if figure is None:
        return None
    path = folder / "report.png"
    with atomic_file(path) as file:
        figure.savefig(file, dpi=110, format="png")
    return path


def _figure(report: Report) -> Figure | None:
    if importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 12), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(4, 2).ravel(), CURVES.items(), strict=True):
        points = [(line["step"], line[name]) for line in report.lines if name in line]
        axes.plot([step for step, _ in points], [value for _, value in points], linewidth=1.2)
        axes.set(title=title, xlabel="step")
        axes.grid(alpha=0.3)
    return figure


def write_html(report: Report, folder: Path) -> Path:
    """Write `report.html`, one file without references: curves, counters, parts, warnings, samples with reward terms."""
    last = report.lines[-1]
    figure = _figure(report)
    picture = ""
    if figure is not None:
        stream = io.BytesIO()
        figure.savefig(stream, dpi=90, format="png")
        picture = f'<img src="data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}" alt="curves">'
    parts = [
        (part.part, f"{part.idle_share:.0%}", f"{part.tokens_per_second:,.0f}", f"{part.wall:,.1f}") for part in report.parts
    ]
    body = [
        f"<h1>{html.escape(report.name)}: {last['step']} steps</h1>",
        picture,
        "<h2>Samples by state</h2>",
        _table(("state", "samples"), [(name.replace("_", " "), str(last[name])) for name in COUNTERS]),
        "<h2>Parts</h2>",
        _table(("part", "idle", "tokens/s", "seconds"), parts),
        "<h2>Warnings</h2>",
        *([f"<p>{html.escape(warning)}</p>" for warning in report.warnings] or ["<p>none</p>"]),
        "<h2>Samples</h2>",
        _table(("step", "reward", "terms", "prompt", "answer"), [_sample_row(each) for each in _spread(report.samples)]),
    ]
    path = folder / "report.html"
    with atomic_file(path, "w") as file:
        file.write(
            f"<!doctype html><meta charset='utf-8'><title>{html.escape(report.name)}</title>{_STYLE}{''.join(body)}\n"
        )
    return path


_STYLE = (
    "<style>body{font:14px sans-serif;max-width:72em;margin:2em auto}table{border-collapse:collapse}"
    "td,th{border:1px solid #ccc;padding:4px 8px;text-align:left;vertical-align:top;white-space:pre-wrap}"
    "img{max-width:100%}</style>"
)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    lines = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{lines}</table>"


def _spread(samples: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return samples from the whole run, at most `_SHOWN_SAMPLES`."""
    stride = -(-len(samples) // _SHOWN_SAMPLES) or 1
    return samples[::stride]


def _sample_row(sample: dict[str, Any]) -> tuple[str, ...]:
    terms = ", ".join(f"{name} {value:.3f}" for name, value in sample["terms"].items())
    prompt = "\n".join(f"{message['role']}: {_content(message)}" for message in sample["prompt"]["messages"])
    return (str(sample["step"]), f"{sample['reward']:.3f}", sample["error"] or terms, prompt, sample["text"])


def _content(message: dict[str, Any]) -> str:
    content = message.get("content", "")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
