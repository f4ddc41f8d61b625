"""The page of a reproduction: claims, diagram, curves, samples, stages with time and energy. One HTML file, and Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from openafm import __version__
from openafm.core.files import atomic_file
from openafm.recipes.reproduction.claims.claim import MeasuredClaim
from openafm.recipes.reproduction.commands import LOG
from openafm.recipes.reproduction.page.drawings import curves, diagram
from openafm.recipes.reproduction.page.samples import pictures, text_samples
from openafm.recipes.reproduction.results import StageResult
from openafm.recipes.reproduction.stages.stage import Stage

HTML, MARKDOWN = "report.html", "report.md"
WATTS_PER_CORE = 10.0
"""An assumption for the energy of a stage: CPU time of its processes times the power of a busy core."""
_TITLE = "The report, reproduced"
_TINY = "Models of this size were trained for two steps: the page shows that the stages fit together, and no effect."
_MOST_CHARACTERS = 12_000
_WORDS = {True: "yes", False: "no", None: "-"}
_CLASSES = {True: "yes", False: "no", None: "none"}
_PAGE = Template(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>$title</title>
<style>
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #c4302b; --ink: #3572b0; }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff8178; --ink: #7fb2e5; } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 1.5rem auto; padding: 0 1rem; }
nav a { margin-right: 1rem }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid var(--line) }
td { overflow-wrap: break-word; max-width: 28rem } td:first-child, td.yes, td.no, td.number { white-space: nowrap }
.yes { color: var(--good) } .no { color: var(--bad) } .none { opacity: .7 }
pre { overflow-x: auto; font-size: 12px } code { font-size: 12px; overflow-wrap: anywhere }
svg text { font: 13px system-ui, sans-serif; fill: currentColor } svg .digest { font: 11px monospace; opacity: .75 }
svg rect { fill: Canvas; stroke: var(--line); stroke-width: 1.5 } svg path { fill: none; stroke: var(--line) }
.diagram .done rect, .diagram .kept rect { stroke: var(--good) } .diagram .failed rect { stroke: var(--bad) }
.diagram .skipped rect { stroke-dasharray: 4 }
summary { opacity: .7; font-size: 13px }
svg polyline { fill: none; stroke: var(--ink); stroke-width: 1.5 }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(13.75rem, 1fr)); gap: 1rem 1.5rem }
.many { display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; margin-top: 1rem } figure { margin: 0; max-width: 100% }
figcaption { font-size: 12px } img { max-width: 100%; background: #fff }
@media (max-width: 40rem) {
  .claims thead { display: none } .claims, .claims tbody { display: block }
  .claims tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line) }
  .claims td:nth-child(2) { font-weight: 600 } .claims summary, .claims code { font-weight: 400 }
  .claims td { display: block; border: 0; padding: .1rem 0; max-width: none }
  .claims td[data-label]::before { content: attr(data-label) ": "; opacity: .7 }
}
</style></head><body>
<h1>$title</h1><p>$summary</p>
<nav><a href="#claims">claims</a><a href="#stages">stages</a><a href="#curves">curves</a><a href="#samples">samples</a>
<a href="#time">time and energy</a><a href="#figures">commands and figures</a></nav>
<h2 id="claims">Claims</h2><p>"Holds" compares the shape of a claim, never its value. Claims that do not hold are listed too.
Graders, annotators and attackers are scripts.</p>
<div class="wide"><table class="claims">
<thead><tr><th>section</th><th>claim</th><th>report</th><th>here</th><th>scale</th><th>holds</th></tr></thead>
<tbody>$claims</tbody></table></div>$notes
<h2 id="stages">Stages and their digests</h2><div class="wide">$diagram</div>
<h2 id="curves">Curves</h2>
<p>Captions have the losses of single steps, claims the mean of the last ten.</p>
<div class="curves">$curves</div>
<h2 id="samples">Samples</h2>$samples<div class="many">$pictures</div>
<h2 id="time">Time and energy</h2><p>Energy is CPU time times $watts W for a busy core; the power was not measured.</p>
<div class="wide"><table>
<thead><tr><th>section</th><th>stage</th><th>result</th><th>time</th><th>CPU time</th><th>energy</th><th>digest</th>
</tr></thead><tbody>$stages</tbody></table></div>
<h2 id="figures">Commands and figures</h2>
<p>{here} stands for the folder of the stage, {web} for that of the stage web, {site} for the address of the generated web
site, {log.key} for the value key in the output of the command log. Bundles are in the folder home.</p>$details
</body></html>
"""
)


def write_pages(
    folder: Path, size: str, stages: Sequence[Stage], results: Sequence[StageResult], claims: Sequence[MeasuredClaim]
) -> tuple[Path, Path]:
    """Write `report.html` and `report.md` and return their paths."""
    html, markdown = folder / HTML, folder / MARKDOWN
    with atomic_file(html, "w") as file:
        file.write(_html(folder, size, stages, results, claims))
    with atomic_file(markdown, "w") as file:
        file.write(_markdown(size, results, claims))
    return html, markdown


def summary(size: str, results: Sequence[StageResult], claims: Sequence[MeasuredClaim]) -> str:
    """Return the counts of claims and the time in one sentence or two."""
    measured = [claim for claim in claims if claim.holds is not None]
    holding = sum(claim.holds is True for claim in measured)
    minutes = round(sum(result.seconds for result in results) / 60)
    text = (
        f"openafm {__version__}, size {size}: {len(measured)} of {len(claims)} claims measured, {holding} hold in shape;"
        f" {minutes} minute{'' if minutes == 1 else 's'}, {sum(map(watt_hours, results)):.1f} Wh (estimate)."
    )
    return f"{text} {_TINY}" if size == "tiny" else text


def watt_hours(result: StageResult) -> float:
    """Return the estimated energy of a stage."""
    return result.cpu_seconds * WATTS_PER_CORE / 3600


def _html(
    folder: Path, size: str, stages: Sequence[Stage], results: Sequence[StageResult], claims: Sequence[MeasuredClaim]
) -> str:
    known = {stage.name: stage for stage in stages}
    shown = [result for result in results if result.name in known]  # a folder of an older version has others
    by_name = {result.name: result for result in shown}
    return _PAGE.substitute(
        title=_TITLE,
        summary=escape(summary(size, shown, claims)),
        claims="".join(map(_claim_row, claims)),
        notes=_notes(shown),
        diagram=diagram(stages, by_name),
        curves=curves(folder, stages, by_name),
        samples=text_samples(stages, by_name),
        pictures=pictures(folder),
        watts=f"{WATTS_PER_CORE:.0f}",
        stages="".join(_stage_row(known[result.name], result) for result in shown),
        details="".join(_details(known[result.name], result) for result in shown),
    )


def _claim_row(claim: MeasuredClaim) -> str:
    text = f"{escape(claim.text)}<details><summary>command</summary><code>{escape(claim.command)}</code></details>"
    return (
        f"<tr><td data-label='section'>{escape(claim.section)}</td><td>{text}</td>"
        f"<td data-label='report'>{escape(claim.reported)}</td><td data-label='here'>{escape(claim.ours)}</td>"
        f"<td data-label='scale'>{escape(claim.scale)}</td>"
        f"<td data-label='holds' class='{_CLASSES[claim.holds]}'>{_WORDS[claim.holds]}</td></tr>"
    )


def _notes(results: Sequence[StageResult]) -> str:
    notes = [f"{result.name}: {note}" for result in results for note in result.notes]
    return f"<h3>Left out</h3><ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>" if notes else ""


def _stage_row(stage: Stage, result: StageResult) -> str:
    outcome = f"{result.state}: {result.reason}" if result.reason else str(result.state)
    cells = (stage.section, f"{stage.name}: {stage.title}", outcome)
    numbers = (f"{result.seconds:.0f} s", f"{result.cpu_seconds:.0f} s", f"{watt_hours(result):.2f} Wh", result.digest)
    return (
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}"
        f"{''.join(f'<td class=number>{escape(cell)}</td>' for cell in numbers)}</tr>"
    )


def _details(stage: Stage, result: StageResult) -> str:
    times: Mapping[str, Any] = result.command_seconds
    commands = "\n".join(
        f"openafm {' '.join(command.words)}" + (f"   # {times[command.name]} s" if command.name in times else "")
        for command in stage.commands
    )
    figures = json.dumps(result.figures, ensure_ascii=False, indent=1)
    if len(figures) > _MOST_CHARACTERS:
        figures = f"{figures[:_MOST_CHARACTERS]}\n... the rest is in {stage.name}/outputs"
    return (
        f"<details><summary>{escape(stage.section)} {escape(stage.name)}</summary><pre>{escape(commands)}</pre>"
        f"<pre>{escape(figures)}</pre><p>Log: {escape(f'{stage.name}/{LOG}')}</p></details>"
    )


def _markdown(size: str, results: Sequence[StageResult], claims: Sequence[MeasuredClaim]) -> str:
    rows = [("section", "claim", "report", "here", "scale", "holds"), ("---",) * 6]
    rows += [(each.section, each.text, each.reported, each.ours, each.scale, _WORDS[each.holds]) for each in claims]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows)
    reasons = [f": {result.reason}" if result.reason else "" for result in results]
    lines = [f"- {each.name}: {each.state}, {each.seconds:.0f} s{why}" for each, why in zip(results, reasons, strict=True)]
    return f"# {_TITLE}\n\n{summary(size, results, claims)}\n\n{table}\n\n## Stages\n\n" + "\n".join(lines) + "\n"
