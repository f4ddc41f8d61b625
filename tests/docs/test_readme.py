"""The examples of README.md print what README.md says, with the shipped model."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_examples_print_the_answers_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path))
    module = ModuleType("readme_examples")  # types are looked up in the module of their class
    monkeypatch.setitem(sys.modules, module.__name__, module)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        expected = re.findall(r"^# (.+)$", block, re.MULTILINE)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block, str(README), "exec"), module.__dict__)
        assert expected
        assert printed.getvalue().splitlines() == expected


def test_make_run_installs_the_libraries_of_the_built_in_corpus() -> None:
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^\.venv/installed-run:.*\n\t.*pip install .*\.\[(.*?)\]", makefile, re.MULTILINE)
    assert recipe is not None
    assert "corpus" in recipe[1].split(",")
