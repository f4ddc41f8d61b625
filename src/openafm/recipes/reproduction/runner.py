"""Runs stages: each in a folder, each command in a process; finished stages are kept.

A stage has a digest of its commands and of the stages that it needs. A stage whose digest is in `done.json` is not run
again, so a killed reproduction continues, and a changed stage is done again with those that depend on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from openafm import __version__
from openafm.core.errors import UsageError
from openafm.core.files import OutOfSpaceError, write_json
from openafm.core.folder_lock import folder_lock
from openafm.core.regular_files import read_document
from openafm.recipes.reproduction.commands import CommandFailedError, StageCommands
from openafm.recipes.reproduction.cpu_time import ChildTime
from openafm.recipes.reproduction.forecast import Forecast
from openafm.recipes.reproduction.requirements import missing_parts
from openafm.recipes.reproduction.results import (
    RESULTS,
    StageResult,
    StageState,
    read_results,
    reserve_space,
    result_of,
    store_results,
)
from openafm.recipes.reproduction.stages.stage import Stage

DONE, DIGEST = "done.json", "digest"
LEFT_OUT = "left out by --only"
_SITE_PAGES = 24


def run_stages(
    stages: Sequence[Stage],
    folder: Path,
    size: str,
    only: Sequence[str],
    report: Callable[[str], None],
    estimates: Mapping[str, float] | None = None,
) -> list[StageResult]:
    """Run stages in `folder` and return the outcome of each. `report` receives a line for each event.

    Args:
        size: stored beside the results, for the page.
        only: names of the stages to run; the others are kept as they are. Empty: all.
        estimates: expected seconds of stages by name; the reported ends follow from them and from the stages so far.

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
        reserve_space(folder)
        forecast = Forecast(
            {each.name: (estimates or {}).get(each.name, 0.0) for each in stages if not only or each.name in only}
        )
        for number, stage in enumerate(stages, start=1):
            title = f"[{number:2d}/{len(stages)}] {stage.section:4s} {stage.name}: {stage.title}"
            result = _kept(stage, digests[stage.name], folder)
            if result is None:
                if (reason := _missing(stage, results, only)) is not None:
                    result = StageResult(
                        name=stage.name, digest=digests[stage.name], state=StageState.SKIPPED, figures={}, reason=reason
                    )
                else:
                    report(f"{title}{forecast.line(stage.name)}")
                    result = _attempt(stage, digests[stage.name], folder)
            results[stage.name] = result
            forecast.finished(stage.name, result.seconds if result.state is StageState.DONE else 0.0)
            store_results(folder, size, list(results.values()))
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
    return replace(result_of(stored), state=StageState.KEPT)


def _missing(stage: Stage, results: dict[str, StageResult], only: Sequence[str]) -> str | None:
    """Return why a stage cannot run; None if it can."""
    if only and stage.name not in only:
        return LEFT_OUT
    for name in stage.needs:
        if results[name].state in (StageState.FAILED, StageState.SKIPPED):
            return f"needs the stage {name}, which was not done"
    if advice := missing_parts(stage.requires):
        return f"needs {' and '.join(advice)}"
    return None


def _attempt(stage: Stage, digest: str, folder: Path) -> StageResult:
    """Run a stage; a full disk fails it, and the page still comes."""
    try:
        return _run(stage, digest, folder)
    except (OSError, OutOfSpaceError) as error:
        reason = f"{error}; if the disk is full, free some space; then repeat the command"
        return StageResult(name=stage.name, digest=digest, state=StageState.FAILED, figures={}, reason=reason)


def _run(stage: Stage, digest: str, folder: Path) -> StageResult:
    here = folder / stage.name
    begun = here / DIGEST
    if begun.is_file() and begun.read_text() != digest:
        shutil.rmtree(here)  # outputs of other commands
    here.mkdir(parents=True, exist_ok=True)
    begun.write_text(digest)
    for name, text in stage.files:
        (here / name).write_text(text, encoding="utf-8")
    places = {path.name: str(path) for path in folder.iterdir() if path.is_dir()} | {"here": str(here)}
    started = time.monotonic()
    notes: list[str] = []
    reason = ""
    with (
        ChildTime() as child_time,
        _site(here) if stage.serves_site else contextlib.nullcontext("") as site,
        StageCommands(here, folder / "home", {**places, "site": site}) as commands,
    ):
        try:
            for command in stage.commands:
                if advice := missing_parts(command.requires):
                    notes.append(f"{command.lost}: needs {' and '.join(advice)}")
                else:
                    commands.call(command)
        except CommandFailedError as error:
            reason = str(error)
    result = StageResult(
        name=stage.name,
        digest=digest,
        state=StageState.FAILED if reason else StageState.DONE,
        figures=commands.figures,
        seconds=round(time.monotonic() - started, 1),
        cpu_seconds=round(child_time.seconds, 1),
        reason=reason,
        notes=tuple(notes),
        command_seconds=commands.seconds,
    )
    if not reason:
        write_json(here / DONE, asdict(result))
    return result


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


def _line(title: str, result: StageResult) -> str:
    match result.state:
        case StageState.DONE:
            return f"{title}: done in {result.seconds:.0f} s"
        case StageState.KEPT:
            return f"{title}: done before"
        case _:
            return f"{title}: {result.state}: {result.reason}"
