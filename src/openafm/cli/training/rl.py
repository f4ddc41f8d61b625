"""`openafm rl`: reinforcement learning of a policy, and the report of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from openafm.cli.options import Invocation, PluginsOption, SetOption, parse_changes
from openafm.cli.output import JsonOption, print_json, print_table, print_text
from openafm.cli.training import rl_rewards
from openafm.core.processes import rank

TRAIN = "train"


class _RecipeGroup(TyperGroup):
    """A group in which a word that is not a subcommand is a recipe: `rl NAME` is `rl train NAME`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = [TRAIN, *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_RecipeGroup,
    help="Train a policy with reinforcement learning: openafm rl RECIPE, as in openafm rl on_device.rlhf --size micro.",
    no_args_is_help=True,
)

app.command("select-prompts")(rl_rewards.select_prompts)
app.command("serve-rewards")(rl_rewards.serve_rewards)

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of `openafm rl`.")]


@app.command(TRAIN)
def train(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A recipe: on_device.rlhf.")],
    size: Annotated[str | None, typer.Option(help="The model size; default: the recipe's largest.")] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", help="Fine-tuned bundle to start from; default: the bundle of the recipe before it."),
    ] = None,
    generators: Annotated[
        int, typer.Option(min=0, help="Worker processes that generate beside the updates; 0: none, one after the other.")
    ] = 2,
    executor: Annotated[Literal["local", "ray"], typer.Option(help="Where generators run.")] = "local",
    ray_address: Annotated[str, typer.Option(help="Address of a Ray cluster; default: one on this machine.")] = "",
    lag: Annotated[
        int | None,
        typer.Option(help="Optimizer updates by which samples may be older than the weights; 0 is synchronous training."),
    ] = None,
    generator_weights: Annotated[
        Literal["full", "int8", "int4"] | None,
        typer.Option(help="Weights that generators sample with: those of the policy, or rounded on the native engine."),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, envvar="PET_NPROC_PER_NODE", help="Processes that update the policy together.")
    ] = 1,
    changes: SetOption = None,
    plugins: PluginsOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Run folder, default: runs/NAME; a run in it is resumed.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the bundle; default: RECIPE-SIZE.")] = None,
    json: JsonOption = False,
) -> int:
    """Run a recipe from a fine-tuned bundle to a trained one. Repeat the command to resume after an interruption."""
    from openafm.bundle import bundle_place
    from openafm.core.executors import LocalConfig, RayConfig
    from openafm.recipes.reinforcement import find_rl_recipe, prepare_rl_run, run_rl_recipe
    from openafm.training.distributed.launch import is_launched, launch

    if processes > 1 and not is_launched():
        invocation: Invocation = context.obj
        modules = ("openafm.recipes.reinforcement", "openafm.rl.run")
        return launch(invocation.run, invocation.arguments, processes=processes, restarts=0, modules=modules)
    name = name or f"{recipe}-{size or find_rl_recipe(recipe).sizes[-1]}"
    bundle_place(name)  # raises for an invalid name before the training
    options = {} if generator_weights is None else {"generator_weights": generator_weights}
    config = prepare_rl_run(
        recipe, size, start=start, lag=lag, changes=options | parse_changes(changes), plugins=plugins or ()
    )
    chosen = (
        RayConfig(address=ray_address, num_workers=generators) if executor == "ray" else LocalConfig(num_workers=generators)
    )
    folder = output or Path("runs") / name
    result = run_rl_recipe(config, folder, name, num_generators=generators, executor=chosen)
    if rank():
        return 0
    print(f"figures of the run: openafm rl report {folder}", file=sys.stderr)
    if json:
        print_json(result.to_dict())
    else:
        print_table(("", ""), list(result.to_dict().items()))
    return 0


@app.command()
def report(
    run: RunArgument,
    html: Annotated[bool, typer.Option(help="Write report.html with curves and samples.")] = True,
    trace: Annotated[
        Path | None, typer.Option(help="Write the events for chrome://tracing and ui.perfetto.dev to this file.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the curves of a run, its counters, the idle time of each part and its samples."""
    from openafm.core.chrome_trace import write_chrome_trace
    from openafm.rl.events import read_events, slices
    from openafm.rl.report import read_report, terminal_report, write_html, write_picture

    found = read_report(run)
    if json:
        print_json(found.to_dict())
    else:
        print_text(terminal_report(found))
    if trace is not None:
        write_chrome_trace(slices(read_events(run)), trace)
    picture = write_picture(found, run)
    paths = [path for path in (picture, write_html(found, run) if html else None, trace) if path is not None]
    for path in paths:
        print(f"wrote {path}", file=sys.stderr)
