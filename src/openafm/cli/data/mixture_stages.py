"""Stages of `openafm data mixture`: the report's mixtures, printed, or filled with sources given as PART=PATH."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from openafm.cli.output import print_json, print_table, print_text
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.data.pipeline.mixture_plan import Source
    from openafm.tokenizer.bpe import Tokenizer


def print_stage(stage: str, json: bool) -> None:
    """Print the parts of a stage's mixture."""
    from openafm.core.config import to_dict
    from openafm.data.mixtures import stage_mixture

    mixture = stage_mixture(stage)
    if json:
        print_json(to_dict(mixture))
        return
    rows = [(part.name, f"{part.share:.1%}", part.holds, "; ".join(part.made_by)) for part in mixture.parts]
    print_table(("part", "share", "documents", "made by"), rows)
    print_text(f"{mixture.name}: {mixture.origin}")


def stage_sources(stage: str, arguments: list[str], tokenizer: Tokenizer | None) -> list[Source]:
    """Return the sources of PART=PATH arguments with the weights of a stage. A part may have several.

    Raises:
        UsageError: an argument is not PART=PATH, or its path does not exist.
        MixtureError: a part has no source, or no tokens.
    """
    from openafm.data.mixtures import count_source, stage_mixture

    mixture = stage_mixture(stage)
    sources: dict[str, list[Source]] = {}
    for argument in arguments:
        part, equals, text = argument.partition("=")
        if not equals:
            raise UsageError(f"{argument} is not PART=PATH, such as {mixture.parts[0].name}={argument}")
        if not Path(text).exists():
            raise UsageError(f"{text} does not exist; pass PART=PATH")
        sources.setdefault(part, []).append(count_source(part, Path(text), tokenizer))
    return list(mixture.weighted(sources))
