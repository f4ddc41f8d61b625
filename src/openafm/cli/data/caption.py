"""`openafm data caption`: captions of image corpora by a model. Also the options that it shares with other verbs."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.options import PluginsOption, SetOption, parse_changes
from openafm.cli.output import JsonOption, counted, print_json, print_table, print_text
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.recipes.pipelines.captioning import SessionCaptioner

ImageCorpusArgument = Annotated[Path, typer.Argument(metavar="CORPUS", help="A corpus of images.")]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="Output folder; a run in it is continued.")]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="The model at the endpoint, or a bundle with vision; default: the current."),
]
EndpointOption = Annotated[
    str | None, typer.Option(help="OpenAI-compatible endpoint of the model, such as http://localhost:8000/v1.")
]
KeyOption = Annotated[str, typer.Option(help="Environment variable with the key of the endpoint.")]
TemperatureOption = Annotated[float | None, typer.Option(help="Sampling temperature; default: greedy.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of random sampling.")]
ThreadsOption = Annotated[int, typer.Option(min=1, help="Concurrent requests. The result does not depend on it.")]

DEFAULT_KEY_VARIABLE = "OPENAFM_ENDPOINT_KEY"


def caption(
    corpus: ImageCorpusArgument,
    out: OutOption = Path("captioned"),
    levels: Annotated[
        str, typer.Option(help="Levels, separated by commas: keywords, short, paragraph, grounded.")
    ] = "keywords,short,paragraph,grounded",
    model: ModelOption = None,
    endpoint: EndpointOption = None,
    key_variable: KeyOption = DEFAULT_KEY_VARIABLE,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    threads: ThreadsOption = 4,
    changes: SetOption = None,
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Let a model write captions at several levels for a corpus of images. Repeat the command to continue a run."""
    from openafm.core.config import override
    from openafm.data.captions.captioning import caption_corpus, caption_counts
    from openafm.data.captions.config import LEVELS, CaptionConfig
    from openafm.data.images.shards import open_image_corpus

    by_name = {level.name: level for level in LEVELS}
    names = list(dict.fromkeys(name.strip() for name in levels.split(",")))
    if unknown := [name for name in names if name not in by_name]:
        raise UsageError(f"unknown level '{unknown[0]}'; use {', '.join(by_name)}")
    config = override(CaptionConfig(), parse_changes(changes))
    config = replace(config, levels=tuple(level for level in config.levels if level.name in names))
    opened = open_image_corpus(corpus)
    captioner = captioner_of(model, endpoint, key_variable, temperature, seed)
    caption_corpus(opened, out, captioner, config, num_threads=threads)
    counts = caption_counts(open_image_corpus(out))
    if json:
        print_json({"path": str(out), "model": captioner.model, "sampling": captioner.sampling, **asdict(counts)})
        return
    levels_found = sorted({*counts.captions, *counts.kept})
    rows = [(level, counts.captions.get(level, 0), counts.kept.get(level, 0)) for level in levels_found]
    print_table(("level", "new captions", "kept"), rows)
    if counts.dropped:
        print_table(("dropped captions", "count"), list(counts.dropped.items()))
    if counts.documents_dropped:
        print_table(("dropped documents", "count"), list(counts.documents_dropped.items()))
    print_text(f"wrote {counted(counts.num_documents, 'document')} to {out}; look at them with: openafm data report {out}")


def captioner_of(
    model: str | None, endpoint: str | None, key_variable: str, temperature: float | None, seed: int | None
) -> SessionCaptioner:
    """Return the captioner that the options name.

    Raises:
        UsageError: an endpoint is given without a model.
        UnsupportedCapabilityError: the model has no vision.
    """
    from openafm.framework.backends.language_model import Capability, LanguageModel
    from openafm.framework.backends.openai_model import OpenAICompatibleModel
    from openafm.framework.backends.system_model import SystemLanguageModel
    from openafm.recipes.pipelines.captioning import SessionCaptioner

    if endpoint is None:
        described: LanguageModel = SystemLanguageModel(bundle=model)
    elif model is None:
        raise UsageError(f"the endpoint {endpoint} needs the name of its model; add --model NAME")
    else:
        try:
            described = OpenAICompatibleModel(
                endpoint,
                model,
                os.environ.get(key_variable),
                capabilities=(Capability.VISION, Capability.GUIDED_GENERATION),
            )
        except ValueError as error:
            raise UsageError(str(error)) from error
    return SessionCaptioner(described, temperature=temperature, seed=seed)
