"""The loader: (config, step) -> batch, by arithmetic alone.

The loader keeps no state. `weighted_draws.py` computes how many rows of each source precede a step, a keyed permutation of
the source's rows, new in each epoch, maps a draw to a row (`permutation.py`), and `rows.py` packs documents into rows when
the source is opened. Resuming needs only the step, and the rows of a step are the same for any number of ranks. Images are
decoded and resized in threads (`images/reading.py`); a row never ends inside one.

Shape suffixes: D documents, B rows of this rank, S tokens of a row, P pieces (documents as attention sees them).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from openafm.core.config import Config, dump
from openafm.core.errors import UsageError
from openafm.data.batch import Batch, Origin
from openafm.data.permutation import Permutation
from openafm.data.rows import DocumentPieces, PackedRows, pack_rows, split_documents, starts_between
from openafm.data.shards import Shards, open_shards, verify_shards
from openafm.data.weighted_draws import Mixture, tempered_shares
from openafm.models.spans import EmbeddingSpan, ImageKey, Span

if TYPE_CHECKING:
    from openafm.data.images.reading import ImageReader, Views

PAD = 0
UNDETERMINED = "und"  # the language of documents without one (BCP 47)
PREFETCHED_BATCHES = 2


class LoaderRankError(UsageError):
    """The rank is outside the world, or the world is larger than the rows of a step."""


class ShortRowError(UsageError):
    """Rows have fewer tokens than an image."""


class LanguageMissingError(UsageError):
    """A source has no document in any of the languages that have a share."""


@dataclass(frozen=True, kw_only=True)
class SourceConfig(Config):
    """A folder of token shards and its share of the rows. Rows are about 99 % full, so it is also the share of tokens."""

    name: str
    path: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        self.require(
            self.weight > 0, f"the weight of '{self.name}' must be above 0, got {self.weight}; remove the source instead"
        )


@dataclass(frozen=True, kw_only=True)
class LanguagesConfig(SourceConfig):
    """A source in several languages, sampled by temperature (report 4.3).

    A language gets a share of the rows proportional to tokens^(1 / temperature), by its tokens in the shards. Temperature 1
    keeps the proportions; higher temperatures even them out.
    """

    temperature: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.temperature >= 1, f"the temperature of '{self.name}' must be at least 1, got {self.temperature}")


@dataclass(frozen=True, kw_only=True)
class LanguageSharesConfig(SourceConfig):
    """A source in several languages with a given share of the rows each; documents in other languages are left out.

    Shares are relative to those of the languages that the shards have. `und` are documents without a language.
    """

    shares: dict[str, float]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(bool(self.shares), f"shares of '{self.name}' must not be empty")
        self.require(
            min(self.shares.values(), default=0) > 0,
            f"shares of '{self.name}' must be above 0, got {self.shares}; leave a language out instead",
        )


@dataclass(frozen=True, kw_only=True)
class LoaderConfig(Config):
    """The data of a run: sources with weights that add up to 1, rows of a step over all ranks, and tokens of a row."""

    sources: tuple[SourceConfig, ...]
    rows_per_step: int
    row_tokens: int
    seed: int = 0

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        total = sum(source.weight for source in self.sources)
        self.require(len(names) > 0, "needs at least one source")
        self.require(len(set(names)) == len(names), f"source names must be unique, got {', '.join(sorted(names))}")
        self.require(abs(total - 1) < 1e-6, f"the weights of {', '.join(names)} must add up to 1, they add up to {total:g}")
        self.require(self.rows_per_step > 0, f"rows_per_step must be at least 1, got {self.rows_per_step}")
        self.require(self.row_tokens > 1, f"row_tokens must be at least 2, got {self.row_tokens}")

    def verify(self, share: int = 0, num_shares: int = 1) -> None:
        """Compare the files of all sources with their digests, or one of `num_shares` equal shares of them.

        Raises:
            ShardError: a file was changed after it was written.
        """
        for source in self.sources:
            verify_shards(Path(source.path), None, share, num_shares)

    def build(
        self,
        rank: int = 0,
        world: int = 1,
        *,
        tokenizer_digest: str | None = None,
        verify: bool = True,
        image_threads: int = 0,
    ) -> Loader:
        """Open the sources; see `Loader`."""
        return Loader(self, rank, world, tokenizer_digest=tokenizer_digest, verify=verify, image_threads=image_threads)


class Loader:
    """Read rows rank, rank + world, ... of every step.

    `verify` compares every file with its digest; without it only sizes are checked. An image is compared with its digest
    when it is read. `image_threads` decode images; 0 is one per core, and batches do not depend on the number.

    Raises:
        ShardError: a source is absent, damaged, empty, or was packed with another tokenizer than `tokenizer_digest` or than
            the other sources.
        ImageCorpusError: the images of a source are missing or were changed.
        ShortRowError: rows have fewer tokens than an image.
        LoaderRankError: the rank is outside the world, or the world is larger than the rows of a step.
    """

    def __init__(
        self,
        config: LoaderConfig,
        rank: int = 0,
        world: int = 1,
        *,
        tokenizer_digest: str | None = None,
        verify: bool = True,
        image_threads: int = 0,
    ) -> None:
        if not 0 <= rank < world <= config.rows_per_step:
            raise LoaderRankError(
                f"rank {rank} of {world} cannot share {config.rows_per_step} rows per step; "
                "use at most as many ranks as rows, counted from 0"
            )
        self.config, self.rank, self.world = config, rank, world
        self._shards: list[Shards] = []
        self._images: ImageReader | None = None
        self.sources: list[PackedSource] = []
        self.weights: dict[str, float] = {}
        for source in config.sources:
            shards = open_shards(Path(source.path), tokenizer_digest=tokenizer_digest, verify=verify)
            tokenizer_digest = shards.manifest.tokenizer_digest  # the next sources must have the same
            self._shards.append(shards)
            if shards.manifest.images is not None:
                from openafm.data.images.reading import ImageReader

                self._images = self._images or ImageReader(image_threads)
                self._images.open(shards)
            for part, share in _parts(source, shards):
                self.sources.append(PackedSource(part, config.row_tokens, config.seed))
                self.weights[part.name] = source.weight * share
        self._mixture = Mixture(list(self.weights.values()))

    @property
    def digest(self) -> str:
        """SHA-256 in hex of the config without paths and of all sources' bytes: equal digests give equal batches."""
        without_paths = tuple(replace(source, path="") for source in self.config.sources)
        parts = [dump(replace(self.config, sources=without_paths))]
        parts += [shards.manifest.digest for shards in self._shards]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def max_rows(self) -> int:
        """Return the largest number of rows that any rank reads in a step."""
        return -(-self.config.rows_per_step // self.world)

    def epochs(self, step: int) -> dict[str, float]:
        """Return how many times each source has been read after `step` steps."""
        drawn = self._mixture.drawn(step * self.config.rows_per_step)
        return {source.name: rows / source.num_rows for source, rows in zip(self.sources, drawn, strict=True)}

    def steps_per_epoch(self) -> float:
        """Return the number of steps after which every source has been read at least once."""
        return max(source.num_rows / (self.weights[source.name] * self.config.rows_per_step) for source in self.sources)

    def batches(self, start_step: int) -> Generator[Batch]:
        """Yield this rank's batches from `start_step` on; a thread prefetches the next ones."""
        return prefetch(self.batch, start_step)

    def batch(self, step: int) -> Batch:
        """Return the rows of this rank at `step`, counted from 0."""
        if step < 0:
            raise UsageError(f"steps are counted from 0, got {step}")
        rows = self._rows(step)
        shape = (len(rows), self.config.row_tokens)
        tokens_BS, targets_BS = np.full(shape, PAD, dtype=np.int64), np.full(shape, PAD, dtype=np.int64)
        loss_mask_BS = np.zeros(shape, dtype=np.bool_)
        documents: list[Span] = []
        origins: list[Origin] = []
        embedding_spans: list[EmbeddingSpan] = []
        views: dict[ImageKey, Future[Views]] = {}
        for b, (source, row) in enumerate(rows):
            stop = 0
            for origin, has_next in source.pieces(row):
                start, stop = stop, stop + origin.stop - origin.start
                num_targets = stop - start - (not has_next)
                tokens_BS[b, start:stop] = source.shards.tokens(*origin[1:])
                next_tokens = slice(start, start + num_targets)
                shifted = (origin.shard, origin.start + 1, origin.start + 1 + num_targets)
                targets_BS[b, next_tokens] = source.shards.tokens(*shifted)
                loss_mask_BS[b, next_tokens] = source.shards.loss_mask(*shifted)
                documents.append(Span(b, start, stop))
                origins.append(origin)
                if self._images is not None:
                    for slot in source.shards.image_slots(*origin[1:]):
                        span = _embedding_span(b, start - origin.start, slot)
                        embedding_spans.append(span)
                        if span.image not in views:
                            views[span.image] = self._images.submit(source.shards, slot)
        return Batch(
            tokens_BS=tokens_BS,
            targets_BS=targets_BS,
            loss_mask_BS=loss_mask_BS,
            documents=tuple(documents),
            origins=tuple(origins),
            embedding_spans=tuple(embedding_spans),
            images={image: future.result() for image, future in views.items()},
        )

    def _rows(self, step: int) -> list[tuple[PackedSource, int]]:
        """Return this rank's rows of the step: the draws of each source in order, then shuffled over the ranks."""
        num_rows = self.config.rows_per_step
        before, after = self._mixture.drawn(step * num_rows), self._mixture.drawn((step + 1) * num_rows)
        rows = [
            (source, row)
            for source, first, last in zip(self.sources, before, after, strict=True)
            for row in source.draws(first, last)
        ]
        order = Permutation(num_rows, self.config.seed, "step", step)(np.arange(self.rank, num_rows, self.world))
        return [rows[position] for position in order]


@dataclass(frozen=True, kw_only=True)
class DocumentTable:
    """Documents of a corpus: the shard of each, and its start and stop in the shard."""

    name: str
    shards: Shards
    shard_D: npt.NDArray[np.int64]
    start_D: npt.NDArray[np.int64]
    stop_D: npt.NDArray[np.int64]

    @property
    def num_tokens(self) -> int:
        return int((self.stop_D - self.start_D).sum())

    def where(self, name: str, chosen_D: npt.NDArray[np.bool_]) -> DocumentTable:
        """Return the chosen documents under another name."""
        arrays = (self.shard_D[chosen_D], self.start_D[chosen_D], self.stop_D[chosen_D])
        return DocumentTable(name=name, shards=self.shards, shard_D=arrays[0], start_D=arrays[1], stop_D=arrays[2])


def all_documents(name: str, shards: Shards) -> DocumentTable:
    """Return every document of a corpus."""
    return DocumentTable(
        name=name,
        shards=shards,
        shard_D=np.repeat(np.arange(len(shards.offsets)), [len(offsets) - 1 for offsets in shards.offsets]),
        start_D=np.concatenate([offsets[:-1] for offsets in shards.offsets]),
        stop_D=np.concatenate([offsets[1:] for offsets in shards.offsets]),
    )


def _parts(source: SourceConfig, shards: Shards) -> list[tuple[DocumentTable, float]]:
    """Return the parts of a source that are packed separately (each language, or all of it) with their shares of it."""
    everything = all_documents(source.name, shards)
    if not isinstance(source, LanguagesConfig | LanguageSharesConfig):
        return [(everything, 1.0)]
    language_D = np.concatenate([shards.languages(shard) for shard in range(len(shards.offsets))])
    languages = shards.manifest.languages
    found: dict[str, npt.NDArray[np.bool_]] = {}
    for tag in sorted(np.unique(language_D), key=lambda tag: languages[tag]):
        name = f"{source.name}/{languages[tag] or UNDETERMINED}"
        found[name] = found.get(name, np.False_) | (language_D == tag)  # documents without a language count as `und`
    if isinstance(source, LanguageSharesConfig):
        return _parts_with_shares(source, everything, found)
    parts = [everything.where(name, chosen_D) for name, chosen_D in found.items()]
    shares = tempered_shares({part.name: part.num_tokens for part in parts}, source.temperature)
    return [(part, shares[part.name]) for part in parts]


def _parts_with_shares(
    source: LanguageSharesConfig, everything: DocumentTable, found: Mapping[str, npt.NDArray[np.bool_]]
) -> list[tuple[DocumentTable, float]]:
    named = {f"{source.name}/{language}": share for language, share in source.shares.items()}
    present = {name: named[name] for name in found if name in named}
    if not present:
        raise LanguageMissingError(f"{source.path} has no document in {', '.join(source.shares)}; it has {', '.join(found)}")
    total = sum(present.values())
    shares = {name: float(f"{share / total:.9g}") for name, share in present.items()}
    return [(everything.where(name, found[name]), share) for name, share in shares.items()]


class PackedSource:
    """Documents packed into rows, and the order in which the rows are drawn."""

    def __init__(self, documents: DocumentTable, row_tokens: int, seed: int) -> None:
        self.name, self.shards, self._seed = documents.name, documents.shards, seed
        self._shard_D, self._start_D, self._stop_D = documents.shard_D, documents.start_D, documents.stop_D
        lengths_D = self._stop_D - self._start_D
        self._pieces: DocumentPieces = split_documents(lengths_D, row_tokens, _starts(documents, row_tokens))
        num_pieces = len(self._pieces.length_P)
        tie_order_P = Permutation(num_pieces, seed, "ties", self.name)(np.arange(num_pieces))
        self._rows: PackedRows = pack_rows(self._pieces.length_P, row_tokens, tie_order_P)
        self.num_rows, self.num_tokens = self._rows.num_rows, int(lengths_D.sum())
        self.num_documents = len(lengths_D)
        self.fill = self.num_tokens / (self.num_rows * row_tokens)

    def draws(self, first: int, last: int) -> Iterator[int]:
        """Yield the rows of draws first..last-1; draw n is row n of an endless sequence of shuffled epochs."""
        draws = np.arange(first, last)
        for epoch in range(first // self.num_rows, (last - 1) // self.num_rows + 1):
            within = draws[draws // self.num_rows == epoch] % self.num_rows
            yield from Permutation(self.num_rows, self._seed, "epoch", self.name, epoch)(within).tolist()

    def pieces(self, row: int) -> Iterator[tuple[Origin, bool]]:
        """Yield where each piece of a row is stored, and whether its document continues after it."""
        for piece in self._rows.pieces(row):
            document = self._pieces.document_P[piece]
            start = int(self._start_D[document] + self._pieces.start_P[piece])
            stop = start + int(self._pieces.length_P[piece])
            yield Origin(self.name, int(self._shard_D[document]), start, stop), stop < self._stop_D[document]


def _embedding_span(row: int, shift: int, slot: npt.NDArray[Any]) -> EmbeddingSpan:
    """Return the positions of an image in a row of the batch."""
    start = int(slot["start"]) + shift
    return EmbeddingSpan(row, start, start + int(slot["num_tokens"]), bytes(slot["digest"]).ljust(32, b"\0").hex())


def _starts(documents: DocumentTable, row_tokens: int) -> dict[int, list[int]]:
    """Return the starts of the pieces of documents with images that are longer than a row.

    An image is not split, nor are its start and end tokens taken from it.
    """
    shards = documents.shards
    if shards.manifest.images is None:
        return {}
    starts: dict[int, list[int]] = {}
    for index in np.flatnonzero(documents.stop_D - documents.start_D > row_tokens).tolist():
        shard, start, stop = (int(column[index]) for column in (documents.shard_D, documents.start_D, documents.stop_D))
        slots_I = shards.image_slots(shard, start, stop)
        longest = max(slots_I["num_tokens"].tolist(), default=0) + 2
        if longest > row_tokens:
            raise ShortRowError(
                f"{documents.name}: row_tokens {row_tokens} is below the {longest} tokens of an image; "
                "use longer rows, or pack the images in another resolution mode"
            )
        first_I = slots_I["start"] - start - 1
        solid = zip(first_I.tolist(), (first_I + slots_I["num_tokens"] + 2).tolist(), strict=True)
        starts[index] = starts_between(stop - start, row_tokens, solid)
    return starts


def prefetch(batch_at: Callable[[int], Batch], start_step: int, depth: int = PREFETCHED_BATCHES) -> Generator[Batch]:
    """Yield `batch_at(step)` from `start_step` on, without end; a thread keeps `depth` batches ready until closed."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader") as executor:
        ahead: deque[Future[Batch]] = deque()
        step = start_step
        try:
            while True:
                while len(ahead) <= depth:  # the requested one, and `depth` more while the caller computes
                    ahead.append(executor.submit(batch_at, step))
                    step += 1
                yield ahead.popleft().result()
        finally:
            executor.shutdown(cancel_futures=True)
