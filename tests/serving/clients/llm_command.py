"""The `llm` command's library with a model of an OpenAI-compatible endpoint."""

import sys

import llm
from llm.default_plugins.openai_models import Chat

model = Chat("local", model_name="nano", api_base=f"{sys.argv[1]}/v1")
model.key = "unused"
assert isinstance(model, llm.KeyModel)
response = model.prompt("Hello", max_tokens=8, stream=False)
assert response.text()
assert "".join(model.prompt("Hello", max_tokens=8, stream=True)) == response.text()
