"""`openafm tokenizer`: train, extend and compare vocabularies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_table, print_text

if TYPE_CHECKING:
    from openafm.tokenizer.bpe import Tokenizer

app = typer.Typer(help="Train, extend and compare byte-level BPE vocabularies.", no_args_is_help=True)

TextsArgument = Annotated[Path, typer.Argument(help="File or folder of .txt, .md or .jsonl, each also with .gz.")]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="Output file, tokenizer.json.")]
SizeOption = Annotated[int, typer.Option("--vocab-size", help="Number of tokens, special ones and bytes included.")]
FrequencyOption = Annotated[int, typer.Option(help="Minimum frequency of a merged pair of tokens.")]
TokenizerArgument = Annotated[str, typer.Argument(help="Tokenizer file, or a bundle by name or path.")]


@app.command()
def train(
    texts: TextsArgument,
    out: OutOption,
    vocab_size: SizeOption = 16_384,
    min_frequency: FrequencyOption = 2,
    json: JsonOption = False,
) -> None:
    """Train a vocabulary on text. The same text gives the same file."""
    from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer

    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=vocab_size, min_frequency=min_frequency), _texts(texts))
    _save(tokenizer, out, json)


@app.command()
def extend(
    tokenizer: TokenizerArgument,
    texts: TextsArgument,
    out: OutOption,
    vocab_size: SizeOption,
    min_frequency: FrequencyOption = 2,
    json: JsonOption = False,
) -> None:
    """Add tokens for new languages. Existing ids and merges do not change (report 4.1)."""
    from openafm.tokenizer.extension import extend_tokenizer

    _save(extend_tokenizer(_load(tokenizer), _texts(texts), vocab_size, min_frequency=min_frequency).tokenizer, out, json)


@app.command()
def report(
    before: TokenizerArgument,
    after: TokenizerArgument,
    corpora: Annotated[
        Path, typer.Argument(exists=True, help="Folder with one text file per language: en.jsonl.gz, de.txt, ...")
    ],
    json: JsonOption = False,
) -> None:
    """Compare the tokens per character of two vocabularies by language."""
    from openafm.tokenizer.report import find_corpora, language_costs

    costs = language_costs(_load(before), _load(after), find_corpora(corpora))
    rows = [(c.language, c.num_characters, c.tokens_per_character_before, c.tokens_per_character_after) for c in costs]
    if json:
        keys = ("language", "characters", "tokens_per_character_before", "tokens_per_character_after")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        print_table(("language", "characters", "before", "after"), rows)


def _texts(path: Path) -> Iterator[str]:
    from openafm.data.documents import DocumentFiles, texts_of

    for document in DocumentFiles(path):
        yield from texts_of(document)


def _load(name_or_path: str) -> Tokenizer:
    from openafm.bundle import open_bundle
    from openafm.tokenizer.bpe import Tokenizer

    path = Path(name_or_path)
    return Tokenizer.load(path) if path.is_file() else open_bundle(name_or_path).tokenizer


def _save(tokenizer: Tokenizer, out: Path, json: bool) -> None:
    tokenizer.save(out)
    if json:
        print_json({"path": str(out), "vocab_size": tokenizer.vocab_size, "digest": tokenizer.digest})
    else:
        print_text(f"wrote {out}: {tokenizer.vocab_size:,} tokens")
