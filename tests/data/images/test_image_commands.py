"""`openafm data pack` and `openafm data report` of image corpora."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from openafm.cli.main import run
from openafm.data.images.decoding import png, stored_image
from openafm.data.images.documents import ImageDocument, ImagePart, StoredImage
from openafm.data.images.shard_writer import ShardItem, finish_corpus, write_image_shard
from openafm.data.shards.token_shards import open_shards
from openafm.data.web.documents import Dropped
from openafm.tokenizer.bpe import Tokenizer


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    items: list[ShardItem] = [Dropped(reason="svg")]
    for number in range(3):
        image = stored_image(png(np.full((20, 30, 3), 40 * number, np.uint8)), opt_out="noai" if number == 2 else "")
        assert isinstance(image, StoredImage)
        part = ImagePart(digest=image.digest)
        items.append((ImageDocument(id=f"{number}", kind="pair", parts=(part,), captions={"alt": "gray"}), (image,)))
    folder = tmp_path / "pairs"
    finish_corpus(folder, {}, [write_image_shard(folder, 0, items)])
    return folder


def test_pack_and_report(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokenizer.json").write_text(Tokenizer([]).to_json())
    pack = ["data", "pack", str(corpus), "--out", str(tmp_path / "out"), "--tokenizer", str(tmp_path / "tokenizer.json")]
    assert run([*pack, "--mode", "rapid", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["parts"] == [{"part": "train", "documents": 2, "tokens": 34, "images": 2}]
    assert "left out 1 document " in printed.err
    assert open_shards(tmp_path / "out").document(0, 0).source == "pairs/alt/pair"
    assert run([*pack, "--append"]) == 2
    assert "for texts" in capsys.readouterr().err
    assert run([*pack, "--mode", "huge"]) != 0
    assert "drawn" in capsys.readouterr().err
    assert run(["data", "report", str(corpus)]) == 0
    assert "svg" in capsys.readouterr().out
    assert "<h1>" in (corpus / "report.html").read_text()
    assert run(["data", "report", str(corpus), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dropped"] == {"svg": 1}
