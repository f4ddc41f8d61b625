"""The page of a reproduction: claims beside figures, stages with times, samples. One HTML file, and Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from openafm import __version__
from openafm.core.files import atomic_file
from openafm.recipes.reproduction.claim import MeasuredClaim
from openafm.recipes.reproduction.commands import LOG
from openafm.recipes.reproduction.results import StageResult
from openafm.recipes.reproduction.stage import Stage

HTML, MARKDOWN = "report.html", "report.md"
_TITLE = "The report, reproduced"
_TINY = "Models of this size were trained for two steps: the page shows that the stages fit together, and no effect."
_PAGE = Template(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>$title</title>
<style>
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #c4302b; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem }
td { border-bottom: 1px solid var(--line); overflow-wrap: break-word }
th { border-bottom: 1px solid var(--line) }
.yes { color: var(--good) } .no { color: var(--bad) } .none { opacity: .7 } pre { overflow-x: auto; font-size: 12px }
</style></head><body>
<h1>$title</h1><p>$summary</p>
<h2>Claims</h2><div class="wide"><table>
<thead><tr><th>section</th><th>claim</th><th>report</th><th>here</th><th>holds</th></tr></thead>
<tbody>$claims</tbody></table></div>
<h2>Stages</h2><div class="wide"><table>
<thead><tr><th>section</th><th>stage</th><th>result</th><th>time</th><th>CPU time</th><th>digest</th>
<th>needs</th></tr></thead><tbody>$stages</tbody></table></div>
<h2>Commands and figures</h2>$details
</body></html>
"""
)


def write_pages(
    folder: Path, size: str, stages: Sequence[Stage], results: Sequence[StageResult], claims: Sequence[MeasuredClaim]
) -> tuple[Path, Path]:
    """Write `report.html` and `report.md` and return their paths."""
    html, markdown = folder / HTML, folder / MARKDOWN
    with atomic_file(html, "w") as file:
        file.write(_html(size, stages, results, claims))
    with atomic_file(markdown, "w") as file:
        file.write(_markdown(size, results, claims))
    return html, markdown


def summary(size: str, results: Sequence[StageResult], claims: Sequence[MeasuredClaim]) -> str:
    """Return the counts of claims and the time in one sentence or two."""
    measured = [claim for claim in claims if claim.holds is not None]
    holding = sum(claim.holds is True for claim in measured)
    minutes = sum(result.seconds for result in results) / 60
    text = (
        f"openafm {__version__}, size {size}: {len(measured)} of {len(claims)} claims measured, {holding} hold in shape;"
        f" {minutes:.0f} minutes."
    )
    return f"{text} {_TINY}" if size == "tiny" else text


def _html(size: str, stages: Sequence[Stage], results: Sequence[StageResult], claims: Sequence[MeasuredClaim]) -> str:
    by_name = {stage.name: stage for stage in stages}
    return _PAGE.substitute(
        title=_TITLE,
        summary=escape(summary(size, results, claims)),
        claims="".join(map(_claim_row, claims)),
        stages="".join(_stage_row(by_name[result.name], result) for result in results),
        details="".join(_details(by_name[result.name], result) for result in results),
    )


def _claim_row(claim: MeasuredClaim) -> str:
    cells = (claim.section, claim.text, claim.reported, claim.ours)
    kind = {True: "yes", False: "no", None: "none"}[claim.holds]
    word = {True: "yes", False: "no", None: "-"}[claim.holds]
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}<td class='{kind}'>{word}</td></tr>"


def _stage_row(stage: Stage, result: StageResult) -> str:
    outcome = f"{result.state}: {result.reason}" if result.reason else str(result.state)
    cells = (
        stage.section,
        f"{stage.name}: {stage.title}",
        outcome,
        f"{result.seconds:.0f} s",
        f"{result.cpu_seconds:.0f} s",
        result.digest,
        ", ".join(stage.needs),
    )
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _details(stage: Stage, result: StageResult) -> str:
    commands = "\n".join("openafm " + " ".join(command.words) for command in stage.commands)
    figures = json.dumps(result.figures, ensure_ascii=False, indent=1)
    return (
        f"<details><summary>{escape(stage.section)} {escape(stage.name)}</summary><pre>{escape(commands)}</pre>"
        f"<pre>{escape(figures)}</pre><p>Log: {escape(f'{stage.name}/{LOG}')}</p></details>"
    )


def _markdown(size: str, results: Sequence[StageResult], claims: Sequence[MeasuredClaim]) -> str:
    words = {True: "yes", False: "no", None: "-"}
    rows = [("section", "claim", "report", "here", "holds"), ("---",) * 5]
    rows += [(claim.section, claim.text, claim.reported, claim.ours, words[claim.holds]) for claim in claims]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows)
    reasons = [f": {result.reason}" if result.reason else "" for result in results]
    lines = [f"- {each.name}: {each.state}, {each.seconds:.0f} s{why}" for each, why in zip(results, reasons, strict=True)]
    return f"# {_TITLE}\n\n{summary(size, results, claims)}\n\n{table}\n\n## Stages\n\n" + "\n".join(lines) + "\n"
