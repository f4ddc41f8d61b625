"""Run the full form of benchmarks one after the other, which takes about a day of a quiet machine.

    python benchmarks/figures.py [NAME ...] [--arguments FILE] [--out build/figures] [--again] [--list]

Each report replaces docs/benchmarks/NAME.json; output is in OUT/NAME.log. A benchmark that has finished in OUT is not run
again, so that an interrupted run continues; `--again` repeats it. FILE is a TOML table with the arguments of benchmarks that
need data or a peer, such as `extraction = ["--data", "articles"]`; without them they end with code 2 or 3 and are skipped.
Exit code 1: a benchmark failed. Everything else runs all the same.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve()
SKIPPED = (2, 3)
"""Exit codes of scripts that lack an argument, data or a program."""


def main(arguments: Sequence[str] | None = None, folder: Path = HERE.parent) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="benchmarks; default: all")
    parser.add_argument("--arguments", type=Path, help="TOML file: arguments of benchmarks by name")
    parser.add_argument("--out", type=Path, default=Path("build/figures"), help="folder for logs")
    parser.add_argument("--again", action="store_true", help="also run what has finished")
    parser.add_argument("--list", action="store_true", help="print the names and whether they have finished")
    options = parser.parse_args(arguments)
    known = sorted(script.stem for script in folder.glob("*.py") if script.stem != HERE.stem)
    extra = {} if options.arguments is None else tomllib.loads(options.arguments.read_text(encoding="utf-8"))
    for name in (*options.names, *extra):
        if name not in known:
            parser.error(f"no benchmark '{name}' in {folder}")
    names = options.names or known
    options.out.mkdir(parents=True, exist_ok=True)
    if options.list:
        print(
            *(f"{name:28} {'finished' if (options.out / f'{name}.done').exists() else ''}".rstrip() for name in names),
            sep="\n",
        )
        return 0
    failed = [name for name in names if not run_one(folder / f"{name}.py", extra, options.out, again=options.again)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run_one(script: Path, extra: Mapping[str, Sequence[str]], out: Path, *, again: bool) -> bool:
    """Run a benchmark unless it has finished. Return False if it failed."""
    name, done = script.stem, out / f"{script.stem}.done"
    if done.exists() and not again:
        print(f"{name}: finished before", flush=True)
        return True
    done.unlink(missing_ok=True)
    start = time.monotonic()
    with (out / f"{name}.log").open("w", encoding="utf-8") as log:
        code = subprocess.run([sys.executable, script, "--json", *extra.get(name, ())], stdout=log, stderr=log).returncode
    minutes = (time.monotonic() - start) / 60
    if code == 0:
        done.touch()
    outcome = "finished" if code == 0 else "skipped" if code in SKIPPED else f"failed with code {code}"
    print(f"{name}: {outcome} after {minutes:.1f} minutes, {log.name}", flush=True)
    return code == 0 or code in SKIPPED


if __name__ == "__main__":
    sys.exit(main())
