"""Main content of web pages as Markdown, with metadata and media.

document = extract(Page(url=url, body=body))
"""

from openafm.data.extraction.extractor import (
    DROP_REASONS,
    ChooseBlocks,
    ExtractionConfig,
    Extractor,
    extract,
    trafilatura_text,
)

__all__ = ["DROP_REASONS", "ChooseBlocks", "ExtractionConfig", "Extractor", "extract", "trafilatura_text"]
