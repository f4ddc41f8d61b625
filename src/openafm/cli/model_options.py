"""Options that name a model of an evaluation: a bundle on this machine, or a model at an endpoint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.framework.backends.language_model import LanguageModel

ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Bundle name or path, or the name at --base-url; default: the current model."),
]
BaseUrlOption = Annotated[str | None, typer.Option(help="Address of an OpenAI-compatible endpoint: http://host/v1.")]
KeyVariableOption = Annotated[str | None, typer.Option(help="Environment variable with the endpoint's key.")]


def open_model(
    name: str | None, base_url: str | None, api_key_variable: str | None, adapter: str | None = None
) -> LanguageModel:
    """Return a bundle on this machine, or a model at an endpoint.

    Raises:
        UsageError: the options contradict each other.
    """
    if base_url is None:
        from openafm.framework.backends.system_model import SystemLanguageModel

        return SystemLanguageModel(bundle=name, adapter=adapter)
    from openafm.framework.backends.openai_model import OpenAICompatibleModel

    if name is None or adapter is not None:
        raise UsageError("--base-url needs --model, the model's name at the endpoint, and takes no --adapter")
    key = os.environ.get(api_key_variable) if api_key_variable else None
    if api_key_variable and key is None:
        raise UsageError(f"the environment variable {api_key_variable} is not set; it must hold the endpoint's key")
    try:
        return OpenAICompatibleModel(base_url, name, key)
    except ValueError as error:
        raise UsageError(str(error)) from error
