"""Train on a machine that is lent for some minutes, and join what came back.

python -m openafm.recipes.borrowed train --minutes 8 --out OUT    # on the borrowed machine; repeat it to continue
python -m openafm.recipes.borrowed join OUT/pieces --out bundles  # at home: bundles/on_device.sft is a bundle
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import data_home
from openafm.core.pieces import join_pieces
from openafm.recipes.borrowed.config import BorrowedConfig

DEFAULT = BorrowedConfig()


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return an exit code, as `openafm` does."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see cli/main.py
    options = _parser().parse_args(arguments)
    try:
        if options.verb == "join":
            if not options.pieces.is_dir():
                raise UsageError(f"no folder {options.pieces}; name the one with all files that came back")
            for path in join_pieces(options.pieces, options.out):
                print(f"{path}: openafm respond -m {path} ...")
        else:
            _train(options)
    except OpenAFMError as error:
        print(f"openafm: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openafm.recipes.borrowed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    train = verbs.add_parser("train", help="Train within some minutes, and write the bundles in pieces.")
    train.add_argument("--out", type=Path, required=True, help="Folder of what comes back: pieces/ and figures.json.")
    train.add_argument("--work", type=Path, help="Folder of the runs; default: runs/borrowed in openafm's data folder.")
    train.add_argument("--minutes", type=float, default=DEFAULT.minutes, help="Wall time of the whole call.")
    train.add_argument("--size", default=DEFAULT.size, help="Size of the recipes.")
    train.add_argument("--model", default="", help="Named size of the decoder, as on_device.small; default: the recipes'.")
    train.add_argument("--tokenizer", default=DEFAULT.tokenizer, help="Bundle whose tokenizer is used.")
    train.add_argument(
        "--stage", action="append", default=[], metavar="RECIPE=SHARE", help="A stage and its share of the time."
    )
    train.add_argument("--natural", default="", help="Folder of requests that people wrote (data/synthetic/natural.py).")
    train.add_argument("--examples", type=int, default=0, help="Examples of the built-in corpus; 0: by the cores.")
    train.add_argument("--drawings", type=int, default=0, help="Training drawings of each kind; default: the recipe's.")
    train.add_argument("--rows", type=int, default=0, help="Rows of a step; default: 64 on a GPU, else the recipe's.")
    train.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="Change a value of the stages that come back."
    )
    train.add_argument("--piece-mb", type=float, default=DEFAULT.piece_mb, help="Largest file that comes back, MiB.")
    train.add_argument("--pieces", type=int, default=DEFAULT.num_pieces, help="Files that come back.")
    join = verbs.add_parser("join", help="Verify pieces and write the bundles that they hold.")
    join.add_argument("pieces", type=Path)
    join.add_argument(
        "--out", type=Path, required=True, help="Folder of the bundles; those of an earlier call are replaced."
    )
    return parser


def _train(options: argparse.Namespace) -> None:
    from openafm.recipes.borrowed.run import train_borrowed
    from openafm.training.checkpoints.record import AnotherRunError

    if options.natural and not Path(options.natural).is_dir():
        raise UsageError(f"no folder {options.natural}; pass --natural the folder of requests that people wrote")
    stages = {name: _share(name, share) for name, share in map(_pair, options.stage)}
    config = BorrowedConfig(
        minutes=options.minutes,
        size=options.size,
        model=options.model,
        tokenizer=options.tokenizer,
        stages=stages or DEFAULT.stages,
        num_examples=options.examples,
        num_drawings=options.drawings,
        natural=options.natural,
        rows=options.rows,
        changes=dict(map(_pair, options.set)),
        piece_mb=options.piece_mb,
        num_pieces=options.pieces,
    )
    work = options.work or data_home() / "runs" / "borrowed"
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        figures = train_borrowed(config, options.out, work, lambda line: print(line, flush=True))
    except AnotherRunError as error:  # names the option of `openafm train`
        raise UsageError(str(error).replace("--output", "--work")) from error
    print(json.dumps(figures))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"expected KEY=VALUE, got {text!r}")
    return key, value


def _share(stage: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"the share of {stage} is a number, got {text!r}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
