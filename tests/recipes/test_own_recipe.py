"""A recipe in the user's own file: its objective, layer kind and corpus train, and the results are read in a new process."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import warm_processes

from openafm.core.config import ConfigError
from openafm.core.registry import PluginError
from openafm.recipes.catalog import UnknownRecipeError, find_recipe

pytestmark = pytest.mark.xdist_group("own_recipe")

FILE = Path(__file__).with_name("my_recipe.py")


def openafm(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `openafm` in a process of its own, which has none of the plugins loaded."""
    return warm_processes.openafm(*arguments, cwd=home, environment={"OPENAFM_HOME": str(home / "home")})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the user's recipe has run."""
    folder = tmp_path_factory.mktemp("user")
    done = openafm(folder, "train", f"{FILE}:counting", "--set", "trainer.objective.weight=0.001", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 2
    return folder


@pytest.mark.long
def test_the_run_records_the_kinds_and_their_plugin(trained: Path) -> None:
    run = json.loads((trained / "runs" / "my_recipe.counting" / "run.json").read_text())
    assert run["plugins"] == [str(FILE)]
    assert run["corpora"][0]["type"] == "CountingCorpusConfig"
    assert run["trainer"]["objective"] == {"type": "ZLossConfig", "weight": 0.001}
    metrics = (trained / "runs" / "my_recipe.counting" / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["z"] > 0 for line in metrics if "loss" in json.loads(line))


@pytest.mark.parametrize(
    "command",
    [("inspect", "my_recipe.counting"), ("checkpoint", "list", "runs/my_recipe.counting"), ("respond", "1 2 3")],
    ids=["inspect", "checkpoint", "respond"],
)
def test_a_new_process_reads_the_results_with_the_plugin(trained: Path, command: tuple[str, ...]) -> None:
    model = ("-m", "my_recipe.counting", "--max-tokens", "2") if command[0] == "respond" else ()
    without = openafm(trained, *command, *model)
    assert without.returncode == 2, without.stdout + without.stderr
    assert "Config'" in without.stderr
    assert "--plugins" in without.stderr
    assert "damaged" not in without.stderr
    done = openafm(trained, *command, *model, "--plugins", str(FILE))
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_the_config_of_a_run_is_a_recipe(trained: Path) -> None:
    record = trained / "runs" / "my_recipe.counting" / "run.json"
    without = openafm(trained, "train", "--config", str(record))
    assert without.returncode == 2
    assert "--plugins" in without.stderr
    command = ("train", "--config", str(record), "--plugins", str(FILE), "--name", "again", "--json")
    done = openafm(trained, *command)
    assert done.returncode == 0, done.stderr
    again = json.loads((trained / "runs" / "again" / "run.json").read_text())
    assert again == json.loads(record.read_text())
    assert openafm(trained, "inspect", "again", "--plugins", str(FILE)).returncode == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is not JSON"),
        ("[1]", "must hold a JSON object, got list"),
        ('{"recipe": "x", "traner": {}}', "did you mean 'trainer'"),
        ('{"recipe": "x"}', "`openafm recipes show RECIPE` prints a config"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises((ConfigError, UnknownRecipeError), match=re.escape(message)):
        find_recipe(str(tmp_path / "run.json"))


def test_references_are_resolved_or_refused(tmp_path: Path) -> None:
    assert find_recipe(str(FILE)).name == "my_recipe.counting"
    with pytest.raises(UnknownRecipeError, match="its recipes: counting"):
        find_recipe(f"{FILE}:countin")
    with pytest.raises(PluginError, match="cannot import"):
        find_recipe("./none.py:run")
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(UnknownRecipeError, match="it has none"):
        find_recipe(str(tmp_path / "empty.py"))


def test_a_decorated_function_has_sizes(tmp_path: Path) -> None:
    (tmp_path / "sized.py").write_text(
        "from openafm.recipes.catalog import build_run\nfrom openafm.recipes.config import RunConfig, recipe\n"
        "@recipe('mine.pretrain', sizes=('micro', 'nano'))\ndef mine(size: str) -> RunConfig:\n"
        "    '''Mine.'''\n    return build_run('on_device.pretrain', size)\n"
    )
    found = find_recipe(f"{tmp_path / 'sized.py'}:mine")
    assert (found.name, found.checked_size(None), found.default_name("micro")) == (
        "mine.pretrain",
        "nano",
        "mine.pretrain-micro",
    )
    with pytest.raises(UnknownRecipeError, match="no size 'huge'; sizes: micro, nano"):
        found.checked_size("huge")
