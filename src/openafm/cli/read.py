"""`openafm read`: the text of images."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.options import PluginsOption
from openafm.cli.output import counted, print_json
from openafm.cli.respond import ImageDetailOption, ModelOption
from openafm.core.errors import OpenAFMError
from openafm.core.terminal import escaped

if TYPE_CHECKING:
    from openafm.bundle import Bundle
    from openafm.reading.page import PageReader


def read(
    images: Annotated[list[Path], typer.Argument(help="Image files.", metavar="IMAGE...")],
    model: ModelOption = None,
    image_detail: ImageDetailOption = None,
    plugins: PluginsOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print lines with places and font sizes as JSON, one object an image.")
    ] = False,
) -> None:
    """Print the text in images of flyers, signs and pages, line by line. It reads Latin letters without accents.

    The reader belongs to the model; a bundle of vision.letters is one too.
    """
    from openafm.bundle import open_bundle, resolve_model
    from openafm.framework.transcripts.images import Image
    from openafm.reading.page import DEFAULT_DETAIL

    reader = _reader(open_bundle(model or resolve_model()))
    num_failed = 0
    for path in images:
        try:
            page = reader.read(Image(path).read(), DEFAULT_DETAIL if image_detail is None else image_detail.value)
        except OpenAFMError as error:
            if len(images) == 1:
                raise
            print(escaped(f"{path}: {error}"), file=sys.stderr)
            num_failed += 1
            continue
        if json:
            print_json({"image": str(path), "text": page.text, **asdict(page)})
        else:
            print(escaped(f"{path}:\n{page.text}\n" if len(images) > 1 else page.text))
    if num_failed:
        raise OpenAFMError(f"{counted(num_failed, 'image')} could not be read")


def _reader(bundle: Bundle) -> PageReader:
    from openafm.reading.page import open_reader, reader_of

    return reader_of(bundle) if bundle.reader is None else open_reader(bundle.reader)
