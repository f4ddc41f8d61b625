"""The `openafm` command. Exit codes: 0 done, 1 the work failed, 2 the call was wrong, 130 interrupted (Ctrl-C)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import cast

import typer

from openafm.cli import (
    adapter,
    apple_sdk,
    bundles,
    checkpoint,
    compress,
    data,
    doctor,
    import_,
    plan,
    quickstart,
    respond,
    tokenizer,
    train,
)
from openafm.core.errors import OpenAFMError
from openafm.core.processes import rank

app = typer.Typer(
    name="openafm",
    help="An open implementation of Apple's 2025 foundation models: train, bundle and use them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(quickstart.quickstart)
app.command()(train.train)
app.command()(plan.plan)
app.add_typer(train.recipes_app, name="recipes")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(compress.app, name="compress")
app.add_typer(adapter.app, name="adapter")
app.add_typer(data.app, name="data")
app.add_typer(tokenizer.app, name="tokenizer")
app.add_typer(apple_sdk.app, name="apple-sdk")
app.add_typer(import_.app, name="import")
app.command()(bundles.inspect)
app.command()(bundles.use)
app.command()(doctor.doctor)
app.command()(respond.respond)
app.command()(respond.chat)

TOLD_SECONDS = 5.0

# What typer raises for a wrong call (an unknown option, a missing argument) has this common base.
_WrongCall: type[Exception] = typer.BadParameter.__mro__[1]


def main() -> None:
    """Entry point of the installed command."""
    # Threads that spin while they wait stand in each other's way as soon as the machine has anything else to do: with two
    # busy cores training was measured ten times slower. Read by OpenMP when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Kernels that are compiled for one number of rows: experts get another one at every step, and a thousand of them, which
    # is the libraries' own limit, take as much memory as a small model, for no time that could be measured.
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, "64")
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; every expected failure becomes one line on standard error and an exit code."""
    try:
        result = app(args=list(arguments), standalone_mode=False, obj=list(arguments))
        return result if isinstance(result, int) else 0
    except OpenAFMError as error:
        if error.shared and rank():  # the first process tells what all have met, before it is ended because of us
            time.sleep(TOLD_SECONDS if error.exit_code else 0)
            return error.exit_code
        return _fail(" ".join(str(error).split()), error.exit_code)
    except _WrongCall as error:
        message = cast(typer.BadParameter, error).format_message()
        if "\n" in message:  # a bare `openafm` or `openafm data`: its help
            print(message.strip())
            return 0
        return _fail(f"{message} (see `openafm --help`)", 2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output went away (`openafm recipes | head`): nothing is wrong, but nothing can be said either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a folder that cannot be written, a file that went away: the system's message names it
        return _fail(str(error), 1)


def _fail(message: str, exit_code: int) -> int:
    print(f"openafm: {message}", file=sys.stderr)
    return exit_code
