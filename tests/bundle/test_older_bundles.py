"""Bundles that were written before a key of the config existed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tiny_bundles import write_multimodal_bundle

from openafm.bundle import open_bundle
from openafm.bundle.decoder import load_decoder
from openafm.bundle.files import DOCUMENTS, read_all_tensors
from openafm.bundle.signature import sign


def test_a_multimodal_bundle_without_the_kind_of_its_adapter_is_read(tmp_path: Path) -> None:
    written = write_multimodal_bundle(tmp_path / "bundle")
    file = tmp_path / "bundle" / "config.json"
    stated = json.loads(file.read_text())
    del stated["model"]["adapter"]["type"], stated["model"]["vision"]["final_norm"], stated["model"]["tracks"]
    file.write_text(json.dumps(stated))
    documents = {name: json.loads((tmp_path / "bundle" / name).read_text()) for name in DOCUMENTS}
    signature = sign(documents, read_all_tensors(tmp_path / "bundle").values())
    (tmp_path / "bundle" / "signature.json").write_text(json.dumps(signature.to_dict()))
    older = open_bundle(tmp_path / "bundle")
    assert older.config == written.config
    tensors = older.tensors()
    for name, weight in load_decoder(older).state_dict().items():
        np.testing.assert_array_equal(weight.numpy(), tensors[name])
