"""`openafm classify`: the label of a text, or of each line of a file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from openafm.cli.options import PluginsOption
from openafm.cli.output import print_json, print_table
from openafm.cli.respond import AdapterOption, ModelOption, read_prompt, undecodable
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.terminal import escaped

if TYPE_CHECKING:
    from openafm.framework.classification import Classifier

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

    described = {name.strip(): about.strip() for name, _, about in (each.partition(": ") for each in label or ())}
    if len(described) < max(2, len(label or ())):
        raise UsageError(f"pass two or more different labels, as in {_EXAMPLE}")
    if lines is not None and text is not None:
        raise UsageError("pass TEXT or --lines, not both")
    asked = None if lines else read_prompt(text, example=_EXAMPLE).strip()
    if asked == "":
        raise UsageError(f"the text is empty; pass one, as in {_EXAMPLE}")
    described_model = SystemLanguageModel(bundle=model, adapter=adapter)
    try:
        classifier = Classifier(described, instructions, model=described_model)
    except ValueError as error:
        raise UsageError(f"--label: {error}") from error
    if lines is not None:
        with contextlib.nullcontext(sys.stdin) if str(lines) == "-" else lines.open(encoding="utf-8-sig") as file:
            described_model.load()  # an error of the model is no error of a line
            _classify_lines(classifier, file, json)
        return
    assert asked is not None
    found = classifier.classify_blocking(asked)
    if json:
        print_json(asdict(found))
        return
    ranked = sorted(found.probabilities.items(), key=lambda pair: -pair[1])
    print_table(("", ""), [(name, f"{probability:.0%}") for name, probability in ranked])


def _classify_lines(classifier: Classifier, file: TextIO, json: bool) -> None:
    """Print the label of each line. A line that is blocked or too long is named, and the others are classified."""
    from openafm.framework.errors import GenerationError

    num_failed = 0
    for number, text in _lines(file):
        try:
            found = classifier.classify_blocking(text)
        except GenerationError as error:
            print(escaped(f"line {number}: {error}"), file=sys.stderr)
            num_failed += 1
            continue
        if json:
            print_json({"text": text} | asdict(found))
        else:
            print(escaped(f"{found.label}\t{text}"))
        sys.stdout.flush()
    if num_failed:
        raise OpenAFMError(f"{num_failed} {'line has' if num_failed == 1 else 'lines have'} no label")


def _lines(file: TextIO) -> Iterator[tuple[int, str]]:
    """The lines that are not empty with their numbers, one at a time, so that a pipe is answered while it is written."""
    try:
        yield from ((number, line.strip()) for number, line in enumerate(file, start=1) if line.strip())
    except UnicodeDecodeError as error:
        raise UsageError(f"{'standard input' if file is sys.stdin else file.name}: {undecodable(error)}") from error
