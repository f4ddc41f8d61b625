"""Scores of a bundle on held-out data: `openafm evaluate` without --tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from openafm.cli.output import counted, print_json, print_table, print_text

if TYPE_CHECKING:
    from openafm.bundle import Bundle


def evaluate_held_out(name: str | None, data: Path | None, examples: int | None, *, answers: bool, json: bool) -> None:
    """Evaluate a bundle on held-out data: loss, exact answers and fields, by source and language.

    Contrastive towers are evaluated on an image corpus: the share of images that pick their caption, and the reverse.
    """
    from openafm.bundle import open_bundle, resolve_model
    from openafm.core.errors import UsageError
    from openafm.core.progress import progress
    from openafm.data.documents import DocumentFiles
    from openafm.data.images.shards import is_image_corpus
    from openafm.evaluation.data_scores import data_scores
    from openafm.recipes.sources.own_data import data_of

    opened = open_bundle(name or resolve_model())
    opened.verify()
    if data is None:
        recorded = data_of(opened)
        if recorded is None or recorded.eval is None:
            raise UsageError(f"{opened.name} records no evaluation file; name held-out data with --data")
        data = Path(recorded.eval)
    if is_image_corpus(data):
        _evaluate_images(opened, data, examples, json)
        return
    count = sum(1 for _ in DocumentFiles(data)) if examples is None else examples
    with progress(f"evaluate {opened.name}", count) as bar:
        scores = data_scores(opened, data, max_documents=examples, with_answers=answers, on_each=bar.update)
    if json:
        print_json({"bundle": str(opened.path), "signature": opened.signature, "data": str(data), **scores.to_dict()})
        return
    groups = [(name, found) for name, found in scores.sources.items()]
    groups += [(f"language {name}", found) for name, found in scores.languages.items()] if len(scores.languages) > 1 else []
    rows = [_row(name, found.to_dict()) for name, found in [*groups, ("all", scores.total)]]
    print_table(("source", "documents", "tokens", "loss", "answers", "exact", "fields"), rows)
    print(
        "\nloss: nats per token; exact: answers equal to the data's; fields: share of equal fields of JSON answers and calls"
    )
    if scores.total.num_skipped:
        print(f"{counted(scores.total.num_skipped, 'conversation')} left out: longer than the context window")


def _evaluate_images(bundle: Bundle, data: Path, most: int | None, json: bool) -> None:
    from openafm.data.images.shards import open_image_corpus
    from openafm.evaluation.image_text import ImageTextEncoder, zero_shot

    scores = zero_shot(ImageTextEncoder(bundle), open_image_corpus(data), most=most)
    if json:
        print_json({"bundle": str(bundle.path), "signature": bundle.signature, "data": str(data), **scores.to_dict()})
        return
    shares = {"image to text": scores.image_to_text, "text to image": scores.text_to_image}
    shares |= {f"image to text, {kind}": share for kind, share in scores.kinds.items()}
    rows = [(name, f"{share:.1%}", f"{1 / scores.candidates:.1%}") for name, share in shares.items()]
    if scores.classes is not None:
        rows.append(("kind of chart", f"{scores.classes:.1%}", f"{1 / scores.num_classes:.1%}"))
    print_table(("zero-shot", "right", "chance"), rows)
    print_text(
        f"{counted(scores.num_pairs, 'pair')}, {counted(scores.candidates, 'candidate')} of the same kind and language"
    )


def _row(name: str, values: dict[str, float | None]) -> tuple[object, ...]:
    shares = tuple("-" if values[key] is None else f"{values[key]:.1%}" for key in ("exact", "fields"))
    loss = "-" if values["loss"] is None else values["loss"]
    return (name, values["documents"], values["tokens"], loss, values["answers"], *shares)
