"""What a recipe's corpora hold: texts for the tokenizer, and token shards, which are made once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from openafm.core.config import dump
from openafm.core.files import atomic_file
from openafm.data.copies import pack_copies
from openafm.data.documents import ChatDocument, DocumentFiles, texts_of
from openafm.data.needles import pack_needles
from openafm.data.pack import PackConfig, pack_path, pack_synthetic
from openafm.data.shards import ShardError, read_manifest
from openafm.data.synthetic import generate
from openafm.recipes.config import (
    CopiesCorpusConfig,
    CorpusConfig,
    FolderCorpusConfig,
    NeedlesCorpusConfig,
    SyntheticCorpusConfig,
)
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.template import BaseChatTemplate

TOKENIZER_EXAMPLES = 20_000


def texts_of_corpus(corpus: CorpusConfig) -> Iterator[str]:
    """The texts of a corpus, or of its beginning where it is generated; copies and needles have none of their own."""
    match corpus:
        case SyntheticCorpusConfig():
            for conversation in generate(corpus.synthetic, min(corpus.num_examples, TOKENIZER_EXAMPLES)):
                yield from texts_of(ChatDocument(conversation=conversation))
        case FolderCorpusConfig():
            for document in DocumentFiles(Path(corpus.path)):
                yield from texts_of(document)


def pack_corpus(corpus: CorpusConfig, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
    """Pack a corpus unless the same one, with the same tokenizer, already stands at `out`."""
    wanted = dump(corpus) + _stamps(corpus) + tokenizer.digest
    record = out.with_suffix(".packed")
    if record.is_file() and record.read_text(encoding="utf-8") == wanted and _is_whole(out, tokenizer):
        return
    record.unlink(missing_ok=True)
    match corpus:
        case SyntheticCorpusConfig(synthetic=synthetic, num_examples=num_examples):
            config = PackConfig(source=corpus.name, learn=corpus.learn)
            pack_synthetic(synthetic, num_examples, out, tokenizer, template, config)
        case CopiesCorpusConfig(copies=copies, num_examples=num_examples):
            pack_copies(copies, num_examples, out, tokenizer)
        case NeedlesCorpusConfig(needles=needles, num_examples=num_examples):
            pack_needles(needles, num_examples, out, tokenizer)
        case FolderCorpusConfig(path=path, language=language):
            config = PackConfig(source=corpus.name, language=language, learn=corpus.learn)
            pack_path(Path(path), out, tokenizer, template, config)
    with atomic_file(record, "w") as file:
        file.write(wanted)


def _stamps(corpus: CorpusConfig) -> str:
    """Paths, sizes and times of the user's own files: what has changed is packed anew."""
    if not isinstance(corpus, FolderCorpusConfig):
        return ""
    stats = {str(file): file.stat() for file in DocumentFiles(Path(corpus.path)).files}
    return json.dumps({file: (stat.st_size, stat.st_mtime_ns) for file, stat in stats.items()})


def _is_whole(folder: Path, tokenizer: Tokenizer) -> bool:
    try:
        return read_manifest(folder).tokenizer_digest == tokenizer.digest
    except ShardError:
        return False
