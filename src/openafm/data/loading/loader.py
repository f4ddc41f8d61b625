"""The loader: (config, step) -> batch, by arithmetic alone.

The loader keeps no state. `weighted_draws.py` computes how many rows of each source precede a step, a keyed permutation of
the source's rows, new in each epoch, maps a draw to a row (`permutation.py`), and `row_index.py` has the pieces of documents
in each row, memory-mapped for a large source. Resuming needs only the step, and the rows of a step are the same for any
number of ranks. Images are decoded and resized in threads (`images/reading.py`); a row never ends inside one.

Shape suffixes: B rows of this rank, S tokens of a row, G groups of shards.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from openafm.core.config import Config, dump
from openafm.core.errors import UsageError
from openafm.data.loading.batch import Batch, Origin
from openafm.data.loading.permutation import Permutation
from openafm.data.loading.row_index import UNDETERMINED, RowPart, RowsKey, prepare_rows, row_parts, shard_groups
from openafm.data.loading.weighted_draws import Mixture, tempered_shares
from openafm.data.shards.files import Verification
from openafm.data.shards.token_shards import Shards, open_shards, verify_shards
from openafm.models.attention.spans import EmbeddingSpan, ImageKey, Span

if TYPE_CHECKING:
    from openafm.data.images.reading import ImageReader, Views

PAD = 0
PREFETCHED_BATCHES = 2


class LoaderRankError(UsageError):
    """The rank is outside the world, or the world is larger than the rows of a step."""


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

    def prepare(self, share: int = 0, num_shares: int = 1, *, verify: bool = False) -> None:
        """Pack the rows of large sources that are not stored yet, or one of `num_shares` equal shares of them.

        With `verify`, also compare this share of all files with their digests.

        Raises:
            ShardError: a source cannot be read, or a file was changed after it was written.
        """
        for source in self.sources:
            if verify:
                verify_shards(source.path, None, share, num_shares)
            shards = open_shards(source.path, verification="first_use")
            prepare_rows(shards, _rows_key(source, self), share, num_shares)

    def build(
        self,
        rank: int = 0,
        world: int = 1,
        *,
        tokenizer_digest: str | None = None,
        verification: Verification = "all",
        image_threads: int = 0,
    ) -> Loader:
        """Open the sources; see `Loader`."""
        return Loader(
            self, rank, world, tokenizer_digest=tokenizer_digest, verification=verification, image_threads=image_threads
        )


class Loader:
    """Read rows rank, rank + world, ... of every step.

    `verification` is the time at which files are compared with their digests; images are, when they are read.
    `image_threads` decode images; 0 is one per core, and batches do not depend on the number.

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
        verification: Verification = "all",
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
            shards = open_shards(source.path, tokenizer_digest=tokenizer_digest, verification=verification)
            tokenizer_digest = shards.manifest.tokenizer_digest  # the next sources must have the same
            self._shards.append(shards)
            if shards.manifest.images is not None:
                from openafm.data.images.reading import ImageReader

                self._images = self._images or ImageReader(image_threads)
                self._images.open(shards)
            parts = row_parts(shards, _rows_key(source, config))
            for name, share in _shares(source, parts, shards).items():
                part = next(part for part in parts if part.name == name)
                self.sources.append(PackedSource(shards, part, config.row_tokens, config.seed))
                self.weights[name] = source.weight * share
        self._mixture = Mixture(list(self.weights.values()))

    @property
    def digest(self) -> str:
        """SHA-256 in hex of the config without paths and of all sources' bytes: equal digests give equal batches."""
        without_paths = tuple(replace(source, path="") for source in self.config.sources)
        parts = [dump(replace(self.config, sources=without_paths))]
        parts += [shards.manifest.digest for shards in self._shards]
        # A source with one group has the rows of releases without groups, so their runs can resume.
        parts += [f"{number} groups" for one in self._shards if (number := len(shard_groups(one.manifest))) > 1]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def fails_together(self) -> bool:
        return False

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


def _rows_key(source: SourceConfig, config: LoaderConfig) -> RowsKey:
    languages: tuple[str, ...] | None = None
    if isinstance(source, LanguageSharesConfig):
        languages = tuple(sorted(source.shares))
    elif isinstance(source, LanguagesConfig):
        languages = ()
    return RowsKey(name=source.name, languages=languages, row_tokens=config.row_tokens, seed=config.seed)


def _shares(source: SourceConfig, parts: Sequence[RowPart], shards: Shards) -> dict[str, float]:
    """Return the share of each part of a source in the rows of the source."""
    if isinstance(source, LanguagesConfig):
        return tempered_shares({part.name: part.num_tokens for part in parts}, source.temperature)
    if not isinstance(source, LanguageSharesConfig):
        return {source.name: 1.0}
    named = {f"{source.name}/{language}": share for language, share in source.shares.items()}
    present = {part.name: named[part.name] for part in parts}
    if not present:
        has = sorted({language or UNDETERMINED for language in shards.manifest.languages})
        raise LanguageMissingError(f"{source.path} has no document in {', '.join(source.shares)}; it has {', '.join(has)}")
    total = sum(present.values())
    return {name: float(f"{share / total:.9g}") for name, share in present.items()}


class PackedSource:
    """The rows of a part of a source, and the order in which they are drawn."""

    def __init__(self, shards: Shards, part: RowPart, row_tokens: int, seed: int) -> None:
        self.name, self.shards, self._seed, self._group = part.name, shards, seed, part.group
        self._first_row_G1 = np.concatenate([[0], np.cumsum(part.num_rows_G)])
        self.num_rows, self.num_tokens = int(self._first_row_G1[-1]), part.num_tokens
        self.num_documents = part.num_documents
        self.fill = self.num_tokens / (self.num_rows * row_tokens)

    def draws(self, first: int, last: int) -> Iterator[int]:
        """Yield the rows of draws first..last-1; draw n is row n of an endless sequence of shuffled epochs."""
        draws = np.arange(first, last)
        for epoch in range(first // self.num_rows, (last - 1) // self.num_rows + 1):
            within = draws[draws // self.num_rows == epoch] % self.num_rows
            yield from Permutation(self.num_rows, self._seed, "epoch", self.name, epoch)(within).tolist()

    def pieces(self, row: int) -> Iterator[tuple[Origin, bool]]:
        """Yield where each piece of a row is stored, and whether its document continues after it."""
        number = int(np.searchsorted(self._first_row_G1, row, side="right")) - 1
        group, within = self._group(number), row - int(self._first_row_G1[number])
        first, last = group.starts_R1[within : within + 2].tolist()
        for start, shard, length, continues in group.pieces_P[first:last].tolist():
            yield Origin(self.name, shard, start, start + length), continues


def _embedding_span(row: int, shift: int, slot: npt.NDArray[Any]) -> EmbeddingSpan:
    """Return the positions of an image in a row of the batch."""
    start = int(slot["start"]) + shift
    return EmbeddingSpan(row, start, start + int(slot["num_tokens"]), bytes(slot["digest"]).ljust(32, b"\0").hex())


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
