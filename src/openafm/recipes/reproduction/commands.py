"""Run the commands of a stage: in processes that end with this one, with their outputs as files.

The output of a finished command is kept, so a killed stage continues with the command that did not finish.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from openafm.core.files import write_json
from openafm.core.regular_files import read_document
from openafm.recipes.reproduction.cpu_time import children
from openafm.recipes.reproduction.stages.stage import Command

LOG, OUTPUTS = "log.txt", "outputs"
_LAST_LINES = 6
_START_SECONDS, _STOP_SECONDS = 300.0, 30.0
_POLL_SECONDS = 0.1
_PLACE = re.compile(r"\{([\w.-]+)\}")


class CommandFailedError(Exception):
    """A command failed. The text has its name, the reason and the place of its log. Other stages still run."""


@dataclass
class StageCommands:
    """The commands of a stage that runs.

    Attributes:
        here: the stage's folder.
        home: OPENAFM_HOME of the commands: bundles, adapters, keys.
        places: what `{NAME}` stands for.
        figures: outputs of commands, by name.
        seconds: wall time of the commands, by name.
    """

    here: Path
    home: Path
    places: dict[str, str]
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _servers: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> StageCommands:
        (self.here / OUTPUTS).mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    def call(self, command: Command) -> None:
        """Run a command, or read its output if an earlier call has finished it.

        Raises:
            CommandFailedError: it ended with another exit code, or its output is not JSON.
        """
        times = self.here / OUTPUTS / f"{command.name}.time"
        output = self.here / (command.file or f"{OUTPUTS}/{command.name}.json")
        if times.is_file() and output.is_file() and not command.serves:
            self.seconds[command.name] = json.loads(read_document(times))
        else:
            started = time.monotonic()
            if command.serves:
                self.figures[command.name] = self._servers.enter_context(self._serve(command))
                return
            self._run(command, output)
            self.seconds[command.name] = round(time.monotonic() - started, 1)
        if not command.file:  # a training that was stopped from outside ends with 0 and prints no JSON
            self.figures[command.name] = self._parsed(command, output.read_bytes())
        if not times.is_file():
            write_json(times, self.seconds[command.name])

    def _run(self, command: Command, output: Path) -> None:
        if command.clears:
            shutil.rmtree(self.here / command.clears, ignore_errors=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        part = output.with_name(f"{output.name}.part")
        with part.open("wb") as stdout, self._started(command, stdout) as process:
            try:
                if command.kill_rank:
                    _kill_a_rank(process, Path(self._filled(command.words[command.words.index("--output") + 1])))
                code = process.wait()
            except BaseException:  # Ctrl-C: the command saves its state and ends
                _stop(process)
                raise
        if code not in command.exit_codes:
            raise self._failure(command, f"ended with {code}")
        part.replace(output)

    @contextlib.contextmanager
    def _serve(self, command: Command) -> Iterator[Any]:
        """Start a server, give the first line of its output, and stop it at the end."""
        with self._started(command, subprocess.PIPE) as process:
            try:
                yield self._parsed(command, _first_line(process))
            finally:
                _stop(process)

    @contextlib.contextmanager
    def _started(self, command: Command, stdout: IO[bytes] | int) -> Iterator[subprocess.Popen[bytes]]:
        words = [self._filled(word) for word in command.words]
        module = "openafm.recipes.reproduction.child"
        with (self.here / LOG).open("ab") as log:
            log.write(f"$ openafm {' '.join(words)}\n".encode())
            log.flush()
            with subprocess.Popen(
                [sys.executable, "-m", module, str(os.getpid()), *words],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=log,
                env={**os.environ, "OPENAFM_HOME": str(self.home)},
                cwd=self.here,
            ) as process:
                yield process

    def _filled(self, word: str) -> str:
        """Return a word with the values of its places; other braces, such as those of JSON, stay."""
        return _PLACE.sub(lambda found: self._value(found[1], found[0]), word)

    def _value(self, place: str, otherwise: str) -> str:
        command, _, key = place.partition(".")
        output = self.figures.get(command)
        if isinstance(output, Mapping) and key in output:
            return str(output[key])
        return self.places.get(place, otherwise)

    def _parsed(self, command: Command, output: bytes) -> Any:
        try:
            return json.loads(output)
        except ValueError:
            raise self._failure(command, f"printed no JSON: {output[:80]!r}") from None

    def _failure(self, command: Command, what: str) -> CommandFailedError:
        log = self.here / LOG
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        verb = " ".join(command.words[:2])
        return CommandFailedError(f"`openafm {verb}` {what}; the end of {log}: {' / '.join(lines)}")


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    """Return the first line of a server's output; empty if it ends or prints none in time."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
    return process.stdout.readline() if ready else b""


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _kill_a_rank(process: subprocess.Popen[bytes], run: Path) -> None:
    """Kill a worker of a training after the run's first checkpoint, as a failure of a machine would. Linux only."""
    if not Path("/proc/self/task").exists():
        return
    while process.poll() is None:
        ranks = [rank for child in children(process.pid) for rank in children(child)]
        if len(ranks) > 1 and any((run / "checkpoints").glob("step-*")):
            os.kill(ranks[-1], signal.SIGKILL)
            return
        time.sleep(_POLL_SECONDS)
