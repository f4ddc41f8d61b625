"""`openafm complete`: the raw continuation of a text, without a chat template."""

from __future__ import annotations

from typing import Annotated

import typer

from openafm.cli.options import PluginsOption
from openafm.cli.output import print_json
from openafm.cli.respond import AdapterOption, ModelOption, SeedOption, TemperatureOption, read_prompt
from openafm.core.errors import UsageError
from openafm.core.terminal import escaped


def complete(
    text: Annotated[str | None, typer.Argument(help="The text to continue; default or -: standard input.")] = None,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from this many of the likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1, help="Draw from the likeliest tokens of this share.")] = None,
    min_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="Draw from tokens with this share of the largest probability.")
    ] = None,
    typical_p: Annotated[
        float | None, typer.Option(min=0.001, max=1, help="Draw from the most typical tokens of this share.")
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(min=0.1, max=10, help="Above 1: tokens of the text so far are less likely.")
    ] = 1.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Token limit of the continuation.")] = 128,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text. May be repeated.")] = None,
    plugins: PluginsOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print the continuation as JSON.")] = False,
) -> None:
    """Continue a text with a base model: no chat template, no instructions."""
    from openafm.framework.backends.system_model import SystemLanguageModel
    from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig

    prompt = read_prompt(text, example='openafm complete "Once upon a time"')
    if temperature is not None and temperature < 0:
        raise UsageError(f"--temperature must not be negative, got {temperature}")
    if "" in (stop or ()):
        raise UsageError("--stop must not be empty; pass the text to stop before, as in --stop END")
    is_default = {temperature, top_k, top_p, min_p, typical_p, seed} == {None}
    sampling = (
        GreedyConfig()
        if temperature == 0 or is_default
        else RandomConfig(
            temperature=temperature or 1.0, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p, seed=seed
        )
    )
    scorer = SystemLanguageModel(bundle=model, adapter=adapter).load().scorer
    shown = ""
    for so_far in scorer.continuations(
        prompt, max_tokens=max_tokens, sampling=sampling, repetition_penalty=repetition_penalty
    ):
        ends = [so_far.index(end) for end in stop or () if end in so_far]
        part = so_far[: min(ends)] if ends else so_far
        if not json:
            print(escaped(part[len(shown) :]), end="", flush=True)
        shown = part
        if ends:
            break
    print_json({"text": shown}) if json else print()
