"""Documents from files: .txt and .md (one document per file), .jsonl (one per line), each plain or gzipped, and .parquet.

A line of JSONL is plain text, `{"text": "...", "language": "en"}`, or a conversation: `{"messages": [...], ...}` as in
`tokenizer.conversation`, or one of the formats in `chat_formats`. `source` is a tag of the document; `kind`, `license`,
`opt_out` and the texts of an object `metadata` are stored with it. Other keys are ignored. A file given by path may also be
.json: a list of such objects, or one object.

A row of Parquet is a plain text with the columns of `pipeline.parquet`; `text` is required. Of a corpus that
`openafm data run` wrote, the documents that it kept are read. Documents whose publisher opted out of training are skipped.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, TypeAlias

from openafm.core.errors import OpenAFMError, UsageError
from openafm.data.chat_formats import as_messages
from openafm.data.shards.manifest import EmptyCorpusError
from openafm.tokenizer.conversation import Conversation, ConversationError, UserTurn
from openafm.tokenizer.schema_text import schema_text

TEXT_SUFFIXES = (".txt", ".md")
PARQUET = ".parquet"
SUFFIXES = (*TEXT_SUFFIXES, ".jsonl", PARQUET)
JSON = ".json"
"""Read only if its path is given: folders contain other JSON files too."""
_LANGUAGE_TAGS = (
    "af am ar az be bg bn bs ca cs cy da de el en es et eu fa fi fil fr ga gl gu he hi hr hu hy id is it ja ka kk "
    "km kn ko ky lo lt lv mk ml mn mr ms my nb ne nl nn no pa pl ps pt ro ru si sk sl so sq sr sv sw ta te th tl tr "
    "uk ur uz vi yue zh zu "
)
LANGUAGES = frozenset(_LANGUAGE_TAGS.split())
"""Language tags that are read from names of files and folders, such as `de.txt`, `news.de.jsonl` and `de/news.txt`."""

METADATA_KEYS = ("kind", "license", "opt_out")
"""Keys of a JSONL document that are stored as metadata; further ones are under `metadata`."""
NO_OPT_OUT = ("", "no", "false", "0")
"""Values of `opt_out` of documents that may be used for training; any other value is the reason why not."""
CORPUS = "corpus.json"
"""The manifest in a folder that `openafm data run` wrote; its documents are in the subfolder `documents`."""
BYTE_ORDER_MARK = "\ufeff"


class InputPathError(UsageError):
    """The path does not exist or is a file of another kind."""


class NotTextError(OpenAFMError):
    """A file is binary, not UTF-8, or a damaged archive."""


class NotADocumentError(OpenAFMError):
    """A line of JSONL is not JSON, or has neither text nor messages."""


@dataclass(frozen=True, kw_only=True)
class TextDocument:
    """A plain text. `read_from` is the file and line, for messages."""

    text: str
    language: str = ""
    read_from: str = ""
    source: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ChatDocument:
    """A conversation. `read_from` is the file and line, for messages."""

    conversation: Conversation
    read_from: str = ""
    source: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


AnyDocument: TypeAlias = TextDocument | ChatDocument


def texts_of(document: AnyDocument) -> Iterator[str]:
    """Yield every text that the document is encoded from, schemas included: the training text of a tokenizer."""
    if isinstance(document, TextDocument):
        yield document.text
        return
    for turn in document.conversation.turns:
        yield turn.text
        if isinstance(turn, UserTurn) and turn.response_format is not None:
            yield schema_text(turn.response_format)


class DocumentFiles:
    """The documents of a file, or of all files below a folder in the order of their paths; hidden ones are skipped.

    Iterating reads them; `bytes_read` of `total_bytes` (as stored) is the progress. `num_opted_out` counts the documents
    that were skipped because they must not be used for training.

    Raises:
        InputPathError: `path` does not exist or is a file of another kind.
        EmptyCorpusError: the folder holds no file of a known kind.
        NotTextError, NotADocumentError: while iterating; the message names the file and line.
    """

    def __init__(self, path: Path) -> None:
        self.files = _find(path)
        self._root = path if path.is_dir() else path.parent
        self.total_bytes = sum(file.stat().st_size for file in self.files)
        self.bytes_read = 0
        self.num_opted_out = 0

    def __iter__(self) -> Iterator[AnyDocument]:
        self.num_opted_out = bytes_before = 0
        for file in self.files:
            with file.open("rb") as raw:
                for document in _read(file, raw, language_of_path(file.relative_to(self._root))):
                    self.bytes_read = bytes_before + raw.tell()
                    if document.metadata.get("opt_out", "") in NO_OPT_OUT:
                        yield document
                    else:
                        self.num_opted_out += 1
            bytes_before += file.stat().st_size
        self.bytes_read = bytes_before


def _find(path: Path) -> list[Path]:
    known = f"known are {', '.join(SUFFIXES)}, text and JSONL also with .gz"
    if (path / CORPUS).is_file():
        path = path / "documents"
    if path.is_dir():
        inside = sorted(path.rglob("*"), key=lambda file: file.relative_to(path).parts)
        shown = (file for file in inside if not any(part.startswith(".") for part in file.relative_to(path).parts))
        files = [file for file in shown if file.is_file() and _kind(file) in SUFFIXES]
        if not files:
            raise EmptyCorpusError(f"{path} holds no file of a known kind; {known}")
        return files
    if not path.exists():
        raise InputPathError(f"{path} does not exist; pass a file or a folder of text or JSONL")
    if _kind(path) not in (*SUFFIXES, JSON):
        raise InputPathError(f"{path}: a file of this kind is not read; {known}")
    return [path]


def _kind(file: Path) -> str:
    name = file.name.lower().removesuffix(".gz")
    return Path(name).suffix


def _read(file: Path, raw: IO[bytes], language: str) -> Iterator[AnyDocument]:
    if _kind(file) == PARQUET:
        for index, row in enumerate(_parquet(file)):
            yield _tagged(replace(row, read_from=f"{file} (row {index})"), language)
        return
    stream = gzip.GzipFile(fileobj=raw) if file.name.lower().endswith(".gz") else raw
    try:
        if _kind(file) in TEXT_SUFFIXES:
            yield _tagged(TextDocument(text=_decode(stream.read(), str(file)), read_from=str(file)), language)
            return
        if _kind(file) == JSON:
            for document in _documents_of_json(_decode(stream.read(), str(file)), str(file)):
                yield _tagged(document, language)
            return
        for number, line in enumerate(stream, start=1):
            where = f"{file}:{number}"
            if text := _decode(line, where).strip():
                yield _tagged(_parse(text, where), language)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise NotTextError(f"{file} is not a whole gzip file: {error}; copy it again or leave it out") from error


def _parquet(file: Path) -> Iterator[TextDocument]:
    from openafm.data.pipeline.parquet import read_rows

    for row in read_rows(file):
        metadata = {key: str(row[key]) for key in METADATA_KEYS if row.get(key)}
        source, language = row.get("source"), row.get("language")
        yield TextDocument(
            text=str(row["text"] or ""),
            language=language if isinstance(language, str) else "",
            source=source if isinstance(source, str) else "",
            metadata=metadata,
        )


def language_of_path(file: Path) -> str:
    """Return the language tag in the name of a file, or else of the innermost folder that has one; empty without.

    Pass a path relative to the user's folder: names above it are not about its text.
    """
    stem = Path(file.name.lower().removesuffix(".gz")).stem
    names = [stem.rpartition(".")[2], *(folder.lower() for folder in reversed(file.parent.parts))]
    return next((name for name in names if name.split("-")[0] in LANGUAGES and len(name) <= 7), "")


def _tagged(document: AnyDocument, language: str) -> AnyDocument:
    """Return the document with a language if it has none."""
    if not language:
        return document
    if isinstance(document, TextDocument):
        return document if document.language else replace(document, language=language)
    conversation = document.conversation
    return document if conversation.language else replace(document, conversation=replace(conversation, language=language))


def _decode(data: bytes, where: str) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotTextError(f"{where} is not UTF-8 text (byte {error.start}); convert it or leave it out") from error
    if "\0" in text:
        raise NotTextError(f"{where} is a binary file (it holds NUL bytes); leave it out")
    return text.removeprefix(BYTE_ORDER_MARK)


def _documents_of_json(text: str, file: str) -> Iterator[AnyDocument]:
    values = _json(text, file)
    for number, item in enumerate(values if isinstance(values, list) else [values], start=1):
        yield _document(item, f"{file} (item {number})")


def _parse(line: str, where: str) -> AnyDocument:
    return _document(_json(line, where), where)


def _json(text: str, where: str) -> Any:
    try:
        values: Any = json.loads(text)
        if "\\u" in text:
            json.dumps(values, ensure_ascii=False).encode()  # half of a surrogate pair has no UTF-8 form
    except (ValueError, RecursionError) as error:
        raise NotADocumentError(f"{where} is not a JSON value that holds text: {error}") from error
    return values


def _document(values: Any, where: str) -> AnyDocument:
    match values:
        case {"text": str(text)} if "messages" not in values:
            language = values.get("language")
            return TextDocument(
                text=text,
                language=language if isinstance(language, str) else "",
                read_from=where,
                source=_source(values),
                metadata=_metadata(values, where),
            )
        case {}:
            conversation = _conversation(values, where)
            if conversation is not None:
                return ChatDocument(
                    conversation=conversation, read_from=where, source=_source(values), metadata=_metadata(values, where)
                )
    raise NotADocumentError(
        f"{where} needs a text under 'text', or a conversation under 'messages' (OpenAI), 'conversations' (ShareGPT),"
        " 'instruction' and 'output' (Alpaca) or 'prompt' and 'completion'"
    )


def _conversation(values: dict[str, Any], where: str) -> Conversation | None:
    try:
        messages = as_messages(values)
        if messages is None and "messages" not in values:
            return None
        return Conversation.from_dict(values if messages is None else messages)
    except ConversationError as error:
        raise NotADocumentError(f"{where}: {error}") from error


def _source(values: Mapping[str, Any]) -> str:
    source = values.get("source")
    return source if isinstance(source, str) else ""


def _metadata(values: Mapping[str, Any], where: str) -> dict[str, str]:
    """The texts under `metadata` and under `METADATA_KEYS`."""
    own = values.get("metadata", {})
    if not isinstance(own, dict) or not all(isinstance(value, str) for value in own.values()):
        raise NotADocumentError(f'{where}: \'metadata\' must be an object of texts, such as {{"license": "CC-BY-4.0"}}')
    known = {key: values[key] for key in METADATA_KEYS if isinstance(values.get(key), str)}
    return {key: value for key, value in (own | known).items() if value}
