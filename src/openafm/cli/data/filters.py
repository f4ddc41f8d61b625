"""`openafm data train-filter` and `train-identifier`: train the learned filters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_table, print_text


def train_filter(
    positive: Annotated[
        Path, typer.Option(help="Texts that a model should learn from: a folder or file, as `data pack` reads.")
    ],
    negative: Annotated[Path, typer.Option(help="Texts to compare with, best an ordinary sample of the web.")],
    language: Annotated[str, typer.Option(help="Language tag of the texts, such as de; the filter applies to it only.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the filter.")],
    keep_rate: Annotated[float, typer.Option(help="Share of documents that the filter keeps by default.")] = 0.5,
    calibrate: Annotated[
        Path | None, typer.Option(help="Documents to calibrate thresholds on; default: the held-out documents.")
    ] = None,
    held_out: Annotated[float, typer.Option(help="Share of documents to measure on instead of training.")] = 0.2,
    epochs: Annotated[int, typer.Option(help="Passes over the documents.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of training.")] = 0,
    json: JsonOption = False,
) -> None:
    """Train a quality filter for one language; print its precision and recall on held-out documents."""
    from openafm.data.filtering.classifier import TrainingConfig
    from openafm.data.filtering.quality import QualityTrainingConfig, train_quality

    config = QualityTrainingConfig(
        language=language, keep_rate=keep_rate, held_out=held_out, training=TrainingConfig(epochs=epochs, seed=seed)
    )
    texts = None if calibrate is None else _texts(calibrate)
    classifier, report = train_quality(_texts(positive), _texts(negative), config, calibration=texts)
    digest = classifier.save(out)
    if json:
        print_json({"path": str(out), "sha256": digest, "language": language, **asdict(report)})
        return
    rows = [
        (point.keep_rate, point.threshold, point.precision, point.recall, point.negatives_kept) for point in report.points
    ]
    print_table(("keep rate", "threshold", "precision", "recall", "negatives kept"), rows)
    print_text(
        f"{report.num_positive:,} positive and {report.num_negative:,} negative documents, {report.num_held_out:,} of these "
        f"held out; {report.num_duplicates:,} empty or repeated ones left out; AUC {report.auc:.3f}"
    )
    chosen = report.chosen
    print_text(
        f"wrote {out}: keeps {chosen.keep_rate:.0%} by default, precision {chosen.precision:.3f}, recall {chosen.recall:.3f}"
    )


def _texts(path: Path) -> Iterator[str]:
    """Yield the plain texts of a folder or file; conversations are left out."""
    from openafm.data.documents import DocumentFiles, TextDocument

    for document in DocumentFiles(path):
        if isinstance(document, TextDocument):
            yield document.text


def train_identifier(
    path: Annotated[Path, typer.Argument(help="Texts in files or folders named by language tags: de.txt, texts/de/1.txt.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the identifier.")],
    seed: Annotated[int, typer.Option(help="Seed of training.")] = 0,
    json: JsonOption = False,
) -> None:
    """Train a language identifier; print its accuracy on held-out pieces of the texts."""
    from openafm.data.documents import DocumentFiles, TextDocument
    from openafm.data.filtering.classifier import TrainingConfig
    from openafm.data.filtering.own_identifier import IdentifierTrainingConfig
    from openafm.data.filtering.own_identifier import train_identifier as train

    documents = (each for each in DocumentFiles(path) if isinstance(each, TextDocument))
    config = IdentifierTrainingConfig(training=TrainingConfig(seed=seed))
    classifier, report = train(((each.language, each.text) for each in documents), config)
    digest = classifier.save(out)
    if json:
        print_json({"path": str(out), "sha256": digest, **asdict(report)})
        return
    rows = [(language, report.num_pieces[language], accuracy) for language, accuracy in report.accuracy.items()]
    print_table(("language", "pieces", "accuracy"), rows)
    print_text(f"wrote {out}")
