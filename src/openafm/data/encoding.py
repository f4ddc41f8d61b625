"""Documents as tokens with loss masks, ready to be packed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from openafm.core.errors import OpenAFMError
from openafm.data.documents import AnyDocument, ChatDocument, NotADocumentError, TextDocument
from openafm.tokenizer.schema_text import compact_json

if TYPE_CHECKING:
    from openafm.tokenizer.bpe import Tokenizer
    from openafm.tokenizer.conversation import Conversation
    from openafm.tokenizer.template import BaseChatTemplate

BATCH_CHARACTERS = 1 << 20  # encoded in one call; enough work for every core
SEGMENT_CHARACTERS = 1 << 16  # a longer text is encoded in segments
NO_TOKEN_CROSSES = re.compile(r"[\r\n](?=\S)")  # the tokenizer ends a token at the last line break before other text


class UnknownDocumentError(OpenAFMError):
    """A document is neither a text nor a conversation."""


@dataclass(frozen=True, kw_only=True)
class EncodedDocument:
    """A document ready to be stored. The split depends on `identity`. A document without text has no tokens."""

    tokens: npt.NDArray[np.int64]
    loss_mask: npt.NDArray[np.bool_] | None
    language: str
    task: str
    identity: bytes
    source: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


def identity_of(conversation: Conversation) -> bytes:
    """Return the content of a conversation, which decides its side of the split."""
    return compact_json(conversation.to_dict()).encode()


def encode_documents(
    documents: Iterable[AnyDocument], tokenizer: Tokenizer, template: BaseChatTemplate
) -> Iterator[EncodedDocument]:
    """Yield documents as tokens, in order.

    Raises:
        NotADocumentError: a conversation cannot be encoded.
        UnknownDocumentError: an item is neither a text nor a conversation.
    """
    for kind, run in groupby(documents, key=type):
        if kind is TextDocument:
            yield from encode_texts((document for document in run if isinstance(document, TextDocument)), tokenizer)
            continue
        for document in run:
            if not isinstance(document, ChatDocument):
                raise UnknownDocumentError(
                    f"documents of type {kind.__name__} cannot be packed; pass TextDocument or ChatDocument"
                )
            yield encode_chat(document, tokenizer, template)


def encode_chat(document: ChatDocument, tokenizer: Tokenizer, template: BaseChatTemplate) -> EncodedDocument:
    """Return a conversation as tokens; errors as `encode_documents`."""
    conversation = document.conversation
    try:
        encoded = template.encode_conversation(tokenizer, conversation)
        identity = identity_of(conversation)
    except (OpenAFMError, ValueError) as error:  # Python's JSON accepts NaN; documents must not have it
        raise NotADocumentError(f"{document.read_from or 'a conversation'}: {error}") from error
    return EncodedDocument(
        tokens=np.array(encoded.tokens, dtype=np.int64),
        loss_mask=np.array(encoded.loss_mask, dtype=np.bool_),
        language=conversation.language,
        task=conversation.task,
        identity=identity,
        source=document.source,
        metadata=document.metadata,
    )


def encode_texts(documents: Iterable[TextDocument], tokenizer: Tokenizer) -> Iterator[EncodedDocument]:
    """Encode texts in batches, in order; a long text is encoded as several segments."""
    bos, eos = [tokenizer.special.bos], [tokenizer.special.eos]
    parts: list[npt.NDArray[np.int64]] = []
    for batch in _batches(segment for document in documents for segment in _segments(document)):
        for segment, ids in zip(batch, tokenizer.encode_batch([segment.text for segment in batch]), strict=True):
            parts.append(np.array(ids, dtype=np.int64))
            if segment.ends is None:
                continue
            document, has_text = segment.ends, bool(segment.ends.text.strip())
            yield EncodedDocument(
                tokens=np.concatenate([bos, *parts, eos] if has_text else [[]]).astype(np.int64),
                loss_mask=None,
                language=document.language,
                task="",
                identity=document.text.encode(),
                source=document.source,
                metadata=document.metadata,
            )
            parts = []


@dataclass(frozen=True, kw_only=True)
class _TextSegment:
    """Part of a text; `ends` is the document of the last part."""

    text: str
    ends: TextDocument | None


def _segments(document: TextDocument) -> Iterator[_TextSegment]:
    start = 0
    while cut := NO_TOKEN_CROSSES.search(document.text, start + SEGMENT_CHARACTERS):
        yield _TextSegment(text=document.text[start : cut.end()], ends=None)
        start = cut.end()
    yield _TextSegment(text=document.text[start:], ends=document)


def _batches(segments: Iterable[_TextSegment]) -> Iterator[list[_TextSegment]]:
    batch: list[_TextSegment] = []
    num_characters = 0
    for segment in segments:
        batch.append(segment)
        num_characters += len(segment.text)
        if num_characters >= BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch
