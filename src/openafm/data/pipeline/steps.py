"""The steps of a stage for one item: page or document in, document or drop out. Built once in each worker process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from openafm.core.config import from_dict, to_dict
from openafm.core.errors import OpenAFMError
from openafm.core.registry import load_plugins
from openafm.data.deduplication.base import Reduction
from openafm.data.extraction.base import PageExtractor
from openafm.data.filtering.base import DocumentFilter, with_metadata
from openafm.data.pipeline.config import (
    DeduplicationStageConfig,
    ExtractionStageConfig,
    FilterStageConfig,
    OptOutStageConfig,
    PipelineConfig,
    StageConfig,
)
from openafm.data.pipeline.inputs import Shard
from openafm.data.pipeline.parquet import read_documents
from openafm.data.web.documents import Dropped, Page, WebDocument
from openafm.data.web.warc_reader import read_pages

if TYPE_CHECKING:
    import pyarrow as pa

    from openafm.data.pipeline.page_rendering import PageRenderer

Item: TypeAlias = Page | WebDocument | Dropped
Step: TypeAlias = Callable[[Any, int], WebDocument | Dropped]
"""A function of an item and its position in the shard."""

OK_STATUS = 200
REDUCTIONS = (DeduplicationStageConfig, OptOutStageConfig)
"""The stages that decide over all documents."""
_HTML = ("text/html", "application/xhtml")


class UnknownStageError(OpenAFMError):
    """No code runs a stage of this class."""


@dataclass(frozen=True, kw_only=True)
class NamedStep:
    """One step of a stage: the class name of its config, and its function."""

    name: str
    run: Step


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """The file of a deduplication's decisions, and the index of the shard to apply them to."""

    path: Path
    shard: int


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A reduction and its decisions on one shard."""

    method: Reduction
    decisions: Any

    def touched(self, batch: pa.RecordBatch, first: int) -> Sequence[int]:
        """Return the rows of a batch that the decisions may change or drop."""
        return self.method.touched(batch, first, self.decisions)

    def apply(self, document: WebDocument, position: int) -> WebDocument | Dropped:
        """Return the document at a position, changed or not, or the reason for a drop."""
        return self.method.apply(document, position, self.decisions)


@dataclass(frozen=True, kw_only=True)
class Processed:
    """The result of a stage for one item; `before` is what the last step received, whose language and id a drop records."""

    item: Item
    before: Item
    outcome: WebDocument | Dropped


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage that is ready to run: how it reads a shard, its steps in order, and what its reduction decided."""

    config: StageConfig
    steps: tuple[NamedStep, ...]
    reduction: Decided | None = None
    renderer: PageRenderer | None = None

    def read(self, shard: Shard) -> Iterator[Item]:
        """Yield the pages or documents of a shard. Pages of a file that is cut end with one `Dropped`."""
        if isinstance(self.config, ExtractionStageConfig):
            if self.renderer is not None:
                self.renderer.open(shard.path)
            limit = self.config.max_page_mb << 20
            return read_pages(shard.path, max_body_bytes=limit, start=shard.start, stop=shard.stop or None)
        return read_documents(shard.path)

    def process(self, item: Item, position: int) -> Processed:
        """Run the steps on one item until one of them drops it. An error of a step quarantines the item.

        Raises:
            OpenAFMError: a step cannot run at all, such as one whose library is not installed.
        """
        before: Any = item
        result: Any = item
        for step in self.steps:
            if isinstance(result, Dropped):
                break
            before, result = result, run_step(step, result, position)
        if isinstance(result, WebDocument):
            before, result = result, _checked_text(result)
        return Processed(item=item, before=before, outcome=result)


def run_step(step: NamedStep, item: Any, position: int = 0) -> WebDocument | Dropped:
    """Return the result of one step; a drop if it raises an error."""
    try:
        return step.run(item, position)
    except OpenAFMError:
        raise
    except MemoryError:
        return Dropped(reason="memory", detail=step.name)
    except Exception as error:  # a library failed on this document
        return Dropped(reason="error", detail=f"{step.name}: {type(error).__name__}: {error}"[:500])


def stage_json(config: StageConfig) -> str:
    """Return the JSON form of a stage with its class name, for a worker."""
    return json.dumps({"type": type(config).__name__, **to_dict(config)}, sort_keys=True)


@lru_cache(maxsize=8)
def build_stage(text: str, plugins: tuple[str, ...], decisions: Decisions | None = None) -> Stage:
    """Return the stage of a JSON form, with its models loaded; a deduplication with its decisions on one shard."""
    config = config_of(text, plugins)
    if decisions is None:
        renderer = _renderer(config)
        return Stage(config=config, steps=tuple(_steps(config, renderer)), renderer=renderer)
    method = reduction_of(config)
    decided = Decided(method=method, decisions=method.read_decisions(decisions.path, decisions.shard))
    name = type(config.deduplication if isinstance(config, DeduplicationStageConfig) else config).__name__
    return Stage(config=config, steps=(NamedStep(name=name, run=decided.apply),), reduction=decided)


def reduction_of(config: StageConfig) -> Reduction:
    """Return the reduction of a stage that compares all documents."""
    if isinstance(config, OptOutStageConfig):
        from openafm.data.pipeline.opt_outs import LatestOptOuts

        return LatestOptOuts(config)
    assert isinstance(config, DeduplicationStageConfig)
    return config.deduplication.build()


def config_of(text: str, plugins: tuple[str, ...]) -> StageConfig:
    """Return the config of a JSON form that `stage_json` wrote."""
    load_plugins(plugins)
    return from_dict(StageConfig, json.loads(text))


def steps_of(config: PipelineConfig) -> Iterator[tuple[StageConfig, tuple[NamedStep, ...]]]:
    """Yield the stages that look at one document at a time, with their steps."""
    for stage in config.stages:
        if not isinstance(stage, REDUCTIONS):
            yield stage, tuple(_steps(stage, _renderer(stage)))


def _renderer(config: StageConfig) -> PageRenderer | None:
    if not isinstance(config, ExtractionStageConfig) or config.rendering is None:
        return None
    from openafm.data.pipeline.page_rendering import PageRenderer

    return PageRenderer(config.rendering)


def _steps(config: StageConfig, renderer: PageRenderer | None) -> Iterator[NamedStep]:
    match config:
        case ExtractionStageConfig():
            yield NamedStep(name="page", run=_page_check(config))
            if renderer is not None:
                yield NamedStep(name="rendering", run=_rendering(config, renderer))
            yield NamedStep(name=type(config.extraction).__name__, run=_extraction(config.extraction.build()))
            yield from (NamedStep(name=type(each).__name__, run=_filter(each.build())) for each in config.filters)
        case FilterStageConfig():
            yield from (NamedStep(name=type(each).__name__, run=_filter(each.build())) for each in config.filters)
        case _:
            raise UnknownStageError(
                f"stage '{config.name}' has the class {type(config).__name__}; use ExtractionStageConfig, "
                "OptOutStageConfig, FilterStageConfig or DeduplicationStageConfig"
            )


def _filter(document_filter: DocumentFilter) -> Step:
    return lambda document, _: document_filter.apply(document)


def _page_check(config: ExtractionStageConfig) -> Callable[[Page, int], Any]:
    def check(page: Page, _: int) -> Page | Dropped:
        if page.status != OK_STATUS:
            return Dropped(reason="status", detail=str(page.status), url=page.url)
        if page.opt_out and config.opt_outs == "drop":
            return Dropped(reason="training_opt_out", detail=page.opt_out, url=page.url)
        kind = page.content_type.partition(";")[0].strip().lower()
        if not kind.startswith(_HTML) and not (not kind and page.body.lstrip()[:1] == b"<"):
            return Dropped(reason="content_type", detail=kind, url=page.url)
        return page

    return check


def _rendering(config: ExtractionStageConfig, renderer: PageRenderer) -> Callable[[Page, int], Any]:
    def render(page: Page, _: int) -> Page | Dropped:
        rendered = renderer.render(page)
        if rendered.opt_out and config.opt_outs == "drop":
            return Dropped(reason="training_opt_out", detail=rendered.opt_out, url=page.url)
        return rendered

    return render


def _extraction(extractor: PageExtractor) -> Step:
    def extract(page: Page, _: int) -> WebDocument | Dropped:
        found = extractor.extract(page)
        return with_metadata(found, page.notes) if isinstance(found, WebDocument) else found

    return extract


def _checked_text(document: WebDocument) -> WebDocument | Dropped:
    """Return the document if its texts can be stored; half of a surrogate pair has no UTF-8 form."""
    texts = (document.text, document.title, document.author, document.url, *(media.alt for media in document.media))
    try:
        for text in (*texts, *document.metadata.values(), *(media.caption for media in document.media)):
            text.encode()
    except UnicodeEncodeError as error:
        return Dropped(reason="invalid_text", detail=str(error)[:200], url=document.url)
    return document
