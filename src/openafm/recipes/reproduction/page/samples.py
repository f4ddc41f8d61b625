"""Samples on the page: texts that models wrote, and pictures inside the file."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from openafm.core.errors import OpenAFMError
from openafm.recipes.reproduction.claims.claim import shorten
from openafm.recipes.reproduction.results import StageResult
from openafm.recipes.reproduction.stages.stage import Stage

_SIDE, _MOST_CHARACTERS = 260, 300
_PICTURES = (("images/drawn", "drawn"), ("pairs/pairs", "crawled"))
_EACH = 4
_FIGURE = Path("grading/project/report/preferred.svg")


def text_samples(stages: Sequence[Stage], results: Mapping[str, StageResult]) -> str:
    """Return the prompts and contents of all commands that answered one."""
    rows = []
    for stage in stages:
        figures = results[stage.name].figures if stage.name in results else {}
        for command in stage.commands:
            output = figures.get(command.name)
            if isinstance(output, Mapping) and "content" in output:
                verb, prompt = " ".join(command.words[:2]), _prompt(command.words)
                cells = (
                    stage.name,
                    f"openafm {verb.split(' ')[0]}",
                    prompt,
                    shorten(str(output["content"]).strip(), _MOST_CHARACTERS) or "(blank)",
                )
                rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "<thead><tr><th>stage</th><th>command</th><th>prompt</th><th>answer</th></tr></thead>"
    return f'<div class="wide"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>' if rows else "<p>None.</p>"


def _prompt(words: Sequence[str]) -> str:
    return next((word for word in words if " " in word), "")


def pictures(folder: Path) -> str:
    """Return some images of each corpus, small, and the figure of the graders. Without Pillow there are no images."""
    found = []
    for place, name in _PICTURES:
        try:
            small = _small(folder / place)
        except OpenAFMError as error:  # the page still comes
            found.append(f"<p>The images of {escape(place)} cannot be shown: {escape(str(error))}</p>")
            continue
        found += [_img("image/jpeg", picture, f"{name} image {number}") for number, picture in enumerate(small, start=1)]
    if (folder / _FIGURE).is_file():
        found.append(_img("image/svg+xml", (folder / _FIGURE).read_bytes(), "preferred answers by group of locales"))
    return "".join(found) or "<p>None.</p>"


def _img(kind: str, content: bytes, label: str) -> str:
    data = base64.b64encode(content).decode()
    caption = f"<figcaption>{escape(label)}</figcaption>"
    return f'<figure><img alt="{escape(label)}" src="data:{kind};base64,{data}">{caption}</figure>'


def _small(corpus: Path) -> list[bytes]:
    """Return up to four images of a corpus as small JPEG files, of different kinds of documents."""
    if not corpus.is_dir():
        return []
    try:
        from PIL import Image
    except ImportError:
        return []
    from openafm.data.images.shards import open_image_corpus

    found: list[bytes] = []
    kinds: set[Any] = set()
    opened = open_image_corpus(corpus)
    for document in opened.documents():
        if document.kind in kinds and document.kind != "pair":
            continue
        kinds.add(document.kind)
        with Image.open(io.BytesIO(opened.image(document.digests[0]).data)) as picture:
            small = picture.convert("RGB")
        small.thumbnail((_SIDE, _SIDE))
        file = io.BytesIO()
        small.save(file, "JPEG", quality=80)
        found.append(file.getvalue())
        if len(found) == _EACH:
            break
    return found
