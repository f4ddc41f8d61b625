"""A long run over the processes of the environment, which prints the step at which it stopped.

python stopped_run.py CORPUS OUTPUT
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from parallel_runs import Combination

from openafm.training.budgets import StepBudget
from openafm.training.run import train


def main() -> None:
    torch.set_num_threads(1)
    config = Combination(model="tracks", axes={"track": 2}).config(Path(sys.argv[1]))
    result = train(replace(config, budget=StepBudget(num_steps=100_000)), Path(sys.argv[2]))
    assert not result.finished
    print(json.dumps({"step": result.step, "num_steps": result.num_steps}))


if __name__ == "__main__":
    main()
