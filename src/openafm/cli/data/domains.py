"""`openafm data domains` and `bootstrap`: questions about images that key words or seed prompts find in a corpus."""

from __future__ import annotations

import json as json_library
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openafm.cli.data.caption import (
    DEFAULT_KEY_VARIABLE,
    EndpointOption,
    ImageCorpusArgument,
    KeyOption,
    ModelOption,
    OutOption,
    SeedOption,
    TemperatureOption,
    ThreadsOption,
    captioner_of,
)
from openafm.cli.options import PluginsOption, SetOption, parse_changes
from openafm.cli.output import JsonOption, counted, print_json, print_table, print_text
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.data.captions.captioner import Captioner
    from openafm.data.captions.domains import DomainConfig
    from openafm.data.images.manifest import Manifest


def domains(
    corpus: ImageCorpusArgument,
    out: OutOption = Path("domains"),
    file: Annotated[
        Path | None,
        typer.Option(
            "--domains", exists=True, help='JSON list of {"name", "keywords", "prompts"}; default: eight built-in domains.'
        ),
    ] = None,
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
    """Collect images of knowledge domains by key words, and let a model write questions about them.

    The scorer of a plugin, such as CLIP, can check the images: --plugins mine.py --set 'scorer={"type": "MyScorerConfig"}'.
    """
    from openafm.core.config import override
    from openafm.data.captions.domains import DomainsConfig, collect_domains
    from openafm.data.images.shards import open_image_corpus

    config = DomainsConfig() if file is None else DomainsConfig(domains=_read_domains(file))
    config = override(config, parse_changes(changes))
    opened = open_image_corpus(corpus)
    teacher = captioner_of(model, endpoint, key_variable, temperature, seed)
    _print(collect_domains(opened, out, teacher, config, num_threads=threads), teacher, out, json)


def bootstrap(
    corpus: ImageCorpusArgument,
    seeds: Annotated[Path, typer.Option(exists=True, help='JSONL of {"image": path, "prompt", "answer"}.')],
    out: OutOption = Path("bootstrap"),
    per_seed: Annotated[int, typer.Option(min=1, help="Most images for each seed.")] = 20,
    absent: Annotated[
        bool, typer.Option("--absent", help="Also ask about what is not in the image, answered by saying so.")
    ] = False,
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
    """Find images similar to those of seed prompts, and let a model write prompts of the same kind, with answers.

    Images are compared by colors and layout, or by the embedder of a plugin, such as CLIP.
    """
    from openafm.core.config import override
    from openafm.data.captions.bootstrap import BootstrapConfig, read_seeds
    from openafm.data.captions.bootstrap import bootstrap as run_bootstrap
    from openafm.data.images.shards import open_image_corpus

    config = replace(override(BootstrapConfig(), parse_changes(changes)), per_seed=per_seed, asks_absent=absent)
    opened, read = open_image_corpus(corpus), read_seeds(seeds)
    teacher = captioner_of(model, endpoint, key_variable, temperature, seed)
    _print(run_bootstrap(opened, read, out, teacher, config, num_threads=threads), teacher, out, json)


def _print(manifest: Manifest, teacher: Captioner, out: Path, json: bool) -> None:
    if json:
        values = {"documents": manifest.num_documents, "kinds": manifest.kinds, "dropped": manifest.dropped}
        print_json({"path": str(out), "model": teacher.model, "sampling": teacher.sampling, **values})
        return
    print_table(("kind", "documents"), list(manifest.kinds.items()))
    print_table(("left out", "documents"), list(manifest.dropped.items()))
    print_text(f"wrote {counted(manifest.num_documents, 'document')} to {out}; look at them with: openafm data report {out}")


def _read_domains(file: Path) -> tuple[DomainConfig, ...]:
    """Return the domains of a JSON file.

    Raises:
        UsageError: it is not a JSON list of domains.
    """
    from openafm.core.config import from_dict
    from openafm.data.captions.domains import DomainConfig

    try:
        values: Any = json_library.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{file} is not JSON: {error}") from error
    if not isinstance(values, list) or not all(isinstance(each, Mapping) for each in values):
        raise UsageError(f'{file} must be a list of objects with "name", "keywords" and "prompts"')
    return tuple(from_dict(DomainConfig, each) for each in values)
