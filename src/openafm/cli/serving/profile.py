"""`openafm profile`: run another verb and show what its sessions spend their time on."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.options import Invocation
from openafm.cli.output import print_json
from openafm.core.errors import UsageError

DEFAULT_PAGE = Path("openafm-profile.html")


def profile(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(help='A command line of openafm, such as: respond "Dinner at 7".')],
    page: Annotated[
        Path | None, typer.Option(help="Write the page to this file; default: openafm-profile.html, none with --json.")
    ] = None,
    chrome: Annotated[
        Path | None, typer.Option(help="Write the spans for chrome://tracing and ui.perfetto.dev to this file.")
    ] = None,
    content: Annotated[bool, typer.Option("--content", help="Record prompts, answers and tool outputs.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the trace as JSON; the command prints on standard error instead.")
    ] = False,
) -> int:
    """Run a verb, then show its requests, inferences and tools as a tree, and write a page with lanes.

    Put -- before the verb. The tree goes to standard error, so the output of the verb stays usable.
    """
    from openafm.framework.profiling.profile import ContentWarning, profile
    from openafm.framework.profiling.tree import print_tree

    if content and "--private" in command:
        raise UsageError("--content would record what a private node must not keep; leave it out")
    if content:
        print("note: --content records prompts, answers and tool outputs; the files will contain them", file=sys.stderr)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContentWarning)
        recorded = profile(content=content)
    invocation = context.find_object(Invocation)
    assert invocation is not None
    output = contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext()
    with recorded, output:
        exit_code = invocation.run(command)
    if exit_code == UsageError.exit_code:  # the command has not run
        return exit_code
    if json:
        print_json(recorded.trace.to_dict())
    else:
        print_tree(recorded.trace, sys.stderr)
    page = page or (None if json else DEFAULT_PAGE)
    for path, save in ((page, recorded.save_page), (chrome, recorded.save_chrome_trace)):
        if path is not None:
            save(path)
            print(f"wrote {path}", file=sys.stderr)
    return exit_code
