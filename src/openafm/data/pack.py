"""Packing: texts and conversations -> tokens -> shards.

A text becomes <|bos|> text <|eos|> with loss on all tokens. A conversation is encoded by the chat template with loss on the
assistant's turns. The same input gives the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from openafm.core.config import Config, dump
from openafm.core.files import atomic_folder, resumable_folder
from openafm.core.progress import Progress, progress
from openafm.data.documents import AnyDocument, ChatDocument, DocumentFiles, TextDocument
from openafm.data.encoding import EncodedDocument, encode_documents, encode_texts, identity_of
from openafm.data.shards.manifest import MANIFEST, ImagesConfig, Manifest
from openafm.data.shards.token_shards import open_shards, read_manifest
from openafm.data.shards.writer import TOKENS_PER_SHARD, ShardWriter, append_shards, check_output

if TYPE_CHECKING:
    from openafm.data.synthetic import SyntheticConfig
    from openafm.tokenizer.bpe import Tokenizer
    from openafm.tokenizer.conversation import Conversation
    from openafm.tokenizer.template import BaseChatTemplate

HELD_OUT = "held_out"
FILES = tuple(f"{side}{name}" for side in ("", f"{HELD_OUT}/") for name in ("*.npy", MANIFEST, f".{MANIFEST}.*"))

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class PackConfig(Config):
    """Tags and split of a corpus.

    `source` and `language` are the tags of documents without their own; a conversation's source ends in its task. A share
    `held_out` of the documents goes to a second corpus in the subfolder `held_out`, chosen by the hash of the content, so
    that equal documents stay together. Loss covers the assistant's turns of a conversation ("answers") or every token
    ("everything"); in a text it covers every token.
    """

    source: str = ""
    language: str = ""
    held_out: float = 0.0
    learn: Literal["answers", "everything"] = "answers"
    tokens_per_shard: int = TOKENS_PER_SHARD

    def __post_init__(self) -> None:
        self.require(0 <= self.held_out < 1, f"held_out is a share from 0 to below 1, got {self.held_out}")
        self.require(self.tokens_per_shard > 0, f"tokens_per_shard must be at least 1, got {self.tokens_per_shard}")


@dataclass(frozen=True, kw_only=True)
class PackReport:
    """The manifests that were written.

    `num_skipped` counts documents without text, `num_without_answer` those in which no token carries loss, and
    `num_opted_out` those that were left out because they must not be used for training.
    """

    path: Path
    train: Manifest
    held_out: Manifest | None
    num_skipped: int
    num_without_answer: int
    num_opted_out: int = 0


def pack_path(
    path: Path,
    out: Path,
    tokenizer: Tokenizer,
    template: BaseChatTemplate,
    config: PackConfig | None = None,
    *,
    append: bool = False,
) -> PackReport:
    """Pack a file, or every .txt, .md, .jsonl (also .gz) and .parquet file below a folder, into a corpus at `out`.

    With `append`, the documents become further shards of the corpus that `out` has. Without it, a call that was killed is
    continued by the next call with the same files, tokenizer and config, after its last complete shard.

    Raises:
        InputPathError, NotTextError, NotADocumentError: a file in `path` cannot be read; the message has its name.
        EmptyCorpusError: one side of the split has no document with text.
        OutputFolderError: `out` has files that are not a corpus, or one of another tokenizer.
        OutOfSpaceError: the disk is full. After any error, `out` is unchanged.
    """
    files = DocumentFiles(path)
    config = config or PackConfig(source=path.stem)
    with progress(f"pack {path}", files.total_bytes) as bar:
        documents = _watched(files, bar, lambda _: files.bytes_read)
        if append:
            report = _append(encode_documents(documents, tokenizer, template), out, tokenizer, config)
            return replace(report, num_opted_out=files.num_opted_out)
        check_output(out)
        with resumable_folder(out, _key(files.files, tokenizer, template, config), FILES) as folder:
            sides = _resumed(folder, tokenizer, config)
            rest = _without_stored(documents, sides, config.held_out)
            report = _store(encode_documents(rest, tokenizer, template), out, sides, config)
            return replace(report, num_opted_out=files.num_opted_out)


def pack_texts(
    texts: Iterable[TextDocument], out: Path, tokenizer: Tokenizer, config: PackConfig | None = None
) -> PackReport:
    """Pack plain texts into a corpus at `out`; errors as `pack_path`."""
    return _pack(encode_texts(texts, tokenizer), out, tokenizer, config or PackConfig())


def pack_conversations(
    conversations: Iterable[Conversation],
    out: Path,
    tokenizer: Tokenizer,
    template: BaseChatTemplate,
    config: PackConfig | None = None,
) -> PackReport:
    """Pack conversations into a corpus at `out`; errors as `pack_path`."""
    documents = (ChatDocument(conversation=conversation) for conversation in conversations)
    return _pack(encode_documents(documents, tokenizer, template), out, tokenizer, config or PackConfig())


def pack_documents(
    documents: Iterable[AnyDocument],
    out: Path,
    tokenizer: Tokenizer,
    template: BaseChatTemplate,
    config: PackConfig | None = None,
) -> PackReport:
    """Pack texts and conversations into a corpus at `out`; errors as `pack_path`."""
    return _pack(encode_documents(documents, tokenizer, template), out, tokenizer, config or PackConfig())


def pack_synthetic(
    synthetic: SyntheticConfig,
    count: int,
    out: Path,
    tokenizer: Tokenizer,
    template: BaseChatTemplate,
    config: PackConfig | None = None,
    *,
    num_workers: int = 0,
) -> PackReport:
    """Generate `count` synthetic conversations and pack them into a corpus at `out`; errors as `pack_path`.

    With a template that has no place for tools, the tasks that use tools are left out. `num_workers` processes generate, 0
    as many as this process has cores and the count keeps busy; the bytes do not depend on it.
    """
    from openafm.data.generation import generated_documents

    with progress(f"generate {count:,} conversations", count) as bar:
        if not template.can_call_tools:
            synthetic = synthetic.without_tools()
            bar.note("the chat template has no place for tools: the tasks that use tools are left out")
        if synthetic.natural_share and not synthetic.natural:
            bar.note("no natural requests: set the corpus's `natural` to their folder to train on them too")
        config = config or PackConfig(source="synthetic")
        documents = _watched(generated_documents(synthetic, count, tokenizer, template, num_workers), bar, lambda done: done)
        return _pack(documents, out, tokenizer, config)


@dataclass(frozen=True, kw_only=True)
class Side:
    """The writer of one side of the split, and the documents that an interrupted call has stored there."""

    writer: ShardWriter
    num_stored: int = 0
    num_without_answer: int = 0


@dataclass(frozen=True, kw_only=True)
class _Sides:
    train: Side
    held_out: Side | None

    def of(self, is_held_out: bool) -> Side:
        """Return the side of a document."""
        return self.held_out if is_held_out and self.held_out is not None else self.train


def _pack(documents: Iterable[EncodedDocument], out: Path, tokenizer: Tokenizer, config: PackConfig) -> PackReport:
    check_output(out)
    with atomic_folder(out) as folder:
        return _store(documents, out, _resumed(folder, tokenizer, config), config)


def _append(documents: Iterable[EncodedDocument], out: Path, tokenizer: Tokenizer, config: PackConfig) -> PackReport:
    with contextlib.ExitStack() as stack:
        train = stack.enter_context(_appender(out, tokenizer, config))
        held_out = stack.enter_context(_appender(out / HELD_OUT, tokenizer, config)) if config.held_out else None
        sides = _Sides(train=Side(writer=train), held_out=None if held_out is None else Side(writer=held_out))
        return _store(documents, out, sides, config)


def _store(documents: Iterable[EncodedDocument], out: Path, sides: _Sides, config: PackConfig) -> PackReport:
    num_skipped = 0
    num_without_answer = sum(side.num_without_answer for side in (sides.train, sides.held_out) if side)
    for document in documents:
        if not len(document.tokens):
            num_skipped += 1
            continue
        loss_mask = document.loss_mask if config.learn == "answers" else None
        num_without_answer += loss_mask is not None and not loss_mask.any()
        sides.of(_share_of(document.identity) < config.held_out).writer.add(
            document.tokens,
            loss_mask=loss_mask,
            language=document.language or config.language,
            source="/".join(part for part in (document.source or config.source, document.task) if part),
            metadata=document.metadata,
        )
    return PackReport(
        path=out,
        train=sides.train.writer.finish(),
        held_out=sides.held_out.writer.finish() if sides.held_out else None,
        num_skipped=num_skipped,
        num_without_answer=num_without_answer,
    )


def _key(files: Iterable[Path], tokenizer: Tokenizer, template: BaseChatTemplate, config: PackConfig) -> str:
    """Return what the bytes of a packed corpus depend on; of the files, their names, sizes and times of change."""
    states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return "\n".join([tokenizer.digest, dump(template), dump(config), *map(str, states)])


def _resumed(folder: Path, tokenizer: Tokenizer, config: PackConfig) -> _Sides:
    """Return writers that continue the shards that `folder` has."""
    train = resumed_side(folder, tokenizer, config.tokens_per_shard)
    return _Sides(
        train=train,
        held_out=resumed_side(folder / HELD_OUT, tokenizer, config.tokens_per_shard) if config.held_out else None,
    )


def resumed_side(folder: Path, tokenizer: Tokenizer, tokens_per_shard: int, images: ImagesConfig | None = None) -> Side:
    """Return a writer that continues the shards that `folder` has, and removes those that were not completed."""
    stored = read_manifest(folder) if (folder / MANIFEST).exists() else None
    kept = {file.name for shard in (stored.shards if stored else ()) for file in shard.files} | {MANIFEST}
    for file in folder.glob("*.npy"):
        if file.name not in kept:
            file.unlink()  # of a shard that was not completed
    for file in folder.glob(f".{MANIFEST}.*"):
        file.unlink()
    writer = ShardWriter(
        folder,
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        tokens_per_shard=tokens_per_shard,
        existing=stored,
        is_resumable=True,
        images=images,
    )
    if stored is None:
        return Side(writer=writer)
    return Side(writer=writer, num_stored=stored.num_documents, num_without_answer=open_shards(folder).num_without_loss)


def _without_stored(documents: Iterable[AnyDocument], sides: _Sides, held_out: float) -> Iterator[AnyDocument]:
    """Leave out the documents that an interrupted call stored: the first ones of each side."""
    left = {side: sides.of(side).num_stored for side in (False, True)}
    for document in documents:
        if any(left.values()) and not (isinstance(document, TextDocument) and not document.text.strip()):
            side = bool(held_out) and is_held_out(document, held_out)
            if left[side]:
                left[side] -= 1
                continue
        yield document


def _appender(folder: Path, tokenizer: Tokenizer, config: PackConfig) -> contextlib.AbstractContextManager[ShardWriter]:
    return append_shards(
        folder,
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        tokens_per_shard=config.tokens_per_shard,
    )


def is_held_out(document: AnyDocument, share: float) -> bool:
    """Return whether a document belongs to the held-out split of a corpus with this share."""
    if isinstance(document, TextDocument):
        return _share_of(document.text.encode()) < share
    return _share_of(identity_of(document.conversation)) < share


def _watched(items: Iterable[Item], bar: Progress, how_far: Callable[[int], float]) -> Iterator[Item]:
    """Yield the items and show `how_far` in the bar."""
    count = 0
    for count, item in enumerate(items, start=1):
        bar.update(how_far(count - 1), f"{count:,} documents")
        yield item
    bar.update(how_far(count), f"{count:,} documents")


def _share_of(identity: bytes) -> float:
    """A number in [0, 1), uniform over contents, that depends only on the content."""
    return int.from_bytes(hashlib.blake2b(identity, digest_size=6).digest()) / 2**48
