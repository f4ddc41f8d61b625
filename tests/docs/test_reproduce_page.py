"""The table of docs/reproduce.md names all stages, and recipes and verbs that exist. test_links.py checks its links."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from openafm.cli.main import app
from openafm.recipes.catalog import RECIPES
from openafm.recipes.reinforcement import RL_RECIPES
from openafm.recipes.reproduction.claims.catalog import CLAIMS
from openafm.recipes.reproduction.stages.catalog import report_stages

PAGE = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## The report with the code open")[2]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\| \d.*\|$", TABLE, re.MULTILINE)]


def test_the_table_has_all_stages_and_sections() -> None:
    named = {name for row in ROWS for name in re.findall(r"`([\w.]+)`", row[2])}
    assert named == {stage.name for stage in report_stages("micro")}
    sections = [row[0].split(" ")[0] for row in ROWS]
    assert all(any(claim.section.startswith(section) for section in sections) for claim in CLAIMS)


def test_each_row_links_code_benchmarks_tests_and_a_page() -> None:
    for row in ROWS:
        for cell, start in zip((row[1], row[4], row[5]), ("../src/openafm/", "../benchmarks/", "../tests/"), strict=True):
            links = re.findall(r"\]\((.*?)\)", cell)
            assert links, row
            assert all(link.startswith(start) for link in links), row
        assert re.findall(r"\]\((.*?)\)", row[6])


def test_recipes_and_verbs_of_the_table_exist() -> None:
    recipes = {recipe.name for recipe in (*RECIPES, *RL_RECIPES)}
    root = typer.main.get_command(app)
    for text in (text for row in ROWS for text in re.findall(r"`(.*?)`", row[3])):
        if text in recipes:
            continue
        command, words = root, text.split()
        while words and words[0] in getattr(command, "commands", {}):
            command, words = command.commands[words[0]], words[1:]
        assert command is not root, text
        known = {*recipes, "on_device.base", "server.full"} | {option for each in command.params for option in each.opts}
        assert set(words) <= known, text
