"""Write an adapter for distribution, from a run or from another adapter, with an optional draft model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openafm.adapters.config import LoRAConfig
from openafm.adapters.metadata import check_name
from openafm.adapters.package import (
    METADATA,
    AdapterAbout,
    AdapterNotFoundError,
    AdapterPackage,
    open_adapter,
    write_adapter,
)
from openafm.bundle import Bundle, BundleError, list_bundles, open_bundle, shipped_bundle
from openafm.core.config import from_dict
from openafm.core.errors import UsageError
from openafm.runtime.decoding.speculation import DraftMismatchError
from openafm.training.config import TrainerConfig


@dataclass(frozen=True, kw_only=True)
class TrainedAdapter:
    """An adapter's weights by their names in the decoder, its base's signature, and the base if it is on this machine."""

    weights: Mapping[str, NDArray[np.float32]]
    config: LoRAConfig
    base_signature: str
    base: Bundle | None


def export_adapter(
    source: Path, name: str, output: Path, about: AdapterAbout | None = None, draft: str | Path | None = None
) -> AdapterPackage:
    """Write `output`/NAME.fmadapter from the folder of a run or of an adapter. The metadata is that of `about` alone.

    Raises:
        AdapterNameError: `name` is not a valid adapter name.
        AdapterNotFoundError: `source` does not exist.
        UsageError: `source` is neither an adapter nor a run that trained one, or the draft's base is not on this machine.
        IncompleteDraftError, BundleError: the draft is not a complete bundle.
        DraftMismatchError: the draft has another tokenizer than the base.
    """
    check_name(name)
    if (source / METADATA).is_file():
        found = open_adapter(source)
        trained = TrainedAdapter(
            weights=found.weights(),
            config=found.config,
            base_signature=found.base_signature,
            base=local_bundle(found.base_signature),
        )
    else:
        trained = trained_adapter(source)
    return write_adapter(
        output / f"{name}.fmadapter",
        weights=trained.weights,
        config=trained.config,
        base_signature=trained.base_signature,
        name=name,
        about=about,
        draft=None if draft is None else _checked_draft(draft, trained),
    )


def trained_adapter(folder: Path) -> TrainedAdapter:
    """Return the adapter in the newest undamaged checkpoint of a run.

    Raises:
        AdapterNotFoundError: `folder` does not exist.
        UsageError: no adapter was trained in `folder`.
    """
    from openafm.adapters.lora import adapter_weights
    from openafm.training.run import load_trained

    if not folder.exists():
        raise AdapterNotFoundError(f"{folder} does not exist; pass the folder of a run or of an adapter")
    if not (folder / "checkpoints").is_dir():
        raise UsageError(f"{folder} is neither an adapter nor the folder of a run: it has no checkpoints")
    config = from_dict(TrainerConfig, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    if config.adapter is None or config.from_bundle is None:
        raise UsageError(f"no adapter was trained in {folder}; `openafm adapter train` trains one")
    weights = {name: weight.numpy() for name, weight in adapter_weights(load_trained(folder)).items()}
    base = open_bundle(config.from_bundle)
    return TrainedAdapter(weights=weights, config=config.adapter, base_signature=base.signature, base=base)


def local_bundle(signature: str) -> Bundle | None:
    """Return the bundle of this signature on this machine, the user's or the shipped one; None without one.

    Bundles that cannot be opened are skipped.
    """
    for folder in (*list_bundles(), shipped_bundle()):
        with contextlib.suppress(BundleError):
            if folder is not None and (bundle := Bundle(folder)).signature == signature:
                return bundle
    return None


def _checked_draft(draft: str | Path, trained: TrainedAdapter) -> Path:
    bundle = open_bundle(draft)
    if trained.base is None:
        raise UsageError(
            f"the base {trained.base_signature} is not on this machine, so the draft {bundle.path} cannot be checked against"
            " it; install the base first"
        )
    same_rows = bundle.config.vocab_size == trained.base.config.vocab_size
    if not same_rows or bundle.tokenizer.digest != trained.base.tokenizer.digest:
        raise DraftMismatchError(
            f"{bundle.path} has another tokenizer than the base {trained.base.name}; train a draft for this base"
        )
    bundle.verify()
    return bundle.path
