"""Fresh processes of the command line in milliseconds: a server that has imported torch forks one for each command.

The server has loaded no plugin and opened no bundle, so its children know what a new interpreter knows. Tests of what a
process imports start an interpreter instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def openafm(*arguments: str, cwd: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `openafm` in a folder, with changes of this process's environment, and return its exit code and output."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        request = {
            "arguments": arguments,
            "cwd": str(cwd),
            "environment": {**os.environ, **environment},
            "outputs": [str(path) for path in outputs],
        }
        print(json.dumps(request), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        stdout, stderr = (path.read_text() for path in outputs)
    return subprocess.CompletedProcess(arguments, code, stdout, stderr)


@cache
def _server() -> subprocess.Popen[str]:
    """Return the server of this test process; it ends when its standard input is closed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve())]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def serve() -> None:
    import torch._dynamo

    import openafm.cli.respond
    import openafm.recipes.run
    import openafm.training.run  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            _run(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


def _run(request: dict[str, Any]) -> None:
    from openafm.cli.main import run

    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, path in enumerate(request["outputs"], start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    code = 1
    try:
        code = run(request["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
