"""Plugins: kinds from files, modules, the environment and entry points of installed packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from openafm.core.config import UnknownKindError, from_dict
from openafm.core.registry import PluginError, load_plugins
from openafm.models.config import DecoderConfig

SQUARE = """
from __future__ import annotations
from dataclasses import dataclass
from openafm.models.config import PositionConfig

@dataclass(frozen=True, kw_only=True)
class {name}(PositionConfig):
    power: float = 2.0

    def build(self, positions_BS, head_dim):
        raise NotImplementedError
"""
READ = """
import sys
from openafm.core.config import from_dict
from openafm.models.config import AttentionConfig
values = {"num_heads": 1, "head_dim": 3, "keys_values": {"type": "OwnKeysValuesConfig", "num_heads": 1}}
print(from_dict(AttentionConfig, values | {"position": {"type": "SquaredPositions", "power": 3}}).position.power)
assert "torch" not in sys.modules
"""


def read_in_a_fresh_process(setup: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", setup + READ]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


def test_a_kind_of_a_file_or_a_module_is_read_once_it_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "squares.py"
    file.write_text(SQUARE.format(name="SquaredPositions"))
    load = f"from openafm.core.registry import load_plugins; load_plugins([{str(file)!r}, {str(file)!r}])"
    assert read_in_a_fresh_process(load).stdout == "3.0\n"
    assert read_in_a_fresh_process(OPENAFM_PLUGINS=str(file)).stdout == "3.0\n"
    path = ":".join([str(tmp_path), *sys.path])
    assert read_in_a_fresh_process(OPENAFM_PLUGINS=" squares, ", PYTHONPATH=path).stdout == "3.0\n"


def test_a_kind_of_an_installed_package_needs_no_option(tmp_path: Path) -> None:
    (tmp_path / "squares.py").write_text(SQUARE.format(name="SquaredPositions"))
    package = tmp_path / "squares-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: squares\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[openafm.kinds]\nSquaredPositions = squares:SquaredPositions\n")
    assert read_in_a_fresh_process(PYTHONPATH=":".join([str(tmp_path), *sys.path])).stdout == "3.0\n"


def test_an_unknown_kind_is_named_with_the_nearest_one_and_the_ways_to_load_it() -> None:
    found = read_in_a_fresh_process().stderr
    for part in (
        "UnknownKindError",
        "'SquaredPositions' of PositionConfig",
        "--plugins",
        "OPENAFM_PLUGINS",
        "openafm.kinds",
    ):
        assert part in found
    with pytest.raises(UnknownKindError, match="did you mean 'TiedHeadConfig'"):
        from_dict(DecoderConfig, {"vocab_size": 1, "dim": 1, "layers": [], "head": {"type": "TieHeadConfig"}})


def test_a_plugin_that_cannot_be_imported_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    for name, cause in (
        (str(tmp_path / "broken.py"), "ZeroDivisionError"),
        (str(tmp_path / "none.py"), "FileNotFoundError"),
        ("no_such_module", "ModuleNotFoundError"),
        ("", "ValueError"),
    ):
        with pytest.raises(PluginError, match=cause):
            load_plugins([name])
