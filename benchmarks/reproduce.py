"""The report from data to evaluation in one command: stages, claims that were measured, claims that hold, minutes.

    python benchmarks/reproduce.py [--quick] [--json] [--size micro] [--out FOLDER]

- `stages`: stages that were done; `claims_measured`, `claims_holding`: of the claims of `openafm reproduce`.
- `minutes`: the wall time of all stages, also of earlier calls in FOLDER.

Required for micro: at least 16 claims measured, at most 75 minutes on two cores.
`--quick` runs the stages that need no fine-tuned model at size tiny, which trains for two steps and claims no effect.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

QUICK = "models,web,pairs,images,tokenizer,pretraining,server,taxonomy"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--size", default="micro")
    parser.add_argument("--out", type=Path, help="folder of the run; default: a temporary one")
    options = parser.parse_args()
    size = "tiny" if options.quick else options.size
    with tempfile.TemporaryDirectory() as temporary:
        out = options.out or Path(temporary) / "reproduction"
        command = [sys.executable, "-m", "openafm", "reproduce", "--size", size, "--out", str(out), "--json"]
        command += ["--only", QUICK] if options.quick else []
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if not done.stdout:
            return done.returncode
        found = json.loads(done.stdout)
    states = [stage["state"] for stage in found["stages"].values()]
    figures = {
        "size": size,
        "stages": sum(state in ("done", "kept") for state in states),
        "stages_planned": len(states),
        "claims_measured": found["claims_measured"],
        "claims_holding": found["claims_holding"],
        "minutes": found["minutes"],
    }
    if options.json:
        print(json.dumps({"figures": figures, **figures, "claims": found["claims"]}))
    else:
        for name, value in figures.items():
            print(f"{name:16s} {value}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
