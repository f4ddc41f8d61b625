"""`openafm rl`: reinforcement learning."""

from __future__ import annotations

import typer

from openafm.cli import rl_rewards

app = typer.Typer(help="Train a policy with reinforcement learning.", no_args_is_help=True)
app.command("select-prompts")(rl_rewards.select_prompts)
app.command("serve-rewards")(rl_rewards.serve_rewards)
