"""`openafm data synthesize`: fine-tuning data that a model writes and rules, votes, tests or a reward model verify."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.data.caption import DEFAULT_KEY_VARIABLE, EndpointOption, KeyOption, ThreadsOption
from openafm.cli.options import PluginsOption, SetOption, parse_changes
from openafm.cli.output import JsonOption, counted, print_json, print_table, print_text
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.framework.backends.language_model import LanguageModel


def synthesize(
    name: Annotated[str, typer.Argument(help="Stages: math, votes, reasoning, code, general or refusals.")],
    prompts: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Chat JSONL of prompts, with 'truth'.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Chat JSONL of verified conversations.")] = Path(
        "synthetic.jsonl"
    ),
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The model at the endpoint, or a bundle; default: the current.")
    ] = None,
    endpoint: EndpointOption = None,
    key_variable: KeyOption = DEFAULT_KEY_VARIABLE,
    reward_model: Annotated[str | None, typer.Option(help="Bundle that scores responses; for general.")] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature of the model.")] = 0.8,
    threads: ThreadsOption = 4,
    changes: SetOption = None,
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Let a model answer prompts, keep the answers that are verified, and count the others by their reason."""
    from dataclasses import replace

    from openafm.core.config import override
    from openafm.data.synthesis.running import synthesize
    from openafm.data.synthesis.verification import ModelFilterConfig
    from openafm.recipes.pipelines.synthesis import functions_of, synthesis
    from openafm.rl.rewards.reward_model import LocalRewardModel

    config = replace(override(synthesis(name), parse_changes(changes)), num_requests=threads)
    if reward_model is None and any(isinstance(stage, ModelFilterConfig) for stage in config.stages):
        raise UsageError(f"the stages of '{name}' need a reward model; add --reward-model BUNDLE")
    scorer = None if reward_model is None else LocalRewardModel.open(reward_model)
    functions = functions_of(_model(model, endpoint, key_variable), scorer, temperature=temperature)
    report = synthesize(config, prompts, out, functions)
    if json:
        print_json({"out": str(out), **asdict(report)})
        return
    print_text(
        f"{report.num_kept:,} of {counted(report.num_prompts, 'prompt')}, "
        f"{counted(report.num_written, 'conversation')} in {out}"
    )
    if report.dropped:
        print_table(("dropped", "prompts"), sorted(report.dropped.items()))
    for stage, message in report.errors.items():
        print_text(f"first error of {stage}: {message}")


def _model(model: str | None, endpoint: str | None, key_variable: str) -> LanguageModel:
    from openafm.framework.backends.openai_model import OpenAICompatibleModel
    from openafm.framework.backends.system_model import SystemLanguageModel

    if endpoint is None:
        return SystemLanguageModel(bundle=model)
    if model is None:
        raise UsageError(f"the endpoint {endpoint} needs the name of its model; add --model NAME")
    try:
        return OpenAICompatibleModel(endpoint, model, os.environ.get(key_variable))
    except ValueError as error:
        raise UsageError(str(error)) from error
