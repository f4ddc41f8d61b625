from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from conftest import page

from openafm.core.config import override
from openafm.data.documents import DocumentFiles, TextDocument
from openafm.data.pack import pack_path
from openafm.data.pipeline.config import PipelineConfig
from openafm.data.pipeline.runner import run_pipeline
from openafm.data.shards.token_shards import open_shards
from openafm.data.web.documents import Page
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

Write = Callable[[str, Iterable[Page]], Path]


def test_a_corpus_is_packed_with_its_tags_and_without_documents_that_are_opted_out(
    config: PipelineConfig, tmp_path: Path, write_warc: Write
) -> None:
    pages = [page("1", "der Text"), page("2", "a text"), page("3", "a private text", opt_out="X-Robots-Tag: noai")]
    config = override(config, {"stages.extract.opt_outs": "keep"})
    run_pipeline(config, [write_warc("a.warc.gz", pages)], tmp_path / "corpus")
    files = DocumentFiles(tmp_path / "corpus")
    found = [document for document in files if isinstance(document, TextDocument)]
    assert [(document.text, document.language) for document in found] == [("DER TEXT", "de"), ("A TEXT", "en")]
    assert files.num_opted_out == 1
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=330), [f"der Text {i} und a text" for i in range(200)])
    report = pack_path(tmp_path / "corpus", tmp_path / "shards", tokenizer, ChatTemplate())
    assert report.num_opted_out == 1
    shards = open_shards(tmp_path / "shards")
    assert shards.manifest.num_documents == 2
    assert (shards.document(0, 0).language, shards.document(0, 0).source) == ("de", "corpus")
