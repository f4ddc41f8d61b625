"""Run `openafm` as a child that ends when its parent does: `python -m openafm.recipes.reproduction.child PARENT WORD...`."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

from openafm.training.distributed.launcher_watch import wait_for_exit

SECONDS_TO_SAVE = 5.0


def main() -> None:
    """Run the command. If the parent dies, save and end within `SECONDS_TO_SAVE`, so that a repeated call can start."""
    parent = int(sys.argv[1])
    threading.Thread(target=_end_with, args=(parent,), name="parent watch", daemon=True).start()
    sys.argv = ["openafm", *sys.argv[2:]]
    runpy.run_module("openafm", run_name="__main__", alter_sys=True)


def _end_with(parent: int) -> None:
    wait_for_exit(parent)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_SAVE)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
