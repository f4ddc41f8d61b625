"""Train, score and package the model that comes with openafm.

    python -m openafm.recipes.shipping    # hours on two cores; repeat the command to continue after an interruption
    python -m openafm.recipes.shipping --from-bundles SFT QAT RECOVERED --runs PRETRAIN SFT QAT RECOVERY

The second form trains nothing: it takes bundles of `openafm train` and their run folders.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from openafm.bundle.store import SHIPPED_HOME, SHIPPED_NAME
from openafm.core.errors import OpenAFMError, UsageError
from openafm.recipes.shipping.package import MAX_BYTES, NUM_EXAMPLES, file_sizes, ship
from openafm.recipes.shipping.stages import open_trained, train_all


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return an exit code, as `openafm` does."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see cli/main.py
    parser = argparse.ArgumentParser(prog="python -m openafm.recipes.shipping", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="Bundle folder; default: the one in the package of this checkout.")
    parser.add_argument("--results", type=Path, help="JSON of all figures; default: docs/benchmarks/, or OUT.json.")
    parser.add_argument("--from-bundles", nargs="+", metavar="BUNDLE", help="Train nothing: SFT QAT [RECOVERED].")
    parser.add_argument("--natural", type=Path, help="Folder of requests that people wrote (synthetic/tasks/natural.py).")
    parser.add_argument("--runs", nargs="+", type=Path, default=[], help="Run folders of --from-bundles, PRETRAIN first.")
    parser.add_argument("--former", type=Path, help="Results of the shipped model whose decoded weights start the runs.")
    parser.add_argument("--without-adapter", action="store_true", help="Ship the compressed model alone.")
    parser.add_argument("--examples", type=int, default=NUM_EXAMPLES, help="Held-out examples of each task.")
    options = parser.parse_args(arguments)
    try:
        out, results_file = _output_paths(options.out, options.results)
        with_adapter = not options.without_adapter
        if options.from_bundles:
            trained = open_trained(options.from_bundles, options.runs, with_adapter, options.former)
        else:
            trained = train_all(with_adapter, options.natural)
        ship(trained, out, results_file, options.examples, options.natural)
    except OpenAFMError as error:
        print(f"openafm: {error}", file=sys.stderr)
        return error.exit_code
    _print_files(out, results_file)
    return 0


def _output_paths(out: Path | None, results: Path | None) -> tuple[Path, Path]:
    """Return the paths of bundle and results. The package is only written in a source checkout."""
    if out is not None:
        return out, results or out.with_name(f"{out.name}.json")
    checkout = SHIPPED_HOME.parents[2]
    if not (checkout / "pyproject.toml").is_file():
        raise UsageError(f"{SHIPPED_HOME} is not part of a source checkout; name the bundle folder with --out")
    return SHIPPED_HOME / SHIPPED_NAME, results or checkout / "docs" / "benchmarks" / f"shipped_{SHIPPED_NAME}.json"


def _print_files(out: Path, results_file: Path) -> None:
    files = file_sizes(out) | {"card.md": (out / "card.md").stat().st_size}
    for name, size in files.items():
        print(f"{size:>12,}  {name}")
    print(f"{sum(files.values()):>12,}  bytes in total, limit {MAX_BYTES:,}\nwritten: {out}, {results_file}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
