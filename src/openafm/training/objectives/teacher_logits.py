"""Cache of a teacher's logits at the positions that carry loss (report 4.3).

CACHE/  manifest.json  key.json  pieces.npy  00000.npy  00001.npy ...

A row holds the log probabilities (fp16) and ids of the likeliest tokens, and the log probability of all others together.

A position is identified by where its token is stored in the corpus, so it is computed once however often the student reads
it. An interrupted writer continues after its last complete shard. The manifest is written last and holds the digest of every
file.

Shapes: N positions that carry loss, C positions of a chunk, K likeliest tokens, E teacher dim, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openafm.core.config import Config, ConfigError, dump, from_dict
from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_file, file_digest
from openafm.core.folder_lock import folder_lock
from openafm.core.progress import progress
from openafm.core.regular_files import read_document
from openafm.data.loading.batch import Batch, Origin
from openafm.data.loading.loader import LoaderConfig
from openafm.data.shards.manifest import FileRecord
from openafm.data.shards.token_shards import read_manifest
from openafm.models.accounting import training_flops
from openafm.models.attention.context import PackedDocuments
from openafm.models.decoder import Decoder
from openafm.models.transfer import to_device
from openafm.training.config import TrainerConfig
from openafm.training.objectives.config import CachedDistillationConfig, Teacher
from openafm.training.objectives.cross_entropy import CHUNK_ELEMENTS

FORMAT = "openafm.teacher_logits"
VERSION = 1
POSITIONS_PER_SHARD = 1 << 16
_MEANINGS = {
    "teacher": "another teacher",
    "data": "other data or another number of steps",
    "num_logits": "another number of logits",
    "num_tokens": "another vocabulary",
}
_SHARD = re.compile(r"\d{5}\.npy")
_UNFINISHED = re.compile(r"\.[0-9a-z]+\.(npy|json)\.[0-9a-f]+")  # of `atomic_file`, left by a killed writer
_PIECE = np.dtype([("origin", "<i8", (4,)), ("shard", "<i8"), ("row", "<i8")])


class TeacherLogitsError(OpenAFMError):
    """The cache of a teacher's logits is missing, damaged, or was computed for another run."""


@dataclass(frozen=True, kw_only=True)
class CacheKey(Config):
    """The inputs of a cache: the teacher's identity, the digest of the student's data, the number of logits and of tokens.

    Caches with equal keys hold equal logits.
    """

    teacher: str
    data: str
    num_logits: int
    num_tokens: int


@dataclass(frozen=True, kw_only=True)
class CacheManifest(Config):
    """The content of `manifest.json`. `flops` counts the teacher's forward passes."""

    format: str = FORMAT
    version: int = VERSION
    key: CacheKey
    num_positions: int
    flops: int
    sources: tuple[str, ...]
    pieces: FileRecord
    shards: tuple[FileRecord, ...]

    def __post_init__(self) -> None:
        self.require(
            (self.format, self.version) == (FORMAT, VERSION),
            f"the file has format {self.format} version {self.version}, this openafm reads {FORMAT} version {VERSION}",
        )


class TeacherLogits:
    """An open cache."""

    def __init__(self, folder: Path, manifest: CacheManifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._shards = [np.load(folder / file.name, mmap_mode="r") for file in manifest.shards]
        self._rows = {
            Origin(manifest.sources[source], shard, start, stop): (int(piece["shard"]), int(piece["row"]))
            for piece in np.load(folder / manifest.pieces.name)
            for source, shard, start, stop in [piece["origin"].tolist()]
        }

    def rows(self, batch: Batch) -> NDArray[Any]:
        """Return the logits at the positions that carry loss, in order: an array [N] with the fields of `_row_type`.

        Raises:
            TeacherLogitsError: the cache lacks one of the positions.
        """
        if not batch.origins:  # the dummy batch of a rank without rows; its gradients are multiplied by 0
            return self._shards[0][: batch.num_targets]
        found = [self._piece(origin, count) for origin, count in _targets_by_piece(batch) if count]
        return np.concatenate(found)

    def _piece(self, origin: Origin, count: int) -> NDArray[Any]:
        if origin not in self._rows:
            raise TeacherLogitsError(
                f"{self.folder} lacks '{origin.source}' shard {origin.shard} [{origin.start}:{origin.stop}]; remove"
                " the folder and repeat the command to compute it again"
            )
        shard, row = self._rows[origin]
        return self._shards[shard][row : row + count]


def open_teacher_logits(folder: Path) -> TeacherLogits:
    """Open a cache and verify its digests.

    Raises:
        TeacherLogitsError: the cache is missing or damaged.
    """
    manifest = _read_manifest(folder)
    for file in (manifest.pieces, *manifest.shards):
        if _record(folder / file.name) != file:
            raise TeacherLogitsError(
                f"{folder / file.name} differs from its digest; remove {folder} and repeat the command to compute it again"
            )
    return TeacherLogits(folder, manifest)


def check_teacher_logits(config: CachedDistillationConfig, trainer: TrainerConfig) -> None:
    """Check that the cache was computed for this run.

    Raises:
        TeacherLogitsError: the cache is missing, or has another teacher, other data or other logits.
    """
    folder = Path(config.cache)
    key = _read_manifest(folder).key
    wanted = replace(
        key,
        teacher=config.identity or key.teacher,
        data=data_digest(trainer),
        num_logits=config.num_logits,
        num_tokens=config.num_tokens or key.num_tokens,
    )
    for name, meaning in _MEANINGS.items():
        if getattr(key, name) != getattr(wanted, name):
            raise TeacherLogitsError(
                f"{folder} was computed for {meaning} ({name} is {getattr(key, name)}, the run has {getattr(wanted, name)});"
                " remove it and repeat the command to compute it again"
            )


def data_digest(trainer: TrainerConfig) -> str:
    """Return the SHA-256 in hex of everything that determines the student's batches: data, loaders, steps and evaluation."""
    parts = [_loader_digest(trainer.data), str(_num_steps(trainer))]
    if trainer.evaluation is not None:
        parts += [_loader_digest(trainer.evaluation.data), str(trainer.evaluation.num_batches)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def write_teacher_logits(trainer: TrainerConfig, *, device: str = "cpu") -> TeacherLogits:
    """Compute the teacher's logits for every position that the student reads, unless the cache is complete.

    Shards of the same cache are kept, those of another one are removed.

    Raises:
        TeacherError: no teacher is named, it has changed, or it has another vocabulary than the data.
        ConfigError: the objective is no `CachedDistillationConfig`, the budget is not in steps, or num_logits is too large.
        FolderInUseError: another process writes this cache.
        OutOfSpaceError: the disk is full; complete shards are kept.
    """
    config = trainer.objective
    if not isinstance(config, CachedDistillationConfig):
        raise ConfigError(f"{type(config).__name__} uses no cached logits; use CachedDistillationConfig")
    teacher = config.open()
    teacher.check_vocabulary(trainer)
    num_tokens = config.num_tokens or teacher.bundle.config.vocab_size
    config.require(
        config.num_logits < num_tokens,
        f"num_logits must be below the teacher's {num_tokens} tokens, got {config.num_logits}",
    )
    key = CacheKey(teacher=teacher.identity, data=data_digest(trainer), num_logits=config.num_logits, num_tokens=num_tokens)
    folder = Path(config.cache)
    with folder_lock(folder):
        if not _holds(folder, key):
            _write(folder, key, trainer, teacher, device)
    return open_teacher_logits(folder)


def _write(folder: Path, key: CacheKey, trainer: TrainerConfig, teacher: Teacher, device: str) -> None:
    _remove_other_shards(folder, key)
    decoder = teacher.load().to(device).requires_grad_(False)
    sources: dict[str, int] = {}
    pieces: list[tuple[tuple[int, ...], int, int]] = []
    shards: list[FileRecord] = []
    flops = num_positions = 0
    num_batches = _num_steps(trainer) + (trainer.evaluation.num_batches if trainer.evaluation else 0)
    with progress("teacher", num_batches) as bar:
        for number, group in enumerate(_groups(_new_pieces(_batches(trainer)))):
            file = folder / f"{number:05}.npy"
            if not file.is_file():
                with atomic_file(file) as stream:
                    np.save(stream, np.concatenate([_row_array(decoder, news.batch, news.indices_N, key) for news in group]))
            shards.append(_record(file))
            row = 0
            for origin, count in (piece for news in group for piece in news.pieces):
                pieces.append(((sources.setdefault(origin.source, len(sources)), *origin[1:]), number, row))
                row += count
            num_positions += row
            flops += sum(_forward_flops(decoder, news) for news in group)
            bar.update(group[-1].number + 1, f"{num_positions:,} positions")
        bar.update(num_batches)
    with atomic_file(folder / "pieces.npy") as stream:
        np.save(stream, np.array(pieces, dtype=_PIECE))
    manifest = CacheManifest(
        key=key,
        num_positions=num_positions,
        flops=flops,
        sources=tuple(sources),
        pieces=_record(folder / "pieces.npy"),
        shards=tuple(shards),
    )
    with atomic_file(folder / "manifest.json", "w") as text:
        text.write(dump(manifest))


@dataclass(frozen=True, kw_only=True)
class _NewPositions:
    """The document pieces of batch `number` that no earlier batch had, with their target counts and their positions."""

    number: int
    batch: Batch
    pieces: list[tuple[Origin, int]]
    indices_N: Tensor


def _batches(trainer: TrainerConfig) -> Iterator[Batch]:
    """Yield the student's training batches, then its evaluation batches."""
    loader = trainer.data.build()
    yield from (loader.batch(step) for step in range(_num_steps(trainer)))
    if trainer.evaluation is not None:
        held_out = trainer.evaluation.data.build()
        yield from (held_out.batch(step) for step in range(trainer.evaluation.num_batches))


def _new_pieces(batches: Iterable[Batch]) -> Iterator[_NewPositions]:
    seen: set[Origin] = set()
    for number, batch in enumerate(batches):
        new_BS = np.zeros_like(batch.loss_mask_BS)
        pieces = []
        for span, (origin, count) in zip(batch.documents, _targets_by_piece(batch), strict=True):
            if count and origin not in seen:
                seen.add(origin)
                pieces.append((origin, count))
                new_BS[span.row, span.start : span.stop] = batch.loss_mask_BS[span.row, span.start : span.stop]
        if pieces:
            indices_N = torch.from_numpy(new_BS).flatten().nonzero()[:, 0]
            yield _NewPositions(number=number, batch=batch, pieces=pieces, indices_N=indices_N)


def _groups(news: Iterable[_NewPositions]) -> Iterator[list[_NewPositions]]:
    """Yield the positions of one shard each."""
    group: list[_NewPositions] = []
    num_positions = 0
    for item in news:
        group.append(item)
        num_positions += len(item.indices_N)
        if num_positions >= POSITIONS_PER_SHARD:
            yield group
            group, num_positions = [], 0
    if group:
        yield group


def _targets_by_piece(batch: Batch) -> Iterator[tuple[Origin, int]]:
    for span, origin in zip(batch.documents, batch.origins, strict=True):
        yield origin, int(batch.loss_mask_BS[span.row, span.start : span.stop].sum())


def _row_type(key: CacheKey) -> np.dtype[Any]:
    ids = "<u2" if key.num_tokens <= 1 << 16 else "<u4"
    return np.dtype([("log_p", "<f2", (key.num_logits,)), ("ids", ids, (key.num_logits,)), ("log_tail", "<f4")])


@torch.no_grad()
def _row_array(teacher: Decoder, batch: Batch, indices_N: Tensor, key: CacheKey) -> NDArray[Any]:
    """Return the rows of the cache for some positions of a batch."""
    device = teacher.device
    num_rows, row_length = batch.tokens_BS.shape
    images = {key: torch.tensor(views) for key, views in batch.images.items()}
    inserted = teacher.embed_images(batch.embedding_spans, images)
    context = PackedDocuments(batch.documents, num_rows, row_length, device, spans=batch.embedding_spans)
    x_1NE = teacher.hidden_at(to_device(batch.tokens_BS, device), context, indices_N, inserted)
    rows_N = np.empty(len(indices_N), dtype=_row_type(key))
    chunk = max(256, CHUNK_ELEMENTS // key.num_tokens)
    for start in range(0, len(rows_N), chunk):
        log_p_CV = teacher.head(x_1NE[0, start : start + chunk])[:, : key.num_tokens].float().log_softmax(-1)
        top = log_p_CV.topk(key.num_logits)
        rows_C = rows_N[start : start + chunk]
        rows_C["log_p"], rows_C["ids"] = top.values.cpu().numpy(), top.indices.cpu().numpy()
        rows_C["log_tail"] = log_p_CV.scatter_(1, top.indices, -torch.inf).logsumexp(-1).cpu().numpy()
    return rows_N


def _forward_flops(teacher: Decoder, news: _NewPositions) -> int:
    lengths = [span.stop - span.start for span in news.batch.documents]
    return training_flops(teacher.config, lengths, len(news.indices_N)) // 3


def _num_steps(trainer: TrainerConfig) -> int:
    num_steps = trainer.budget.steps(trainer.data)
    if num_steps is None:
        raise ConfigError("cached distillation needs the number of steps in advance; set trainer.budget to a StepBudget")
    return num_steps


def _loader_digest(loader: LoaderConfig) -> str:
    anywhere = replace(loader, sources=tuple(replace(source, path="") for source in loader.sources))
    return dump(anywhere) + "".join(read_manifest(source.path).digest for source in loader.sources)


def _holds(folder: Path, key: CacheKey) -> bool:
    return (folder / "manifest.json").is_file() and _read_manifest(folder).key == key


def _remove_other_shards(folder: Path, key: CacheKey) -> None:
    """Remove the manifest, and the shards of another cache. Files that this module did not write are left alone."""
    record = folder / "key.json"
    same = record.is_file() and record.read_text(encoding="utf-8") == dump(key)
    for file in folder.iterdir():
        is_shard, is_unfinished = _SHARD.fullmatch(file.name), _UNFINISHED.fullmatch(file.name)
        if file.name in ("manifest.json", "pieces.npy") or is_unfinished or (is_shard and not same):
            file.unlink()
    with atomic_file(record, "w") as stream:
        stream.write(dump(key))


def _read_manifest(folder: Path) -> CacheManifest:
    file = folder / "manifest.json"
    try:
        return from_dict(CacheManifest, json.loads(read_document(file)))
    except FileNotFoundError:
        raise TeacherLogitsError(
            f"{folder} holds no complete cache of a teacher's logits; write_teacher_logits makes it"
        ) from None
    except (ValueError, RecursionError, ConfigError) as error:
        raise TeacherLogitsError(f"{file} is not a manifest of teacher logits ({error}); remove {folder}") from error


def _record(file: Path) -> FileRecord:
    try:
        return FileRecord(name=file.name, num_bytes=file.stat().st_size, sha256=file_digest(file))
    except FileNotFoundError:
        raise TeacherLogitsError(f"{file} is missing; remove {file.parent} and repeat the command") from None
