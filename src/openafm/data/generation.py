"""Generating and encoding the built-in corpus in several processes, in the order of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from openafm.core.errors import OpenAFMError
from openafm.core.executors import LocalExecutor, num_cores
from openafm.data.documents import ChatDocument
from openafm.data.encoding import EncodedDocument, encode_chat
from openafm.data.synthetic import SyntheticConfig
from openafm.data.synthetic.corpus import example
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.template import BaseChatTemplate

CHUNK = 1_000
"""Examples of one unit of work, about a second."""


class GenerationError(OpenAFMError):
    """A process that generates examples died."""


@dataclass(frozen=True)
class _Chunk:
    """Examples `start` to `stop` of a stream."""

    synthetic: SyntheticConfig
    start: int
    stop: int
    tokenizer: Tokenizer
    template: BaseChatTemplate


def generated_documents(
    synthetic: SyntheticConfig, count: int, tokenizer: Tokenizer, template: BaseChatTemplate, num_workers: int = 0
) -> Iterator[EncodedDocument]:
    """Yield the first `count` examples of the stream, encoded, in order.

    `num_workers` 0 is one for each core of this process, and no more than every worker has two chunks for.

    Raises:
        GenerationError: a worker died.
    """
    chunks = (_Chunk(synthetic, start, min(start + CHUNK, count), tokenizer, template) for start in range(0, count, CHUNK))
    num_workers = num_workers or min(num_cores(), count // (2 * CHUNK))
    if num_workers <= 1:
        for chunk in chunks:
            yield from _documents(chunk)
        return
    waiting: dict[int, list[EncodedDocument]] = {}
    done = 0
    with LocalExecutor(num_workers) as executor:
        for outcome in executor.map(encode_chunk, chunks):
            if outcome.result is None:
                raise GenerationError(f"a process that generates examples died: {outcome.failure}; repeat the command")
            waiting[outcome.item.start] = outcome.result
            while done in waiting:
                documents = waiting.pop(done)
                done += len(documents)
                yield from documents


def encode_chunk(chunk: _Chunk) -> list[EncodedDocument]:
    """Return the encoded examples of a chunk."""
    return list(_documents(chunk))


def _documents(chunk: _Chunk) -> Iterator[EncodedDocument]:
    for index in range(chunk.start, chunk.stop):
        document = ChatDocument(conversation=example(chunk.synthetic, index))
        yield encode_chat(document, chunk.tokenizer, chunk.template)
