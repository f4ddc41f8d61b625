"""Corpora: how a run gets the token shards of its sources."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from openafm.core.config import Config, dump
from openafm.core.errors import UsageError
from openafm.core.files import atomic_file
from openafm.data.copies import CopiesConfig, pack_copies
from openafm.data.documents import ChatDocument, DocumentFiles, TextDocument, texts_of
from openafm.data.needles import NeedlesConfig, pack_needles
from openafm.data.pack import PackConfig, is_held_out, pack_conversations, pack_path, pack_synthetic
from openafm.data.shards.files import address_of
from openafm.data.shards.manifest import ShardError
from openafm.data.shards.token_shards import open_shards, read_manifest
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.data.synthetic.tasks.mixed import MixedLanguagesConfig, mixed_conversations
from openafm.data.synthetic.tasks.natural import ATTRIBUTIONS
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.conversation import AssistantTurn, Conversation
from openafm.tokenizer.template import BaseChatTemplate

Learn: TypeAlias = Literal["everything", "answers"]


class NothingToLearnError(UsageError):
    """No token of a corpus carries loss."""


TOKENIZER_EXAMPLES = 20_000
"""Generated examples of a corpus that a tokenizer is trained on."""


@dataclass(frozen=True, kw_only=True)
class CorpusConfig(Config, ABC):
    """Base of the corpora. The trainer's source called `name` reads the shards.

    `learn` selects the tokens that carry loss: all of them, or those of the assistant's turns. A subclass implements
    `pack` and, if it holds text, `texts`.
    """

    name: str
    learn: Learn = "everything"

    @abstractmethod
    def pack(self, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
        """Write the token shards into the folder `out`."""

    def texts(self) -> Iterator[str]:
        """Yield texts to train a tokenizer on; the first of them if the corpus is generated."""
        return iter(())

    def conversations(self) -> Iterator[Conversation]:
        """Yield the conversations to measure on: the held-out ones if the corpus holds some out, else all."""
        return iter(())

    def fingerprint(self) -> str:
        """Return a key of the input files that the config does not hold. The corpus is packed again when it changes."""
        return ""

    @property
    def description(self) -> str:
        """Return a clause for the model card."""
        return f"a corpus of type {type(self).__name__}"


@dataclass(frozen=True, kw_only=True)
class SyntheticCorpusConfig(CorpusConfig):
    """The first `num_examples` examples of the built-in corpus."""

    synthetic: SyntheticConfig
    num_examples: int

    def pack(self, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
        config = PackConfig(source=self.name, learn=self.learn)
        pack_synthetic(self.synthetic, self.num_examples, out, tokenizer, template, config)

    def texts(self) -> Iterator[str]:
        for conversation in generate(self.synthetic, min(self.num_examples, TOKENIZER_EXAMPLES)):
            yield from texts_of(ChatDocument(conversation=conversation))

    def conversations(self) -> Iterator[Conversation]:
        return iter(generate(self.synthetic, self.num_examples))

    @property
    def description(self) -> str:
        tasks = ", ".join(f"{task} {share:.0%}" for task, share in self.synthetic.tasks.items())
        is_english = {language for language, share in self.synthetic.languages.items() if share} == {"en"}
        text = f"{self.num_examples:,} {'English ' * is_english}examples of the built-in corpus ({tasks})"
        if not self.synthetic.natural or not self.synthetic.natural_share:
            return text
        sources = "; ".join(ATTRIBUTIONS.values())
        return f"{text}, {self.synthetic.natural_share:.0%} of them requests that people wrote ({sources})"


@dataclass(frozen=True, kw_only=True)
class MixedLanguagesCorpusConfig(CorpusConfig):
    """`num_examples` conversations that are asked in one language and answered in another (report 5.4)."""

    mixed: MixedLanguagesConfig
    num_examples: int

    def pack(self, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
        config = PackConfig(source=self.name, learn=self.learn)
        pack_conversations(self.conversations(), out, tokenizer, template, config)

    def texts(self) -> Iterator[str]:
        for conversation in self.conversations():
            yield from texts_of(ChatDocument(conversation=conversation))

    def conversations(self) -> Iterator[Conversation]:
        return mixed_conversations(self.mixed, self.num_examples)

    @property
    def description(self) -> str:
        return f"{self.num_examples:,} calculations that are asked in one language and answered in another"


@dataclass(frozen=True, kw_only=True)
class CopiesCorpusConfig(CorpusConfig):
    """`num_examples` documents of random token sequences that repeat; only the repetition carries loss."""

    copies: CopiesConfig
    num_examples: int

    def pack(self, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
        pack_copies(self.copies, self.num_examples, out, tokenizer)

    @property
    def description(self) -> str:
        return f"{self.num_examples:,} documents of repeated random token sequences"


@dataclass(frozen=True, kw_only=True)
class NeedlesCorpusConfig(CorpusConfig):
    """`num_examples` long documents with values to retrieve; only the retrieved values carry loss."""

    needles: NeedlesConfig
    num_examples: int

    def pack(self, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
        pack_needles(self.needles, self.num_examples, out, tokenizer)

    @property
    def description(self) -> str:
        return f"{self.num_examples:,} retrieval documents of up to {max(self.needles.lengths):,} tokens"


@dataclass(frozen=True, kw_only=True)
class FolderCorpusConfig(CorpusConfig):
    """The user's text, Markdown or JSONL files at `path`. `language` tags the documents without a language.

    A share `held_out` of the documents goes to the subfolder `held_out` of the shards, for evaluation.
    """

    path: str
    language: str = ""
    held_out: float = 0.0

    def pack(self, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
        config = PackConfig(source=self.name, language=self.language, learn=self.learn, held_out=self.held_out)
        pack_path(Path(self.path), out, tokenizer, template, config)

    def texts(self) -> Iterator[str]:
        for document in DocumentFiles(Path(self.path)):
            yield from texts_of(document)

    def conversations(self) -> Iterator[Conversation]:
        documents = DocumentFiles(Path(self.path))
        chats = (document.conversation for document in documents if isinstance(document, ChatDocument))
        return (chat for chat in chats if not self.held_out or is_held_out(ChatDocument(conversation=chat), self.held_out))

    def fingerprint(self) -> str:
        """Return the paths, sizes and modification times of the files."""
        stats = {str(file): file.stat() for file in DocumentFiles(Path(self.path)).files}
        return json.dumps({file: (stat.st_size, stat.st_mtime_ns) for file, stat in stats.items()})

    @property
    def description(self) -> str:
        return f"the user's files ({Path(self.path).name})"


@dataclass(frozen=True, kw_only=True)
class ShardsCorpusConfig(CorpusConfig):
    """Token shards of `openafm data pack` in the folder or at the address `path`. The run reads them in place."""

    path: str

    def pack(self, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
        """Link the shards into the run folder.

        Raises:
            ForeignTokenizerError: they were packed with another tokenizer than the run's.
        """
        open_shards(self.path, tokenizer_digest=tokenizer.digest, verification="first_use")
        out.parent.mkdir(parents=True, exist_ok=True)
        out.symlink_to(address_of(self.path) or Path(self.path).resolve())

    def fingerprint(self) -> str:
        return read_manifest(self.path).digest

    @property
    def description(self) -> str:
        return f"the user's token shards ({Path(self.path).name})"


def check_targets(path: Path, learn: Learn) -> None:
    """Check that a file or folder of the user's data has a document with text to learn.

    Raises:
        NothingToLearnError: it has no text, or `learn` is "answers" and its conversations have no assistant's turn.
    """
    has_text = False
    for document in DocumentFiles(path):
        if any(text.strip() for text in texts_of(document)):
            has_text = True
            if learn == "everything" or isinstance(document, TextDocument) or _has_answer(document.conversation):
                return
    if not has_text:
        raise NothingToLearnError(f"{path} has no text; name a file or folder with documents or conversations")
    raise NothingToLearnError(
        f"{path} has no assistant's turn, and this run learns only these; add answers, or train on all of its text with a"
        " recipe such as on_device.pretrain"
    )


def _has_answer(conversation: Conversation) -> bool:
    return any(isinstance(turn, AssistantTurn) for turn in conversation.turns)


def pack_corpus(corpus: CorpusConfig, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
    """Pack a corpus into `out`, unless `out` holds the same corpus packed with the same tokenizer.

    Raises:
        NothingToLearnError: no token of the corpus carries loss.
        Errors of packing name the file that they concern.
    """
    key = dump(corpus) + corpus.fingerprint() + tokenizer.digest
    record = out.with_suffix(".packed")
    if record.is_file() and record.read_text(encoding="utf-8") == key and _is_complete(out, tokenizer):
        return
    record.unlink(missing_ok=True)
    if out.is_symlink():
        out.unlink()
    corpus.pack(out, tokenizer, template)
    _check_packed_targets(corpus, out)
    with atomic_file(record, "w") as file:
        file.write(key)


def _check_packed_targets(corpus: CorpusConfig, out: Path) -> None:
    shards = open_shards(out, verification="first_use")
    for index, record in enumerate(shards.manifest.shards):
        if shards.loss_mask(index, 0, record.num_tokens).any():
            return
    learned = "no assistant's turn, and this run learns only these" if corpus.learn == "answers" else "no token to learn"
    raise NothingToLearnError(
        f"the corpus '{corpus.name}' ({corpus.description}) has {learned}; add answers, or train on all of its text with a"
        " recipe such as on_device.pretrain"
    )


def _is_complete(folder: Path, tokenizer: Tokenizer) -> bool:
    try:
        return read_manifest(folder).tokenizer_digest == tokenizer.digest
    except ShardError:
        return False
