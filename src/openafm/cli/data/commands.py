"""`openafm data`: pack text and conversations into token shards."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openafm.cli.data import caption, domains, draw, evaluation, filters, images, pipeline, synthesize, web
from openafm.cli.output import JsonOption, counted, print_json, print_table, print_text
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.tokenizer.bpe import Tokenizer
    from openafm.tokenizer.template import BaseChatTemplate

app = typer.Typer(
    help="Pack text and chat JSONL into token shards; print examples of the built-in corpus.", no_args_is_help=True
)

app.command()(web.crawl)
app.command()(web.why)
app.command()(filters.train_filter)
app.command()(filters.train_identifier)


app.command()(pipeline.run)
app.command()(pipeline.report)
app.command("try")(pipeline.try_page)
app.command()(pipeline.mixture)
app.command()(images.images)
app.command()(draw.draw)
app.command("evaluation-sets")(evaluation.evaluation_sets)
app.command()(caption.caption)
app.command()(domains.domains)
app.command()(domains.bootstrap)
app.command()(synthesize.synthesize)


@app.command()
def pack(
    path: Annotated[Path, typer.Argument(help="A file or folder of .txt, .md, .jsonl (also .gz) or .parquet, or a corpus.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Output folder for the shards.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Bundle whose tokenizer to use; default: the current model.")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(exists=True, help="Tokenizer file to use instead of a bundle's.")] = None,
    language: Annotated[str, typer.Option(help="Language tag of documents without one.")] = "",
    held_out: Annotated[float, typer.Option(help="Share of documents to write to OUT/held_out instead.")] = 0.0,
    tokens_per_shard: Annotated[
        int, typer.Option(min=1, help="Tokens of a shard of text; a larger corpus needs larger shards, such as 268435456.")
    ] = 1 << 24,
    append: Annotated[bool, typer.Option("--append", help="Add shards to the corpus in OUT.")] = False,
    mode: Annotated[
        str, typer.Option(help="Resolution of images: drawn (by the report's shares), rapid, balanced or high.")
    ] = "drawn",
    seed: Annotated[int, typer.Option(help="Seed of the resolution of images.")] = 0,
    json: JsonOption = False,
) -> None:
    """Pack a file or folder of text, chat JSONL or Parquet, or an image corpus, into token shards."""
    from openafm.bundle import open_bundle, resolve_model
    from openafm.data.images.shards import is_image_corpus
    from openafm.data.pack import PackConfig, pack_path
    from openafm.tokenizer.bpe import Tokenizer
    from openafm.tokenizer.chat_template import ChatTemplate

    if tokenizer is not None:
        template: BaseChatTemplate = ChatTemplate()
        chosen = Tokenizer.load(tokenizer)
    else:
        bundle = open_bundle(model or resolve_model())
        chosen, template = bundle.tokenizer, bundle.template
    if is_image_corpus(path):
        if append or language:
            raise UsageError("--append and --language are for texts; pack each image corpus into a folder of its own")
        _pack_images(path, out, chosen, template, {"held_out": held_out, "mode": mode, "seed": seed}, json)
        return
    config = PackConfig(source=path.stem, language=language, held_out=held_out, tokens_per_shard=tokens_per_shard)
    report = pack_path(path, out, chosen, template, config, append=append)
    parts = [("train", report.train)] + ([("held_out", report.held_out)] if report.held_out else [])
    summary = [
        {"part": part, "documents": manifest.num_documents, "tokens": manifest.num_tokens} for part, manifest in parts
    ]
    if report.num_without_answer:
        total = sum(manifest.num_documents for _, manifest in parts)
        print(
            f"warning: {report.num_without_answer:,} of {counted(total, 'document')} are conversations without an "
            "assistant's turn; no token of these is learned",
            file=sys.stderr,
        )
    if report.num_opted_out:
        print(f"left out {counted(report.num_opted_out, 'document')} that must not be used for training", file=sys.stderr)
    if json:
        print_json(
            {
                "path": str(report.path),
                "skipped": report.num_skipped,
                "opted_out": report.num_opted_out,
                "without_answer": report.num_without_answer,
                "parts": summary,
            }
        )
    else:
        print_table(("part", "documents", "tokens"), [tuple(row.values()) for row in summary])
        print_text(f"wrote {report.path}")


def _pack_images(
    path: Path, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate, options: dict[str, Any], json: bool
) -> None:
    from openafm.core.config import from_dict
    from openafm.data.images.packing import ImagePackConfig, pack_image_corpus

    config = from_dict(ImagePackConfig, {"source": path.resolve().name} | options)
    report = pack_image_corpus(path, out, tokenizer, template, config)
    parts = [("train", report.train)] + ([("held_out", report.held_out)] if report.held_out else [])
    summary = [
        {"part": part, "documents": manifest.num_documents, "tokens": manifest.num_tokens, "images": manifest.num_images}
        for part, manifest in parts
    ]
    if report.num_opted_out:
        print(f"left out {counted(report.num_opted_out, 'document')} that must not be used for training", file=sys.stderr)
    if json:
        counts = {"skipped": report.num_skipped, "opted_out": report.num_opted_out}
        print_json({"path": str(report.path)} | counts | {"parts": summary})
    else:
        print_table(("part", "documents", "tokens", "images"), [tuple(row.values()) for row in summary])
        print_text(f"wrote {report.path}")


@app.command()
def sample(
    count: Annotated[int, typer.Option(min=1, help="Number of examples.")] = 3,
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    language: Annotated[str | None, typer.Option(help="Only this language.")] = None,
    split: Annotated[str, typer.Option(help="train or held_out.")] = "train",
    seed: Annotated[int, typer.Option(help="Seed of the examples.")] = 0,
) -> None:
    """Print examples of the built-in corpus as chat JSONL."""
    from openafm.core.config import from_dict
    from openafm.data.synthetic import SyntheticConfig, generate

    values: dict[str, object] = {"seed": seed, "split": split}
    values |= {"tasks": {task: 1.0}} if task else {}
    values |= {"languages": {language: 1.0}} if language else {}
    for conversation in generate(from_dict(SyntheticConfig, values), count):
        print_json(conversation.to_dict())


@app.command()
def show(
    path: Annotated[Path, typer.Argument(exists=True, help="Folder of shards.")],
    json: JsonOption = False,
) -> None:
    """Verify a folder of shards and print its contents."""
    from openafm.data.shards.token_shards import open_shards

    manifest = open_shards(path).manifest
    print_json(asdict(manifest)) if json else print_table(
        ("", ""), [("documents", manifest.num_documents), ("tokens", manifest.num_tokens), ("shards", len(manifest.shards))]
    )
