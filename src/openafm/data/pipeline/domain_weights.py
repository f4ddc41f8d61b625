"""Weights by web domain: a source of a mixture is divided by domain, and each part is a source with a weight of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from openafm.core.files import atomic_folder
from openafm.core.libraries import pyarrow
from openafm.data.documents import DocumentFiles
from openafm.data.pipeline.mixture_plan import MixtureError, Source
from openafm.data.pipeline.parquet import ROWS_PER_GROUP, open_parquet

OTHERS = "others"
_COLUMN = "domain"


def split_by_domain(path: Path, domains: Sequence[str], out: Path) -> dict[str, Path]:
    """Write the documents of a corpus to one folder for each domain, and one for `OTHERS`; return those with documents.

    A domain has its subdomains too; of several that fit, the longest one counts.

    Raises:
        MixtureError: `path` is not Parquet with a column `domain`, or has no document of one of the domains.
    """
    pyarrow()
    import pyarrow.parquet as pq

    files = DocumentFiles(path).files
    if not all(file.suffix == ".parquet" for file in files):
        raise MixtureError(f"{path} is not a corpus in Parquet; weights by domain need the column '{_COLUMN}'")
    found: dict[str, Path] = {}
    with atomic_folder(out) as folder:
        for index, file in enumerate(files):
            writers: dict[str, Any] = {}
            with open_parquet(file, ("text", _COLUMN)) as parquet:
                for batch in parquet.iter_batches(batch_size=ROWS_PER_GROUP, use_threads=False):
                    names = np.array([_group(domain or "", domains) for domain in batch.column(_COLUMN).to_pylist()])
                    for name in np.unique(names).tolist():
                        if name not in writers:
                            (folder / name).mkdir(exist_ok=True)
                            place = folder / name / f"{index:05d}.parquet"
                            writers[name] = pq.ParquetWriter(place, parquet.schema_arrow, compression="zstd")
                        writers[name].write_batch(batch.filter(np.asarray(names == name)))
            for name, writer in writers.items():
                writer.close()
                found[name] = out / name
    missing = [domain for domain in domains if domain not in found]
    if missing:
        raise MixtureError(f"{path} has no document of the domain {missing[0]}; `openafm data report` lists the domains")
    return {name: found[name] for name in [*domains, OTHERS] if name in found}


def weighted_by_domain(whole: Source, parts: Mapping[str, Source], factors: Mapping[str, float]) -> list[Source]:
    """Return the parts of a source with weights that add up to that of the source.

    A part's weight is in proportion to its tokens times its factor, 1 for `OTHERS`.
    """
    scaled = {name: sum(part.tokens.values()) * factors.get(name, 1.0) for name, part in parts.items()}
    weight = float(sum(whole.tokens.values())) if whole.weight is None else whole.weight
    total = sum(scaled.values())
    return [
        replace(part, name=f"{whole.name}-{name}", weight=weight * scaled[name] / total)
        for name, part in parts.items()
        if scaled[name] > 0
    ]


def _group(domain: str, domains: Sequence[str]) -> str:
    fitting = [each for each in domains if domain == each or domain.endswith(f".{each}")]
    return max(fitting, key=len, default=OTHERS)
