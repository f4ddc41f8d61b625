"""The `openafm` command. Exit codes: 0 success, 1 failure, 2 usage error, 130 interrupted (Ctrl-C)."""

from __future__ import annotations

import copy
import errno
import functools
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_command_name
from typer.models import CommandInfo

from openafm.cli import apple_sdk, chat, classify, complete, doctor, quickstart, read, respond
from openafm.cli.data import commands as data
from openafm.cli.evaluation import annotate, evaluate, grade, safety
from openafm.cli.models import adapter, average, bundles, compress, export, import_, library, resign
from openafm.cli.options import Invocation
from openafm.cli.output import styled
from openafm.cli.serving import bench, keys, play, private, profile, serve
from openafm.cli.spellings import accept_spellings
from openafm.cli.training import ablate, checkpoint, plan, reproduce, rl, tokenizer, train
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import data_home
from openafm.core.processes import rank
from openafm.core.terminal import escaped

app = typer.Typer(
    name="openafm",
    help="An open implementation of Apple's 2025 foundation models: train, compress and run them.\n\n"
    "Bundles, adapters and runs are stored in $OPENAFM_HOME, by default ~/.local/share/openafm.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from openafm import __version__

        print(f"openafm {__version__}")
        raise typer.Exit


@app.callback()
def _openafm(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run the callbacks of the global options."""


app.command()(quickstart.quickstart)
app.command()(train.train)
app.command()(plan.plan)
app.add_typer(reproduce.app, name="reproduce")
train.recipes_app.command("ablate")(ablate.ablate)
app.add_typer(train.recipes_app, name="recipes")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(compress.app, name="compress")
app.command()(average.average)
app.add_typer(adapter.app, name="adapter")
app.add_typer(data.app, name="data")
app.add_typer(tokenizer.app, name="tokenizer")
app.add_typer(apple_sdk.app, name="apple-sdk")
app.add_typer(import_.app, name="import")
app.command()(export.export)
app.add_typer(rl.app, name="rl")
app.add_typer(annotate.app, name="annotate")
app.add_typer(safety.app, name="safety")
app.add_typer(grade.app, name="grade")
app.command("list")(library.list_)
app.command("show")(bundles.inspect)
app.command("inspect", hidden=True)(bundles.inspect)  # the former name of `show`
app.command()(bundles.use)
app.command()(library.alias)
app.command("rm")(bundles.remove)
app.command("remove", hidden=True)(bundles.remove)  # the former name of `rm`
app.command()(library.pull)
app.command()(library.share)
app.command()(resign.resign)
app.command()(doctor.doctor)
app.command()(respond.respond)
app.command()(chat.chat)
app.command()(complete.complete)
app.command()(classify.classify)
app.command()(read.read)
app.command()(serve.serve)
app.command()(play.play)
app.command(context_settings={"allow_interspersed_args": False})(profile.profile)
app.add_typer(keys.app, name="keys")
app.add_typer(private.app, name="private")
app.command()(bench.bench)
app.add_typer(evaluate.app, name="evaluate")

REPORT_SECONDS = 5.0
"""How long other ranks wait, so that rank 0 prints a shared error before the launcher ends it."""

ONE_TEXT = ("openafm respond", "openafm complete", "openafm classify")
"""Commands whose only argument is a text, which a shell splits without quotes."""

# The common base of typer's exceptions for unknown options and missing arguments.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[1]

_ERRNO = re.compile(r"\[Errno -?\d+\] ")
_WRITABLE = "; choose a place that you can write, or change its permissions"
_ADVICE = {
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.EROFS: _WRITABLE,
    errno.ENOSPC: "; free some space, or choose another disk",
    errno.EISDIR: "; name a file",
    errno.ENOTDIR: "; a part of the path is a file",
    errno.ENOENT: "; check the path",
    errno.EADDRINUSE: "; choose another --port, or 0 for a free one",
}


def main() -> None:
    """Entry point of the installed command."""
    # OpenMP threads that spin while they wait slow each other down on a busy machine: training was measured ten times slower
    # with two busy cores. OpenMP reads the variable when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # oneDNN caches a kernel for each number of rows, which changes with every step of an expert. The default limit of 1,024
    # kernels takes as much memory as a small model and saves no measurable time.
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, "64")
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line. Every expected failure becomes one line on standard error and an exit code."""
    try:
        return _run(arguments)
    except BrokenPipeError:
        # The reader closed the pipe, as in `openafm recipes list | head`. Not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: Sequence[str]) -> int:
    try:
        result = _parser(arguments[0] if arguments else "").main(
            args=list(arguments),
            prog_name="openafm",
            standalone_mode=False,
            obj=Invocation(arguments=tuple(arguments), run=run),
        )
        return result if isinstance(result, int) else 0
    except OpenAFMError as error:
        if error.shared and rank():  # rank 0 prints it
            time.sleep(REPORT_SECONDS if error.exit_code else 0)
            return error.exit_code
        return _fail(_ERRNO.sub("", " ".join(str(error).split())), _exit_code(error.exit_code, error.__cause__, arguments))
    except _CommandLineError as error:
        wrong = cast(typer.BadParameter, error)
        message = wrong.format_message().replace(": Value error, ", ": ")  # a class of the library, not part of the reason
        if type(error).__name__ == "NoArgsIsHelpError":  # `openafm` or `openafm data` without arguments
            print(message.strip())
            return 0
        message = " ".join(message.split())
        command = wrong.ctx.command_path if wrong.ctx else "openafm"
        if "unexpected extra argument" in message and command in ONE_TEXT:
            message = f'{message.rstrip(".")}: put the whole text in quotes, as in {command} "Dinner at 7"'
        return _fail(f"{message} (see `{command} --help`)", 2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:
        raise
    except OSError as error:
        return _fail(_system_message(error) + _home_hint(error), _exit_code(OpenAFMError.exit_code, error, arguments))


def _system_message(error: OSError) -> str:
    """Return an error of the system as a sentence: the file or folder, the reason, and what to do."""
    text = f"{error.strerror or _ERRNO.sub('', str(error))}{_ADVICE.get(error.errno or 0, '')}"
    return text if error.filename is None else f"{os.fsdecode(error.filename)}: {text}"


def _exit_code(code: int, cause: BaseException | None, arguments: Sequence[str]) -> int:
    """Return 2 if a file or folder that the command line names does not exist, else `code`."""
    if isinstance(cause, FileNotFoundError) and isinstance(cause.filename, str | os.PathLike):
        missing = Path(cause.filename)
        named = (Path(argument.partition("=")[2] or argument) for argument in arguments if argument)
        if any(path in (missing, *missing.parents) and not path.exists() for path in named):
            return UsageError.exit_code
    return code


@functools.cache
def _parser(verb: str) -> TyperGroup:
    """Return the parser of one verb or, if there is none of this name, of all. That of all takes 0.2 s to build."""
    part = copy.copy(app)
    part.registered_commands = [command for command in app.registered_commands if _name(command) == verb]
    part.registered_groups = [group for group in app.registered_groups if group.name == verb]
    is_found = part.registered_commands or part.registered_groups
    command = cast(TyperGroup, get_command(part if is_found else app))
    accept_spellings(command)
    return command


def _name(command: CommandInfo) -> str:
    return command.name or get_command_name(cast(Any, command.callback).__name__)


def _home_hint(error: OSError) -> str:
    """Return how to move the data folder, if the error concerns a file in it."""
    inside = error.filename is not None and Path(str(error.filename)).is_relative_to(data_home())
    return f" (OPENAFM_HOME={data_home()} holds bundles and runs; set it to a folder that you can write)" if inside else ""


def _fail(message: str, exit_code: int) -> int:
    print(f"{styled('openafm:', 'red', stream=sys.stderr)} {escaped(message)}", file=sys.stderr)
    return exit_code
