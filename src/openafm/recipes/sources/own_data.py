"""The user's data as one description, which every recipe accepts and every later stage inherits.

A description is a TOML or JSON file; paths are relative to it:

    tokenizer = "tokenizer.json"    # optional; default: the start bundle's, or one trained on the sources
    held_out = 0.05                 # optional; share of the documents to evaluate on; default: chosen by their number
    eval = "eval.jsonl"             # optional; evaluate on this file instead

    [[sources]]
    path = "notes"                  # a folder or file of text or chats, a folder of `openafm data pack`, or its address in
                                    # object storage, such as s3://bucket/shards
    weight = 3                      # optional; share of the training rows relative to the other sources
    language = "en"                 # optional; of documents without a language
    temperature = 3.0               # optional; sample the languages of the source by temperature
    languages = {en = 0.7, de = 0.3}    # optional; instead: shares of the languages, as `openafm data mixture` writes
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from openafm.bundle import Bundle
from openafm.core.config import ConfigError, from_dict, to_dict
from openafm.core.errors import UsageError
from openafm.core.files import write_json
from openafm.core.terminal import escaped
from openafm.data.documents import AnyDocument, DocumentFiles
from openafm.data.loading.batch import Batch
from openafm.data.loading.loader import LanguagesConfig, LanguageSharesConfig, LoaderConfig, SourceConfig
from openafm.data.pack import HELD_OUT, PackConfig, is_held_out, pack_documents
from openafm.data.shards.files import address_of
from openafm.data.shards.manifest import ManifestError
from openafm.data.shards.token_shards import read_manifest
from openafm.recipes.config import RunConfig
from openafm.recipes.sources.corpora import (
    CorpusConfig,
    FolderCorpusConfig,
    Learn,
    MixedLanguagesCorpusConfig,
    ShardsCorpusConfig,
    SyntheticCorpusConfig,
    check_targets,
)
from openafm.recipes.sources.data_config import DataConfig, DataSourceConfig
from openafm.training.config import EvaluationConfig

FILE = "data.json"
"""Name of the description in a bundle."""

BUILT_IN = "built-in"
"""Value of --data for the recipe's own corpora, instead of the data of the start bundle."""

MIN_DOCUMENTS = 50
"""Fewest documents of a source for an automatic held-out split."""

MIN_TOKENS = 64
"""Lower bound of the mean length of a document, for the number of documents to read."""

TARGET_DOCUMENTS = 20
MIN_SHARE, MAX_SHARE = 0.02, 0.2
MIN_VOCABULARY = 512
BYTES_PER_TOKEN = 64
"""Bytes of text that a token of a new vocabulary needs; fewer leave too few repeated pairs."""


class OwnDataError(UsageError):
    """A description of the user's data cannot be read, or a path in it does not exist."""


def read_data(path: Path | str, evaluation: Path | None = None, tokenizer: Path | None = None) -> DataConfig:
    """Return the description in a TOML or JSON file, or that of a folder, a file or an address of data.

    Paths become absolute.

    Raises:
        OwnDataError: the file is not a valid description, or a path does not exist.
    """
    address, path = address_of(path), Path(path)
    if address is None and not path.exists():
        raise OwnDataError(f"{path} does not exist; pass a folder or file of data, or a description in TOML or JSON")
    values = None if address else _description(path)
    try:
        alone = DataConfig(sources=(DataSourceConfig(path=address or str(path)),))
        data = alone if values is None else from_dict(DataConfig, values)
    except ConfigError as error:
        raise OwnDataError(f"{path}: {error}") from error
    base = Path() if values is None else path.parent
    sources = tuple(replace(source, path=_absolute(base, source.path)) for source in data.sources)
    data = replace(
        data,
        sources=_named(sources),
        eval=None if data.eval is None else _absolute(base, data.eval),
        tokenizer=None if data.tokenizer is None else _absolute(base, data.tokenizer),
    )
    if evaluation is not None:
        if not evaluation.exists():
            raise OwnDataError(f"the evaluation data {evaluation} does not exist; pass a file or folder of text or chats")
        data = replace(data, eval=_absolute(Path(), str(evaluation)))
    if tokenizer is not None:
        if not tokenizer.is_file():
            raise OwnDataError(f"the tokenizer {tokenizer} does not exist; `openafm tokenizer train` writes one")
        data = replace(data, tokenizer=_absolute(Path(), str(tokenizer)))
    return data


def write_data(bundle: Bundle, data: DataConfig) -> None:
    """Record the user's data in a bundle, for the stages that start from it."""
    write_json(bundle.path / FILE, to_dict(data))


def data_of(bundle: Bundle) -> DataConfig | None:
    """Return the user's data that a bundle was trained on; None for the built-in corpus.

    Raises:
        OwnDataError: the record is damaged.
    """
    file = bundle.path / FILE
    if not file.is_file():
        return None
    try:
        return from_dict(DataConfig, json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, ConfigError) as error:
        raise OwnDataError(f"{file} is not a description of data: {error}; name the data with --data") from error


def chosen_data(given: DataConfig | None, bundle: Bundle | None, built_in: bool = False) -> DataConfig | None:
    """Return the data to train on: the given one, or that of the start bundle. Prints what is inherited or changed.

    Raises:
        OwnDataError: a path of inherited data does not exist.
    """
    before = None if bundle is None else data_of(bundle)
    if bundle is None or before is None:
        return given
    if given is None and not built_in:
        for source in before.sources:
            if address_of(source.path) is None and not Path(source.path).exists():
                raise OwnDataError(
                    f"{bundle.name} was trained on {source.path}, which does not exist; name its data with --data PATH, or"
                    f" use the built-in corpus with --data {BUILT_IN}"
                )
        _note(f"data: {before}, inherited from {bundle.name}; --data changes it")
        return before
    if given != before:
        _note(f"data: {given or 'the built-in corpus'}; {bundle.name} was trained on {before}")
    return given


def sample_batches(bundle: Bundle, data: DataConfig, num_rows: int, row_tokens: int, *, held_out: bool) -> list[Batch]:
    """Return rows of the user's data in the bundle's tokens, one per batch; fewer if the data has fewer.

    With `held_out` they are from the evaluation file or the held-out documents, or from all documents without these.
    """
    row_tokens = min(row_tokens, bundle.config.context_length)
    with tempfile.TemporaryDirectory(prefix="openafm-") as folder:
        shards = Path(folder) / "shards"
        documents = itertools.islice(_documents(data, held_out), num_rows * row_tokens // MIN_TOKENS)
        pack_documents(documents, shards, bundle.tokenizer, bundle.template, PackConfig(source="own"))
        source = SourceConfig(name="own", path=str(shards))
        loader = LoaderConfig(sources=(source,), rows_per_step=1, row_tokens=row_tokens).build()
        return [loader.batch(step) for step in range(min(num_rows, loader.sources[0].num_rows))]


def _documents(data: DataConfig, held_out: bool) -> Iterator[AnyDocument]:
    """Yield documents of all sources in turn. Packed sources have none."""
    if held_out and data.eval is not None:
        yield from DocumentFiles(Path(data.eval))
        return
    sources = [source for source in data.sources if not source.is_packed]
    shares = [held_out_share(source, data) for source in sources]
    streams = [
        (document for document in DocumentFiles(Path(source.path)) if not share or is_held_out(document, share) == held_out)
        for source, share in zip(sources, shares, strict=True)
    ]
    if not streams:
        raise OwnDataError(f"the data {data} is packed; name a file of its documents with `eval` in the description")
    for group in itertools.zip_longest(*streams):
        yield from (document for document in group if document is not None)


def with_data(config: RunConfig, data: DataConfig) -> RunConfig:
    """Return the run on the user's data.

    The data takes the place and the weight of the built-in corpus in the recipe's mixture; other corpora, such as copies,
    keep theirs. A recipe that does not train on the built-in corpus trains on the data alone. The evaluation reads the
    evaluation file, or held-out documents of each source.

    Raises:
        NothingToLearnError: a source or the evaluation file has no document with text to learn.
    """
    learn = config.corpora[0].learn
    for source in data.sources:
        if not source.is_packed:
            check_targets(Path(source.path), source.learn or learn)
    if data.eval is not None:
        check_targets(Path(data.eval), learn)
    kept, replaced_weight, temperature = _mixture(config)
    shares = {source.name: held_out_share(source, data) for source in data.sources}
    corpora: list[CorpusConfig] = [_corpus(source, learn, shares[source.name]) for source in data.sources]
    total = sum(source.weight for source in data.sources)
    sources = tuple(_source(source, replaced_weight * source.weight / total, temperature) for source in data.sources)
    if data.eval is not None:
        corpora.append(FolderCorpusConfig(name="eval", learn=learn, path=data.eval))
        held_out: tuple[SourceConfig, ...] = (SourceConfig(name="eval", path="eval"),)
    else:
        names = [name for name, share in shares.items() if share]
        held_out = tuple(SourceConfig(name=n, path=f"{n}/{HELD_OUT}", weight=1 / len(names)) for n in names)
    kept_names = {source.name for source in kept}
    corpora += [corpus for corpus in config.corpora if corpus.name in kept_names]
    loader = replace(config.trainer.data, sources=(*sources, *kept))
    trainer = replace(config.trainer, data=loader, evaluation=_evaluation(config, loader, held_out))
    tokenizer = config.tokenizer
    if tokenizer is not None and data.tokenizer is None:
        rows = trainer.model.vocab_size
        size = min(rows, _vocabulary_for(data))
        if size < rows:
            _note(
                f"tokenizer: {size:,} tokens for the {rows:,} rows of the model, because the data has little text;"
                " --set tokenizer.vocab_size changes it"
            )
        tokenizer = replace(tokenizer, vocab_size=size)
    elif data.tokenizer is not None and config.start is None:
        tokenizer = None
        trainer = replace(trainer, model=replace(trainer.model, vocab_size=_rows_for(data.tokenizer)))
    return replace(
        config,
        corpora=tuple(corpora),
        trainer=trainer,
        tokenizer=tokenizer,
        tokenizer_file=data.tokenizer,
        data=data,
    )


def _mixture(config: RunConfig) -> tuple[tuple[SourceConfig, ...], float, float | None]:
    """Return the recipe's sources that stay, the weight of those that the data replaces, and their sampling temperature."""
    built_in = SyntheticCorpusConfig | MixedLanguagesCorpusConfig
    synthetic = {corpus.name for corpus in config.corpora if isinstance(corpus, built_in)}
    sources = config.trainer.data.sources
    replaced = [source for source in sources if source.name in synthetic] or list(sources)
    temperatures = [source.temperature for source in replaced if isinstance(source, LanguagesConfig)]
    kept = tuple(source for source in sources if source not in replaced)
    return kept, sum(source.weight for source in replaced), temperatures[0] if temperatures else None


def _source(source: DataSourceConfig, weight: float, temperature: float | None) -> SourceConfig:
    if source.languages is not None:
        return LanguageSharesConfig(name=source.name, path=source.name, weight=weight, shares=source.languages)
    temperature = source.temperature or temperature
    if temperature is None:
        return SourceConfig(name=source.name, path=source.name, weight=weight)
    return LanguagesConfig(name=source.name, path=source.name, weight=weight, temperature=temperature)


def _corpus(source: DataSourceConfig, learn: Learn, held_out: float) -> CorpusConfig:
    if source.is_packed:
        return ShardsCorpusConfig(name=source.name, learn=learn, path=source.path)
    return FolderCorpusConfig(
        name=source.name, learn=source.learn or learn, path=source.path, language=source.language, held_out=held_out
    )


def _evaluation(config: RunConfig, loader: LoaderConfig, sources: tuple[SourceConfig, ...]) -> EvaluationConfig | None:
    if not sources:
        _note(f"no evaluation: fewer than {MIN_DOCUMENTS} documents to hold some out; name an evaluation file with --eval")
        return None
    before = config.trainer.evaluation
    if before is None:
        return EvaluationConfig(data=replace(loader, sources=sources))
    return replace(before, data=replace(before.data, sources=sources))


def held_out_share(source: DataSourceConfig, data: DataConfig) -> float:
    """Return the share of documents to hold out: the given one, or one that gives about 20 documents and 2 % at least."""
    if data.eval is not None:
        return 0.0
    if source.is_packed:
        return 1.0 if _has_manifest(f"{source.path}/{HELD_OUT}") else 0.0
    if data.held_out is not None:
        return data.held_out
    enough = round(TARGET_DOCUMENTS / MIN_SHARE)
    count = sum(1 for _ in itertools.islice(DocumentFiles(Path(source.path)), enough))
    return 0.0 if count < MIN_DOCUMENTS else min(MAX_SHARE, max(MIN_SHARE, TARGET_DOCUMENTS / count))


def _has_manifest(location: str) -> bool:
    try:
        read_manifest(location)
    except ManifestError:
        return False
    return True


def _vocabulary_for(data: DataConfig) -> int:
    """Return the vocabulary size that the amount of text supports, a power of two."""
    num_bytes = sum(DocumentFiles(Path(source.path)).total_bytes for source in data.sources if not source.is_packed)
    return max(MIN_VOCABULARY, 1 << max(0, (num_bytes // BYTES_PER_TOKEN).bit_length() - 1))


def _rows_for(tokenizer: str) -> int:
    """Return the vocabulary rows of a new model for a tokenizer: its size, rounded up to a multiple of 64."""
    from openafm.tokenizer.bpe import Tokenizer

    return -(-Tokenizer.load(Path(tokenizer)).vocab_size // 64) * 64


def _description(path: Path) -> dict[str, Any] | None:
    """Return the content of a description; None if the path is data itself."""
    if path.suffix not in (".toml", ".json") or path.is_dir():
        return None
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise OwnDataError(f"{path} cannot be read: {error}") from error
    if isinstance(values, dict) and ("sources" in values or path.suffix == ".toml"):
        return values
    return None  # a JSON file of conversations


def _named(sources: tuple[DataSourceConfig, ...]) -> tuple[DataSourceConfig, ...]:
    """Return the sources with unique names; the default is the stem of the path."""
    taken: set[str] = {"eval"}
    return tuple(replace(source, name=_unique(source.name or _stem(Path(source.path)), taken)) for source in sources)


def _unique(name: str, taken: set[str]) -> str:
    candidates: Iterator[str] = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    found = next(candidate for candidate in candidates if candidate not in taken)
    taken.add(found)
    return found


def _stem(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(name).stem) or "own"


def _absolute(base: Path, path: str) -> str:
    if address_of(path) is not None:
        return path
    resolved = (base / Path(path).expanduser()).resolve()
    if not resolved.exists():
        raise OwnDataError(f"{resolved} does not exist; paths in a description are relative to its file")
    return str(resolved)


def _note(line: str) -> None:
    print(escaped(line), file=sys.stderr, flush=True)
