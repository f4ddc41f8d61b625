"""`openafm rl select-prompts` and `openafm rl serve-rewards`: what reward models do beside training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_text
from openafm.core.errors import UsageError
from openafm.core.termination import ends_on_sigterm

if TYPE_CHECKING:
    from openafm.rl.prompts import RLPrompt
    from openafm.rl.selection import PromptFeatures


def select_prompts(
    prompts: Annotated[Path, typer.Argument(exists=True, help="Prompts: a JSONL file, or a folder with such files.")],
    model: Annotated[str, typer.Option(help="Bundle of on_device.selection_model that predicts the cohesion.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="JSONL file with the chosen prompts.")] = Path("selected.jsonl"),
    share: Annotated[float, typer.Option(help="Share of each language's prompts to keep.")] = 0.5,
    neighbors: Annotated[int, typer.Option(help="Prompts of a neighborhood.")] = 32,
    embeddings: Annotated[
        Path | None, typer.Option(exists=True, help="Embeddings of another encoder, .npy [prompts, dim], in order.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Select the prompts with the highest predicted cohesion of labels in their semantic neighborhood."""
    import json as json_library

    from openafm.core.files import atomic_file
    from openafm.rl.rewards.reward_model import LocalRewardModel
    from openafm.rl.selection import SelectionConfig, select_prompts

    config = SelectionConfig(share=share, num_neighbors=neighbors)
    found = _read(prompts)
    features = LocalRewardModel.open(model).prompt_features([prompt.conversation for prompt in found])
    if embeddings is not None:
        features = _with_embeddings(features, embeddings)
    selection = select_prompts(features, config)
    with atomic_file(out, "w") as file:
        for index in selection.chosen:
            line = found[index].to_dict() | {"cohesion": round(float(selection.scores_P[index]), 4)}
            file.write(json_library.dumps(line, ensure_ascii=False) + "\n")
    chosen = selection.scores_P[list(selection.chosen)]
    result = {
        "out": str(out),
        "prompts": len(found),
        "chosen": len(selection.chosen),
        "mean_cohesion": round(float(selection.scores_P.mean()), 4),
        "mean_cohesion_chosen": round(float(chosen.mean()), 4),
    }
    if json:
        print_json(result)
    else:
        print_text(
            f"{result['chosen']:,} of {result['prompts']:,} prompts in {out}; mean cohesion {result['mean_cohesion']}, of "
            f"the chosen {result['mean_cohesion_chosen']}"
        )


def serve_rewards(
    model: Annotated[str, typer.Argument(help="Bundle of on_device.reward_model.")],
    host: Annotated[str, typer.Option(help="Address to listen on. The server has no authentication.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 8100,
) -> None:
    """Serve the rewards of a bundle over HTTP, for trajectory generators on other machines."""
    from openafm.rl.rewards.reward_model import LocalRewardModel
    from openafm.rl.rewards.reward_server import RewardServer

    loaded = LocalRewardModel.open(model)
    try:
        server = RewardServer(loaded, host, port)
    except OSError as error:
        raise UsageError(
            f"cannot listen at {host}:{port} ({error.strerror or error}); choose another --host or --port"
        ) from error
    with ends_on_sigterm(), server:
        print(f"serving {model} at {server.url}", file=sys.stderr, flush=True)
        server.serve_forever()


def _read(path: Path) -> list[RLPrompt]:
    from openafm.rl.prompt_sources import read_prompts

    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path} has no .jsonl file with prompts")
    return [prompt for file in files for prompt in read_prompts(file)]


def _with_embeddings(features: PromptFeatures, path: Path) -> PromptFeatures:
    from dataclasses import replace

    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not an array of NumPy: {error}") from error
    return replace(features, embeddings_PE=np.asarray(array, np.float32))
