"""What comes back: the newest bundle of each stage, in pieces that are replaced as a whole."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from openafm.bundle import Bundle, open_bundle, write_bundle
from openafm.bundle.tensor_file import in_memory
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import atomic_folder
from openafm.core.pieces import write_pieces
from openafm.models.accounting import num_parameters
from openafm.models.config import DecoderConfig
from openafm.recipes.borrowed.config import BorrowedConfig
from openafm.recipes.catalog import build_run
from openafm.recipes.consolidation import consolidate_run
from openafm.training.checkpoints.folder import checkpoint_paths

POLL_SECONDS = 5.0
DOCUMENT_BYTES = 1 << 20
"""Room for the tokenizer and other documents of a bundle."""


class RoomError(UsageError):
    """The bundles do not fit the pieces that come back."""


class Outbox:
    """Write bundles into the folder `pieces`. A bundle in fp32 that does not fit is stored in bf16.

    Raises:
        RoomError: the bundles would not fit in bf16 either.
    """

    def __init__(self, config: BorrowedConfig, model: DecoderConfig, work: Path, pieces: Path) -> None:
        self._config, self._bundles, self._pieces = config, work / "bundles", pieces
        self._room = config.num_pieces * config.piece_bytes - DOCUMENT_BYTES
        self._lock = threading.Lock()
        weights = num_parameters(model)
        self._least = {
            stage: _bytes_per_weight(stage, config.size) * weights + DOCUMENT_BYTES for stage in config.kept_stages
        }
        needed = sum(self._least.values())
        if needed > self._room:
            raise RoomError(
                f"the bundles of {', '.join(config.kept_stages)} with {weights:,} parameters take {needed / 1e6:.0f} MB, "
                f"the pieces hold {self._room / 1e6:.0f} MB; choose a smaller model, fewer stages or more pieces"
            )

    def put(self, bundle: Bundle, stage: str) -> list[Path]:
        """Add the bundle of a stage, or replace the one before, and write all pieces again."""
        with self._lock:
            for leftover in self._bundles.glob(".*"):  # of a call that was killed while it wrote
                shutil.rmtree(leftover)
            target = self._bundles / stage
            others = (max(least, _num_bytes(self._bundles / each)) for each, least in self._least.items() if each != stage)
            if not bundle.numerics.is_compressed and sum(others) + _num_bytes(bundle.path) > self._room:
                write_in_16_bits(bundle, target)
            else:
                with atomic_folder(target) as folder:
                    shutil.copytree(bundle.path, folder, dirs_exist_ok=True)
            return write_pieces(self._bundles, self._pieces, self._config.piece_bytes)

    @contextmanager
    def following(self, run: Path, stage: str, name: str, say: Callable[[str], None]) -> Iterator[None]:
        """Put a bundle of every new checkpoint of a run, in a thread, while the block runs: a kill leaves the newest."""
        ended = threading.Event()

        def follow() -> None:
            last: Path | None = None
            while not ended.wait(POLL_SECONDS):
                newest = next(iter(checkpoint_paths(run / "checkpoints")), None)
                if newest is not None and newest != last:
                    last = newest
                    try:
                        found = consolidate_run(run, name)
                        self.put(open_bundle(found.bundle), stage)
                        say(f"{stage}: pieces of step {found.step:,}")
                    except OpenAFMError as error:  # a checkpoint that retention removes meanwhile, or a full disk
                        say(f"{stage}: no pieces of {newest.name}: {error}")

        thread = threading.Thread(target=follow, name="openafm-outbox", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def write_in_16_bits(bundle: Bundle, path: Path) -> Bundle:
    """Write a bundle of fp32 weights with bf16 tensors, which are widened when they are read."""
    tensors = []
    for name, array in bundle.tensors().items():
        bits = torch.from_numpy(array.copy()).to(torch.bfloat16).view(torch.uint16).numpy()
        tensors.append(in_memory(name, bits, "BF16"))
    return write_bundle(
        path,
        config=bundle.config,
        tokenizer=bundle.tokenizer,
        template=bundle.template,
        tensors=tensors,
        numerics=bundle.numerics,
        card=bundle.card(),
    )


def _bytes_per_weight(stage: str, size: str) -> float:
    """Return 2 for bf16, and what 2 bits take with an embedding in 4 bits, scales and an adapter."""
    trainer = build_run(stage, size).trainer
    return 2.0 if trainer.qat is None and trainer.adapter is None else 0.4


def _num_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
