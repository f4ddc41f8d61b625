"""The Python blocks of the guide run, and every name, verb and page in the docs exists."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import typer.main

import openafm as fm
from openafm.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
PAGES = [*GUIDE, ROOT / "docs" / "migration.md", ROOT / "README.md"]
_FENCE = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.M | re.S)
_NAME = re.compile(r"\bfm((?:\.[A-Za-z_]\w*)+)")


@dataclass(frozen=True, kw_only=True)
class Block:
    """Hold a fenced block: language, rest of the fence line, text, and number of its first line."""

    language: str
    remark: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(language=match[1], remark=match[2], text=match[3], line=text.count("\n", 0, match.start(3)) + 1)
        for match in _FENCE.finditer(text)
    ]


def name_of(page: Path) -> str:
    return page.stem


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to an empty folder, with an empty home."""
    torch.set_num_threads(1)
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "work"), *sys.path])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
@pytest.mark.usefixtures("empty_home")
def test_the_blocks_of_a_page_run_in_order(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(f"guide_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    ran = 0
    with asyncio.Runner() as runner:
        for block in blocks(page):
            if block.language != "python" or block.remark:
                continue
            source = "\n" * (block.line - 1) + block.text  # so that errors have the line number of the page
            code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            waits = eval(code, vars(module))
            if waits is not None:
                runner.run(waits)
            ran += 1
    assert ran > 0


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_that_do_not_run_have_a_reason(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            assert re.fullmatch(r"(no-run: \w.{10,})?", block.remark), f"{page}:{block.line}"
            compile(block.text, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_name_on_a_page_exists(page: Path) -> None:
    for name in set(_NAME.findall(page.read_text(encoding="utf-8"))):
        found: object = fm
        for part in name.strip(".").split("."):
            assert hasattr(found, part), f"{page.name} mentions fm{name}"
            found = getattr(found, part)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_verb_and_option_on_a_page_exists(page: Path) -> None:
    command_line = typer.main.get_command(app)
    lines = re.findall(r"(?:^ *|`)openafm ([^\n`]+)", page.read_text(encoding="utf-8"), re.M)
    for line in (part for each in lines for part in each.split(" -- ")):  # `openafm profile -- VERB ...`
        command = command_line
        for word in line.split():
            is_recipe = command.name == "rl" and "." in word  # `rl RECIPE` is `rl train RECIPE`
            child = getattr(command, "commands", {}).get("train" if is_recipe else word)
            if child is None:
                break
            command = child
        assert command is not command_line, f"{page.name}: openafm {line}"
        if command.name == "evaluate":  # `evaluate NAME` is `evaluate run NAME`
            command = command.commands["run"]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        for option in re.findall(r" (--?[a-z][a-z-]*)", line.split("#")[0]):
            assert option in known, f"{page.name}: openafm {line}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_guide_mentions_every_public_name() -> None:
    words = set(re.findall(r"\w+", "\n".join(page.read_text(encoding="utf-8") for page in GUIDE)))
    assert set(fm.__all__) - words == set()
