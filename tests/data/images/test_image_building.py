"""Image corpora from worker processes: equal bytes for any number of workers, lost units, and resuming."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openafm.core.executors import Executor, ExecutorConfig, LocalConfig
from openafm.core.files import ForeignFilesError
from openafm.core.libraries import MissingLibraryError
from openafm.core.worker_process import NO_LIMITS, LimitsConfig, Outcome
from openafm.data.images.building import ShardSource, Unit, build_image_corpus
from openafm.data.images.decoding import png, stored_image
from openafm.data.images.documents import ImageDocument, ImagePart, StoredImage
from openafm.data.images.shard_writer import ShardItem
from openafm.data.images.shards import open_image_corpus
from openafm.data.web.documents import Dropped


@dataclass(frozen=True)
class Squares(ShardSource):
    """Noise of one shade per image. The unit `poison` of the first shard ends its worker; `log` records computed shards."""

    log: Path
    poison: int = -1

    @property
    def num_shards(self) -> int:
        return 3

    def key(self, shard: int) -> str:
        return f"squares {shard}"

    def units(self, shard: int) -> Iterator[Unit]:
        with self.log.open("a") as file:
            file.write(f"{shard}\n")
        for number in range(4):
            yield partial(self.square, shard, number)

    def square(self, shard: int, number: int) -> list[ShardItem]:
        if shard == 0 and number == self.poison:
            os.kill(os.getpid(), signal.SIGKILL)
        image = stored_image(png(np.random.default_rng(10 * shard + number).integers(0, 255, (16, 16, 3), dtype=np.uint8)))
        assert isinstance(image, StoredImage)
        document = ImageDocument(id=f"{shard}.{number}", kind="square", parts=(ImagePart(digest=image.digest),))
        return [(document, (image,)), Dropped(reason="other")]


class InProcess(Executor):
    """Computes items where it is called, which is faster than starting workers."""

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], limits: LimitsConfig = NO_LIMITS, on_unit: object = None
    ) -> Iterator[Outcome[Any, Any]]:
        return (Outcome(item=item, result=function(item)) for item in items)

    def close(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class InProcessConfig(ExecutorConfig):
    def build(self) -> Executor:
        return InProcess()


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.name != ".lock"}


def test_any_number_of_workers_gives_equal_bytes(tmp_path: Path) -> None:
    found = []
    for executor in (InProcessConfig(), LocalConfig(num_workers=2)):
        folder = tmp_path / str(len(found))
        manifest = build_image_corpus(folder, {}, Squares(tmp_path / "log"), executor)
        assert (manifest.num_documents, manifest.dropped) == (12, {"other": 12})
        found.append(files_of(folder))
    assert found[0] == found[1]


def test_a_unit_that_ends_its_worker_is_dropped_and_counted(tmp_path: Path) -> None:
    manifest = build_image_corpus(tmp_path / "out", {}, Squares(tmp_path / "log", 2), LocalConfig(num_workers=1))
    assert manifest.num_documents == 11
    assert manifest.dropped == {"killed": 1, "other": 11}
    lost = [drop for drop in open_image_corpus(tmp_path / "out").dropped(0) if drop.reason == "killed"]
    assert lost[0].detail == "unit 2 of shard 0: SIGKILL"


def test_complete_shards_are_kept(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    source = Squares(log)
    build_image_corpus(out, {}, source, InProcessConfig())
    before = files_of(out)
    (out / "00001.json").unlink()
    (out / ".00001.tar.1234").write_bytes(b"of a killed process")
    log.unlink()
    build_image_corpus(out, {}, source, InProcessConfig())
    assert log.read_text() == "1\n"
    assert files_of(out) == before
    (out / "mine.txt").write_text("x")
    with pytest.raises(ForeignFilesError):
        build_image_corpus(out, {}, source, InProcessConfig())


@pytest.mark.parametrize("library", ["PIL", "pyarrow"])
def test_a_missing_library_is_named_before_any_work(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingLibraryError, match=r"pip install 'openafm\[images\]'"):
        build_image_corpus(tmp_path / "corpus", {}, Squares(tmp_path / "log"))
    assert not (tmp_path / "corpus").exists()
    with pytest.raises(MissingLibraryError, match=r"openafm\[images\]"):
        open_image_corpus(tmp_path / "corpus")
