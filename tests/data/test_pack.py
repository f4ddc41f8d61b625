"""Packing files into shards: the tokens of each kind of document, refusals that name the file, and no loss of documents."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openafm.core.config import ConfigError
from openafm.core.files import ForeignFilesError
from openafm.data.documents import (
    DocumentFiles,
    InputPathError,
    NotADocumentError,
    NotTextError,
    TextDocument,
    language_of_path,
)
from openafm.data.encoding import SEGMENT_CHARACTERS, UnknownDocumentError
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.data.pack import PackConfig, pack_conversations, pack_documents, pack_path, pack_synthetic, pack_texts
from openafm.data.shards.manifest import EmptyCorpusError, ManifestError
from openafm.data.shards.token_shards import Shards, open_shards, read_manifest
from openafm.data.shards.writer import OutputFolderError
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.conversation import AssistantTurn, Conversation, Instructions, UserTurn

TEMPLATE = ChatTemplate()
PROSE = "The quick brown fox jumps over the lazy dog.\n\nIt said: « déjà vu », 123 times.\n  日本語の文章です。\r\n\tEnd"
CHAT = {
    "messages": [
        {"role": "instructions", "content": "Be brief."},
        {"role": "user", "content": "Say hello."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Again."},
        {"role": "assistant", "content": "Hello again."},
    ],
    "task": "greeting",
    "language": "en",
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(vocab_size=390), [PROSE] * 5)


def write_lines(path: Path, *values: Any) -> Path:
    text = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    data = text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def stored(shards: Shards) -> list[Any]:
    return [
        shards.document(shard, index)
        for shard, record in enumerate(shards.manifest.shards)
        for index in range(record.num_documents)
    ]


def test_a_folder_of_every_kind(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = tmp_path / "in"
    write_lines(folder / "a.jsonl", {"text": "one"}, {"text": "zwei", "language": "de"}, CHAT)
    write_lines(folder / "b" / "deep.JSONL.gz", {"text": "three", "extra": [1]}, {"text": "  \n"})
    (folder / "c.txt").write_bytes(b"\xef\xbb\xbf" + PROSE.encode())
    (folder / "d.md").write_text("# four", encoding="utf-8")
    (folder / "e.png").write_bytes(b"\x89PNG\0")
    (folder / ".hidden.txt").write_bytes(b"\xff")
    report = pack_path(folder, tmp_path / "out", tokenizer, TEMPLATE, PackConfig(source="mine", language="en"))
    documents = stored(open_shards(tmp_path / "out", tokenizer_digest=tokenizer.digest))
    assert report.num_skipped == 1
    assert report.train.num_documents == 6
    texts = [documents[position] for position in (0, 1, 3, 4, 5)]
    assert [tokenizer.decode(d.tokens.tolist()) for d in texts] == ["one", "zwei", "three", PROSE, "# four"]
    assert all((d.tokens[0], d.tokens[-1]) == (tokenizer.special.bos, tokenizer.special.eos) for d in texts)
    assert all(d.loss_mask.all() for d in texts)
    assert [(d.language, d.source) for d in documents] == [
        ("en", "mine"),
        ("de", "mine"),
        ("en", "mine/greeting"),
        ("en", "mine"),
        ("en", "mine"),
        ("en", "mine"),
    ]
    chat, encoded = documents[2], TEMPLATE.encode(tokenizer, Conversation.from_dict(CHAT).turns)
    assert chat.tokens.tolist() == encoded.tokens
    assert chat.loss_mask.tolist() == encoded.loss_mask
    learned = chat.tokens[chat.loss_mask].tolist()
    assert tokenizer.decode(learned) == "Hello.Hello again."
    assert learned.count(tokenizer.special.turn_end) == 2


@pytest.mark.parametrize(
    ("file", "language"),
    [
        ("de.txt", "de"),
        ("news.fr.jsonl.gz", "fr"),
        ("de/x.txt", "de"),
        ("texts/pt-BR/2024/x.md", "pt-br"),
        ("de/it.txt", "it"),
        ("notes/x.txt", ""),
        ("x.txt", ""),
    ],
)
def test_languages_in_the_names_of_files_and_folders(file: str, language: str) -> None:
    assert language_of_path(Path(file)) == language


def test_only_folders_below_the_given_one_name_languages(tmp_path: Path) -> None:
    for folder in ("de/fr", "de/other"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.txt").write_text(folder)
    found = [document.language for document in DocumentFiles(tmp_path / "de") if isinstance(document, TextDocument)]
    assert found == ["fr", ""]
    (document,) = DocumentFiles(tmp_path / "de" / "fr" / "x.txt")
    assert isinstance(document, TextDocument)
    assert document.language == ""


def test_a_packed_conversation_trains_on_the_answers_alone(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pack_conversations([Conversation.from_dict(CHAT)], tmp_path / "out", tokenizer, TEMPLATE)
    sources = (SourceConfig(name="chat", path=str(tmp_path / "out")),)
    batch = LoaderConfig(sources=sources, rows_per_step=1, row_tokens=200).build().batch(0)
    assert tokenizer.decode(batch.targets_BS[batch.loss_mask_BS].tolist()) == "Hello.Hello again."


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=20))
def test_texts_come_back_in_order(tmp_path: Path, tokenizer: Tokenizer, texts: list[str]) -> None:
    if not any(text.strip() for text in texts):
        texts.append("x")
    report = pack_texts([TextDocument(text=text) for text in texts], tmp_path / "out", tokenizer)
    kept = [text for text in texts if text.strip()]
    assert [tokenizer.decode(d.tokens.tolist()) for d in stored(open_shards(tmp_path / "out"))] == kept
    assert report.num_skipped == len(texts) - len(kept)


def test_a_long_text_is_encoded_as_if_at_once(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    pieces = [
        "fox",
        " dog",
        "\n",
        "\n\n",
        " \n ",
        "\r\n",
        "\t",
        "  ",
        "déjà",
        "日本",
        "1",
        ".",
        "'s",
        "\u2028",
        "\x1c",
        "\x85",
        "«",
    ]
    text = "".join(rng.choices(pieces, k=3 * SEGMENT_CHARACTERS))
    pack_texts([TextDocument(text=text), TextDocument(text="next")], tmp_path / "out", tokenizer)
    long, following = stored(open_shards(tmp_path / "out"))
    assert long.tokens[1:-1].tolist() == tokenizer.encode(text)
    assert tokenizer.decode(following.tokens.tolist()) == "next"


def test_held_out_documents_are_chosen_by_content(tmp_path: Path, tokenizer: Tokenizer) -> None:
    texts = [TextDocument(text=f"document {n % 500}") for n in range(1000)]
    report = pack_texts(texts, tmp_path / "out", tokenizer, PackConfig(held_out=0.2))
    train, held_out = (stored(open_shards(path)) for path in (tmp_path / "out", tmp_path / "out" / "held_out"))
    assert report.held_out is not None
    assert report.held_out.num_documents == len(held_out)
    assert 140 < len(held_out) < 260
    contents = [{tokenizer.decode(d.tokens.tolist()) for d in side} for side in (train, held_out)]
    assert not contents[0] & contents[1]
    assert contents[0] | contents[1] == {text.text for text in texts}
    again = pack_texts(texts[::-1], tmp_path / "again", tokenizer, PackConfig(held_out=0.2))
    assert again.held_out is not None
    assert {tokenizer.decode(d.tokens.tolist()) for d in stored(open_shards(tmp_path / "again" / "held_out"))} == contents[1]
    with pytest.raises(ConfigError, match="share"):
        PackConfig(held_out=1.0)


def test_same_input_same_bytes(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = tmp_path / "in"
    write_lines(folder / "a.jsonl", *[{"text": f"{PROSE} {n}"} for n in range(50)], CHAT)
    config = PackConfig(tokens_per_shard=500)
    digests = [pack_path(folder, tmp_path / name, tokenizer, TEMPLATE, config).train.digest for name in ("x", "y")]
    assert digests[0] == digests[1]


CUT_GZIP = gzip.compress(b'{"text": "x"}\n' * 1000, mtime=0)[:-20]
BAD_FILES = [
    ("image.txt", b"\x89PNG\r\n\x1a\n\0\0", NotTextError, "image.txt is not UTF-8"),
    ("zeros.md", b"\0" * 100, NotTextError, "zeros.md is a binary file"),
    ("latin.txt", "déjà".encode("latin-1"), NotTextError, r"latin.txt is not UTF-8 text \(byte 1\)"),
    ("a.jsonl", b'{"text": "x"}\n{"text": "\xff"}\n', NotTextError, "a.jsonl:2"),
    ("a.jsonl", b'{"text": "x"}\n\nnot json\n', NotADocumentError, "a.jsonl:3"),
    ("a.jsonl", b'{"text": 5}\n', NotADocumentError, "a.jsonl:1 needs a text"),
    ("a.jsonl", b'{"title": "x"}\n', NotADocumentError, "a.jsonl:1 needs a text"),
    ("a.jsonl", b'["text"]\n', NotADocumentError, "a.jsonl:1 needs a text"),
    ("a.jsonl", b'{"text": "half \\ud83d"}\n', NotADocumentError, "a.jsonl:1"),
    ("a.jsonl", b"[" * 100_000 + b"\n", NotADocumentError, "a.jsonl:1"),
    ("a.jsonl", b'{"messages": []}\n', NotADocumentError, "a.jsonl:1: a conversation needs"),
    ("a.jsonl", b'{"messages": [{"role": "user", "content": "x"}], "score": NaN}\n', NotADocumentError, "a.jsonl:1: "),
    ("a.jsonl", b'{"messages": [{"role": "tool", "name": 5}]}\n', NotADocumentError, "a.jsonl:1: message 0"),
    ("a.jsonl", b'{"messages": [{"role": "wizard"}]}\n', NotADocumentError, "a.jsonl:1: message 0: unknown role"),
    ("a.jsonl.gz", b"not gzip", NotTextError, "a.jsonl.gz is not a whole gzip file"),
    ("a.jsonl.gz", CUT_GZIP, NotTextError, "a.jsonl.gz is not a whole gzip file"),
]


@pytest.mark.parametrize(("name", "data", "error", "text"), BAD_FILES)
def test_bad_files_are_named_and_leave_nothing(
    tmp_path: Path, tokenizer: Tokenizer, name: str, data: bytes, error: type[Exception], text: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("a good one, read before")
    (folder / name).write_bytes(data)
    with pytest.raises(error, match=text):
        pack_path(folder, tmp_path / "out", tokenizer, TEMPLATE)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_conversation_that_the_template_refuses_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    late = {"messages": [{"role": "user", "content": "x"}, {"role": "instructions", "content": "too late"}]}
    file = write_lines(tmp_path / "a.jsonl", CHAT, late)
    with pytest.raises(NotADocumentError, match=r"a\.jsonl:2: "):
        pack_path(file, tmp_path / "out", tokenizer, TEMPLATE)


def test_empty_and_absent_inputs_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(EmptyCorpusError, match="no file of a known kind"):
        pack_path(tmp_path / "in", tmp_path / "out", tokenizer, TEMPLATE)
    (tmp_path / "in" / "blank.txt").write_text(" \n")
    with pytest.raises(EmptyCorpusError, match="at least one"):
        pack_path(tmp_path / "in", tmp_path / "out", tokenizer, TEMPLATE)
    with pytest.raises(InputPathError, match="does not exist"):
        pack_path(tmp_path / "absent", tmp_path / "out", tokenizer, TEMPLATE)
    (tmp_path / "page.html").write_text("<p>")
    with pytest.raises(InputPathError, match=r"known are \.txt"):
        pack_path(tmp_path / "page.html", tmp_path / "out", tokenizer, TEMPLATE)
    assert not (tmp_path / "out").exists()
    (tmp_path / "in" / "good.txt").write_text("good")
    with pytest.raises(OutputFolderError):
        pack_path(tmp_path / "in", tmp_path / "in", tokenizer, TEMPLATE)


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", *[{"text": str(n)} for n in range(1000)])
    write_lines(tmp_path / "b.jsonl.gz", *[{"text": str(n)} for n in range(1000)])
    files = DocumentFiles(tmp_path)
    positions = [files.bytes_read for _ in files]
    assert len(positions) == 2000
    assert positions == sorted(positions)
    assert files.bytes_read == files.total_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_turns_given_as_objects_are_packed_with_their_tags(tmp_path: Path, tokenizer: Tokenizer) -> None:
    turns = (Instructions(text="Be brief."), UserTurn(text="Hi"), AssistantTurn(text="Hello"))
    conversation = Conversation(turns=turns, task="greeting", language="fr")
    report = pack_conversations([conversation] * 3, tmp_path / "out", tokenizer, TEMPLATE, PackConfig(source="synthetic"))
    assert report.train.shards[0].languages == {"fr": 3}
    assert report.train.shards[0].sources == {"synthetic/greeting": 3}


def test_synthetic_conversations_are_packed_as_generated(tmp_path: Path, tokenizer: Tokenizer) -> None:
    config = SyntheticConfig(seed=3)
    report = pack_synthetic(config, 40, tmp_path / "out", tokenizer, TEMPLATE)
    made = list(generate(config, 40))
    documents = stored(open_shards(tmp_path / "out"))
    assert report.train.num_documents == 40
    assert [d.tokens.tolist() for d in documents] == [TEMPLATE.encode(tokenizer, c.turns).tokens for c in made]
    assert [(d.language, d.source) for d in documents] == [(c.language, f"synthetic/{c.task}") for c in made]


def test_appending_adds_shards_and_rewrites_none(tmp_path: Path, tokenizer: Tokenizer) -> None:
    first, second = (write_lines(tmp_path / f"{name}.jsonl", {"text": f"{name} text"}) for name in ("one", "two"))
    whole = write_lines(tmp_path / "both.jsonl", {"text": "one text"}, {"text": "two text"})
    out, config = tmp_path / "out", PackConfig(source="a")
    pack_path(first, out, tokenizer, TEMPLATE, config)
    (out / "mine.npy").write_bytes(b"of the user")
    before = {file.name: file.read_bytes() for file in out.glob("*.npy")}
    report = pack_path(second, out, tokenizer, TEMPLATE, config, append=True)
    assert report.train.num_documents == 2
    assert {name: (out / name).read_bytes() for name in before} == before
    pack_path(whole, tmp_path / "whole", tokenizer, TEMPLATE, config)
    appended, packed = (stored(open_shards(folder)) for folder in (out, tmp_path / "whole"))
    assert [document.tokens.tolist() for document in appended] == [document.tokens.tolist() for document in packed]


KILLED = """
import os, sys
from pathlib import Path
from openafm.data.shards import writer as shard_writer
from openafm.data.pack import PackConfig, pack_path
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

write, shards = shard_writer.ShardWriter._write_shard, []

def counted(self):
    shards.append(write(self))
    if len(shards) == int(sys.argv[4]):
        os.kill(os.getpid(), 9)

shard_writer.ShardWriter._write_shard = counted
config = PackConfig(tokens_per_shard=300, held_out=0.3)
pack_path(Path(sys.argv[1]), Path(sys.argv[2]), Tokenizer.load(Path(sys.argv[3])), ChatTemplate(), config)
"""


@pytest.mark.long
def test_a_killed_pack_continues_after_its_last_shard(tmp_path: Path, tokenizer: Tokenizer) -> None:
    turns = [{"role": "user", "content": "Sum?"}, {"role": "assistant", "content": "Ten."}]
    lines: list[dict[str, object]] = [{"text": f"line {n} " * (n % 7)} for n in range(200)]
    lines[::5] = [{"messages": turns if n % 2 else turns[:1]} for n in range(40)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    tokenizer.save(tmp_path / "tokenizer.json")
    config = PackConfig(tokens_per_shard=300, held_out=0.3)
    whole = pack_path(tmp_path / "in.jsonl", tmp_path / "whole", tokenizer, TEMPLATE, config)

    arguments = [sys.executable, "-c", KILLED, tmp_path / "in.jsonl", tmp_path / "out", tmp_path / "tokenizer.json"]
    for num_shards in (3, 2, 1):
        killed = subprocess.run([*map(str, arguments), str(num_shards)], check=False)
        assert killed.returncode == -9
        assert not (tmp_path / "out").exists()
    stored = read_manifest(tmp_path / ".out.partial").num_documents
    report = pack_path(tmp_path / "in.jsonl", tmp_path / "out", tokenizer, TEMPLATE, config)
    assert 0 < stored < report.train.num_documents
    assert replace(report, path=whole.path) == whole
    files = [
        {file.relative_to(place): file.read_bytes() for file in place.rglob("*.*")} for place in (report.path, whole.path)
    ]
    assert files[0] == files[1]
    assert not (tmp_path / ".out.partial").exists()


def test_a_killed_pack_of_other_files_is_not_continued(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "in.txt").write_text("one two three")
    partial = tmp_path / ".out.partial"
    partial.mkdir()
    (partial / ".key").write_text("another")
    (partial / "00000.tokens.npy").write_bytes(b"old")
    pack_path(tmp_path / "in.txt", tmp_path / "out", tokenizer, TEMPLATE)
    assert len(open_shards(tmp_path / "out").manifest.shards) == 1

    partial.mkdir()
    (partial / "thesis.txt").write_text("mine")
    with pytest.raises(ForeignFilesError, match=r"thesis\.txt"):
        pack_path(tmp_path / "in.txt", tmp_path / "out", tokenizer, TEMPLATE)
    assert (partial / "thesis.txt").read_text() == "mine"


def test_a_failed_append_leaves_the_corpus_as_it_was(tmp_path: Path, tokenizer: Tokenizer) -> None:
    out = tmp_path / "out"
    pack_path(write_lines(tmp_path / "a.jsonl", {"text": "one"}), out, tokenizer, TEMPLATE)
    digest = open_shards(out).manifest.digest
    bad = write_lines(tmp_path / "b.jsonl", *[{"text": "two " * 50}] * 5, {"no": "text"})
    with pytest.raises(NotADocumentError):
        pack_path(bad, out, tokenizer, TEMPLATE, PackConfig(tokens_per_shard=10), append=True)
    assert open_shards(out).manifest.digest == digest
    other = train_tokenizer(TokenizerConfig(vocab_size=391), [PROSE] * 5)
    with pytest.raises(OutputFolderError, match="another tokenizer"):
        pack_path(tmp_path / "a.jsonl", out, other, TEMPLATE, append=True)
    with pytest.raises(ManifestError):
        pack_path(tmp_path / "a.jsonl", tmp_path / "none", tokenizer, TEMPLATE, append=True)


def test_metadata_is_stored_with_each_document(tmp_path: Path, tokenizer: Tokenizer) -> None:
    lines = write_lines(
        tmp_path / "a.jsonl",
        {"text": "one"},
        {"text": "two", "license": "CC-BY-4.0", "source": "web", "opt_out": "no"},
        CHAT | {"metadata": {"origin": "support"}, "kind": "chat"},
    )
    out = tmp_path / "out"
    pack_path(lines, out, tokenizer, TEMPLATE, PackConfig(source="mine", tokens_per_shard=5))
    one, two, chat = stored(open_shards(out))
    assert (one.source, one.metadata) == ("mine", {})
    assert (two.source, two.metadata) == ("web", {"license": "CC-BY-4.0", "opt_out": "no"})
    assert (chat.source, chat.metadata) == ("mine/greeting", {"kind": "chat", "origin": "support"})
    with pytest.raises(NotADocumentError, match="object of texts"):
        pack_path(write_lines(tmp_path / "b.jsonl", {"text": "x", "metadata": [1]}), out, tokenizer, TEMPLATE)


def test_documents_of_another_type_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    @dataclass
    class Picture:
        text: str = "x"

    documents: Any = [TextDocument(text="one"), Picture()]
    with pytest.raises(UnknownDocumentError, match="Picture"):
        pack_documents(documents, tmp_path / "out", tokenizer, TEMPLATE)
    assert not (tmp_path / "out").exists()
