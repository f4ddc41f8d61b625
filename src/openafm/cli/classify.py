"""`openafm classify`: the label of a text, or of each line of a file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.options import PluginsOption
from openafm.cli.output import print_json, print_table
from openafm.cli.respond import AdapterOption, ModelOption, read_prompt, undecodable
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.terminal import escaped

_EXAMPLE = 'openafm classify "Where is my parcel?" --label question --label complaint'


def classify(
    text: Annotated[str | None, typer.Argument(help="The text; default or -: standard input.")] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="A label, or 'label: what it means'. Two or more times.")
    ] = None,
    instructions: Annotated[
        str, typer.Option("--instructions", "-i", help="What is decided, as in 'What does the customer want?'.")
    ] = "Classify the text.",
    lines: Annotated[
        Path | None, typer.Option(help="Classify each line of this file, - for standard input, instead of TEXT.")
    ] = None,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    plugins: PluginsOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print labels with probabilities as JSON, one object a text.")
    ] = False,
) -> None:
    """Choose one of the labels for a text. Probabilities are corrected for what a label has without a text."""
    from openafm.framework.backends.system_model import SystemLanguageModel
    from openafm.framework.classification import Classifier
    from openafm.framework.errors import GenerationError

    described = {name.strip(): about.strip() for name, _, about in (each.partition(": ") for each in label or ())}
    if len(described) < max(2, len(label or ())):
        raise UsageError(f"pass two or more different labels, as in {_EXAMPLE}")
    if lines is not None and text is not None:
        raise UsageError("pass TEXT or --lines, not both")
    texts = iter([read_prompt(text, example=_EXAMPLE)]) if lines is None else _lines(lines)
    try:
        classifier = Classifier(described, instructions, model=SystemLanguageModel(bundle=model, adapter=adapter))
    except ValueError as error:
        raise UsageError(f"--label: {error}") from error
    num_failed = 0
    for number, each in enumerate(texts, start=1):
        try:
            found = classifier.classify_blocking(each)
        except GenerationError as error:
            if lines is None:
                raise
            print(escaped(f"text {number}: {error}"), file=sys.stderr)
            num_failed += 1
            continue
        if json:
            print_json({"text": each} | asdict(found) if lines else asdict(found))
        elif lines:
            print(escaped(f"{found.label}\t{each}"), flush=True)
        else:
            ranked = sorted(found.probabilities.items(), key=lambda pair: -pair[1])
            print_table(("", ""), [(name, f"{probability:.0%}") for name, probability in ranked])
    if num_failed:
        raise OpenAFMError(f"{num_failed} of the texts have no label")


def _lines(path: Path) -> Iterator[str]:
    """The lines that are not empty, one at a time, so that a pipe is answered while it is written."""
    with contextlib.nullcontext(sys.stdin) if str(path) == "-" else path.open(encoding="utf-8") as file:
        try:
            yield from (line.strip() for line in file if line.strip())
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: {undecodable(error)}") from error
