"""Results as the evaluation part of a model card, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from openafm.bundle import Bundle
from openafm.core.errors import UsageError
from openafm.core.files import atomic_file
from openafm.evaluation.harness.results import Run

START, END = "<!-- results of openafm evaluate -->", "<!-- end of results -->"
_SECTION = re.compile(rf"{re.escape(START)}.*?{re.escape(END)}\n?", re.DOTALL)


def fill_card(bundle: Bundle, runs: Sequence[Run]) -> None:
    """Write results into the model card of a bundle, in place of earlier ones. The card is not part of the signature.

    Raises:
        UsageError: the runs are of different models, or of another model than the bundle.
    """
    others = [run for run in runs if run.model != bundle.name]
    if others:
        raise UsageError(
            f"{others[0].path} has results of {others[0].model}, not of {bundle.name}; evaluate the bundle first"
        )
    section = f"{START}\n{card_text(runs)}\n{END}\n"
    card = bundle.card()
    filled = _SECTION.sub(lambda _: section, card) if _SECTION.search(card) else f"{card.rstrip()}\n\n{section}"
    with atomic_file(bundle.path / "card.md", "w") as file:
        file.write(filled)


def card_text(runs: Sequence[Run]) -> str:
    """Return a Markdown table of the main metrics with intervals, and of languages where a task has several.

    Raises:
        UsageError: the runs are of different models.
    """
    first = runs[0]
    others = [run for run in runs if run.signature != first.signature]
    if others:
        raise UsageError(
            f"{others[0].path} is of another model or sampling than {first.path}; make one card for each, or compare them"
        )
    lines = [
        "## Evaluation",
        "",
        f"{first.model}, signature of model and sampling `{first.signature[:16]}`. Intervals are 95 %.",
        "",
        "| task | metric | part | values | score | interval |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        for name, result in run.tasks.items():
            parts = {"all": result.score} | (dict(result.languages) if len(result.languages) > 1 else {})
            for part, score in parts.items():
                low, high = score.interval
                lines.append(
                    f"| {name} | {result.metric} | {part} | {score.count} | {100 * score.mean:.1f} |"
                    f" {100 * low:.1f} to {100 * high:.1f} |"
                )
    found = [result for run in runs for result in run.tasks.values() if result.num_cut]
    cut = [f"{result.name} ({result.num_cut} of {result.count})" for result in found]
    if cut:
        lines += ["", f"Answers that the token limit ended: {', '.join(cut)}."]
    return "\n".join(lines)
