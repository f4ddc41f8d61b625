"""The command line: light imports, one-line errors, exit codes, JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import openafm as fm
from openafm.bundle import bundle_place
from openafm.cli.main import run
from openafm.cli.output import print_table

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
from tiny_sources import write_source


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty data home and an installation without the shipped model."""
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("openafm.bundle.store.SHIPPED_HOME", tmp_path / "stripped")
    return tmp_path / "home"


def test_light_verbs_do_not_import_heavy_libraries() -> None:
    commands = ["--help", "recipes list", "train --help", "use", "data sample --count 1"]
    script = (
        "import sys; from openafm.cli.main import run\n"
        f"for command in {commands!r}:\n"
        "    assert run(command.split()) == 0\n"
        "    heavy = {'torch', 'tokenizers', 'transformers', 'llguidance', 'matplotlib', 'tensorboard'} & set(sys.modules)\n"
        "    if heavy: sys.exit(f'{command} imported {heavy}')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_framework_imports_without_heavy_libraries() -> None:
    script = (
        "import sys, openafm as fm\n"
        "fm.LanguageModelSession, fm.generable, fm.SystemLanguageModel\n"
        "heavy = {'torch', 'tokenizers', 'llguidance', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "exit_code", "text"),
    [
        ("inspect on_device.bas", 2, "no bundle 'on_device.bas'"),
        ("data pack", 2, "(see `openafm data pack --help`)"),
        ("train on_device.pretain --size micro", 2, "did you mean 'on_device.pretrain'"),
        ("train on_device.pretrain --size huge", 2, "sizes: micro, nano"),
        ("train on_device.sft --size micro", 2, "--from BUNDLE"),
        ("train", 2, "name one recipe"),
        ("train on_device.sft --config run.json", 2, "name one recipe"),
        ("train --config missing.json", 2, "the config missing.json cannot be read"),
        ("recipes show on_device.pretrain --set trainer.optimizer.learning_rat=1", 2, "did you mean 'learning_rate'"),
        ("recipes show on_device.pretrain --set trainer.optimizer.learning_rate=-1", 2, "learning_rate must be above 0"),
        ("recipes show on_device.pretrain --set trainer", 2, "not KEY=VALUE"),
        ("use nothing", 2, "no bundle 'nothing'"),
        ("respond hello", 2, "quickstart"),
        ("respond hello --schema missing.json", 2, "missing.json"),
        ("respond hello --max-tokens 0", 2, "must be positive"),
        ("respond hello --temperature -1", 2, "non-negative"),
        ("respond hello --top-k 0", 2, "Invalid value for '--top-k'"),
        ("respond hello --top-p 1.5", 2, "Invalid value for '--top-p'"),
        ("chat --top-k 4 --top-p 0.5", 2, "--top-k and --top-p exclude each other"),
        ("export small --to onnx --out here", 2, "export --to hf and convert that folder with Optimum"),
        ("export small --to mlx --out here", 2, "mlx_lm.convert reads folders of transformers; export --to hf"),
        ("export small --to tf --out here", 2, "'tf' is not one of 'hf', 'gguf', 'peft'"),
        ("train on_device.pretrain --name ../elsewhere", 2, "cannot name a bundle"),
        ("respond Dinner at 7", 2, 'put the whole text in quotes, as in openafm respond "Dinner at 7"'),
        ("complete Once upon", 2, "put the whole text in quotes"),
        ("classify hi", 2, "two or more different labels"),
        ("classify hi --label a --label a", 2, "two or more different labels"),
        ("classify hi --label a --label b --lines texts.txt", 2, "TEXT or --lines, not both"),
        ("classify --label a --label b --lines missing.txt", 2, "missing.txt"),
        ("complete Once --stop=", 2, "--stop must not be empty"),
        ("frobnicate", 2, "frobnicate"),
        ("respond hi --image-detail fine", 2, "Invalid value for '--image-detail': 'fine' is not one of"),
        ("rl serve-rewards ./missing --port 99999", 2, "65535"),
        ("inspect", 2, "--help"),
    ],
)
def test_errors_are_one_line_on_standard_error(
    command: str,
    exit_code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(command.split()) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert text in captured.err


MISSING = """
train missing.py:run
train on_device.pretrain --size micro --data missing
train on_device.pretrain --size micro --data texts --eval missing
train on_device.pretrain --size micro --data texts --tokenizer missing
train on_device.sft --size micro --from ./missing
inspect ./missing
use ./missing
remove missing
resign ./missing
doctor ./missing
respond hi --model ./missing
respond hi --schema missing
respond hi --adapter ./missing
respond hi --draft ./missing
chat --model ./missing
chat --schema missing
chat --adapter ./missing
chat --draft ./missing
complete hi --model ./missing
complete hi --adapter ./missing
evaluate ./missing
evaluate nano --data missing
checkpoint list missing
checkpoint consolidate missing
compress ./missing
compress report ./missing
adapter serve missing
adapter serve texts --key missing
adapter pull http://127.0.0.1:9 a --base ./missing
adapter pull http://127.0.0.1:9 a --key missing
adapter train --data missing
adapter train --data chats.jsonl --base ./missing
adapter train --data chats.jsonl --eval missing
adapter draft-train missing --data texts
adapter export missing --name a --output out
adapter inspect ./missing
adapter inspect missing
adapter install missing
adapter remove missing
data pack missing --out out
data pack texts --out out --model ./missing
data pack texts --out out --tokenizer missing
data show missing
data report missing
data synthesize math missing
rl report missing
rl select-prompts missing --model ./missing
tokenizer train missing --out out
tokenizer extend ./missing texts --out out --vocab-size 400
tokenizer extend nano missing --out out --vocab-size 5000
tokenizer report ./missing nano texts
tokenizer report nano nano missing
apple-sdk install --from missing
import hf missing
export ./missing --to hf --out out
"""


@pytest.mark.parametrize("command", MISSING.strip().splitlines())
def test_a_path_that_does_not_exist_is_a_usage_error(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()  # the shipped model
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("the cat sat on the mat " * 50)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": messages}))
    assert run(command.split()) == 2
    assert "missing" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["train on_device.sft --size micro", "adapter train --data missing.jsonl --base nano"])
def test_a_refused_run_leaves_no_folder(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the shipped model
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert run(command.split()) == 2
    assert list(tmp_path.iterdir()) == []


def test_inspect_a_named_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "on_device.base", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["parameters"] == 3_111_368_064
    assert described["kv_bytes_per_token"] == 17_920 + 280
    assert described["kv_bytes_at_4096"] == 4096 * (17_920 + 280)
    assert described["signature"] is None


def test_recipes_show_is_the_resolved_config(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["recipes", "show", "on_device.pretrain", "--size", "micro", "--set", "trainer.optimizer.learning_rate=3e-4"]
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["trainer"]["optimizer"]["learning_rate"] == 3e-4


def test_recipes_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes", "list", "--json"]) == 0
    recipes = {recipe["name"]: recipe for recipe in json.loads(capsys.readouterr().out)}
    economy, continued = ["trunk", "upcycle_teacher", "distill"], ["text_continued", "long_context"]
    stages = ("pretrain", *economy, *continued, "sft", "sft_multilingual", "reward_model", "selection_model")
    text = [f"on_device.{stage}" for stage in stages]
    vision = ["vision.clip", "vision.joint", "vision.letters", "on_device.multimodal", "on_device.multimodal_sft"]
    server_vision = ["vision.server_clip", "vision.server_joint", "server.multimodal", "server.multimodal_sft"]
    compressed = ["on_device.qat", "on_device.recovery_adapter", "on_device.draft"]
    server = [f"server.{stage}" for stage in ("pretrain", *continued, "sft")]
    assert list(recipes) == [*text, *vision, *compressed, *server, *server_vision]
    assert recipes["on_device.multimodal"]["sees_with"] == "vision.joint"
    distill = recipes["on_device.distill"]
    assert (distill["starts_from"], distill["taught_by"]) == ("on_device.trunk", "on_device.upcycle_teacher")


def test_tokenizer_train_extend_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "en.txt").write_text("the cat sat on the mat and the dog sat on the log " * 40)
    (tmp_path / "de.txt").write_text("die Katze sass auf der Matte und der Hund sass auf dem Baumstamm " * 40)
    small, large = str(tmp_path / "small.json"), str(tmp_path / "large.json")
    assert run(["tokenizer", "train", str(tmp_path / "en.txt"), "--out", small, "--vocab-size", "335"]) == 0
    assert run(["tokenizer", "extend", small, str(tmp_path / "de.txt"), "--out", large, "--vocab-size", "350"]) == 0
    capsys.readouterr()
    assert run(["tokenizer", "report", small, large, str(tmp_path), "--json"]) == 0
    rows = {row["language"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["de"]["tokens_per_character_after"] < rows["de"]["tokens_per_character_before"]
    assert run(["tokenizer", "report", small, large, str(tmp_path / "none")]) != 0


def test_data_pack_and_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("the cat sat on the mat " * 50)
    tokenizer = str(tmp_path / "tokenizer.json")
    assert run(["tokenizer", "train", str(tmp_path / "texts"), "--out", tokenizer, "--vocab-size", "330"]) == 0
    out = str(tmp_path / "shards")
    assert run(["data", "pack", str(tmp_path / "texts"), "--out", out, "--tokenizer", tokenizer, "--json"]) == 0
    assert run(["data", "show", out]) == 0
    (tmp_path / "texts" / "b.txt").write_bytes(b"\x00\xff\x00")
    capsys.readouterr()
    assert run(["data", "pack", str(tmp_path / "texts"), "--out", out, "--tokenizer", tokenizer]) == 1
    assert "b.txt" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run(["data", "pack", str(tmp_path / "empty"), "--out", out, "--tokenizer", tokenizer]) == 1


def test_data_pack_reports_conversations_without_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_source(bundle_place("mine"))
    chats = [
        [{"role": "user", "content": "hi"}],
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
    ]
    (tmp_path / "chats.jsonl").write_text("\n".join(json.dumps({"messages": messages}) for messages in chats))
    command = ["data", "pack", str(tmp_path / "chats.jsonl"), "-o", str(tmp_path / "out"), "-m", "mine", "--json"]
    assert run(command) == 0
    captured = capsys.readouterr()
    assert "1 of 2 documents are conversations without an assistant's turn" in captured.err
    assert json.loads(captured.out)["without_answer"] == 1


def test_tables_align_columns_of_numbers_only(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("", ""), [("steps", 12), ("folder", "/a/long/path"), ("loss", None), ("lost", {"start": 2.5, "hang": 0})])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["steps   12", "folder  /a/long/path", "loss    -", "lost    start 2.500"]
    print_table(("name", "loss"), [("a", 1.5), ("b", "-"), ("c", 12345.25)])
    assert capsys.readouterr().out.splitlines() == [
        "name        loss",
        "a          1.500",
        "b              -",
        "c     12,345.250",
    ]


def test_broken_pipe_is_silent() -> None:
    command = f"({sys.executable} -m openafm recipes show on_device.pretrain; {sys.executable} -m openafm) | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_python_dash_m(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "openafm", "use", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OPENAFM_HOME": str(tmp_path)},
    )
    assert (done.returncode, [b for b in json.loads(done.stdout) if b["from"] != "shipped"]) == (0, [])


def test_system_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")  # a file instead of a folder
    (tmp_path / "en.txt").write_text("the cat sat on the mat " * 40)
    out = str(tmp_path / "file" / "tokenizer.json")
    assert run(["tokenizer", "train", str(tmp_path / "en.txt"), "--out", out, "--vocab-size", "330"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert "file" in captured.err


def test_use_refuses_a_folder_without_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    assert run(["use", str(tmp_path)]) == 1
    assert "not the config of an openafm bundle" in capsys.readouterr().err


def test_use_lists_bundles_with_their_origin(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["use", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    for folder in (home / "bundles" / "micro", tmp_path / "package" / "nano"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    monkeypatch.setattr("openafm.bundle.store.SHIPPED_HOME", tmp_path / "package")
    assert run(["use", "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert [(b["name"], b["from"], b["answers"]) for b in listing] == [("micro", "local", False), ("nano", "shipped", True)]
    assert run(["use"]) == 0
    assert "nano   *        shipped" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["", "data", "tokenizer", "recipes"])
def test_a_command_without_arguments_prints_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Usage:")
    assert captured.err == ""


def test_chat_without_a_model_fails_before_the_first_prompt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("asked for a prompt"))
    assert run(["chat", "-m", "nosuch"]) == 2
    assert "nosuch" in capsys.readouterr().err


def test_version_and_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"openafm {fm.__version__}\n"
    for command in (["-h"], ["respond", "-h"], ["adapter", "train", "-h"]):
        assert run(command) == 0
        assert capsys.readouterr().out.startswith("Usage:")


def test_inspect_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "on_device.base"]) == 0
    shown = capsys.readouterr().out
    assert "3.11 B" in shown
    assert "18.2 KB per token" in shown


def test_remove(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_source(bundle_place("mine"))
    assert run(["use", "mine"]) == 0
    thesis = bundle_place("mine") / "thesis.txt"
    thesis.write_text("ten years")
    assert run(["remove", "mine"]) == 1
    assert "thesis.txt, which openafm did not write" in capsys.readouterr().err
    thesis.unlink()
    assert run(["remove", "mine", "--json"]) == 0
    assert not bundle_place("mine").exists()
    capsys.readouterr()
    assert run(["remove", "mine"]) == 2
    assert "no bundle 'mine'" in capsys.readouterr().err
    assert run(["remove", "../home"]) == 2
    assert run(["use"]) == 0  # the choice was removed with the bundle


@pytest.mark.parametrize("name", ["taken", "nano"])
def test_an_import_does_not_replace_or_hide_a_bundle(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("openafm.bundle.store.SHIPPED_HOME", tmp_path / "shipped")
    write_source(tmp_path / "shipped" / "nano")
    write_source(bundle_place("taken"))
    assert run(["import", "hf", str(tmp_path), "--name", name]) == 2
    assert "--force" in capsys.readouterr().err
    assert run(["import", "hf", str(tmp_path), "--name", name, "--force"]) != 0  # the folder is no checkpoint
    assert "--force" not in capsys.readouterr().err


def test_an_unusable_data_folder_names_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "file"))
    write_source(tmp_path / "mine")
    assert run(["use", str(tmp_path / "mine")]) == 1
    assert "OPENAFM_HOME" in capsys.readouterr().err
