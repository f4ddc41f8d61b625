"""Runs stages: each in a folder, each command in a process; finished stages are kept.

A stage has a digest of its commands and of the stages that it needs. A stage whose digest is in `done.json` is not run
again, so a killed reproduction continues, and a changed stage is done again with those that depend on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from openafm import __version__
from openafm.core.errors import UsageError
from openafm.core.files import folder_lock, read_document, write_json
from openafm.recipes.reproduction.stages import Command, Stage

DONE, DIGEST, RESULTS, OUTPUTS, LOG = "done.json", "digest", "results.json", "outputs", "log.txt"
LEFT_OUT = "left out by --only"
_LAST_LINES = 6
_SITE_PAGES = 24


class StageState(StrEnum):
    """What became of a stage."""

    DONE = "done"
    KEPT = "kept"
    """Done by an earlier call."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """A stage that it needs, or an optional part of the installation, is missing."""


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """The outcome of a stage.

    Attributes:
        figures: the JSON outputs of its commands by name.
        seconds: wall time of the call that did it.
        cpu_seconds: CPU time of its processes.
        reason: why it failed or was skipped, and what to do.
    """

    name: str
    digest: str
    state: StageState
    figures: dict[str, Any]
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    reason: str = ""


def run_stages(
    stages: Sequence[Stage], folder: Path, size: str, only: Sequence[str], report: Callable[[str], None]
) -> list[StageResult]:
    """Run stages in `folder` and return the outcome of each. `report` receives a line for each event.

    Args:
        size: stored beside the results, for the page.
        only: names of the stages to run; the others are kept as they are. Empty: all.

    Raises:
        UsageError: `only` has a name that is no stage, or the folder holds another size.
        FolderInUseError: another process runs in this folder.
    """
    check_names(stages, only)
    digests = stage_digests(stages)
    results: dict[str, StageResult] = {}
    folder = folder.resolve()
    if (folder / RESULTS).is_file() and (held := read_results(folder)[0]) != size:
        raise UsageError(f"{folder} holds a reproduction of size {held}; use --size {held} or another --out")
    folder.mkdir(parents=True, exist_ok=True)
    with folder_lock(folder):
        for number, stage in enumerate(stages, start=1):
            title = f"[{number:2d}/{len(stages)}] {stage.section:4s} {stage.name}: {stage.title}"
            result = _kept(stage, digests[stage.name], folder)
            if result is None:
                if (reason := _missing(stage, results, only)) is not None:
                    result = StageResult(
                        name=stage.name, digest=digests[stage.name], state=StageState.SKIPPED, figures={}, reason=reason
                    )
                else:
                    report(title)
                    result = _run(stage, digests[stage.name], folder)
            results[stage.name] = result
            stored = [asdict(each) for each in results.values()]
            write_json(folder / RESULTS, {"size": size, "results": stored})
            if result.reason != LEFT_OUT:
                report(_line(title, result))
    return list(results.values())


def check_names(stages: Sequence[Stage], only: Sequence[str]) -> None:
    """Check that each name is that of a stage.

    Raises:
        UsageError: one is not.
    """
    names = [stage.name for stage in stages]
    if unknown := [name for name in only if name not in names]:
        raise UsageError(f"no stage is called '{unknown[0]}'; the stages are {', '.join(names)}")


def stage_digests(stages: Sequence[Stage]) -> dict[str, str]:
    """Return the digest of each stage: of its commands, this version, and the digests of the stages that it needs."""
    digests: dict[str, str] = {}
    for stage in stages:
        commands = [asdict(command) for command in stage.commands]
        parts = [__version__, commands, stage.files, [digests[name] for name in stage.needs]]
        digests[stage.name] = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return digests


def read_results(folder: Path) -> tuple[str, list[StageResult]]:
    """Return the size and the outcomes of the latest call in a folder.

    Raises:
        UsageError: there was none, or its file is damaged.
    """
    path = folder / RESULTS
    if not path.is_file():
        raise UsageError(f"{folder} holds no reproduction; run `openafm reproduce --out {folder}`")
    try:
        stored = json.loads(read_document(path))
        return stored["size"], [StageResult(**{**each, "state": StageState(each["state"])}) for each in stored["results"]]
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} is damaged; remove it and run `openafm reproduce --out {folder}` again") from error


def kept_stages(stages: Sequence[Stage], folder: Path) -> dict[str, StageResult]:
    """Return the stages that are done with their present commands, by name."""
    digests = stage_digests(stages)
    found = ((stage.name, _kept(stage, digests[stage.name], folder)) for stage in stages)
    return {name: result for name, result in found if result is not None}


def _kept(stage: Stage, digest: str, folder: Path) -> StageResult | None:
    path = folder / stage.name / DONE
    if not path.is_file():
        return None
    stored = json.loads(read_document(path))
    if stored["digest"] != digest:
        return None
    return StageResult(**{**stored, "state": StageState.KEPT})


def _missing(stage: Stage, results: dict[str, StageResult], only: Sequence[str]) -> str | None:
    """Return why a stage cannot run; None if it can."""
    if only and stage.name not in only:
        return LEFT_OUT
    for name in stage.needs:
        if results[name].state in (StageState.FAILED, StageState.SKIPPED):
            return f"needs the stage {name}, which was not done"
    for each in stage.requires:
        kind, name = each.split(":")
        if kind == "program" and shutil.which(name) is None:
            return f"needs the program {name}, which is not installed"
        if kind == "module" and importlib.util.find_spec(name) is None:
            return f"needs the Python module {name}, which is not installed; install the extras images and data"
    return None


def _run(stage: Stage, digest: str, folder: Path) -> StageResult:
    here = folder / stage.name
    begun = here / DIGEST
    if begun.is_file() and begun.read_text() != digest:
        shutil.rmtree(here)  # outputs of other commands
    (here / OUTPUTS).mkdir(parents=True, exist_ok=True)
    begun.write_text(digest)
    for name, text in stage.files:
        (here / name).write_text(text, encoding="utf-8")
    places = {path.name: str(path) for path in folder.iterdir() if path.is_dir()} | {"here": str(here)}
    started, cpu_before = time.monotonic(), _cpu_of_children()
    figures: dict[str, Any] = {}
    reason = ""
    with _site(here) if stage.serves_site else contextlib.nullcontext("") as site:
        for command in stage.commands:
            found, reason = _call(command, here, folder, {**places, "site": site})
            if reason:
                break
            if found is not None:
                figures[command.name] = found
    result = StageResult(
        name=stage.name,
        digest=digest,
        state=StageState.FAILED if reason else StageState.DONE,
        figures=figures,
        seconds=round(time.monotonic() - started, 1),
        cpu_seconds=round(_cpu_of_children() - cpu_before, 1),
        reason=reason,
    )
    if not reason:
        write_json(here / DONE, asdict(result))
    return result


def _call(command: Command, here: Path, folder: Path, places: dict[str, str]) -> tuple[Any, str]:
    """Run a command. Return its JSON output, or None, and why it failed, or an empty text."""
    words = [_filled(word, places) for word in command.words]
    output = here / (command.file or f"{OUTPUTS}/{command.name}.json")
    output.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OPENAFM_HOME": str(folder / "home")}
    with output.open("wb") as stdout, (here / LOG).open("ab") as log:
        log.write(f"$ openafm {' '.join(words)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "openafm", *words],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=log,
            env=environment,
            cwd=here,
        )
        try:
            code = process.wait()
        except BaseException:  # Ctrl-C: the command saves its state and ends
            process.terminate()
            process.wait()
            raise
    if code != 0:
        lines = (here / LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        return None, f"`openafm {words[0]} {words[1]}` ended with {code}; the end of {here / LOG}: {' / '.join(lines)}"
    return (None if command.file else json.loads(output.read_bytes())), ""


def _filled(word: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        word = word.replace(f"{{{name}}}", place)
    return word


@contextlib.contextmanager
def _site(here: Path) -> Iterator[str]:
    """Serve a generated site; the port is kept, so that a killed crawl continues on the same addresses."""
    from openafm.data.sites.server import serve
    from openafm.data.sites.site import SiteConfig, generate_site

    path = here / "port"
    if not path.exists():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            path.write_text(str(free.getsockname()[1]))
    with serve(generate_site(SiteConfig(num_pages=_SITE_PAGES)), port=int(path.read_text())) as server:
        yield f"{server.url}/"


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _line(title: str, result: StageResult) -> str:
    match result.state:
        case StageState.DONE:
            return f"{title}: done in {result.seconds:.0f} s"
        case StageState.KEPT:
            return f"{title}: done before"
        case _:
            return f"{title}: {result.state}: {result.reason}"
